package limittest

import (
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
)

var refundCases = []testCase{
	{"a refund gives back what was charged", testRefund},
	{"a refund happens once", testRefundOnce},
	{"a refund gives back part", testRefundPart},
	{"a refund gives nothing back to a window that has ended", testRefundClosed},
	{"a refund without a valid charge gives nothing back", testRefundNothing},
	{"a receipt expires", testRefundExpired},
	{"refunds after a loss admit again no more than the loss does", testRefundAfterLoss},
	{"refunds of one bucket do not add up to more than its burst", testRefundBucket},
	{"a bucket whose rate was changed refunds nothing", testRefundChangedRate},
	{"charges and refunds of a bucket stay within its bound", testRefundBound},
	{"alternate charges and refunds lose no unit", testRefundTurns},
}

func testRefund(tb testing.TB, c Config) {
	s := newSubject(tb, c)
	var charges []limit.Charge
	for _, k := range c.samples() {
		charges = append(charges, charge(k.limit(tb, k.algorithm.String(), 5), 5))
	}
	before := s.counters(Start, charges...)
	d := s.allowed(Start, charges...)
	r := s.refund(Start, d, 0)
	for i, units := range r.Returned {
		if units != 5 {
			s.Errorf("%s: a refund right after a charge of 5 gave back %d units, want 5", charges[i].Limit.ID, units)
		}
	}
	if r.Repeated {
		s.Errorf("the first refund is reported as a repeated one")
	}
	s.unchanged("a charge and its refund", before, s.counters(Start, charges...))
	s.allowed(Start, charges...)
	if r := s.refund(Start, s.denied(Start, charges...), 0); len(r.Returned) != 0 {
		s.Errorf("a refund of a denial gave back %v, want nothing", r.Returned)
	}
}

// A refund that is retried must not give the units back twice.
func testRefundOnce(tb testing.TB, c Config) {
	each(tb, c, func(s *subject, k sample) {
		l := k.limit(tb, "ten", 10)
		if !k.oneAtATime() {
			s.allowed(Start, charge(l, 4))
		}
		d := s.allowed(Start, charge(l, 3))
		s.refund(Start, d, 0)
		before := s.counters(Start, charge(l, 1))
		for _, units := range []int64{0, 1, 3, 100} {
			r := s.refund(Start, d, units)
			if !r.Repeated || r.Returned[0] != 0 {
				s.Errorf("a repeated refund of %d: repeated=%t, %d units; want true and 0", units, r.Repeated,
					r.Returned[0])
			}
		}
		s.unchanged("a repeated refund", before, s.counters(Start, charge(l, 1)))

		other := k.limit(tb, "other", 10)
		d = s.allowed(Start, charge(other, 3))
		var back, first atomic.Int64
		var wg sync.WaitGroup
		for range 16 {
			wg.Go(func() {
				r, err := s.store.Settle(s.Context(), d.Receipt(), nil, Start)
				if err != nil {
					if !s.c.MayFail {
						s.Errorf("Refund: %v", err)
					}
					return
				}
				back.Add(r.Returned[0])
				if !r.Repeated {
					first.Add(1)
				}
			})
		}
		wg.Wait()
		if back.Load() > 3 || first.Load() > 1 || (!s.c.MayFail && back.Load() != 3) {
			s.Errorf("16 concurrent refunds of 3 units gave back %d, and %d of them were not reported as repeated; "+
				"want 3 and 1", back.Load(), first.Load())
		}
	})
}

func testRefundPart(tb testing.TB, c Config) {
	each(tb, c, func(s *subject, k sample) {
		l := k.limit(tb, "ten", 10)
		d := s.allowed(Start, charge(l, 7))
		if r := s.refund(Start, d, 4); r.Returned[0] != 4 {
			s.Errorf("a refund of 4 of 7 units gave back %d, want 4", r.Returned[0])
		}
		if k.oneAtATime() { // three tenths of the period are left until it has drained
			if got, want := s.denied(Start, charge(l, 1)).RetryAfter(), k.period*3/10; got != want {
				s.Errorf("after a refund of 4 of 7 units RetryAfter is %s, want %s", got, want)
			}
		} else if left := s.remaining(Start, l); left != 7 {
			s.Errorf("after a refund of 4 of 7 units, %d of 10 remain, want 7", left)
		}
		if r := s.refund(Start, d, 3); !r.Repeated || r.Returned[0] != 0 {
			s.Errorf("a second refund of a receipt that was refunded in part: repeated=%t, %d units; want true and 0",
				r.Repeated,
				r.Returned[0])
		}

		more := k.limit(tb, "more", 10)
		if r := s.refund(Start, s.allowed(Start, charge(more, 6)), 9); r.Returned[0] != 6 {
			s.Errorf("a refund of 9 units, of a receipt of 6, gave back %d, want 6", r.Returned[0])
		}
	})
}

// Units of a window that has ended must not be given back to a later window, which they were not charged to.
func testRefundClosed(tb testing.TB, c Config) {
	each(tb, c, func(s *subject, k sample) {
		l := k.limit(tb, "ten", 10)
		d := s.allowed(Start, charge(l, 10))
		later := Start.Add(2*k.period + k.period/5)
		s.allowed(later, charge(l, 10))
		before := s.counters(later, charge(l, 1))
		if r := s.refund(later, d, 0); r.Returned[0] != 0 {
			s.Errorf("a refund after %s gave back %d units, want 0: the window of %s has ended", later.Sub(Start),
				r.Returned[0], k.period)
		}
		s.unchanged("a refund of a closed window", before, s.counters(later, charge(l, 1)))
	})
}

func testRefundNothing(tb testing.TB, c Config) {
	each(tb, c, func(s *subject, k sample) {
		l := k.limit(tb, "ten", 10)
		if _, err := s.store.Settle(s.Context(), nil, nil, Start); err == nil {
			s.Errorf("a refund without a receipt is accepted, want an error")
		}
		d := s.allowed(Start, charge(l, 5))
		for _, used := range []int64{-1, limit.MaxUnits + 1} {
			if _, err := s.store.Settle(s.Context(), d.Receipt(), []int64{used}, Start); err == nil {
				s.Errorf("a refund of all but %d units is accepted, want an error", used)
			}
		}
		if r := s.refund(Start, new(limit.Decision), 0); len(r.Returned) != 0 || r.Repeated {
			s.Errorf("the receipt of a decision that was never made gave back %v, want nothing", r.Returned)
		}
		if got := s.refund(Start, d, 0); got.Returned[0] != 5 {
			s.Errorf("after refused refunds, a valid one gave back %d, want 5", got.Returned[0])
		}
		// The receipt names counters that this store has never had.
		foreign := newSubject(s.TB, c).allowed(Start, charge(k.limit(tb, "foreign", 10), 5))
		before := s.counters(Start, charge(l, 1), charge(foreign.Results[0].Limit(), 1))
		if r := s.refund(Start, foreign, 0); r.Returned[0] != 0 {
			s.Errorf("a receipt of a counter that this store has never had gave back %d, want 0", r.Returned[0])
		}
		s.unchanged("a refund of a counter that was never charged", before, s.counters(Start, charge(l, 1),
			charge(foreign.Results[0].Limit(), 1)))
	})
}

// The memory that stores need for refunds must not grow with the windows of limits. A receipt therefore expires. A
// store that has forgotten a refund must not give the units of its expired receipt back once more.
func testRefundExpired(tb testing.TB, c Config) {
	if !c.accepts(limit.SlidingBuckets) {
		return
	}
	s := newSubject(tb, c)
	l := build(tb, limit.Limit{ID: "daily", MaxCost: 10,
		Tiers: []limit.Tier{{Algorithm: limit.SlidingBuckets, Threshold: 10,
			Period: 24 * time.Hour}}})
	early, late := s.allowed(Start, charge(l, 3)), s.allowed(Start, charge(l, 4))
	last := Start.Add(limit.MaxReceiptAge - time.Microsecond)
	if r := s.refund(last, early, 0); r.Returned[0] != 3 || r.Expired {
		s.Errorf("within MaxReceiptAge a refund of 3 units gave back %d, expired=%t; want 3 and false", r.Returned[0],
			r.Expired)
	}
	for _, at := range []time.Time{last.Add(time.Microsecond), Start.Add(time.Hour)} {
		for _, d := range []*limit.Decision{early, late} {
			if r := s.refund(at, d, 0); r.Returned[0] != 0 || !r.Expired {
				s.Errorf("%s after the charge a refund gave back %d units, expired=%t; want 0 and true", at.Sub(Start),
					r.Returned[0], r.Expired)
			}
		}
	}
	if left := s.remaining(Start.Add(time.Hour), l); left != 6 {
		s.Errorf("%d of 10 remain after charges of 3 and 4 and a refund of 3, want 6", left)
	}
}

// A store that has lost its data admits again as many units as it had counted. In general it cannot know that a receipt
// is older than its data, so a refund may reduce what was charged after the loss. All units that were admitted and not
// refunded must then still be at most twice the limit, as without the refunds.
func testRefundAfterLoss(tb testing.TB, c Config) {
	each(tb, c, func(lost *subject, k sample) {
		l := k.limit(tb, "ten", 10)
		var receipts []*limit.Decision
		costs := []int64{1, 6, 3}
		if k.oneAtATime() {
			costs = []int64{10}
		}
		for _, cost := range costs {
			receipts = append(receipts, lost.allowed(Start, charge(l, cost)))
		}
		empty := newSubject(lost.TB, c)
		// kept: of the charges before the loss, the units that are not refunded
		admitted, counted, kept := int64(0), int64(0), int64(10)
		spend := func(most int64) {
			if cost := min(most, empty.remaining(Start, l)); cost > 0 {
				empty.allowed(Start, charge(l, cost))
				admitted, counted = admitted+cost, counted+cost
			}
		}
		spend(4)
		for _, d := range receipts {
			back := empty.refund(Start, d, 0).Returned[0]
			if back > min(d.Results[0].Charged, counted) {
				empty.Errorf("a receipt of %d units gave back %d, want at most that and at most the %d units that "+
					"were charged since the loss", d.Results[0].Charged, back, counted)
			}
			kept, counted = kept-back, counted-back
			spend(4)
		}
		spend(10)
		empty.denied(Start, charge(l, 1))
		if kept+admitted > 20 {
			empty.Errorf("%d units before the loss and %d after it were admitted and not refunded, want at most 20 "+
				"of a limit of 10", kept, admitted)
		}
	})
}

// This is the smallest case in which two refunds give back too much together, although each of them alone is right: the
// first refund fills the bucket, and the units of the second one would overflow.
func testRefundBucket(tb testing.TB, c Config) {
	if !c.accepts(limit.TokenBucket) {
		return
	}
	s := newSubject(tb, c)
	l := build(tb, limit.Limit{ID: "bucket", MaxCost: 10, Tiers: []limit.Tier{{Algorithm: limit.TokenBucket,
		Threshold: 1, Burst: 10, Period: time.Second}}})
	first, second := s.allowed(Start, charge(l, 5)), s.allowed(Start, charge(l, 5))
	s.refund(Start, first, 0)
	full := Start.Add(5 * time.Second)
	s.allowed(full, charge(l, 10))
	// the bucket was full before the charge of 10, so if the second charge had not been made, it would be empty now
	s.refund(full, second, 0)
	s.denied(full, charge(l, 1))
}

func testRefundChangedRate(tb testing.TB, c Config) {
	if !c.accepts(limit.TokenBucket) {
		return
	}
	s := newSubject(tb, c)
	bucket := func(rate int64) *limit.Limit { // rates of 1, 3 and 5 per second are all counted in millionths of a unit
		return build(tb, limit.Limit{ID: "bucket", MaxCost: 10, Tiers: []limit.Tier{{Algorithm: limit.TokenBucket,
			Threshold: rate, Burst: 10, Period: time.Second}}})
	}
	d := s.allowed(Start, charge(bucket(1), 10))
	full := Start.Add(2 * time.Second)
	s.allowed(full, charge(bucket(5), 10))
	if r := s.refund(full, d, 0); r.Returned[0] != 0 {
		s.Errorf("the bucket has been full at 5 per second, but a refund of a charge at 1 per second gave back %d, "+
			"want 0", r.Returned[0])
	}
	s.denied(full, charge(bucket(5), 1))
}

// Random charges and refunds of a bucket: the units that are admitted and not refunded stay within burst + rate·t in
// every interval.
func testRefundBound(tb testing.TB, c Config) {
	if !c.accepts(limit.TokenBucket) {
		return
	}
	for seed := range uint64(20) {
		r := rand.New(rand.NewPCG(seed, c.Seed))
		s := newSubject(tb, c)
		rates := []int64{1, 2, 4, 5, 8, 10}
		t := limit.Tier{Algorithm: limit.TokenBucket, Threshold: rates[r.IntN(len(rates))], Burst: 1 + r.Int64N(12),
			Period: time.Second}
		// time passes in steps that refill whole units, so that refunds are of whole units, too
		unit := t.Period / time.Duration(t.Threshold)
		l := build(tb, limit.Limit{ID: "bucket", MaxCost: t.Burst, Tiers: []limit.Tier{t}})
		h := &counter{tb: tb, tier: t}
		var open []*limit.Decision
		var spends []*spend
		at := Start
		for range c.Repeats {
			if r.IntN(2) == 0 {
				at = at.Add(time.Duration(r.IntN(4)) * unit)
			}
			if n := len(open); n > 0 && r.IntN(3) == 0 {
				i := r.IntN(n)
				back := s.refund(at, open[i], r.Int64N(open[i].Results[0].Cost+1)).Returned[0]
				spends[i].kept.Sub(spends[i].kept, rat(back))
				open, spends = slices.Delete(open, i, i+1), slices.Delete(spends, i, i+1)
				continue
			}
			cost := 1 + r.Int64N(t.Burst)
			if d := s.decide(at, charge(l, cost)); d.Allowed {
				sp := &spend{at: d.Now, units: cost, kept: rat(cost), tier: t}
				h.spends = append(h.spends, sp)
				open, spends = append(open, d), append(spends, sp)
			}
		}
		if over := h.overBound(); over != "" {
			tb.Errorf("seed %d, %d units per second, burst %d: more was admitted than the bound allows: %s", seed,
				t.Threshold, t.Burst, over)
		}
	}
}

// A limit that is charged and refunded for a long time must neither grow without bound nor lose units.
func testRefundTurns(tb testing.TB, c Config) {
	each(tb, c, func(s *subject, k sample) {
		l := k.limit(tb, "five", 5)
		for i := range 2 * c.Repeats {
			// all charges are within the first two fifths of the period
			at := Start.Add(time.Duration(i) * k.period / time.Duration(5*c.Repeats))
			if r := s.refund(at, s.allowed(at, charge(l, 5)), 0); r.Returned[0] != 5 {
				s.Fatalf("refund %d gave back %d of 5 units, want all", i+1, r.Returned[0])
			}
		}
		s.allowed(Start.Add(k.period/2), charge(l, 5))
	})
}
