package pacer_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluicelimits/sluice/pacer"
)

// divided are instances that divide a limit, and what all of them granted in each window.
type divided struct {
	t       *testing.T
	pacers  []*pacer.Pacer
	mu      sync.Mutex
	granted map[int64]int64
	by      []int64 // instance
}

// divide makes instances with many waiting requests. All that are in the plan use all of their parts.
func divide(t *testing.T, total int64, instances, running int) *divided {
	d := &divided{t: t, granted: map[int64]int64{}, by: make([]int64, running)}
	for i := range running {
		p := open(t, pacer.Config{Limit: pacer.PerSecond(total),
			Part: &pacer.Part{Instances: int64(instances), Index: int64(i)}})
		d.pacers = append(d.pacers, p)
		if i < instances {
			d.saturate(i)
		}
	}
	return d
}

func (d *divided) saturate(i int) {
	for range 3000 {
		_, err := d.pacers[i].Enqueue("a", 1, pacer.Forever, pacer.WakerFunc(func(_ pacer.Permit, err error) {
			if err == nil {
				d.mu.Lock()
				defer d.mu.Unlock()
				d.granted[time.Now().Unix()]++
				d.by[i]++
			}
		}))
		if err != nil {
			d.t.Fatal(err)
		}
	}
}

// windows returns what was granted in each of the latest windows.
func (d *divided) windows(n int64) (all []int64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for window := time.Now().Unix() - n; window < time.Now().Unix(); window++ {
		all = append(all, d.granted[window])
	}
	return all
}

// The parts of all instances add up to the total in each window, and the remainder goes round: also if there are fewer
// units than instances.
func TestParts(t *testing.T) {
	for _, tt := range []struct{ total, instances int64 }{{100, 4}, {100, 7}, {3, 7}, {6, 4}, {1, 5}} {
		synctest.Test(t, func(t *testing.T) {
			d := divide(t, tt.total, int(tt.instances), int(tt.instances))
			pass(time.Duration(4*tt.instances) * time.Second)
			for _, n := range d.windows(4*tt.instances - 1) {
				if n != tt.total {
					t.Fatalf("%d units for %d instances: windows had %v", tt.total, tt.instances,
						d.windows(4*tt.instances-1))
				}
			}
			for i, n := range d.by {
				if want := 4 * tt.total; n < want-1 || n > want+tt.total/tt.instances+1 {
					t.Errorf("%d units for %d instances: instance %d got %d in %d windows, want %d", tt.total,
						tt.instances, i, n, 4*tt.instances, want)
				}
			}
		})
	}
}

// A plan that all instances hear of in the same window holds for all from the second window after it on, and one with a
// time from that time on. No window has more than its total, also when the number of instances grows.
func TestSetPlan(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := divide(t, 100, 4, 6)
		d.saturate(4) // these two have no part before there is a plan with six instances
		d.saturate(5)
		pass(3*time.Second + 300*time.Millisecond)
		set := func(plan pacer.Plan) {
			t.Helper()
			for _, p := range d.pacers {
				if err := p.SetPlan(plan); err != nil {
					t.Fatal(err)
				}
			}
		}
		set(pacer.Plan{Total: 50, Instances: 4})
		pass(4 * time.Second)
		if got, want := fmt.Sprint(d.windows(5)), "[100 100 100 50 50]"; got != want {
			t.Errorf("a total that was halved: %s, want %s", got, want)
		}
		set(pacer.Plan{Total: 80, Instances: 6, From: time.Now().Add(3500 * time.Millisecond)})
		pass(6 * time.Second)
		got := d.windows(6)
		if got[4] != 80 || got[5] != 80 {
			t.Errorf("more instances: %v, want 80 at the end", got)
		}
		early := d.pacers[0].SetPlan(pacer.Plan{Total: 10, Instances: 6, From: time.Now()})
		if !errors.Is(early, pacer.ErrTooSoon) {
			t.Errorf("a plan for the next window: %v, want ErrTooSoon", early)
		}
		for _, plan := range []pacer.Plan{{}, {Total: 1}, {Instances: 1}, {Total: 1, Instances: pacer.MaxInstances + 1},
			{Total: pacer.MaxUnits + 1, Instances: 1}} {
			if err := d.pacers[0].SetPlan(plan); !errors.Is(err, pacer.ErrConfig) {
				t.Errorf("%+v: %v, want ErrConfig", plan, err)
			}
		}
	})
}

// A plan in a file is followed, and stays as it is while the file cannot be read.
func TestFollowPlan(t *testing.T) {
	path := filepath.Join(t.TempDir(), "plan.json")
	write := func(text string) {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	synctest.Test(t, func(t *testing.T) {
		d := divide(t, 100, 2, 2)
		write(`{"total": 40, "instances": 2}`)
		ctx, cancel := context.WithCancel(t.Context())
		var mu sync.Mutex
		failures := 0
		var all sync.WaitGroup
		for _, p := range d.pacers {
			all.Go(func() {
				p.FollowPlan(ctx, time.Second, pacer.PlanFile(path), func(error) {
					mu.Lock()
					defer mu.Unlock()
					failures++
				})
			})
		}
		pass(5*time.Second + time.Millisecond)
		if got, want := fmt.Sprint(d.windows(5)), "[100 100 40 40 40]"; got != want {
			t.Errorf("after the plan changed: %s, want %s", got, want)
		}
		write(`{"total": `)
		pass(3 * time.Second)
		write(`{"total": 60, "instances": 2}`)
		pass(5 * time.Second)
		if got, want := fmt.Sprint(d.windows(8)), "[40 40 40 40 40 40 60 60]"; got != want || failures != 6 {
			t.Errorf("while the file cannot be read: %s, %d failures; want %s and 6", got, failures, want)
		}
		cancel()
		all.Wait()
	})
}

// A plan that does not hold yet stays if a later plan follows it, and is replaced by an earlier one.
func TestPlansInARow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := divide(t, 100, 2, 2)
		pass(100 * time.Millisecond)
		for _, plan := range []struct{ total, window int64 }{{50, 3}, {70, 4}, {80, 6}, {30, 5}} {
			for _, p := range d.pacers {
				from := time.Now().Add(time.Duration(plan.window)*time.Second - 100*time.Millisecond)
				if err := p.SetPlan(pacer.Plan{Total: plan.total, Instances: 2, From: from}); err != nil {
					t.Fatal(err)
				}
			}
		}
		pass(8 * time.Second)
		if got, want := fmt.Sprint(d.windows(8)), "[100 100 100 50 70 30 30 30]"; got != want {
			t.Errorf("plans of 50, 70, 80 and then of 30 before the 80: %s, want %s", got, want)
		}
	})
}

// An instance that is started after a plan began to hold uses it: at once if its part falls or if it has none yet, and
// otherwise from the second window after the present one on. The same holds for an instance that could not read for
// some time.
func TestFollowPlanLate(t *testing.T) {
	for _, tt := range []struct {
		name           string
		instances      int64 // of the configuration
		total, planned int64
		want           string
	}{
		{name: "a part that falls", instances: 2, total: 100, planned: 40, want: "[20 20 20 20]"},
		{name: "a part that rises", instances: 2, total: 100, planned: 160, want: "[50 50 80 80]"},
		{name: "no part yet", instances: 0, total: 100, planned: 160, want: "[80 80 80 80]"},
		{name: "no part yet, and a lower total", instances: 0, total: 100, planned: 40, want: "[20 20 20 20]"},
	} {
		synctest.Test(t, func(t *testing.T) {
			pass(300 * time.Millisecond)
			began := time.Now()
			d := &divided{t: t, granted: map[int64]int64{}, by: make([]int64, 1)}
			p := open(t, pacer.Config{Limit: pacer.PerSecond(tt.total),
				Part: &pacer.Part{Instances: tt.instances}})
			d.pacers = append(d.pacers, p)
			var plan atomic.Pointer[pacer.Plan]
			plan.Store(&pacer.Plan{Total: tt.planned, Instances: 2, From: began.Add(-time.Hour)})
			ctx, cancel := context.WithCancel(t.Context())
			var all sync.WaitGroup
			all.Go(func() {
				read := func(context.Context) (pacer.Plan, error) { return *plan.Load(), nil }
				p.FollowPlan(ctx, time.Second, read, func(err error) { t.Errorf("%s: %v", tt.name, err) })
			})
			synctest.Wait()
			d.saturate(0)
			pass(3700 * time.Millisecond)
			if got := fmt.Sprint(d.windows(4)); got != tt.want {
				t.Errorf("%s: the windows have %s, want %s", tt.name, got, tt.want)
			}
			plan.Store(&pacer.Plan{Total: 10, Instances: 2, From: time.Now().Add(-time.Second)})
			pass(3 * time.Second)
			if got := d.windows(2); got[0] != 5 || got[1] != 5 {
				t.Errorf("%s: a lower part whose time has passed: %v, want 5", tt.name, got)
			}
			cancel()
			all.Wait()
		})
	}
}

// An instance that is started while a plan does not hold yet uses the plan before it until then. One that reads several
// plans too late at once uses the smallest of its parts until the second window after, and then that of the last plan.
func TestFollowPlanBefore(t *testing.T) {
	at := func(total, second int64, before *pacer.Plan) *pacer.Plan {
		return &pacer.Plan{Total: total, Instances: 2, From: time.Unix(second, 0), Before: before}
	}
	synctest.Test(t, func(t *testing.T) {
		pass(300 * time.Millisecond)
		began := time.Now().Unix()
		d := &divided{t: t, granted: map[int64]int64{}, by: make([]int64, 1)}
		d.pacers = append(d.pacers, open(t, pacer.Config{Limit: pacer.PerSecond(1000), Part: &pacer.Part{}}))
		var plan atomic.Pointer[pacer.Plan]
		plan.Store(at(60, began+4, at(20, began+2, at(100, began-9, nil))))
		ctx, cancel := context.WithCancel(t.Context())
		var mu sync.Mutex
		failures := 0
		var all sync.WaitGroup
		all.Go(func() {
			read := func(context.Context) (pacer.Plan, error) { return *plan.Load(), nil }
			d.pacers[0].FollowPlan(ctx, time.Second, read, func(err error) {
				mu.Lock()
				defer mu.Unlock()
				failures++
				if !errors.Is(err, pacer.ErrConfig) {
					t.Errorf("got %v, want ErrConfig", err)
				}
			})
		})
		synctest.Wait()
		d.saturate(0)
		pass(6 * time.Second)
		if got, want := fmt.Sprint(d.windows(6)), "[50 50 10 10 30 30]"; got != want {
			t.Errorf("plans of 100, 20 and 60: the windows have %s, want %s", got, want)
		}
		// It reads these plans in window 7, after it has used its part of that window.
		plan.Store(at(90, began+7, at(8, began+5, at(60, began+4, nil))))
		pass(4 * time.Second)
		if got, want := fmt.Sprint(d.windows(4)), "[30 30 4 45]"; got != want {
			t.Errorf("plans of 8 and 90, read too late: the windows have %s, want %s", got, want)
		}
		mu.Lock()
		if failures != 0 {
			t.Errorf("got %d errors, want none", failures)
		}
		mu.Unlock()
		plan.Store(at(2, began+30, at(4, began+31, nil)))
		pass(time.Second)
		plan.Store(&pacer.Plan{Total: 2, Instances: 2, From: time.Now(), Before: &pacer.Plan{Total: 2, Instances: 2}})
		pass(time.Second)
		cancel()
		all.Wait()
		if failures != 2 {
			t.Errorf("plans in the wrong order: got %d errors, want one for each read", failures)
		}
	})
}

// Instances whose plan was removed use nothing, and their requests wait. When there is a plan again, they use their
// parts of it from its time on: also if it is the plan that was removed.
func TestFollowPlanRemoved(t *testing.T) {
	for _, smoothing := range []pacer.Smoothing{pacer.FrontLoaded, pacer.Spread} {
		synctest.Test(t, func(t *testing.T) {
			pass(300 * time.Millisecond) // each window has begun when the plan is read
			d := &divided{t: t, granted: map[int64]int64{}, by: make([]int64, 2)}
			var plan atomic.Pointer[pacer.Plan]
			plan.Store(&pacer.Plan{Total: 40, Instances: 2, From: time.Now().Add(-time.Second)})
			read := func(context.Context) (pacer.Plan, error) {
				if at := plan.Load(); at != nil {
					return *at, nil
				}
				return pacer.Plan{}, fmt.Errorf("removed: %w", pacer.ErrNoPlan)
			}
			ctx, cancel := context.WithCancel(t.Context())
			var failures atomic.Int64
			var all sync.WaitGroup
			for i := range int64(2) {
				p := open(t, pacer.Config{Limit: pacer.PerSecond(100), Smoothing: smoothing,
					Part: &pacer.Part{Index: i}})
				d.pacers = append(d.pacers, p)
				all.Go(func() { p.FollowPlan(ctx, time.Second, read, func(error) { failures.Add(1) }) })
				d.saturate(int(i))
			}
			expect := func(after string, passes time.Duration, windows int64, want string) {
				t.Helper()
				pass(passes)
				if got := fmt.Sprint(d.windows(windows)); got != want {
					t.Errorf("%s: the windows have %s, want %s", after, got, want)
				}
			}
			expect("a plan of 40", 3*time.Second+100*time.Millisecond, 2, "[40 40]")
			removed := plan.Swap(nil)
			expect("no plan", 4*time.Second, 2, "[0 0]")
			if n := failures.Load(); n != 8 {
				t.Errorf("got %d errors, want one for each of 8 reads", n)
			}
			plan.Store(&pacer.Plan{Total: 60, Instances: 2, From: time.Now().Add(4900 * time.Millisecond)})
			expect("a plan that is to begin", 8*time.Second, 8, "[0 0 0 0 0 0 60 60]")
			plan.Store(nil)
			pass(3 * time.Second)
			plan.Store(removed)
			expect("the plan of 40", 4*time.Second, 2, "[40 40]")
			cancel()
			all.Wait()
		})
	}
}

func TestPartRefuses(t *testing.T) {
	for name, bend := range map[string]func(*pacer.Config){
		"below 0":        func(c *pacer.Config) { c.Part.Instances = -1 },
		"too many":       func(c *pacer.Config) { c.Part.Instances = pacer.MaxInstances + 1 },
		"index too high": func(c *pacer.Config) { c.Part.Index = pacer.MaxInstances },
		"index below 0":  func(c *pacer.Config) { c.Part.Index = -1 },
		"shared":         func(c *pacer.Config) { c.Shared = &pacer.Shared{Ledger: pacer.NewMemoryLedger()} },
	} {
		c := pacer.Config{Limit: pacer.PerSecond(10), Part: &pacer.Part{Instances: 3}}
		bend(&c)
		if _, err := pacer.New(c); !errors.Is(err, pacer.ErrConfig) {
			t.Errorf("%s: %v, want ErrConfig", name, err)
		}
	}
	alone := open(t, pacer.Config{Limit: pacer.PerSecond(10)})
	if err := alone.SetPlan(pacer.Plan{Total: 1, Instances: 1}); !errors.Is(err, pacer.ErrConfig) {
		t.Errorf("SetPlan of a limit that is not divided: %v", err)
	}
	part := open(t, pacer.Config{Limit: pacer.PerSecond(10), Part: &pacer.Part{Instances: 3}})
	if err := part.SetLimit(pacer.PerSecond(5)); !errors.Is(err, pacer.ErrConfig) {
		t.Errorf("SetLimit of a limit that is divided: %v", err)
	}
	for i := range 100 {
		plan := pacer.Plan{Total: 10, Instances: 1, From: time.Now().Add(time.Hour + time.Duration(i)*time.Second)}
		if err := part.SetPlan(plan); err != nil {
			t.Fatal(err)
		}
	}
	err := part.SetPlan(pacer.Plan{Total: 10, Instances: 1, From: time.Now().Add(2 * time.Hour)})
	if !errors.Is(err, pacer.ErrConfig) {
		t.Errorf("a hundred and one plans: %v, want ErrConfig", err)
	}
	if _, err := part.Acquire(t.Context(), "", 5); !errors.Is(err, pacer.ErrNever) {
		t.Errorf("a cost above the largest part: %v, want ErrNever", err)
	}
}
