package limit

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/sluicelimits/sluice/internal/testkit/soak"
)

// TestMoreAt guarantees, for every algorithm, that more remains at MoreAt than after the decision, and not a
// microsecond before: after charges and denials, after a change of the limit, and while others hold leases. If nothing
// is used, the whole capacity is charged first.
func TestMoreAt(t *testing.T) {
	soak.SkipUnderRace(t)
	r := rand.New(rand.NewPCG(5, 6))
	looked, unused, denied, held := map[Algorithm]int{}, 0, 0, 0
	for range 6000 {
		in := randomTier(r)
		switch r.IntN(8) {
		case 0:
			in = Tier{Algorithm: Quota, Threshold: randomNumber(r, 1000), Calendar: &Calendar{Every: Week,
				Location: time.UTC}}
		case 1, 2, 3, 4:
			if in.Threshold = randomNumber(r, 50); in.Algorithm == TokenBucket {
				in.Burst = randomNumber(r, 50)
			}
		}
		l, err := New(Limit{ID: "l", MaxCost: MaxUnits, Tiers: []Tier{in}})
		if err != nil {
			continue
		}
		tier := &l.Tiers[0]
		var s State
		now := int64(1_772_452_800_000_000) + r.Int64N(1e12)
		length := max(tier.Params(Owner{}).Period, 1)
		for range 12 {
			now += r.Int64N(1 + []int64{2, 1000, length / 8, 2 * length}[r.IntN(4)])
			if r.IntN(6) == 0 {
				in.Threshold = randomNumber(r, min(2*in.Threshold, mostOf(in.Algorithm)))
				if in.Burst > 0 {
					in.Burst = randomNumber(r, min(2*in.Burst, MaxUnits))
				}
				if changed, err := New(Limit{ID: "l", MaxCost: MaxUnits, Tiers: []Tier{in}}); err == nil {
					l, tier = changed, &changed.Tiers[0]
				}
			}
			most := min(tier.capacity, l.costMost)
			cost := 1 + r.Int64N(max(most/(1<<r.IntN(4)), 1))
			if r.IntN(8) == 0 {
				cost = tier.capacity + 1 // never admitted, so that nothing is used
			} else if r.IntN(4) == 0 && tier.Algorithm != LeakyBucket {
				decideOnState(t, tier, &s, now, cost, LeaseRequest{Need: cost, Least: most / 4, Most: most / 4,
					Ample: most / 4,
					Share: ShareOne})
			}
			before := s.Clone()
			d := decideOnce(l, &s, now, cost)
			res := &d.Results[0]
			left, at := res.Remaining(), res.MoreAt()
			from := &s
			if res.Used() == 0 {
				if most < tier.capacity {
					continue
				}
				unused++
				from, left = s.Clone(), 0
				if all := decideOnce(l, from, now, tier.capacity); !all.Allowed {
					t.Fatalf("tier %+v: state %+v has %d units left, but a charge of these is denied", in, s,
						tier.capacity)
				}
			}
			if tier.Algorithm == TokenBucket && res.bucket().leased > 0 {
				held++
			}
			if !d.Allowed {
				denied++
			}
			looked[tier.Algorithm]++
			leftAt := func(at int64) int64 {
				return decideOnce(l, from.Clone(), at,
					tier.capacity+1).Results[0].Remaining()
			}
			if after := leftAt(at); at <= now || after <= left {
				t.Fatalf("tier %+v: a cost of %d at %d, on state %+v, leaves %d units; at MoreAt, %d µs later, %d "+
					"are left, want more", in, cost, now, before, left, at-now, after)
			}
			if early := leftAt(at - 1); early > left {
				t.Fatalf("tier %+v: a cost of %d at %d, on state %+v, leaves %d units; %d µs later %d are left, but "+
					"MoreAt is only a µs after that", in, cost, now, before, left, at-1-now, early)
			}
			if !d.Allowed && !d.Never && at > d.RetryAt {
				t.Fatalf("tier %+v: MoreAt %d is after RetryAt %d, want at most that", in, at, d.RetryAt)
			}
		}
	}
	for _, a := range Algorithms() {
		if looked[a] < 1000 {
			t.Errorf("%s: only %d results were checked, want 1000 or more: the test shows little", a, looked[a])
		}
	}
	if unused < 20 || denied < 1000 || held < 500 {
		t.Errorf("results of unused counters: %d, denials: %d, of buckets with held units: %d; want at least 20, "+
			"1000, 500", unused, denied, held)
	}
}

// decideOnce decides one cost, and charges it if it is admitted.
func decideOnce(l *Limit, s *State, now, cost int64) *Decision {
	d := new(Decision)
	e := d.BeginChecked(&Request{Owner: Owner{Kind: Tenant, Name: "acme"}, Charges: []Charge{{Limit: l, Cost: cost}}},
		now)
	e.Evaluate(0, s, true)
	if e.Settle() {
		e.Charge(0, s)
	}
	return d
}
