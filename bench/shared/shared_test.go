package shared

import (
	"context"
	"math"
	"testing"
	"time"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/limiter/store/memory"
)

// A workload that is not what its name says makes every number of its line a lie.
func TestArrivals(t *testing.T) {
	const until = 100 * time.Second
	for _, s := range append(Published(limit.FixedWindow, 1)[:1], Uneven(limit.FixedWindow)...) {
		t.Run(s.Name, func(t *testing.T) {
			perTenant, perInstance := make([]float64, len(s.Rates)), make([]float64, s.Instances)
			last := time.Duration(-1)
			favoured, total := 0.0, 0.0
			for a := range s.Arrivals(1, until) {
				if a.At < last || a.At >= until {
					t.Fatalf("an arrival at %s after one at %s", a.At, last)
				}
				last = a.At
				perTenant[a.Tenant]++
				perInstance[a.Instance]++
				total++
				favourite := a.Tenant
				if s.Route == Jumping {
					favourite += int(a.At / (7 * time.Second))
				}
				if a.Instance == favourite%s.Instances {
					favoured++
				}
			}
			for i, got := range perTenant {
				if want := s.Rates[i] * until.Seconds(); math.Abs(got-want) > 5*math.Sqrt(want) {
					t.Errorf("tenant %d asks %.0f times, want about %.0f", i, got, want)
				}
			}
			for i, got := range perInstance {
				if want := total / float64(s.Instances); math.Abs(got-want) > want/10 {
					t.Errorf("instance %d is asked %.0f times, want about %.0f", i, got, want)
				}
			}
			want := 1 / float64(s.Instances)
			if s.Route == Favourite || s.Route == Jumping {
				want = 0.8
			}
			if got := favoured / total; math.Abs(got-want) > 0.01 {
				t.Errorf("%.3f of the requests are at their tenant's favourite, want %.3f", got, want)
			}
		})
	}
}

// An environment serves one request at a time, so where they go decides how many there are to lease to.
func TestEnvironments(t *testing.T) {
	tests := []struct {
		route       Route
		least, most int // environments that are asked
	}{{MostRecent, 45, 90}, {RoundRobin, 400, 400}, {AnyFree, 400, 400}}
	for _, tt := range tests {
		s := Scenario{Algorithm: limit.FixedWindow, Instances: 400, Rates: []float64{1000}, Limits: []int64{1},
			Route: tt.route}
		last := make(map[int]time.Duration)
		for a := range s.Arrivals(1, 30*time.Second) {
			if at, was := last[a.Instance]; was && a.At-at < 40*time.Millisecond {
				t.Fatalf("route %d: instance %d is asked at %s and %s", tt.route, a.Instance, at, a.At)
			}
			last[a.Instance] = a.At
		}
		if n := len(last); n < tt.least || n > tt.most {
			t.Errorf("route %d: %d instances are asked, want %d to %d", tt.route, n, tt.least, tt.most)
		}
	}
}

// With more requests than environments can serve, they go to the one that is free next, and none is lost.
func TestEnvironmentsAllBusy(t *testing.T) {
	s := Scenario{Algorithm: limit.FixedWindow, Instances: 2, Rates: []float64{1000}, Limits: []int64{1},
		Route: MostRecent}
	counts := make([]int, s.Instances)
	for a := range s.Arrivals(1, time.Second) {
		counts[a.Instance]++
	}
	if sum := counts[0] + counts[1]; sum < 800 || counts[0] < sum/3 || counts[1] < sum/3 {
		t.Errorf("two environments are asked %v times, want about 1000 in all and as often one as the other", counts)
	}
}

// wrong is a limiter that is wrong on purpose.
type wrong struct {
	limit.Store
	deny  func(n int) bool // denies request n without asking
	admit func(n int) bool // admits it whatever the store says
	n     int
}

func (w *wrong) Decide(ctx context.Context, req *limit.Request, now time.Time, d *limit.Decision) error {
	if req.Charges[0].Cost > 1 { // a bucket is emptied
		return w.Store.Decide(ctx, req, now, d)
	}
	w.n++
	if w.deny != nil && w.deny(w.n) {
		d.Clear(now.UnixMicro())
		return nil
	}
	err := w.Store.Decide(ctx, req, now, d)
	if w.admit != nil && w.admit(w.n) {
		d.Allowed = true
	}
	return err
}

// A judge that lets a wrong limiter pass judges nothing. Each of these is caught by the column that is for it, with
// every algorithm; a right one leaves all at nothing.
func TestWrongLimitersAreCaught(t *testing.T) {
	every := func(k int) func(int) bool { return func(n int) bool { return n%k == 0 } }
	shared := func(t *testing.T) limit.Store {
		s, err := memory.New(memory.Config{})
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	one := Scenario{Name: "test", Instances: 3, Rates: []float64{40, 40}, Limits: []int64{300, 300}}
	for _, alg := range Algorithms() {
		s := one
		s.Algorithm = alg
		tests := []struct {
			name               string
			open               func(t *testing.T) func() (limit.Store, error)
			over, short, early bool
		}{
			{"right", func(t *testing.T) func() (limit.Store, error) {
				store := shared(t)
				return func() (limit.Store, error) { return store, nil }
			}, false, false, false},
			{"each instance for itself", func(t *testing.T) func() (limit.Store, error) {
				return func() (limit.Store, error) { return shared(t), nil }
			}, true, false, false},
			{"admits what was denied", func(t *testing.T) func() (limit.Store, error) {
				store := &wrong{Store: shared(t), admit: every(100)}
				return func() (limit.Store, error) { return store, nil }
			}, true, false, false},
			{"denies half", func(t *testing.T) func() (limit.Store, error) {
				store := &wrong{Store: shared(t), deny: every(2)}
				return func() (limit.Store, error) { return store, nil }
			}, false, true, true},
			{"denies some, which is made up for", func(t *testing.T) func() (limit.Store, error) {
				store := &wrong{Store: shared(t), deny: every(20)}
				return func() (limit.Store, error) { return store, nil }
			}, false, false, true},
		}
		for _, tt := range tests {
			t.Run(alg.String()+"/"+tt.name, func(t *testing.T) {
				g, err := SimulateOn(context.Background(), &s, Naive, 1, Length{Warm: 1, Measured: 3}, tt.open(t))
				if err != nil {
					t.Fatal(err)
				}
				if got := g.Over > 0; got != tt.over {
					t.Errorf("%d units over, want some: %t", g.Over, tt.over)
				}
				if got := g.ShortPct > 1; got != tt.short {
					t.Errorf("%.2f %% short, want more than 1 %%: %t", g.ShortPct, tt.short)
				}
				if got := g.EarlyPct > 1; got != tt.early {
					t.Errorf("%.2f %% early, want more than 1 %%: %t", g.EarlyPct, tt.early)
				}
			})
		}
	}
}

// What is leased is admitted nowhere twice, by any rule, on any route; and a table can be made again.
func TestSimulate(t *testing.T) {
	length := Length{Warm: 1, Measured: 1}
	for _, alg := range Algorithms() {
		for _, s := range append(Uneven(alg), Published(alg, 1)...) {
			for _, by := range []Limiter{OldRule, Leased} {
				g, err := Simulate(context.Background(), &s, by, 7, length)
				if err != nil {
					t.Fatal(err)
				}
				if g.Over != 0 {
					t.Errorf("%s, %s, %s: %d units over", alg, s.Name, by, g.Over)
				}
				if naive := float64(g.Requests) / Period.Seconds(); g.StoreOps == 0 || g.StoreOps >= naive {
					t.Errorf("%s, %s, %s: %.1f calls a second for %.1f requests", alg, s.Name, by, g.StoreOps, naive)
				}
				again, err := Simulate(context.Background(), &s, by, 7, length)
				if err != nil || again != g {
					t.Errorf("%s, %s, %s: %+v, then %+v (%v)", alg, s.Name, by, g, again, err)
				}
			}
		}
	}
}

// A log with half of the requests would make a table of half a load.
func TestMergeRefusesABrokenLog(t *testing.T) {
	s := Scenario{Algorithm: limit.FixedWindow, Instances: 2, Rates: []float64{100}, Limits: []int64{5000}}
	whole := func() []report {
		reports := make([]report, 2)
		for i := range reports {
			for n := range 500 {
				reports[i].Events = append(reports[i].Events, Event{At: int64(n) * 20_000, Units: 1, Allowed: true})
				reports[i].Late = append(reports[i].Late, time.Duration(n))
			}
		}
		return reports
	}
	tests := []struct {
		name   string
		broken func(r []report)
		fails  bool
	}{
		{"whole", func([]report) {}, false},
		{"an instance that was asked nothing", func(r []report) { r[1] = report{} }, true},
		{"an instance that logged half", func(r []report) { r[0].Events = r[0].Events[:250] }, true},
		{"an error instead of a decision", func(r []report) {
			r[0].Events[7], r[0].Lost, r[0].Errors = Event{}, 1, []string{"no store"}
		}, true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			reports := whole()
			tt.broken(reports)
			g, err := merge(&s, nil, reports, span{0, periodUS}, 200)
			if (err != nil) != tt.fails {
				t.Fatalf("merge = %+v, %v; want an error: %t", g, err, tt.fails)
			}
			if !tt.fails && (g.Requests != 1000 || g.StoreOps != 20 || g.Over != 0 || g.Late != 495) {
				t.Errorf("merge = %+v, want 1000 requests, 20 calls a second, none over", g)
			}
		})
	}
}

// Counts that are not whole windows must not make a window look short, and a full limit is not.
func TestShortIsOfWindowsThatAskedForMore(t *testing.T) {
	s := Scenario{Algorithm: limit.FixedWindow, Rates: []float64{1}, Limits: []int64{4}}
	var events []Event
	window := func(w int64, asked, admitted int) {
		for i := range asked {
			events = append(events, Event{At: w*periodUS + int64(i), Units: 1, Allowed: i < admitted})
		}
	}
	window(1, 9, 0) // before what is measured
	window(2, 3, 1) // asked for less than the limit
	window(3, 9, 3) // one of four is missing
	window(4, 4, 0) // asked for no more than the limit
	window(5, 6, 4)
	g := grade(&s, events, span{2 * periodUS, 6 * periodUS})
	if g.ShortPct != 12.5 || g.Requests != 22 || g.Admitted != 8 {
		t.Errorf("%+v, want 12.5 %% short of 22 requests, 8 admitted", g)
	}
	if want := 100 * float64(2+1+4) / 22; g.MissedPct != want {
		t.Errorf("%.3f %% missed, want %.3f: each denial of what fits", g.MissedPct, want)
	}
	if want := 100 * float64(2+6+4) / 22; g.EarlyPct != want {
		t.Errorf("%.3f %% early, want %.3f: each denial with units left", g.EarlyPct, want)
	}
}
