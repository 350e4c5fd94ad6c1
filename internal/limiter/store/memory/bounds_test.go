package memory_test

import (
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/limiter/limit/limittest"
	"github.com/sluicelimits/sluice/internal/limiter/store/memory"
	"github.com/sluicelimits/sluice/internal/testkit/soak"
)

var start = limittest.Start

var newLimit = limittest.MustNew

func bucket(tb testing.TB, id string, rate, burst int64, period time.Duration) *limit.Limit {
	tb.Helper()
	return newLimit(tb, limit.Limit{ID: id, MaxCost: burst, Tiers: []limit.Tier{
		{Algorithm: limit.TokenBucket, Threshold: rate, Burst: burst, Period: period}}})
}

func tenant(i int) limit.Owner {
	return limit.Owner{Kind: limit.Tenant, Name: fmt.Sprintf("tenant-%d", i)}
}

// spend asks for one unit of each limit.
func spend(tb testing.TB, s *memory.Store, owner limit.Owner, now time.Time, limits ...*limit.Limit) (bool, error) {
	tb.Helper()
	var charges []limit.Charge
	for _, l := range limits {
		charges = append(charges, limit.Charge{Limit: l, Cost: 1})
	}
	var d limit.Decision
	err := s.Decide(tb.Context(), &limit.Request{Owner: owner, Charges: charges}, now, &d)
	return d.Allowed, err
}

func TestNewErrors(t *testing.T) {
	for _, bytes := range []int64{-1, 1, 4095} {
		if s, err := memory.New(memory.Config{MaxBytes: bytes}); err == nil || s != nil {
			t.Errorf("New with %d bytes = %v, %v; want an error", bytes, s, err)
		}
	}
}

// Guarantees that a full store refuses requests and does not forget a counter in use. A forgotten counter would admit
// its limit once more, and anybody who can invent owners could cause that.
func TestFullStoreForgetsNothingInUse(t *testing.T) {
	soak.SkipUnderRace(t)
	const maxBytes = 64 << 10
	for _, l := range []*limit.Limit{
		bucket(t, "bucket", 1, 1, time.Hour),
		newLimit(t, limit.Limit{ID: "window", Tiers: []limit.Tier{{Algorithm: limit.FixedWindow, Threshold: 1,
			Period: time.Hour}}}),
		newLimit(t, limit.Limit{ID: "leaky", Tiers: []limit.Tier{{Algorithm: limit.LeakyBucket, Threshold: 1,
			Period: time.Hour}}}),
		newLimit(t, limit.Limit{ID: "sliding", Tiers: []limit.Tier{{Algorithm: limit.SlidingWindow, Threshold: 1,
			Period: 30 * time.Minute}}}),
		newLimit(t, limit.Limit{ID: "quota", Tiers: []limit.Tier{{Algorithm: limit.Quota, Threshold: 1,
			Calendar: &limit.Calendar{Every: limit.Day, Location: time.UTC}}}}),
	} {
		t.Run(l.ID, func(t *testing.T) {
			s := newStore(t, maxBytes)
			var in []limit.Owner
			refused := 0
			for i := range 2000 {
				at := start.Add(time.Duration(i) * time.Millisecond)
				owner := tenant(20_000 + i) // all names have the same length
				ok, err := spend(t, s, owner, at, l)
				switch {
				case errors.Is(err, limit.ErrFull):
					refused++
				case err != nil || !ok:
					t.Fatalf("owner %d: allowed %t, %v", i, ok, err)
				default:
					in = append(in, owner)
				}
				if got := s.Bytes(); got > maxBytes {
					t.Fatalf("after owner %d the store takes %d bytes, want at most %d", i, got, maxBytes)
				}
			}
			if refused == 0 || len(in) < 50 {
				t.Fatalf("%d owners are admitted and %d refused by a store of %d bytes: the store was never full, "+
					"so the test shows nothing", len(in), refused, maxBytes)
			}
			for _, owner := range in {
				if ok, err := spend(t, s, owner, start.Add(5*time.Second), l); ok || err != nil {
					t.Fatalf("%s has spent its only unit: allowed again %t, %v; want a denial (%d owners have "+
						"counters)", owner.Name, ok, err, len(in))
				}
			}
			// When the counters are like unused ones, there is room for as many new owners. The store may need a few
			// requests to find it.
			again, tries := 0, 0
			for ; again < len(in) && tries < 4*len(in); tries++ {
				later := start.Add(26*time.Hour + time.Duration(tries)*200*time.Millisecond)
				ok, err := spend(t, s, tenant(10_000+tries), later, l)
				if err == nil && ok {
					again++
				}
			}
			if again < len(in) {
				t.Errorf("a day later %d of %d new owners were let in, want %d, as many as at first", again, tries,
					len(in))
			}
		})
	}
}

// Guarantees that a small store is exact: it answers as the model does, or says that it is full and charges nothing.
// Values without room share a counter, and the answer says so. Sliding logs without room are stricter than the model
// (see TestSlidingLogsWithoutRoom), and so are sliding buckets; a store with one budget has no such logs.
func TestSmallStoreAgreesWithTheModel(t *testing.T) {
	soak.SkipUnderRace(t)
	for _, oneBudget := range []bool{false, true} {
		t.Run(fmt.Sprintf("one budget %t", oneBudget), func(t *testing.T) { agreesWithTheModel(t, oneBudget) })
	}
}

func agreesWithTheModel(t *testing.T, oneBudget bool) {
	const maxBytes = 40 << 10
	limits := []*limit.Limit{
		bucket(t, "bucket", 5, 3, 2*time.Second),
		newLimit(t, limit.Limit{ID: "window", Tiers: []limit.Tier{{Algorithm: limit.FixedWindow, Threshold: 4,
			Period: 3 * time.Second}}}),
		newLimit(t, limit.Limit{ID: "sliding", Tiers: []limit.Tier{{Algorithm: limit.SlidingWindow, Threshold: 4,
			Period: time.Second}}}),
		newLimit(t, limit.Limit{ID: "leaky", Tiers: []limit.Tier{{Algorithm: limit.LeakyBucket, Threshold: 4,
			Period: 5 * time.Second}}}),
		newLimit(t, limit.Limit{ID: "each-subject", Per: "subject", Tiers: []limit.Tier{{Algorithm: limit.FixedWindow,
			Threshold: 3, Period: 2 * time.Second}}}),
	}
	if oneBudget {
		limits = append(limits, newLimit(t, limit.Limit{ID: "log", Tiers: []limit.Tier{{Algorithm: limit.SlidingLog,
			Threshold: 6, Period: 4 * time.Second}}}),
			newLimit(t, limit.Limit{ID: "subject", Per: "subject", Tiers: []limit.Tier{{Algorithm: limit.SlidingBuckets,
				Threshold: 3, Period: 2 * time.Second, Buckets: 4}}}))
	}
	for seed := range soak.Times(uint64(6)) {
		r := rand.New(rand.NewPCG(seed, 9))
		s, err := memory.New(memory.Config{MaxBytes: maxBytes, OneBudget: oneBudget,
			Log: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		model := limittest.NewModel(t)
		now, full, shared, decided, denied := start, 0, 0, 0, 0
		for step := range 6000 {
			now = now.Add(time.Duration(r.Int64N(int64(20 * time.Millisecond))).Truncate(time.Microsecond))
			if r.IntN(1500) == 0 {
				now = now.Add(time.Minute)
			}
			owner := tenant(r.IntN(20) * r.IntN(20))
			var charges []limit.Charge
			for _, l := range limits {
				if r.IntN(3) == 0 {
					c := limit.Charge{Limit: l, Cost: 1}
					if l.Per != limit.PerTenant {
						c.Value = limit.ValueOf(fmt.Sprint("u-", r.IntN(4)))
					}
					charges = append(charges, c)
				}
			}
			var d limit.Decision
			err := s.Decide(t.Context(), &limit.Request{Owner: owner, Charges: charges}, now, &d)
			if errors.Is(err, limit.ErrFull) {
				full++
				if d.Allowed || len(d.Receipt().Entries()) > 0 {
					t.Fatalf("seed %d, step %d: after the error that the store is full, the decision has an "+
						"outcome, want none", seed, step)
				}
				continue
			}
			if err != nil {
				t.Fatal(err)
			}
			for i := range d.Results { // each limit has one tier
				if d.Results[i].Other {
					charges[i].Value = d.Value(i)
					shared++
				}
			}
			o := model.Decide(owner, charges, now.UnixMicro(), true)
			if d.Allowed != o.Allowed || d.RetryAt != o.RetryAt {
				t.Fatalf("seed %d, step %d, %s: allowed %t, retry at %d; the model says %t, %d", seed, step, owner.Name,
					d.Allowed, d.RetryAt, o.Allowed, o.RetryAt)
			}
			decided++
			if !d.Allowed {
				denied++
			}
			if got := s.Bytes(); got > maxBytes {
				t.Fatalf("seed %d, step %d: %d bytes, want at most %d", seed, step, got, maxBytes)
			}
		}
		if full == 0 || denied == 0 || decided < 1000 || (shared > 0) == oneBudget {
			t.Errorf("seed %d: %d decided, %d denied, %d times full, %d shared: the script shows too little", seed,
				decided,
				denied, full, shared)
		}
	}
}

// Guarantees that the store's count of bytes stays exact when counters come and go: otherwise the store would report
// that it is full, or grow without bound, after some weeks.
func TestBytesDoNotDrift(t *testing.T) {
	soak.SkipUnderRace(t)
	const maxBytes = 256 << 10
	limits := []*limit.Limit{
		bucket(t, "bucket", 1, 9, time.Second),
		newLimit(t, limit.Limit{ID: "log", MaxCost: 9, Tiers: []limit.Tier{{Algorithm: limit.SlidingLog, Threshold: 50,
			Period: 10 * time.Second}}}),
		newLimit(t, limit.Limit{ID: "buckets", MaxCost: 9, Tiers: []limit.Tier{{Algorithm: limit.SlidingBuckets,
			Threshold: 50, Period: 10 * time.Second}}}),
	}
	subject := newLimit(t, limit.Limit{ID: "subject", Per: "subject",
		Tiers: []limit.Tier{{Algorithm: limit.FixedWindow, Threshold: 50, Period: 10 * time.Second}}})
	for _, refunds := range []bool{false, true} {
		t.Run(fmt.Sprintf("refunds %t", refunds), func(t *testing.T) {
			s := newStore(t, maxBytes)
			now, first := start, 0
			for round := range soak.Times(30) {
				held := 0 // owners in use at the same time
				for i := range 1500 {
					now = now.Add(time.Millisecond)
					charges := []limit.Charge{{Limit: subject, Value: limit.ValueOf(fmt.Sprint("user-", i%17)),
						Cost: 1}}
					for _, l := range limits {
						charges = append(charges, limit.Charge{Limit: l, Cost: 9})
					}
					var d limit.Decision
					err := s.Decide(t.Context(), &limit.Request{Owner: tenant(round*10_000 + i), Charges: charges},
						now, &d)
					if errors.Is(err, limit.ErrFull) {
						continue
					}
					if err != nil {
						t.Fatal(err)
					}
					held++
					if got := s.Bytes(); got < 0 || got > maxBytes+4096 {
						t.Fatalf("round %d: the store reports %d bytes in use, of at most %d", round+1, got, maxBytes)
					}
					if !refunds {
						continue
					}
					if _, err := s.Settle(t.Context(), d.Receipt(), d.Receipt().Without(2), now); err != nil &&
						!errors.Is(err, limit.ErrSettlementsFull) {
						t.Fatal(err)
					}
				}
				if round == 0 {
					first = held
				}
				if held < first*9/10 || held > first*11/10 {
					t.Fatalf("round %d: the store has room for %d owners, want %d as in the first round", round+1, held,
						first)
				}
				now = now.Add(time.Hour)
			}
		})
	}
}

// Guarantees that the estimate of bytes, to which the bound applies, is about what the process takes.
func TestBytesEstimate(t *testing.T) {
	if soak.RaceEnabled {
		t.Skip("the race detector's own memory is in the heap's figures")
	}
	three := []*limit.Limit{bucket(t, "a", 1, 5, time.Hour), bucket(t, "b", 1, 5, time.Hour), bucket(t, "c", 1, 5,
		time.Hour)}
	log := newLimit(t, limit.Limit{ID: "log", Tiers: []limit.Tier{{Algorithm: limit.SlidingLog, Threshold: 1000,
		Period: time.Hour}}})
	subject := newLimit(t, limit.Limit{ID: "subject", Per: "subject",
		Tiers: []limit.Tier{{Algorithm: limit.FixedWindow, Threshold: 3, Period: time.Hour}}})
	manySubjects := newLimit(t, limit.Limit{ID: "subject", Per: "subject", MaxValues: 1_000_000,
		Tiers: []limit.Tier{{Algorithm: limit.FixedWindow, Threshold: 90, Period: time.Hour}}})
	many := func(s *memory.Store, owners int, limits ...*limit.Limit) {
		for i := range owners {
			if _, err := spend(t, s, tenant(i), start, limits...); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, tc := range []struct {
		name string
		fill func(s *memory.Store)
	}{
		{"owners with one limit", func(s *memory.Store) { many(s, 20_000, three[0]) }},
		{"owners with three limits", func(s *memory.Store) { many(s, 20_000, three...) }},
		{"owners with six limits", func(s *memory.Store) {
			many(s, 10_000, append(three[:3:3], bucket(t, "d", 1, 5, time.Hour), bucket(t, "e", 1, 5, time.Hour),
				bucket(t,
					"f", 1, 5, time.Hour))...)
		}},
		{"values", func(s *memory.Store) {
			for i := range 40_000 {
				var d limit.Decision
				req := limit.Request{Owner: tenant(i % 200), Charges: []limit.Charge{{Limit: subject,
					Value: limit.ValueOf(fmt.Sprint("user-", i)), Cost: 1}}}
				if err := s.Decide(t.Context(), &req, start, &d); err != nil {
					t.Fatal(err)
				}
			}
		}},
		{"logs", func(s *memory.Store) {
			for i := range 200_000 {
				if _, err := spend(t, s, tenant(i%400), start.Add(time.Duration(i)*time.Microsecond), log); err != nil {
					t.Fatal(err)
				}
			}
		}},
		{"logs of which most has ended at once", func(s *memory.Store) {
			for i := range 400 {
				for j := range 700 { // which fill the memory that a log has after that
					mustSpend(t, s, tenant(i), start.Add(time.Duration(j)*time.Microsecond), log)
				}
				mustSpend(t, s, tenant(i), start.Add(30*time.Minute), log)
			}
			for i := range 400 {
				mustSpend(t, s, tenant(i), start.Add(70*time.Minute), log)
			}
		}},
		{"logs of which most has ended bit by bit", func(s *memory.Store) {
			for i := range 400 {
				at := start
				for n := 263; n > 0; n = n * 5 / 8 { // fewer units end in each minute than stay
					at = at.Add(time.Minute)
					for j := range n {
						mustSpend(t, s, tenant(i), at.Add(time.Duration(j)*time.Microsecond), log)
					}
				}
				for at = start.Add(61*time.Minute +
					time.Second); at.Before(start.Add(70 * time.Minute)); at = at.Add(time.Minute) {
					mustSpend(t, s, tenant(i), at, log)
				}
			}
		}},
		{"one owner's values", func(s *memory.Store) {
			for i := range 200_000 {
				mustSpendAs(t, s, tenant(0), start, manySubjects, i)
			}
		}},
		{"refunds", func(s *memory.Store) {
			for i := range 40_000 {
				var d limit.Decision
				req := limit.Request{Owner: tenant(i % 400), Charges: []limit.Charge{{Limit: log, Cost: 1}}}
				if err := s.Decide(t.Context(), &req, start, &d); err != nil {
					t.Fatal(err)
				}
				if _, err := s.Settle(t.Context(), d.Receipt(), nil, start); err != nil {
					t.Fatal(err)
				}
			}
		}},
		{"refunds of few decisions", func(s *memory.Store) {
			l := monthly(t, limit.MaxUnits)
			for i := range 10_000 {
				for range 63 {
					charge(t, s, tenant(1), start, l)
				}
				if _, err := s.Settle(t.Context(), charge(t, s, tenant(1), start, l), nil, start); err != nil {
					t.Fatal(err, i)
				}
			}
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			heap := func() int64 {
				var m runtime.MemStats
				runtime.GC()
				runtime.GC()
				runtime.ReadMemStats(&m)
				return int64(m.HeapAlloc)
			}
			s := newStore(t, 0)
			before := heap()
			tc.fill(s)
			took, said := heap()-before, s.Bytes()
			ratio := float64(said) / float64(took)
			t.Logf("the heap grew by %d bytes, the estimate is %d: %.2f", took, said, ratio)
			if ratio < 0.7 || ratio > 3 {
				t.Errorf("the heap grew by %d bytes, the estimate is %d, %.2f of it; want 0.7 to 3", took, said, ratio)
			}
			runtime.KeepAlive(s)
		})
	}
}

// mustSpend spends one unit, which must be admitted.
func mustSpend(tb testing.TB, s *memory.Store, owner limit.Owner, now time.Time, l *limit.Limit) {
	tb.Helper()
	if ok, err := spend(tb, s, owner, now, l); err != nil || !ok {
		tb.Fatalf("%s at %s: allowed %t, %v", owner.Name, now, ok, err)
	}
}

// mustSpendAs is mustSpend for a subject of the owner.
func mustSpendAs(tb testing.TB, s *memory.Store, owner limit.Owner, now time.Time, l *limit.Limit, subject int) {
	tb.Helper()
	var d limit.Decision
	value := limit.ValueOf(fmt.Sprint("user-", subject))
	req := limit.Request{Owner: owner, Charges: []limit.Charge{{Limit: l, Value: value, Cost: 1}}}
	if err := s.Decide(tb.Context(), &req, now, &d); err != nil || !d.Allowed {
		tb.Fatalf("%s at %s: allowed %t, %v", owner.Name, now, d.Allowed, err)
	}
}

// Guarantees that invented values of one tenant get one shared counter, and do not use up the store's memory.
func TestValuesAreBounded(t *testing.T) {
	s := newStore(t, 0)
	l := newLimit(t, limit.Limit{ID: "subject", Per: "subject", MaxValues: 100,
		Tiers: []limit.Tier{{Algorithm: limit.FixedWindow, Threshold: 1, Period: time.Hour}}})
	admitted, most := 0, int64(0)
	for i := range 50_000 {
		var d limit.Decision
		req := limit.Request{Owner: tenant(1), Charges: []limit.Charge{{Limit: l,
			Value: limit.ValueOf(fmt.Sprint("user-", i)), Cost: 1}}}
		if err := s.Decide(t.Context(), &req, start, &d); err != nil {
			t.Fatal(err)
		}
		if d.Allowed {
			admitted++
		}
		most = max(most, s.Bytes())
	}
	if admitted != 101 {
		t.Errorf("50000 values of one unit each: %d admitted, want 101: a hundred, and one shared", admitted)
	}
	if most > 64<<10 {
		t.Errorf("50000 values took %d bytes, want what 101 take", most)
	}
	// Values whose counters are like unused ones make room for others.
	var d limit.Decision
	later := start.Add(3 * time.Hour)
	for i := range 500 {
		req := limit.Request{Owner: tenant(1), Charges: []limit.Charge{{Limit: l,
			Value: limit.ValueOf(fmt.Sprint("late-", i)), Cost: 1}}}
		if err := s.Decide(t.Context(), &req, later, &d); err != nil {
			t.Fatal(err)
		}
	}
	req := limit.Request{Owner: tenant(1), Charges: []limit.Charge{{Limit: l, Value: limit.ValueOf("late-0"), Cost: 1}}}
	if err := s.Peek(t.Context(), &req, later, &d); err != nil || d.Allowed {
		t.Errorf("a value that spent its unit: allowed %t, %v; want denied", d.Allowed, err)
	}
}

// Guarantees that sweeps during concurrent decisions neither lose a counter in use nor charge one twice.
func TestManyOwnersAtOnceWithSweeping(t *testing.T) {
	const owners, goroutines, each, capacity = 300, 32, 500, 4
	s := newStore(t, 48<<10)
	kept := newLimit(t, limit.Limit{ID: "kept", Tiers: []limit.Tier{{Algorithm: limit.FixedWindow,
		Threshold: capacity, Period: 24 * time.Hour}}})
	// full again after a ms, so that its counters can soon be forgotten
	passing := bucket(t, "passing", 1000, 1, time.Second)
	var admitted [owners]atomic.Int64
	var full, ticks atomic.Int64
	var wg sync.WaitGroup
	for g := range goroutines {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(uint64(g), 11))
			for range each {
				at := start.Add(time.Duration(ticks.Add(1)) * time.Millisecond) // 16 s in all, within one day
				if r.IntN(2) == 0 {
					if _, err := spend(t, s, tenant(1_000_000+r.IntN(100_000)), at, passing); err != nil &&
						!errors.Is(err,
							limit.ErrFull) {
						t.Error(err)
					}
					continue
				}
				i := r.IntN(owners)
				ok, err := spend(t, s, tenant(i), at, kept)
				switch {
				case errors.Is(err, limit.ErrFull):
					full.Add(1)
				case err != nil:
					t.Error(err)
				case ok:
					admitted[i].Add(1)
				}
			}
		})
	}
	wg.Wait()
	spent := 0
	for i := range admitted {
		n := admitted[i].Load()
		if n > capacity {
			t.Errorf("%s was admitted %d times, want at most %d", tenant(i).Name, n, capacity)
		}
		if n == capacity {
			spent++
		}
	}
	if spent < 20 {
		t.Errorf("%d owners used up their limit, %d times full: the test shows too little", spent, full.Load())
	}
	if got := s.Bytes(); got > 48<<10 || got < 0 {
		t.Errorf("the store takes %d bytes, want at most %d", got, 48<<10)
	}
}

// Guarantees that a decision allocates nothing. At a million decisions a second, garbage would be the largest cost.
func TestDecideDoesNotAllocate(t *testing.T) {
	if soak.RaceEnabled {
		t.Skip("the race detector allocates")
	}
	for _, n := range []int{1, 3} {
		for _, outcome := range []string{"allowed", "denied"} {
			t.Run(fmt.Sprintf("%d limits, %s", n, outcome), func(t *testing.T) {
				s := newStore(t, 0)
				burst := int64(1 << 20)
				if outcome == "denied" {
					burst = 1
				}
				var charges []limit.Charge
				for i := range n {
					charges = append(charges, limit.Charge{Limit: bucket(t, fmt.Sprint("l", i), 1, burst,
						time.Duration(i+1)*time.Second), Cost: 1})
				}
				req := limit.Request{Owner: tenant(1), Charges: charges}
				var d limit.Decision
				now, ctx := start, t.Context()
				decide := func() {
					now = now.Add(time.Microsecond)
					if err := s.Decide(ctx, &req, now, &d); err != nil {
						t.Fatal(err)
					}
				}
				decide()
				if got := testing.AllocsPerRun(1000, decide); got != 0 {
					t.Errorf("%v allocations in a decision, want 0", got)
				}
				if d.Allowed != (outcome == "allowed") {
					t.Errorf("the test shows nothing: the last decision was allowed %t, so another case was measured",
						d.Allowed)
				}
			})
		}
	}
}

// Guarantees that a decision over a quota allocates nothing: the calendar period is computed once for each period.
func TestQuotaDecisionDoesNotAllocate(t *testing.T) {
	if soak.RaceEnabled {
		t.Skip("the race detector allocates")
	}
	zone, err := time.LoadLocation("America/New_York")
	if err != nil {
		t.Fatal(err)
	}
	s := newStore(t, 0)
	req := limit.Request{Owner: tenant(1), Charges: []limit.Charge{{Cost: 1, Limit: newLimit(t, limit.Limit{ID: "quota",
		Tiers: []limit.Tier{{Algorithm: limit.Quota, Threshold: 500, Calendar: &limit.Calendar{Every: limit.Month,
			Location: zone}}}})}}}
	var d limit.Decision
	now, ctx, allowed := start, t.Context(), 0
	if got := testing.AllocsPerRun(1000, func() {
		now = now.Add(time.Microsecond)
		if err := s.Decide(ctx, &req, now, &d); err != nil {
			t.Fatal(err)
		}
		if d.Allowed {
			allowed++
		}
	}); got != 0 || allowed != 500 {
		t.Errorf("%v allocations in a decision and %d allowed, want 0 and 500", got, allowed)
	}
}

// Guarantees that a request is refused if it names the shared counter of all other values together with a value that is
// counted there because the limit has no room for more, in either order. One counter would otherwise be charged twice.
func TestSharedCounterTwiceInARequest(t *testing.T) {
	s := newStore(t, 0)
	l := newLimit(t, limit.Limit{ID: "l", Per: "subject", MaxValues: 1, Tiers: []limit.Tier{
		{Algorithm: limit.FixedWindow, Threshold: 10, Period: time.Minute}}})
	ask := func(values ...limit.Value) error {
		var d limit.Decision
		req := limit.Request{Owner: tenant(1)}
		for _, v := range values {
			req.Charges = append(req.Charges, limit.Charge{Limit: l, Cost: 1, Value: v})
		}
		return s.Decide(t.Context(), &req, start, &d)
	}
	ann, bob, others := limit.ValueOf("ann"), limit.ValueOf("bob"), limit.Value{Kind: limit.ValueOther}
	if err := ask(ann); err != nil {
		t.Fatal(err)
	}
	for range 2 { // before the shared counter exists, and after
		for _, values := range [][]limit.Value{{bob, others}, {others, bob}} {
			if err := ask(values...); !errors.Is(err, limit.ErrDuplicateCounter) {
				t.Errorf("values %v: %v, want ErrDuplicateCounter", values, err)
			}
		}
		if err := ask(others); err != nil {
			t.Fatal(err)
		}
	}
}
