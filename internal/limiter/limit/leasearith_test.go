package limit

import (
	"math"
	"math/big"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/sluicelimits/sluice/internal/testkit/soak"
)

// TestLeasesAtTheBounds guarantees that a store that counts in double-precision numbers can keep every state. It asks
// for leases of the largest limits that New accepts, with the largest numbers that Check accepts. For a bucket it also
// computes the level with big numbers.
func TestLeasesAtTheBounds(t *testing.T) {
	soak.SkipUnderRace(t)
	r := rand.New(rand.NewPCG(7, 7))
	leased, ramped := map[Algorithm]int64{}, 0
	for range 20_000 {
		in := randomTier(r)
		if r.IntN(3) == 0 {
			in.Algorithm, in.Buckets, in.Burst = TokenBucket, 0, randomNumber(r, MaxUnits)
		}
		l, err := New(Limit{ID: "l", MaxCost: MaxUnits, Tiers: []Tier{in}})
		if err != nil {
			continue
		}
		tier := &l.Tiers[0]
		var s State
		now := int64(1_772_452_800_000_000)
		for range 12 {
			p := tier.Params(Owner{})
			slot := p.SlotLength
			if slot == 0 {
				slot = p.Period
			}
			now += r.Int64N(1 + []int64{2, 1000, slot, 2 * p.Period}[r.IntN(4)])
			if r.IntN(6) == 0 {
				in.Threshold, in.Burst = randomNumber(r, mostOf(in.Algorithm)), min(in.Burst, 1)*randomNumber(r,
					MaxUnits)
				if changed, err := New(Limit{ID: "l", MaxCost: MaxUnits, Tiers: []Tier{in}}); err == nil {
					l, tier = changed, &changed.Tiers[0]
				}
			}
			cost := 1 + r.Int64N(min(tier.capacity, l.costMost))
			a := LeaseRequest{Need: r.Int64N(cost + 1)}
			if tier.Algorithm != LeakyBucket {
				a.Least, a.Most, a.Ample, a.Share = r.Int64N(MaxUnits+1), MaxUnits, MaxUnits, ShareOne
				a.Ramp = tier.Algorithm == TokenBucket || tier.Algorithm == SlidingWindow
			}
			switch r.IntN(4) {
			case 0:
				a.Correction, a.CorrectionAt = MaxUnits, now-r.Int64N(p.Period+1)
			case 1:
				until := s.TokenBucket().Leased.Until
				if tier.Algorithm != TokenBucket {
					until = 0
				}
				if a.Correction, a.CorrectionAt = -MaxUnits, until; tier.Algorithm == LeakyBucket {
					a.Correction = -1 - r.Int64N(2*tier.Threshold)%MaxUnits
				}
			}
			before := *s.Clone()
			d := decideOnState(t, tier, &s, now, cost, a)
			g := d.Lease(0)
			leased[tier.Algorithm] += g.Units
			if tier.Algorithm == TokenBucket && d.Allowed && a.Correction == 0 {
				if want := levelAfter(tier, &before, now,
					a.Need+g.Units); before.TokenBucket().Rate == tier.Threshold &&
					want.Cmp(levelOf(tier, &s)) != 0 {
					t.Fatalf("tier %+v, state %+v: a lease of %d units (need %d) at %d leaves a level of %d, want %s",
						in, before, g.Units, a.Need, now, levelOf(tier, &s), want)
				}
				if g.Upfront < g.Units {
					ramped++
				}
			}
			for _, v := range []int64{s.a, s.b, s.c, d.Results[0].seen.amount, d.Results[0].seen.c, tier.FreshAt(&s)} {
				// FreshAt returns math.MinInt64 for a state that was never used
				if v != math.MinInt64 && (v < -2*maxExact || v > 2*maxExact) {
					t.Fatalf("tier %+v: the number %d is beyond 2^53 in the state %+v, after the lease request %+v "+
						"at %d, from the state %+v", in, v, s, a, now, before)
				}
			}
			held := s.TokenBucket().Leased
			if tier.Algorithm == TokenBucket && (held.Units < 0 || held.Units > 2*MaxUnits ||
				held.Until > now+maxSlot || g.Units > tier.capacity) {
				t.Fatalf("tier %+v, state %+v at %d: a lease of %d units is held for too long, or is larger than "+
					"the capacity", in, held, now, g.Units)
			}
			if !slices.IsSortedFunc(s.entries(), func(x, y Entry) int { return int(min(max(x.At-y.At, -1), 1)) }) {
				t.Fatalf("tier %+v: entries are not in ascending order of time: %+v", in, s.entries())
			}
		}
	}
	for a := FixedWindow; a <= TokenBucket; a++ {
		if leased[a] < 10_000 {
			t.Errorf("%s leased only %d units: the test shows little", a, leased[a])
		}
	}
	if ramped < 300 {
		t.Errorf("only %d ramps were leased, want 300 or more: the test shows little", ramped)
	}
}

// mostOf returns the largest threshold of an algorithm.
func mostOf(a Algorithm) int64 { return kinds[a].largest }

// levelAfter returns the level of a bucket after units were taken, in 1/den units. It refills up to the burst less the
// held units while units are held, and up to the burst after that.
func levelAfter(t *Tier, s *State, now, units int64) *big.Int {
	b, st := t.Params(Owner{}), s.TokenBucket()
	level := levelOf(t, s)
	refill := func(from, to, full int64) {
		if to > from {
			level.Add(level, new(big.Int).Mul(big.NewInt(to-from), big.NewInt(b.Num)))
		}
		if most := big.NewInt(full); level.Cmp(most) > 0 {
			level = most
		}
	}
	held, until, at := st.Leased.Units, st.Leased.Until, st.AsOf
	if held > 0 && at < until {
		refill(at, min(until, now), b.Full-held*b.Den)
		at = min(until, now)
	}
	if held == 0 || now >= until {
		refill(at, now, b.Full)
	}
	return level.Sub(level, new(big.Int).Mul(big.NewInt(units), big.NewInt(b.Den)))
}

// levelOf returns the level of a bucket as of the time of its state, in 1/den units.
func levelOf(t *Tier, s *State) *big.Int {
	return new(big.Int).Sub(big.NewInt(t.Params(Owner{}).Full), big.NewInt(s.TokenBucket().Missing))
}

// Guarantees that a minute of leases, with the smallest and the largest slots, never holds more than the burst.
func TestHeldNeverPassesTheBurst(t *testing.T) {
	soak.SkipUnderRace(t)
	r := rand.New(rand.NewPCG(8, 8))
	for range 3000 {
		l := mustNew(t, Limit{ID: "l", MaxCost: 1,
			Tiers: []Tier{{Algorithm: TokenBucket, Threshold: randomNumber(r, 1000), Burst: randomNumber(r, 1000),
				Period: time.Duration(1+r.IntN(5000)) * time.Millisecond}}})
		tier := &l.Tiers[0]
		var s State
		now := int64(1_772_452_800_000_000)
		for range 40 {
			b := tier.Params(Owner{})
			now += r.Int64N(b.SlotLength)
			decideOnState(t, tier, &s, now, 1, LeaseRequest{Need: r.Int64N(2), Ample: MaxUnits,
				Share: r.Int64N(ShareOne + 1),
				Ramp:  r.IntN(2) == 0})
			held, level := s.TokenBucket().Leased.Units, b.Full-s.TokenBucket().Missing
			if held > tier.capacity || level+held*b.Den > b.Full || level < -b.Full {
				t.Fatalf("burst %d: %d units are held at a level of %d/%d units; want at most the burst in all, and "+
					"a level of at least -burst", tier.Burst, held, level, b.Den)
			}
		}
	}
}
