package limittest

import (
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
)

var settleCases = []testCase{
	{"a settlement corrects each limit by itself", testSettleEach},
	{"what was used beyond a receipt is charged, also above the limit", testOverage},
	{"what was used beyond a receipt counts from now", testOverageLater},
	{"what was used beyond a receipt is as many units of a bucket that was raised since", testOverageAfterARaise},
	{"a settlement happens once", testSettleOnce},
	{"a kept receipt is settled until its time ends", testSettleKept},
	{"a use that does not fit its receipt settles nothing", testBadUse},
	{"what was used beyond a receipt is charged to the counter of its value", testOverageOfValue},
	{"decisions beside settlements lose no unit", testConcurrentSettlements},
	{"a place is renewed although all are taken, and freed once", testPlaces},
}

// settled is samples without the leaky bucket, whose debt is bounded by one period: it cannot count what a call turns
// out to use.
func settled(tb testing.TB, c Config, f func(s *subject, k sample)) {
	each(tb, c, func(s *subject, k sample) {
		if k.algorithm != limit.LeakyBucket {
			f(s, k)
		}
	})
}

// settle settles what d charged to what was used of each tier.
func (s *subject) settle(now time.Time, r *limit.Receipt, used ...int64) limit.Settlement {
	s.Helper()
	s.clock(now)
	out, err := s.store.Settle(s.Context(), r, used, now)
	if err != nil {
		s.Fatalf("Settle(%v used at %s): %v", used, stamp(now), err)
	}
	if n := len(r.Entries()); len(out.Returned) != n || len(out.Charged) != n || len(out.Uncharged) != n {
		s.Fatalf("Settle(%v used at %s): %+v, want lists of %d, one number for each entry of the receipt", used,
			stamp(now), out, n)
	}
	return out
}

// kept returns the receipt of d, which can be settled for an hour.
func kept(d *limit.Decision) *limit.Receipt {
	r := d.Receipt()
	r.KeepFor(time.Hour)
	return r
}

func (s *subject) wantSettled(what string, got limit.Settlement, returned, charged int64) {
	s.Helper()
	if got.Returned[0] != returned || got.Charged[0] != charged || got.Uncharged[0] != 0 || got.Repeated ||
		got.Expired {
		s.Errorf("%s: %+v, want %d returned and %d charged", what, got, returned, charged)
	}
}

func testSettleEach(tb testing.TB, c Config) {
	settled(tb, c, func(s *subject, k sample) {
		less, same, more, none := k.limit(tb, "less", 20), k.limit(tb, "same", 20), k.limit(tb, "more", 20),
			k.limit(tb, "none", 20)
		r := kept(s.allowed(Start, charge(less, 8), charge(same, 8), charge(more, 8), charge(none, 8)))
		got := s.settle(Start, r, 5, 8, 10, 0)
		for i, want := range []struct{ returned, charged int64 }{{3, 0}, {0, 0}, {0, 2}, {8, 0}} {
			if got.Returned[i] != want.returned || got.Charged[i] != want.charged || got.Uncharged[i] != 0 {
				s.Errorf("limit %d of %+v: want %+v", i+1, got, want)
			}
		}
		for i, l := range []*limit.Limit{less, same, more, none} {
			if left, want := s.remaining(Start, l), []int64{15, 12, 10, 20}[i]; left != want {
				s.Errorf("limit %s: %d remain of 20, want %d", l.ID, left, want)
			}
		}
	})
}

// A wait after such a charge is as long as until the cost fits, not until the debt is repaid.
func testOverage(tb testing.TB, c Config) {
	settled(tb, c, func(s *subject, k sample) {
		l := k.limit(tb, "ten", 10)
		s.wantSettled("12 used of 10", s.settle(Start, kept(s.allowed(Start, charge(l, 10))), 12), 0, 2)
		d := s.denied(Start, charge(l, 3))
		if used := d.Results[0].Used(); used != 12 {
			s.Errorf("12 of 10 units were used, the result says %d", used)
		}
		at := time.UnixMicro(d.RetryAt)
		s.denied(at.Add(-time.Microsecond), charge(l, 3))
		s.allowed(at, charge(l, 3))
	})
}

// In the window of the receipt, which has ended, it would be free.
func testOverageLater(tb testing.TB, c Config) {
	settled(tb, c, func(s *subject, k sample) {
		l := k.limit(tb, "ten", 10)
		r := s.allowed(Start, charge(l, 4)).Receipt()
		r.KeepFor(limit.MaxKept)
		later := Start.Add(2*k.period + k.period/5)
		if k.algorithm == limit.Quota {
			later = Start.Add(23 * time.Hour)
		}
		before := s.remaining(later, l)
		s.wantSettled("10 used of 4, later", s.settle(later, r, 10), 0, 6)
		if left := s.remaining(later, l); left != before-6 {
			s.Errorf("6 units were used beyond a receipt, and %d of %d remain, want %d", left, before, before-6)
		}
	})
}

func testOverageAfterARaise(tb testing.TB, c Config) {
	s := newSubject(tb, c)
	bucket := func(rate, burst int64) *limit.Limit {
		return build(tb, limit.Limit{ID: "tokens", Unit: "tokens", MaxCost: 50, Tiers: []limit.Tier{{
			Algorithm: limit.TokenBucket, Threshold: rate, Burst: burst, Period: time.Minute}}})
	}
	before, raised := bucket(10, 2), bucket(1000, 100)
	r := kept(s.allowed(Start, charge(before, 2)))
	s.allowed(Start, charge(raised, 50))
	s.wantSettled("22 used of 2, after a raise", s.settle(Start, r, 22), 0, 20)
	if left := s.remaining(Start, raised); left != 28 {
		s.Errorf("%d of 100 units remain after 2, 50 and 20, want 28", left)
	}
}

func testSettleOnce(tb testing.TB, c Config) {
	settled(tb, c, func(s *subject, k sample) {
		l := k.limit(tb, "twenty", 20)
		r := kept(s.allowed(Start, charge(l, 4)))
		s.settle(Start, r, 6)
		before := s.counters(Start, charge(l, 1))
		for _, used := range []int64{0, 3, 4, 6, 9} {
			if got := s.settle(Start, r, used); !got.Repeated || got.Returned[0] != 0 || got.Charged[0] != 0 {
				s.Errorf("a repeated settlement, with %d used: %+v, want Repeated and no change", used, got)
			}
		}
		s.unchanged("a repeated settlement", before, s.counters(Start, charge(l, 1)))

		other := k.limit(tb, "other", 20)
		r = kept(s.allowed(Start, charge(other, 4)))
		var charged, first atomic.Int64
		var wg sync.WaitGroup
		for range 16 {
			wg.Go(func() {
				got, err := s.store.Settle(s.Context(), r, []int64{7}, Start)
				if err != nil {
					if !s.c.MayFail {
						s.Errorf("Settle: %v", err)
					}
					return
				}
				charged.Add(got.Charged[0])
				if !got.Repeated {
					first.Add(1)
				}
			})
		}
		wg.Wait()
		if charged.Load() > 3 || first.Load() > 1 || !s.c.MayFail && charged.Load() != 3 {
			s.Errorf("16 settlements of one receipt at once charged %d, and %d of them were not reported as repeated; "+
				"want 3 and 1", charged.Load(), first.Load())
		}
	})
}

func testSettleKept(tb testing.TB, c Config) {
	settled(tb, c, func(s *subject, k sample) {
		l := k.limit(tb, "ten", 10)
		end := Start.Add(time.Hour)
		early, late := kept(s.allowed(Start, charge(l, 1))), kept(s.allowed(Start, charge(l, 1)))
		last := end.Add(-10 * time.Second) // a store may forget settlements by a clock that goes on meanwhile
		s.wantSettled("just before its time ends", s.settle(last, early, 3), 0, 2)
		if got := s.settle(last, early, 3); !got.Repeated {
			s.Errorf("a repeated settlement just before the receipt's time ends: %+v, want Repeated", got)
		}
		before := s.counters(end, charge(l, 1))
		for _, r := range []*limit.Receipt{early, late} {
			if got := s.settle(end, r, 3); !got.Expired || got.Charged[0] != 0 || got.Returned[0] != 0 {
				s.Errorf("when its time has ended: %+v, want Expired and no change", got)
			}
		}
		s.unchanged("a settlement that is too late", before, s.counters(end, charge(l, 1)))
	})
}

func testBadUse(tb testing.TB, c Config) {
	settled(tb, c, func(s *subject, k sample) {
		l := k.limit(tb, "ten", 10)
		r := kept(s.allowed(Start, charge(l, 4)))
		before := s.counters(Start, charge(l, 1))
		for _, used := range [][]int64{{}, {1, 1}, {-1}, {limit.MaxUnits + 1}, {-1 << 63}, {1<<63 - 1}} {
			if got, err := s.store.Settle(s.Context(), r, used, Start); !errors.Is(err, limit.ErrInvalidRequest) {
				s.Errorf("Settle with %v used of one limit: %+v, %v, want ErrInvalidRequest", used, got, err)
			}
		}
		s.unchanged("a use that does not fit", before, s.counters(Start, charge(l, 1)))
		s.wantSettled("after that", s.settle(Start, r, 3), 1, 0)
		if got, err := s.store.Settle(s.Context(), new(limit.Decision).Receipt(), nil, Start); err != nil ||
			got.Repeated || len(got.Returned) != 0 {
			s.Errorf("Settle of an empty receipt: %+v, %v; want no change and no error", got, err)
		}
	})
}

func testOverageOfValue(tb testing.TB, c Config) {
	settled(tb, c, func(s *subject, k sample) {
		l := build(tb, limit.Limit{ID: "user", Per: "subject", MaxCost: 10, Tiers: []limit.Tier{k.tier(10)}})
		of := func(name string, cost int64) limit.Charge {
			return limit.Charge{Limit: l, Value: limit.ValueOf(name), Cost: cost}
		}
		s.settle(Start, kept(s.allowed(Start, of("a", 2))), 9)
		s.denied(Start, of("a", 2))
		s.allowed(Start, of("b", 10))
	})
}

// Half of the settlements give a unit back, and half charge one more.
func testConcurrentSettlements(tb testing.TB, c Config) {
	settled(tb, c, func(s *subject, k sample) {
		const capacity = limit.MaxLogEntries // of a sliding_log
		l := k.limit(tb, "large", capacity)
		var counted atomic.Int64
		var wg sync.WaitGroup
		for i := range int64(max(s.c.Goroutines, 4)) {
			wg.Go(func() {
				store := s.store
				for n := range int64(min(max(s.c.Repeats/8, 4), 40)) {
					var d limit.Decision
					req := &limit.Request{Owner: s.owner, Charges: []limit.Charge{charge(l, 2)}}
					if err := store.Decide(s.Context(), req, Start, &d); err != nil || !d.Allowed {
						if !s.c.MayFail {
							s.Errorf("Decide: allowed %t, %v", d.Allowed, err)
						}
						return
					}
					got, err := store.Settle(s.Context(), kept(&d), []int64{1 + 2*((i+n)%2)}, Start)
					if err != nil {
						if !s.c.MayFail {
							s.Errorf("Settle: %v", err)
						}
						return
					}
					counted.Add(2 - got.Returned[0] + got.Charged[0])
				}
			})
		}
		wg.Wait()
		if left, want := s.remaining(Start, l), capacity-counted.Load(); !s.c.MayFail && left != want {
			s.Errorf("by the decisions and settlements %d units remain, and the counter says %d", want, left)
		}
	})
}

// placesOf returns a limit on requests in flight.
func placesOf(tb testing.TB, places int64, holdFor time.Duration) *limit.Limit {
	return build(tb, limit.Limit{ID: "in-flight", Unit: limit.ConcurrentRequests, Tiers: []limit.Tier{{
		Algorithm: limit.SlidingBuckets, Threshold: places, Period: holdFor, Buckets: 8}}})
}

func testPlaces(tb testing.TB, c Config) {
	s := newSubject(tb, c)
	held := placesOf(tb, 2, 8*time.Second)
	all := build(tb, limit.Limit{ID: "all", Tiers: []limit.Tier{{
		Algorithm: limit.FixedWindow, Threshold: 100, Period: time.Hour}}})
	request, renewal := []limit.Charge{charge(held, 1), charge(all, 1)}, charge(held.Renewal(), 1)
	at := func(seconds int) time.Time { return Start.Add(time.Duration(seconds) * time.Second) }
	free := func(r *limit.Receipt, seconds int, want int64) {
		s.Helper()
		s.clock(at(seconds))
		got, err := s.store.Settle(s.Context(), r, nil, at(seconds))
		if err != nil || got.Returned[0] != want {
			s.Errorf("a place is given back after %d s: %+v, %v; want %d returned", seconds, got, err, want)
		}
	}
	d := s.allowed(at(0), request...)
	if r, soon := &d.Results[0], at(1).UnixMicro(); r.ResetAt() > soon || r.MoreAt() > soon {
		s.Errorf("a place is taken: ResetAt is %d and MoreAt %d, want at most a second from now, %d", r.ResetAt(),
			r.MoreAt(), soon)
	}
	first, dead := kept(d), kept(s.allowed(at(1), request...))
	d = s.denied(at(1), request...)
	if wait := d.RetryAt - at(1).UnixMicro(); wait <= 0 || wait > time.Second.Microseconds() {
		s.Errorf("all places are taken, and RetryAt is in %d µs, want at most a second", wait)
	}
	renewed := kept(s.allowed(at(3), renewal))
	s.denied(at(3), request...) // three places count
	free(first, 3, 1)
	free(first, 3, 0)
	s.denied(at(3), request...)
	third := kept(s.allowed(at(10), request...)) // nobody has renewed the second place
	s.denied(at(10), request...)
	free(dead, 10, 0)
	s.denied(at(10), request...)
	free(renewed, 10, 1)
	free(third, 10, 1)
	for range 2 {
		s.allowed(at(10), request...)
	}
	s.denied(at(10), request...)
}
