package limit_test

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
)

// Guarantees that from FreshAt on a bucket behaves like one that was never used, also to receipts of earlier charges.
// If a store forgot a bucket earlier, it would not know what had been refunded, and a second receipt would give back
// units that the bucket has refilled since.
func TestFreshBucketAfterRefunds(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 5))
	late := 0
	for round := range 3000 {
		l := mustNew(t, limit.Limit{ID: "l", MaxCost: 100, Tiers: []limit.Tier{{Algorithm: limit.TokenBucket,
			Threshold: 1 + rng.Int64N(3), Burst: 20 + rng.Int64N(80), Period: time.Second}}})
		var kept limit.State
		spend := func(s *limit.State, now, cost int64) *limit.Decision {
			states := []limit.State{*s}
			d := decideOn(&limit.Request{Charges: []limit.Charge{{Limit: l, Cost: cost}}}, now, states)
			*s = states[0]
			return d
		}
		now := noon
		var receipts []*limit.Receipt
		for range 2 + rng.IntN(4) {
			if d := spend(&kept, now, 1+rng.Int64N(60)); d.Allowed {
				receipts = append(receipts, d.Receipt())
			}
			if n := len(receipts); n > 1 && rng.IntN(2) == 0 {
				receipts[0].Entries()[0].GiveBack(&kept, limit.MaxUnits, now)
				receipts = receipts[1:]
			}
			now += rng.Int64N(3 * second)
		}
		now = max(now, l.Tiers[0].FreshAt(&kept)-limit.MaxSkew.Microseconds())
		var forgotten limit.State
		for i := 0; i < len(receipts); i++ {
			cost := 1 + rng.Int64N(100)
			if a, b := spend(&kept, now, cost), spend(&forgotten, now, cost); a.Allowed != b.Allowed ||
				a.RetryAt != b.RetryAt {
				t.Fatalf("round %d, a cost of %d: allowed %t, RetryAt %d; by a bucket that was forgotten: %t, %d; "+
					"want the same", round, cost, a.Allowed, a.RetryAt, b.Allowed, b.RetryAt)
			}
			e := &receipts[i].Entries()[0]
			now += rng.Int64N(second)
			a, b := e.GiveBack(&kept, limit.MaxUnits, now), e.GiveBack(&forgotten, limit.MaxUnits, now)
			if a != b {
				t.Fatalf("round %d: a receipt of %d units gives back %d, but %d if the bucket was forgotten; want "+
					"the same", round, e.Units, a, b)
			}
			late++
		}
	}
	if late < 1000 {
		t.Errorf("%d receipts were refunded late: the test shows nothing", late)
	}
}

// decideOn decides on the states, and charges them.
func decideOn(req *limit.Request, now int64, states []limit.State) *limit.Decision {
	d := new(limit.Decision)
	e := d.BeginChecked(req, now)
	for i := range states {
		e.Evaluate(i, &states[i], true)
	}
	e.Settle()
	for i := range states {
		if d.Charges(i) {
			e.Charge(i, &states[i])
		}
	}
	return d
}

// Guarantees that all times of a bucket are repaired if a clock far ahead has written them, also the time of the last
// refund: otherwise the counter could not be forgotten until that time. Times of a clock that is at most 4 s ahead
// stay.
func TestRepairedBucket(t *testing.T) {
	l := mustNew(t, limit.Limit{ID: "l", MaxCost: 10, Tiers: []limit.Tier{{Algorithm: limit.TokenBucket,
		Threshold: 1, Burst: 10, Period: time.Second}}})
	look := func(st limit.TokenBucketState) limit.TokenBucketState {
		states := []limit.State{st.State()}
		// a denial only repairs the state
		decideOn(&limit.Request{Charges: []limit.Charge{{Limit: l, Cost: 10}}}, noon, states)
		return states[0].TokenBucket()
	}
	const second, hour = int64(1_000_000), int64(3_600_000_000)
	ahead := limit.TokenBucketState{Rate: 1, AsOf: noon + hour, Missing: 10_000_000, Refunds: limit.Refunds{Total: 1,
		Last: noon + hour}}
	if got := look(ahead); got.AsOf != noon || got.Refunds.Last != noon {
		t.Errorf("written by a clock an hour ahead: AsOf is noon%+d µs, the last refund noon%+d µs; want noon for "+
			"both", got.AsOf-noon, got.Refunds.Last-noon)
	}
	sound := limit.TokenBucketState{Rate: 1, AsOf: noon, Missing: 10_000_000,
		Leased: limit.Leased{Units: 5, Until: noon + 6*second}}
	if got := look(sound); got != sound {
		t.Errorf("a slot of 2 s, written by a clock 4 s ahead, is changed to %+v, want no change", got)
	}
}

// Guarantees that every store can read the total of refunds, however often the rate changes.
func TestTotalOfRefundsIsBounded(t *testing.T) {
	rates := [2]*limit.Limit{}
	for i := range rates {
		rates[i] = mustNew(t, limit.Limit{ID: "l", MaxCost: 10, Tiers: []limit.Tier{{Algorithm: limit.TokenBucket,
			Threshold: int64(1 + i), Burst: 10_000, Period: time.Second}}})
	}
	states := []limit.State{limit.TokenBucketState{Rate: 1, AsOf: noon, Missing: 1_000_000_000,
		Refunds: limit.Refunds{Total: 7, Last: noon}}.State()}
	for i := range 3000 {
		decideOn(&limit.Request{Charges: []limit.Charge{{Limit: rates[(i+1)%2], Cost: 1}}}, noon+int64(i), states)
		if total := states[0].TokenBucket().Refunds.Total; total < 7 || total >= 1<<60 {
			t.Fatalf("after %d changes of the rate the total is %d, want 7 to 2^60", i+1, total)
		}
	}
}
