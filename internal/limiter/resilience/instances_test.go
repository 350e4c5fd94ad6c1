package resilience_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/limiter/resilience"
	"github.com/sluicelimits/sluice/internal/limiter/store/memory/memorytest"
)

// shared is a store that counts its calls and can fail.
type shared struct {
	limit.Store
	asked atomic.Int64
	down  atomic.Bool
}

func newShared(t *testing.T) *shared {
	t.Helper()
	inner := memorytest.New(t)
	return &shared{Store: inner}
}

func (s *shared) Decide(ctx context.Context, req *limit.Request, now time.Time, d *limit.Decision) error {
	s.asked.Add(1)
	if s.down.Load() {
		return errGone
	}
	return s.Store.Decide(ctx, req, now, d)
}

func newInstances(t *testing.T, c resilience.InstancesConfig) *resilience.Instances {
	t.Helper()
	f, err := resilience.NewInstances(c)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// run starts n instances.
func run(ctx context.Context, t *testing.T, store limit.Store, n int, wg *sync.WaitGroup) []*resilience.Instances {
	var all []*resilience.Instances
	for range n {
		f := newInstances(t, resilience.InstancesConfig{Store: store, Max: 1000})
		all = append(all, f)
		wg.Go(func() { f.Run(ctx) })
	}
	return all
}

// Guarantees that every running instance is counted all the time, and that the count is not much larger.
func TestCount(t *testing.T) {
	for _, n := range []int{1, 2, 5, 20, 100} {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			var wg sync.WaitGroup
			all := run(ctx, t, newShared(t), n, &wg)
			pass(45 * time.Second)
			least, most, sum, readings := n*10, 0, 0, 0
			for range 600 {
				pass(time.Second)
				for _, f := range all {
					c := f.Count()
					least, most = min(least, c), max(most, c)
					sum += c
					readings++
				}
			}
			cancel()
			wg.Wait()
			mean := float64(sum) / float64(readings) / float64(n)
			t.Logf("%d instances: count %d to %d, mean %.2f of the truth", n, least, most, mean)
			if least < n || mean > 1.2+0.5/float64(n) || float64(most) > 1.6*float64(n)+1 {
				t.Errorf("%d instances: the count is %d to %d, mean %.2f of the truth; want it never too small, and "+
					"not much too large", n, least, most, mean)
			}
		})
	}
}

// Guarantees that the count follows the number of instances up and down, and stays while the store fails.
func TestCountFollows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newShared(t)
		var wg sync.WaitGroup
		ctx, cancel := context.WithCancel(t.Context())
		first := run(ctx, t, store, 4, &wg)[0]
		more, end := context.WithCancel(ctx)
		run(more, t, store, 16, &wg)
		pass(40 * time.Second)
		if n := first.Count(); n < 20 || n > 33 {
			t.Errorf("the instance count is %d, with 20 instances; want 20 to 33", n)
		}
		end()
		pass(45 * time.Second)
		if n := first.Count(); n < 4 || n > 8 {
			t.Errorf("the instance count is %d, 45 s after 16 of 20 instances ended; want 4 to 8", n)
		}
		store.down.Store(true)
		pass(time.Hour)
		if n := first.Count(); n < 4 || n > 8 {
			t.Errorf("the instance count is %d after an hour without the store, want it unchanged", n)
		}
		cancel()
		wg.Wait()
	})
}

// Guarantees that one reading that misses an instance does not make the count smaller: an announcement may be late, and
// too small a count makes backstops too large. A second such reading does.
func TestOneLowReadingIsNotBelieved(t *testing.T) {
	store := newShared(t)
	f := newInstances(t, resilience.InstancesConfig{Store: store, Max: 40})
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	var others []*resilience.Instances
	for i, step := range []struct{ announcing, want int }{{3, 4}, {3, 4}, {1, 4}, {1, 2}, {3, 4}, {0, 4}, {0, 1}} {
		for len(others) < step.announcing {
			others = append(others, newInstances(t, resilience.InstancesConfig{Store: store}))
		}
		for _, o := range append(others[:step.announcing:step.announcing], f) {
			if err := o.Announce(t.Context(), now); err != nil {
				t.Fatal(err)
			}
		}
		if n := f.Count(); n != step.want {
			t.Errorf("reading %d, with %d other instances that announce themselves: count %d, want %d", i+1,
				step.announcing, n, step.want)
		}
		// longer than the longest pause, so each of them announces itself once in a period
		now = now.Add(12 * time.Second)
	}
}

// Guarantees that an instance that has never learned the count assumes the largest one, and learns it as soon as the
// store answers.
func TestCountBeforeItLearned(t *testing.T) {
	store := newShared(t)
	store.down.Store(true)
	f := newInstances(t, resilience.InstancesConfig{Store: store, Max: 40})
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	if err := f.Announce(context.Background(), now); !errors.Is(err, errGone) || f.Count() != 40 {
		t.Errorf("err %v, count %d; want the store's error, and 40", err, f.Count())
	}
	store.down.Store(false)
	if err := f.Announce(context.Background(), now.Add(time.Second)); err != nil || f.Count() != 1 {
		t.Errorf("err %v, count %d; want 1", err, f.Count())
	}
}

// Guarantees that announcing an instance with each request calls the store once in a period, also after a clock was set
// back.
func TestAnnouncingIsCheap(t *testing.T) {
	store := newShared(t)
	f := newInstances(t, resilience.InstancesConfig{Store: store})
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	announce := func() {
		t.Helper()
		if err := f.Announce(context.Background(), now); err != nil {
			t.Fatal(err)
		}
	}
	for range 10_000 {
		now = now.Add(10 * time.Millisecond)
		announce()
	}
	if n := store.asked.Load(); n < 10 || n > 12 {
		t.Errorf("the store was called %d times in 100 s, want about one call in 9.6 s", n)
	}
	if f.Count() != 1 {
		t.Errorf("count = %d, want 1", f.Count())
	}
	if n := testing.AllocsPerRun(100, announce); n > 0 {
		t.Errorf("%.1f allocations for an announcement that is not due, want 0", n)
	}
	now = now.Add(-time.Hour)
	before := store.asked.Load()
	announce()
	if store.asked.Load() != before+1 {
		t.Error("no announcement after the clock was set back, want one")
	}
}

// Guarantees that an instance is not counted twice if its announcements are exactly a period apart: the counter still
// counts the earlier one at that time.
func TestAnnouncementsAPeriodApart(t *testing.T) {
	f := newInstances(t, resilience.InstancesConfig{Store: newShared(t)})
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	for range 5 {
		if err := f.Announce(t.Context(), now); err != nil {
			t.Fatal(err)
		}
		if n := f.Count(); n != 1 {
			t.Errorf("%s: %d instances, want 1", now.Format(time.TimeOnly), n)
		}
		now = now.Add(resilience.InstancesPeriod)
	}
}

// Guarantees that if one request overtakes another, only the first to arrive announces the instance: two announcements
// a moment apart would count as two instances.
func TestAnOvertakenRequestAnnouncesNothing(t *testing.T) {
	store := newShared(t)
	f := newInstances(t, resilience.InstancesConfig{Store: store})
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	for _, at := range []time.Time{now, now.Add(-time.Millisecond)} {
		if err := f.Announce(t.Context(), at); err != nil {
			t.Fatal(err)
		}
	}
	if n := store.asked.Load(); n != 1 {
		t.Errorf("the store was asked %d times, want once", n)
	}
}

func TestNewInstancesRefuses(t *testing.T) {
	store := newShared(t)
	for want, c := range map[string]resilience.InstancesConfig{
		"Store is missing": {},
		"Max -1":           {Store: store, Max: -1},
	} {
		if _, err := resilience.NewInstances(c); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("New = %v, want an error with %q", err, want)
		}
	}
}
