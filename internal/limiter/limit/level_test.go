package limit

import (
	"errors"
	"math"
	"math/big"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/sluicelimits/sluice/internal/testkit/soak"
)

func tokenTier(tb testing.TB, rate, burst int64, period time.Duration) *Tier {
	tb.Helper()
	l := mustNew(tb, Limit{ID: "l", MaxCost: burst,
		Tiers: []Tier{{Algorithm: TokenBucket, Threshold: rate, Burst: burst, Period: period}}})
	return &l.Tiers[0]
}

// Guarantees that after a change of the rate and the burst, what is missing of the new burst is the same number of
// units, and what is missing beyond refills at the faster rate; both are rounded up to the new fraction of a unit.
func TestMissingAtAnotherRate(t *testing.T) {
	soak.SkipUnderRace(t)
	r := rand.New(rand.NewPCG(1, 2))
	below := 0
	for range 60_000 {
		in := randomTier(r)
		in.Algorithm, in.Buckets = TokenBucket, 0
		in.Threshold, in.Burst = randomNumber(r, MaxUnits), randomNumber(r, MaxUnits)
		was, err := New(Limit{ID: "l", MaxCost: in.Burst, Tiers: []Tier{in}})
		in.Threshold, in.Burst = randomNumber(r, MaxUnits), randomNumber(r, MaxUnits)
		is, err2 := New(Limit{ID: "l", MaxCost: in.Burst, Tiers: []Tier{in}})
		if err != nil || err2 != nil {
			continue
		}
		from, to := was.Tiers[0].counts.(*tokenBucket), is.Tiers[0].counts.(*tokenBucket)
		missing := r.Int64N(2*from.full + 1)
		if r.IntN(4) == 0 && productFits(to.burst+1, from.den) { // less than a unit beyond the new burst
			missing = to.burst*from.den + r.Int64N(from.den)
		}
		units := big.NewRat(missing, from.den)
		beyond := new(big.Rat).Sub(units, big.NewRat(to.burst, 1))
		if beyond.Sign() > 0 {
			below++
			units.SetInt64(to.burst)
			if to.rate < from.rate {
				beyond.Mul(beyond, big.NewRat(to.rate, from.rate))
			}
			if most := big.NewRat(maxExact, to.den); beyond.Cmp(most) > 0 {
				beyond = most
			}
			units.Add(units, beyond)
		}
		units.Mul(units, big.NewRat(to.den, 1))
		want := new(big.Int).Neg(units.Num())
		want.Neg(want.Div(want, units.Denom())) // Euclidean division, so that it rounds up
		if got := to.missing(bucketMissing{grains: missing, rate: from.rate}); !want.IsInt64() || got != want.Int64() {
			t.Fatalf("of %d missing grains of 1/%d unit, %d of 1/%d are missing at the new rate, want %s", missing,
				from.den, got, to.den, want)
		}
	}
	if below < 1000 {
		t.Errorf("only %d were below zero: the test shows little", below)
	}
}

// Guarantees that nothing refills in place of leased units before their slot ends, not even a part of a unit, if rate
// and burst are lower than when they were leased: after a raise, that part would come on top of burst and refill.
func TestLeasedUnitsMakeNoRoomAfterALowering(t *testing.T) {
	const at, slot, period = int64(1_800_000_000_000_000), int64(36_000), 333 * time.Millisecond
	made := func(rate, burst int64) *tokenBucket {
		tier := Tier{Algorithm: TokenBucket, Period: period, Threshold: rate, Burst: burst}
		l := mustNew(t, Limit{ID: "l", Tiers: []Tier{tier}})
		return l.Tiers[0].counts.(*tokenBucket)
	}
	was, is := made(40, 56), made(22, 26) // 42.5 units of the present bucket are missing, and 56 are leased
	leased := Leased{Units: 56, Until: at + slot}
	s := TokenBucketState{Rate: was.rate, AsOf: at, Missing: was.full, Leased: leased}.State()
	seen := is.seenAt(&s, at+slot-1)
	if before := is.seenAt(&s, at); seen.level != before.level {
		t.Errorf("before the slot ends, the level goes from %d to %d", before.level, seen.level)
	}
	is.setLevel(&s, seen.asOf, seen.level)
	if m := s.bucketMissing(); m.rate != was.rate || m.grains < was.full {
		t.Errorf("%+v is missing, want all %d of the rate %d", m, was.full, was.rate)
	}
	if end := is.seenAt(&s, at+slot+1_000); end.level <= seen.level {
		t.Errorf("after the slot, the level stays at %d", end.level)
	}
}

// Guarantees that a level below zero is refilled at the rate, however low it is: a smaller burst does not raise it.
func TestRefillFromBelowZero(t *testing.T) {
	tier := tokenTier(t, 10, 10, time.Second).counts.(*tokenBucket) // a grain is 1/100,000 of a unit
	for _, tt := range []struct{ owed, after, want int64 }{
		{10, 1_000_000, 0}, {10, 1_500_000, 5}, {10, 2_000_000, 10}, {10, 9_000_000, 10},
		{90, 2_000_000, -70}, {90, 9_000_000, 0}, {90, 10_000_000, 10}, {90, math.MaxInt64 / 2, 10},
	} {
		at, level := tier.refilled(tier.full, 0, -tt.owed*tier.den, tt.after)
		if at != tt.after || level != tt.want*tier.den {
			t.Errorf("at a level of -%d units: %d µs later, at %d, the level is %d/%d, want %d", tt.owed, tt.after, at,
				level, tier.den, tt.want)
		}
	}
}

// decideOnState decides on one state.
func decideOnState(tb testing.TB, t *Tier, s *State, now, cost int64, a LeaseRequest) *Decision {
	tb.Helper()
	req := &Request{Owner: Owner{Tenant, "acme"}, Charges: []Charge{{Limit: t.Limit(), Cost: cost}},
		Leases: []LeaseRequest{a}}
	if err := req.Check(); err != nil {
		tb.Fatal(err)
	}
	d := new(Decision)
	e := d.BeginChecked(req, now)
	e.Evaluate(0, s, true)
	if e.Settle() {
		e.Charge(0, s)
	}
	return d
}

// Guarantees that the level of a bucket does not fall below -burst, where a store could not count it any more: neither
// by a ramp in a slot that is longer than the bucket takes to fill, nor by units that were admitted without the store.
// Both leave a level that is lower already as it is.
func TestLevelStaysAboveMinusBurst(t *testing.T) {
	const now = 1_000_000_000
	tier := tokenTier(t, 50, 5, time.Millisecond) // full in 100 µs, with slots of 1 ms
	p := tier.Params(Owner{})
	s := State{}
	decideOnState(t, tier, &s, now, 1, LeaseRequest{Correction: MaxUnits, CorrectionAt: now})
	if s.b != 2*p.Full {
		t.Fatalf("%d grains are missing, want %d", s.b, 2*p.Full)
	}
	d := decideOnState(t, tier, &s, now, 1, LeaseRequest{Least: 5, Ramp: true})
	if g := d.Lease(0); !d.Allowed || g.Units != 0 || s.b != 2*p.Full {
		t.Errorf("a ramp at a level of -burst: allowed %t, lease %+v, %d missing; want nothing leased", d.Allowed, g,
			s.b)
	}
	s = TokenBucketState{AsOf: now, Missing: 105 * p.Den, Rate: tier.Threshold}.State() // the burst was larger before
	decideOnState(t, tier, &s, now, 1, LeaseRequest{Correction: 1, CorrectionAt: now})
	if s.b != 105*p.Den {
		t.Errorf("of 105 missing units %d/%d are missing after a charge, want no change", s.b, p.Den)
	}
}

// Guarantees that after a correction at a new rate, as after any other charge, receipts from the old rate give nothing
// back.
func TestCorrectionAtAnotherRateEndsReceipts(t *testing.T) {
	const now = 1_000_000_000
	old, changed := tokenTier(t, 10, 10, time.Second), tokenTier(t, 20, 20, time.Second)
	for _, elsewhere := range []bool{false, true} {
		s := State{}
		first := decideOnState(t, old, &s, now, 2, LeaseRequest{Need: 2}).Receipt()
		second := decideOnState(t, old, &s, now, 2, LeaseRequest{Need: 2}).Receipt()
		if back := first.Entries()[0].GiveBack(&s, 1, now); back != 1 {
			t.Fatalf("%d units came back, want 1", back)
		}
		for _, tier := range []*Tier{changed, old} {
			a := LeaseRequest{Need: 1}
			if elsewhere {
				a = LeaseRequest{Correction: 1, CorrectionAt: now}
			}
			decideOnState(t, tier, &s, now, 1, a)
		}
		if back := second.Entries()[0].GiveBack(&s, MaxUnits, now); back != 0 {
			t.Errorf("admitted without the store %t: a receipt from before two changes of the rate gives back %d, "+
				"want 0", elsewhere, back)
		}
	}
}

// Guarantees that a correction at a time that no store can count is refused.
func TestCorrectionAtIsATime(t *testing.T) {
	tier := tokenTier(t, 10, 10, time.Second)
	for _, at := range []int64{math.MinInt64, -1<<53 - 1, 1<<53 + 1, math.MaxInt64} {
		req := &Request{Charges: []Charge{{Limit: tier.Limit(), Cost: 1}},
			Leases: []LeaseRequest{{Correction: 1, CorrectionAt: at}}}
		if err := req.Check(); !errors.Is(err, ErrInvalidRequest) {
			t.Errorf("CorrectionAt %d: %v, want ErrInvalidRequest", at, err)
		}
	}
}

// Guarantees that the next free time of a leaky bucket, when the rate changes, is rounded up to a whole µs: after one
// unit at three per second the next is due a third of a µs after 333,333 µs, and so 333,333 µs is too early.
func TestNextFreeTimeAtAnotherRate(t *testing.T) {
	tier := func(rate int64) *Tier {
		l := mustNew(t, Limit{ID: "l", MaxCost: 1,
			Tiers: []Tier{{Algorithm: LeakyBucket, Threshold: rate, Period: time.Second}}})
		return &l.Tiers[0]
	}
	const at = 1_800_000_000_000_000
	var s State
	ask := func(of *Tier, now int64) *Result {
		var d Decision
		e, err := d.Begin(&Request{Charges: []Charge{{Limit: of.Limit(), Cost: 1}}}, now)
		if err != nil {
			t.Fatal(err)
		}
		e.Evaluate(0, &s, true)
		if e.Settle() {
			e.Charge(0, &s)
		}
		return &d.Results[0]
	}
	if !ask(tier(3), at).Admits {
		t.Fatal("an unused bucket denies a request, want it admitted")
	}
	if r := ask(tier(2), at+333_333); r.Admits || r.RetryAt != at+333_334 {
		t.Errorf("admitted %t, retry after %d µs; want a denial until 333,334 µs", r.Admits, r.RetryAt-at)
	}
	if r := ask(tier(2), at+333_334); !r.Admits {
		t.Error("denied after 333,334 µs, want it admitted")
	}
}

// Guarantees that a process which has spent its lease waits for as long as the store would say, also for a cost that
// does not fit before the slot of the leased units ends.
func TestFitsAtIsWhatTheStoreSays(t *testing.T) {
	const now = 1_772_452_800_000_000
	for _, in := range []Tier{
		{Algorithm: TokenBucket, Threshold: 10, Period: time.Second, Burst: 20},
		{Algorithm: SlidingWindow, Threshold: 20, Period: time.Second},
	} {
		l := mustNew(t, Limit{ID: "l", MaxCost: 20, Tiers: []Tier{in}})
		tier := &l.Tiers[0]
		for leased := int64(0); leased <= 18; leased++ {
			var s State
			d := decideOnState(t, tier, &s, now, 2, LeaseRequest{Need: 2, Least: leased, Share: ShareOne})
			lease := d.Leftover(0)
			for cost := 19 - leased; cost <= 20; cost++ {
				var store Decision
				e := store.BeginChecked(&Request{Owner: d.Owner, Charges: []Charge{{Limit: l, Cost: cost}}}, now)
				e.Evaluate(0, &s, false)
				if got, want := lease.FitsAt(cost), store.Results[0].RetryAt; got != want || e.Settle() {
					t.Errorf("%s with %d units leased: %d fit %d µs from now, and in the store %d µs", in.Algorithm,
						leased, cost, got-now, want-now)
				}
			}
		}
	}
}
