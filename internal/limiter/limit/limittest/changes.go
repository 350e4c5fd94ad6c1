package limittest

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
)

var changeCases = []testCase{
	{"a changed number keeps the used units", testChangedNumber},
	{"a changed burst keeps the used units", testChangedBurst},
	{"a changed rate keeps the used units", testChangedRate},
	{"what is missing beyond a lowered burst refills at the faster rate", testLoweredBurst},
	{"a rate that changes back and forth after a refund", testAlternatingRate},
	{"a changed identity begins with an unused counter", testChangedIdentity},
	{"a changed align keeps the used units", testChangedAlign},
	{"no window of either grid exceeds the limit after a change of align", testChangedAlignBound},
}

// A plan change must neither add units nor take any away.
func testChangedNumber(tb testing.TB, c Config) {
	each(tb, c, func(s *subject, k sample) {
		if k.oneAtATime() {
			return // the cases below test this algorithm
		}
		five, eight, two := k.limit(tb, "l", 5), k.limit(tb, "l", 8), k.limit(tb, "l", 2)
		s.allowed(Start, charge(five, 4))
		s.denied(Start, charge(two, 1))
		if left := s.remaining(Start, two); left != 0 {
			s.Errorf("threshold lowered from 5 to 2 with 4 units used: %d remain, want 0", left)
		}
		if d := s.decide(Start, charge(two, 3)); !d.Never {
			s.Errorf("threshold lowered from 5 to 2: a cost of 3 may be admitted later, want never")
		}
		if left := s.remaining(Start, eight); left != 4 {
			s.Errorf("threshold raised from 5 to 8 with 4 units used: %d remain, want 4", left)
		}
		s.allowed(Start, charge(eight, 4))
		s.denied(Start, charge(eight, 1))
		s.denied(Start, charge(five, 1))
		at := s.denied(Start, charge(two, 2)).RetryAt
		s.allowed(time.UnixMicro(at), charge(two, 2))
		s.denied(time.UnixMicro(at), charge(two, 1))
	})
}

func bucketOf(tb testing.TB, rate, burst int64) *limit.Limit {
	tb.Helper()
	return build(tb, limit.Limit{ID: "bucket", MaxCost: burst, Tiers: []limit.Tier{
		{Algorithm: limit.TokenBucket, Threshold: rate, Burst: burst, Period: 10 * time.Second}}})
}

func testChangedBurst(tb testing.TB, c Config) {
	if !c.accepts(limit.TokenBucket) {
		return
	}
	s := newSubject(tb, c)
	s.allowed(Start, charge(bucketOf(tb, 10, 10), 2))
	for _, b := range []struct{ burst, left int64 }{{20, 18}, {5, 3}, {2, 0}, {1, 0}, {100_000, 99_998}} {
		if left := s.remaining(Start, bucketOf(tb, 10, b.burst)); left != b.left {
			s.Errorf("burst changed from 10 to %d with 2 units used: %d remain, want %d", b.burst, left, b.left)
		}
	}
	s.allowed(Start, charge(bucketOf(tb, 10, 5), 3))
	s.denied(Start, charge(bucketOf(tb, 10, 5), 1))
	s.allowed(Start, charge(bucketOf(tb, 10, 10), 5)) // all 10 are used
	s.denied(Start, charge(bucketOf(tb, 10, 10), 1))
	if left := s.remaining(Start, bucketOf(tb, 10, 50)); left != 40 {
		s.Errorf("burst raised to 50 with 10 units used: %d remain, want 40", left)
	}
	if left := s.remaining(Start.Add(time.Minute), bucketOf(tb, 10, 20)); left != 20 {
		s.Errorf("a minute later %d units remain of the raised burst, want 20", left)
	}
}

// A lowered limit must neither give units to processes that still have the larger one, nor make anybody wait for longer
// than the larger bucket would have taken to fill, and then the smaller one.
func testLoweredBurst(tb testing.TB, c Config) {
	if !c.accepts(limit.TokenBucket) {
		return
	}
	large := bucketOf(tb, 50, 50)
	for _, lowered := range []struct {
		rate, burst int64
		wait        time.Duration
	}{
		{5, 5, 9*time.Second + 2*time.Second},                  // 45 units at 50 in 10 s, and one at 5 in 10 s
		{50, 5, 9*time.Second + 200*time.Millisecond},          // the rate stays
		{100, 5, 4500*time.Millisecond + 100*time.Millisecond}, // the new rate is the faster one
		{5, 50, 2 * time.Second},
		{1, 1, 9800*time.Millisecond + 10*time.Second},
	} {
		s := newSubject(named{tb, fmt.Sprintf("%d/%d", lowered.rate, lowered.burst)}, c)
		small := bucketOf(tb, lowered.rate, lowered.burst)
		s.allowed(Start, charge(large, 50))
		d := s.denied(Start, charge(small, 1))
		if d.RetryAfter() != lowered.wait {
			s.Errorf("lowered from 50 to a rate of %d and a burst of %d: the wait is %s, want %s", lowered.rate,
				lowered.burst, d.RetryAfter(), lowered.wait)
		}
		s.denied(Start, charge(large, 1)) // the denial has not changed what is used
		s.denied(time.UnixMicro(d.RetryAt-1), charge(small, 1))
		s.allowed(time.UnixMicro(d.RetryAt), charge(small, 1))
		s.denied(time.UnixMicro(d.RetryAt), charge(small, 1))
		if left := s.remaining(time.UnixMicro(d.RetryAt), large); left != 50-lowered.burst {
			s.Errorf("raised again with %d units used: %d remain, want %d", lowered.burst, left, 50-lowered.burst)
		}
	}
}

// While a new plan is distributed, processes with the old and the new plan charge the same counter alternately. Each
// change of the rate ends the receipts from before it. However many changes there are, the counter stays readable, and
// a new receipt gives back all of its charge.
func testAlternatingRate(tb testing.TB, c Config) {
	if !c.accepts(limit.TokenBucket) {
		return
	}
	s := newSubject(tb, c)
	const burst = 100_000
	rates := [2]*limit.Limit{bucketOf(tb, 10, burst), bucketOf(tb, 20, burst)}
	s.refund(Start, s.allowed(Start, charge(rates[0], 10)), 10)
	// The total of refunds that a counter keeps is reset after 256 changes, and 2^11 changes would not fit into 64
	// bits.
	const changes = 2_100
	old := s.allowed(Start, charge(rates[0], 1))
	for i := range changes {
		s.allowed(Start, charge(rates[(i+1)%2], 1))
	}
	if back := s.refund(Start, old, 1).Returned[0]; back != 0 {
		s.Errorf("a receipt from before %d changes of the rate gives %d units back, want 0", changes, back)
	}
	last := rates[changes%2]
	before := s.remaining(Start, last)
	if back := s.refund(Start, s.allowed(Start, charge(last, 10)), 10).Returned[0]; back != 10 {
		s.Errorf("after %d changes of the rate, a new receipt of 10 units gives %d back, want 10", changes, back)
	}
	if after := s.remaining(Start, last); after != before {
		s.Errorf("%d units remain after a charge and its refund, want %d", after, before)
	}
}

func testChangedRate(tb testing.TB, c Config) {
	if c.accepts(limit.TokenBucket) {
		s := newSubject(tb, c)
		s.allowed(Start, charge(bucketOf(tb, 10, 10), 7)) // holds 3
		for _, rate := range []int64{1, 7, 9, 10, 1000} {
			l := bucketOf(tb, rate, 10)
			if left := s.remaining(Start, l); left != 3 {
				s.Errorf("rate changed from 10 to %d with 3 in the bucket: %d remain, want 3", rate, left)
			}
			d := s.denied(Start, charge(l, 4))
			oneUnit := 10*time.Second/time.Duration(rate) + 999*time.Nanosecond // rounded up to a µs
			if got, want := d.RetryAfter(), oneUnit.Truncate(time.Microsecond); got != want {
				s.Errorf("rate changed from 10 to %d: one more unit takes %s, want %s", rate, got, want)
			}
		}
		// The refill of a tenth of a µs must neither be lost nor gained when the rate changes back and forth.
		for i := range 200 {
			s.decide(Start, charge(bucketOf(tb, []int64{7, 9, 11, 13}[i%4], 10), 4))
		}
		if left := s.remaining(Start, bucketOf(tb, 10, 10)); left != 3 {
			s.Errorf("after 200 denials at changing rates %d remain, want 3", left)
		}
	}
	if c.accepts(limit.LeakyBucket) {
		s := newSubject(tb, c)
		leaky := func(rate int64) *limit.Limit {
			return build(tb, limit.Limit{ID: "leaky", MaxCost: 3, Tiers: []limit.Tier{{Algorithm: limit.LeakyBucket,
				Threshold: rate, Period: 10 * time.Second}}})
		}
		s.allowed(Start, charge(leaky(10), 3))
		for _, rate := range []int64{3, 7, 10, 1000} { // the rate at the charge sets the wait
			if got, want := s.denied(Start, charge(leaky(rate), 1)).RetryAfter(), 3*time.Second; got != want {
				s.Errorf("rate changed from 10 to %d: the wait is %s, want %s", rate, got, want)
			}
		}
		s.allowed(Start.Add(3*time.Second), charge(leaky(1000), 1))
		if got, want := s.denied(Start.Add(3*time.Second), charge(leaky(10), 1)).RetryAfter(),
			10*time.Millisecond; got != want {
			s.Errorf("charged at 1000 per 10 s the wait is %s, want %s", got, want)
		}
	}
}

func testChangedIdentity(tb testing.TB, c Config) {
	each(tb, c, func(s *subject, k sample) {
		l := limit.Limit{ID: "five", MaxCost: 5, Tiers: []limit.Tier{k.tier(5)}}
		changed := map[string]limit.Limit{}
		id, mode := l, l
		id.ID, mode.Mode = "six", limit.Shadow
		changed["id"], changed["mode"] = id, mode
		period := l
		period.Tiers = []limit.Tier{k.tier(5)}
		if k.algorithm == limit.Quota {
			period.Tiers[0].Calendar = &limit.Calendar{Every: limit.Month, Location: time.UTC, AnchorDay: 15}
			other := l
			other.Tiers = []limit.Tier{k.tier(5)}
			other.Tiers[0].Calendar = &limit.Calendar{Every: limit.Month, Location: time.UTC, AnchorDay: 16}
			changed["anchor"] = other
		} else {
			period.Tiers[0].Period += time.Millisecond
		}
		changed["period"] = period
		if k.algorithm == limit.SlidingBuckets {
			buckets := l
			buckets.Tiers = []limit.Tier{k.tier(5)}
			buckets.Tiers[0].Buckets++
			changed["buckets"] = buckets
		}
		old := build(tb, l)
		s.allowed(Start, charge(old, 5))
		for what, l := range changed {
			fresh := build(tb, l)
			if left := s.remaining(Start, fresh); left != 5 {
				s.Errorf("changed %s: %d remain, want 5", what, left)
			}
			s.allowed(Start, charge(fresh, 5))
		}
		s.denied(Start, charge(old, 1))
	})
}

// alignedPair returns a limit with windows of ten seconds on the wall clock, and the same limit with align: tenant.
func alignedPair(tb testing.TB, a limit.Algorithm, threshold int64) [2]*limit.Limit {
	tb.Helper()
	l := limit.Limit{ID: "aligned", MaxCost: threshold, Tiers: []limit.Tier{{Algorithm: a, Threshold: threshold,
		Period: 10 * time.Second}}}
	clock := build(tb, l)
	l.AlignOwner = true
	return [2]*limit.Limit{clock, build(tb, l)}
}

// The windows of a limit move when it gets align: tenant, or loses it. The units that they count must move with them.
func testChangedAlign(tb testing.TB, c Config) {
	for _, a := range []limit.Algorithm{limit.FixedWindow, limit.SlidingWindow} {
		if !c.accepts(a) {
			continue
		}
		for from, to := range []int{1, 0} {
			s := newSubject(named{tb, fmt.Sprintf("%s/%d", a, from)}, c)
			pair := alignedPair(tb, a, 10)
			for i := range 20 {
				at := Start.Add(time.Duration(i)*500*time.Millisecond + time.Microsecond)
				s := s.of(limit.Owner{Kind: limit.Tenant, Name: fmt.Sprint("tenant-", i)})
				s.allowed(at, charge(pair[from], 10))
				s.denied(at, charge(pair[to], 1))
				d := s.denied(at.Add(2*time.Microsecond), charge(pair[to], 10))
				s.allowed(time.UnixMicro(d.RetryAt), charge(pair[to], 10))
				s.denied(time.UnixMicro(d.RetryAt), charge(pair[from], 1)) // and back to the first alignment
			}
		}
	}
}

// Charges at random before and after a change of align. Neither the fixed window of the old grid that is open at the
// change, nor any window of the new grid, counts more than the threshold. At most three periods later, nothing of the
// old grid is counted.
func testChangedAlignBound(tb testing.TB, c Config) {
	const threshold, period = 12, 10 * time.Second
	for _, a := range []limit.Algorithm{limit.FixedWindow, limit.SlidingWindow} {
		if !c.accepts(a) {
			continue
		}
		pair := alignedPair(tb, a, threshold)
		for seed := range uint64(c.Repeats) {
			r := rand.New(rand.NewPCG(seed, c.Seed))
			s := newSubject(named{tb, fmt.Sprintf("%s/seed %d", a, seed)}, c)
			s = s.of(limit.Owner{Kind: limit.Tenant, Name: fmt.Sprint("tenant-", seed)})
			from := r.IntN(2)
			grids := [2]time.Time{} // a time at which a window of each grid begins
			for i, l := range pair {
				grids[i] = time.UnixMicro(s.peek(Start, charge(l, 1)).Results[0].ResetAt())
			}
			type spend struct {
				at    time.Time
				units int64
			}
			var spends []spend
			in := func(start time.Time) (units int64) {
				for _, x := range spends {
					if !x.at.Before(start) && x.at.Before(start.Add(period)) {
						units += x.units
					}
				}
				return units
			}
			window := func(grid int, at time.Time) time.Time { // the window of a grid that contains a time
				return grids[grid].Add(time.Duration(floorDiv(int64(at.Sub(grids[grid])), int64(period))) * period)
			}
			at, change := Start, 8+r.IntN(8)
			var changed time.Time
			begun := false // something was charged in the window of the old grid that is open at the change
			for step := range change + 12 {
				at = at.Add(time.Duration(r.Int64N(int64(period / 2))).Truncate(time.Microsecond))
				now := from
				if step >= change {
					now = 1 - from
				}
				if step == change {
					changed, begun = at, in(window(from, at)) > 0
				}
				cost := 1 + r.Int64N(threshold/2)
				if d := s.decide(at, charge(pair[now], cost)); d.Allowed {
					spends = append(spends, spend{at, cost})
				} else if step >= change {
					d := s.peek(time.UnixMicro(d.RetryAt), charge(pair[now], cost))
					if !d.Allowed {
						s.Errorf("at %s a request is denied, although RetryAt of the denial before it was %s",
							stamp(at), stamp(time.UnixMicro(d.Now)))
					}
					continue
				} else {
					continue
				}
				if a == limit.SlidingWindow { // for which any interval may hold twice the threshold
					last := int64(0)
					for _, x := range spends {
						if x.at.After(at.Add(-period)) {
							last += x.units
						}
					}
					if last > 2*threshold {
						s.Errorf("a sliding window of %[2]d units admitted %[1]d within %[3]s up to %[4]s, want at "+
							"most twice its units", last, threshold, period, stamp(at))
					}
					continue
				}
				if units := in(window(now, at)); step >= change && units > threshold {
					// Before the change the window of the new grid may have had more. Nothing may have come since.
					s.Errorf("align was changed at %s: %d units were admitted, of a limit of %d, in the window of "+
						"the new grid that starts at %s", stamp(changed), units, threshold, stamp(window(now, at)))
				}
				if units := in(window(from, changed)); step >= change && begun && units > threshold {
					s.Errorf("align was changed at %s: %d units were admitted, of a limit of %d, in the window of "+
						"the old grid that was open then", stamp(changed), units, threshold)
				}
			}
			s.allowed(at.Add(3*period), charge(pair[1-from], threshold))
		}
	}
}
