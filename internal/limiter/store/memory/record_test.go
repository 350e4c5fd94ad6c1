package memory_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluicelimits/sluice/internal/limiter/limit"

	"github.com/sluicelimits/sluice/internal/testkit/soak"
)

// Guarantees that no charge is lost or made twice while records move in memory: owners get counters one after the
// other, are swept and come back, while others decide about the same owners and refund.
func TestRecordsMoveWhileOthersDecide(t *testing.T) {
	const owners, goroutines, each = 40, 16, 4000
	var limits []*limit.Limit
	for i := range 11 { // more than fit behind a record
		limits = append(limits, newLimit(t, limit.Limit{ID: fmt.Sprint("daily-", i), Tiers: []limit.Tier{
			{Algorithm: limit.FixedWindow, Threshold: 200, Period: 24 * time.Hour}}}))
	}
	subject := newLimit(t, limit.Limit{ID: "subject", Per: "subject", Tiers: []limit.Tier{
		{Algorithm: limit.FixedWindow, Threshold: 1 << 30, Period: 24 * time.Hour}}})
	passing := bucket(t, "passing", 1000, 1, time.Second)
	s := newStore(t, 0)
	var used [owners][11]atomic.Int64
	var ids sync.Map
	var denied, refunded, ticks atomic.Int64
	var wg sync.WaitGroup
	for g := range goroutines {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(uint64(g), 5))
			var d limit.Decision
			for i := range each {
				now := start.Add(time.Duration(ticks.Add(1)) * 100 * time.Microsecond)
				if r.IntN(3) == 0 {
					if _, err := spend(t, s, tenant(1_000+r.IntN(100_000)), now, passing); err != nil {
						t.Error(err)
					}
					continue
				}
				owner := r.IntN(owners)
				req := limit.Request{Owner: tenant(owner)}
				first := r.IntN(1 + min(len(limits)-1, i*len(limits)/each*2)) // counters are added step by step
				for j := first; j < len(limits) && j < first+3; j++ {
					req.Charges = append(req.Charges, limit.Charge{Limit: limits[j], Cost: 1})
				}
				if r.IntN(4) == 0 {
					req.Charges = append(req.Charges,
						limit.Charge{Limit: subject, Value: limit.ValueOf(fmt.Sprint(r.IntN(30))), Cost: 1})
				}
				if err := s.Decide(t.Context(), &req, now, &d); err != nil {
					t.Error(err)
					return
				}
				if !d.Allowed {
					denied.Add(1)
					continue
				}
				if _, again := ids.LoadOrStore(d.ID, true); again {
					t.Errorf("two decisions have the receipt id %v, want different ones", d.ID)
				}
				units := int64(1)
				if r.IntN(4) == 0 {
					back, err := s.Settle(t.Context(), d.Receipt(), nil, now)
					if err != nil || back.Returned[0] != 1 || back.Repeated {
						t.Errorf("a refund gives back %+v, %v; want all units", back, err)
					}
					units = 0
					refunded.Add(1)
				}
				for j := first; j < len(limits) && j < first+3; j++ {
					used[owner][j].Add(units)
				}
			}
		})
	}
	wg.Wait()
	for owner := range owners {
		for j, l := range limits {
			if got, want := usedOf(t, s, tenant(owner), start.Add(time.Minute), l),
				used[owner][j].Load(); got != want || got > 200 {
				t.Errorf("%s, %s: %d units are used, %d were admitted and not refunded", tenant(owner).Name, l.ID, got,
					want)
			}
		}
	}
	if denied.Load() == 0 || refunded.Load() == 0 {
		t.Errorf("%d denied, %d refunded: the test shows too little", denied.Load(), refunded.Load())
	}
}

// Guarantees that an owner keeps its counters whatever requests name first: in any order, after a new version of the
// plan, and with more limits than fit behind a record.
func TestCountersInAnyOrder(t *testing.T) {
	version := func(threshold int64) (limits []*limit.Limit) {
		for i := range 12 {
			limits = append(limits, newLimit(t, limit.Limit{ID: fmt.Sprint("l", i), Tiers: []limit.Tier{
				{Algorithm: limit.FixedWindow, Threshold: threshold, Period: time.Hour},
				{Algorithm: limit.FixedWindow, Threshold: threshold, Period: time.Duration(i+2) * time.Hour}}}))
		}
		return limits
	}
	versions := [][]*limit.Limit{version(50), version(60), version(70)}
	for seed := range uint64(20) {
		r := rand.New(rand.NewPCG(seed, 3))
		s := newStore(t, 0)
		var used [12]int64
		for step := range 300 {
			limits := versions[min(step*len(versions)/300, r.IntN(len(versions)))]
			var charges []limit.Charge
			for _, i := range r.Perm(12)[:1+r.IntN(12)] {
				charges = append(charges, limit.Charge{Limit: limits[i], Cost: 1})
			}
			req := limit.Request{Owner: tenant(1), Charges: charges}
			fits := true
			for _, c := range charges {
				fits = fits && used[numberOf(c.Limit)] < c.Limit.Tiers[0].Threshold
			}
			var d limit.Decision
			if err := s.Decide(t.Context(), &req, start, &d); err != nil || d.Allowed != fits {
				t.Fatalf("seed %d, step %d: allowed %t, %v; want %t", seed, step, d.Allowed, err, fits)
			}
			for i := range d.Results {
				n := numberOf(d.Results[i].Limit())
				if d.Allowed && i%2 == 0 {
					used[n]++
				}
				if got := d.Results[i].Used(); got != used[n] {
					t.Fatalf("seed %d, step %d: %d units of %s are used, want %d", seed, step, got,
						d.Results[i].Limit().ID, used[n])
				}
			}
		}
	}
}

func numberOf(l *limit.Limit) (n int) {
	if _, err := fmt.Sscanf(l.ID, "l%d", &n); err != nil {
		panic(err)
	}
	return n
}

// Guarantees that look-ups stay short and the memory small, however many owners come and go.
func TestOwnersComeAndGo(t *testing.T) {
	soak.SkipUnderRace(t)
	s, l := newStore(t, 4<<20), bucket(t, "passing", 1000, 1, time.Second)
	most := int64(0)
	for i := range 100_000 {
		now := start.Add(time.Duration(i) * 10 * time.Millisecond)
		if ok, err := spend(t, s, tenant(i), now, l); err != nil || !ok {
			t.Fatalf("owner %d: allowed %t, %v", i, ok, err)
		}
		most = max(most, s.Bytes())
	}
	if most > 1<<20 {
		t.Errorf("a hundred new owners a second, each forgotten after five seconds, took %d bytes, which is too much",
			most)
	}
	if ok, err := spend(t, s, tenant(0), start.Add(time.Hour*24), l); err != nil || !ok {
		t.Errorf("an owner that was forgotten and comes back: allowed %t, %v; want it allowed", ok, err)
	}
	if _, err := spend(t, s, limit.Owner{Kind: limit.Tenant, Name: string(make([]byte, 129))}, start,
		l); !errors.Is(err, limit.ErrInvalidRequest) {
		t.Errorf("an owner whose name is too long: %v, want an error", err)
	}
}

// Guarantees that a counter follows the version of its limit that was charged last: the store forgets it when the
// counter is like an unused one by that version, and not earlier.
func TestCounterOfAChangedLimitIsRemembered(t *testing.T) {
	quick, slow := bucket(t, "bucket", 3600, 2, time.Hour), bucket(t, "bucket", 1, 2, time.Hour)
	subject := func(rate int64) *limit.Limit {
		return newLimit(t, limit.Limit{ID: "subject", Per: "subject", Tiers: []limit.Tier{
			{Algorithm: limit.TokenBucket, Threshold: rate, Burst: 2, Period: time.Hour}}})
	}
	for name, charges := range map[string][2]limit.Charge{
		"behind the record": {{Limit: quick, Cost: 1}, {Limit: slow, Cost: 1}},
		"of a value": {{Limit: subject(3600), Value: limit.ValueOf("u"), Cost: 1},
			{Limit: subject(1), Value: limit.ValueOf("u"), Cost: 1}},
	} {
		t.Run(name, func(t *testing.T) {
			s, passing := newStore(t, 0), bucket(t, "passing", 1000, 1, time.Second)
			ask := func(c limit.Charge, now time.Time) bool {
				var d limit.Decision
				if err := s.Decide(t.Context(), &limit.Request{Owner: tenant(1), Charges: []limit.Charge{c}}, now,
					&d); err != nil {
					t.Fatal(err)
				}
				return d.Allowed
			}
			if !ask(charges[0], start) || !ask(charges[1], start) {
				t.Fatal("the first two units are denied, want them admitted")
			}
			for i := range 5000 { // each new owner makes the store look for counters that it may forget
				mustSpend(t, s, tenant(100+i), start.Add(10*time.Minute+time.Duration(i)*time.Millisecond), passing)
			}
			if ask(charges[1], start.Add(20*time.Minute)) {
				t.Error("both units are spent, and the first comes back after an hour, but one is admitted after 20 " +
					"minutes: the counter was forgotten")
			}
		})
	}
}

// Guarantees that two values of a request that share the counter of other values are not both charged to it, whether or
// not that counter exists.
func TestValuesOfOneRequestShareNoCounter(t *testing.T) {
	s, l := newStore(t, 0), newLimit(t, limit.Limit{ID: "subject", Per: "subject", MaxValues: 1, Tiers: []limit.Tier{
		{Algorithm: limit.FixedWindow, Threshold: 100, Period: time.Hour}}})
	ask := func(values ...string) error {
		req := limit.Request{Owner: tenant(1)}
		for _, v := range values {
			req.Charges = append(req.Charges, limit.Charge{Limit: l, Value: limit.ValueOf(v), Cost: 1})
		}
		var d limit.Decision
		return s.Decide(t.Context(), &req, start, &d)
	}
	if err := ask("a"); err != nil {
		t.Fatal(err)
	}
	if err := ask("b", "c"); !errors.Is(err, limit.ErrDuplicateCounter) {
		t.Errorf("two values beyond the bound: %v, want ErrDuplicateCounter", err)
	}
	if err := ask("b"); err != nil {
		t.Fatal(err)
	}
	if err := ask("c", "d"); !errors.Is(err, limit.ErrDuplicateCounter) {
		t.Errorf("two values beyond the bound, whose counter exists: %v, want ErrDuplicateCounter", err)
	}
	if err := ask("a", "d"); err != nil {
		t.Errorf("a request for a value with a counter and one without: %v, want no error", err)
	}
}
