package canary_test

import (
	"context"
	"errors"
	"log/slog"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluicelimits/sluice/events"
	"github.com/sluicelimits/sluice/internal/cell/table"
	"github.com/sluicelimits/sluice/internal/control"
	"github.com/sluicelimits/sluice/internal/control/embedded"
	"github.com/sluicelimits/sluice/streams/canary"
	"github.com/sluicelimits/sluice/streams/streamstest"
)

var errAway = errors.New("away")

// tables is control tables in memory whose writes arrive in the cells after a while.
type tables struct {
	item      *control.Item
	conflicts int // of the next writes
	err       error
	arrive    func(control.Item)
}

func (s *tables) Get(context.Context, control.Table, string) (control.Item, error) {
	if s.item == nil {
		return control.Item{}, control.ErrNotFound
	}
	return *s.item, nil
}

func (s *tables) Put(_ context.Context, c control.Change) (control.Item, error) {
	if s.conflicts > 0 {
		s.conflicts--
		return control.Item{}, &control.ConflictError{}
	}
	if s.err != nil {
		return control.Item{}, s.err
	}
	c, err := c.Check()
	if err != nil {
		return control.Item{}, err
	}
	next, _, err := control.Next(s.item, c)
	if err == nil {
		s.item = &next
		s.arrive(next)
	}
	return next, err
}

// away is a cell's table that can fail.
type away struct {
	*table.Memory
	err error
}

func (a *away) Head(ctx context.Context) (table.Head, error) {
	if a.err != nil {
		return table.Head{}, a.err
	}
	return a.Memory.Head(ctx)
}

func (a *away) Get(ctx context.Context, refs ...table.Ref) ([]table.Document, error) {
	if a.err != nil {
		return nil, a.err
	}
	return a.Memory.Get(ctx, refs...)
}

type world struct {
	t      *testing.T
	tables *tables
	cells  map[string]*away
	delay  map[string]time.Duration // until a change arrives; below 0: never
	meters map[string]*streamstest.Meter
	c      *canary.Canary
}

func newWorld(t *testing.T, delay map[string]time.Duration) *world {
	t.Helper()
	w := &world{t: t, delay: delay, cells: map[string]*away{}, meters: map[string]*streamstest.Meter{}}
	w.tables = &tables{arrive: func(i control.Item) {
		for id, d := range w.delay {
			if d >= 0 {
				time.AfterFunc(d, func() { w.apply(id, table.DocumentOf(i.Event())) })
			}
		}
	}}
	config := canary.Config{Tables: w.tables, Actor: "function:canary", Log: slog.New(slog.DiscardHandler),
		Wait: 10 * time.Second}
	for _, id := range []string{"eu-1", "us-1", "ap-1"} {
		if _, ok := delay[id]; !ok {
			continue
		}
		memory := table.NewMemory(0)
		w.cells[id], w.meters[id] = &away{Memory: memory}, &streamstest.Meter{}
		config.Cells = append(config.Cells, canary.Cell{ID: id, Table: w.cells[id], Meter: w.meters[id]})
	}
	w.c = canary.New(config)
	return w
}

func (w *world) apply(cell string, d table.Document) {
	if _, err := w.cells[cell].Apply(context.Background(), []table.Document{d}); err != nil {
		w.t.Error(err)
	}
}

// seed gives each cell some content, like one that is in use.
func (w *world) seed() {
	for id := range w.cells {
		w.apply(id, table.Document{Ref: table.Ref{Kind: "tenant", ID: "acme"}, Version: 1,
			Body: []byte(`{"id":"acme"}`)})
	}
}

func (w *world) run() map[string]canary.Seen {
	w.t.Helper()
	seen, err := w.c.Run(w.t.Context())
	if err != nil || len(seen) != len(w.cells) {
		w.t.Fatalf("%+v, %v", seen, err)
	}
	out := map[string]canary.Seen{}
	for _, s := range seen {
		out[s.Cell] = s
	}
	return out
}

// wantBetween fails unless the time is at least least and at most most.
func wantBetween(t *testing.T, what string, got, least, most time.Duration) {
	t.Helper()
	if got < least || got > most {
		t.Errorf("%s after %s, want %s to %s", what, got, least, most)
	}
}

// Guarantees that the measured time is that from the write until a reader that polls once per second enforces it, for
// each cell and for each run.
func TestMeasures(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, map[string]time.Duration{"eu-1": 200 * time.Millisecond, "us-1": 3 * time.Second})
		w.seed()
		for n := range 3 {
			seen := w.run()
			wantBetween(t, "eu-1 applied", seen["eu-1"].Applied, 200*time.Millisecond, 300*time.Millisecond)
			// enforced with the next poll
			wantBetween(t, "eu-1 enforced", seen["eu-1"].Enforced, 900*time.Millisecond, 1200*time.Millisecond)
			wantBetween(t, "us-1 enforced", seen["us-1"].Enforced, 3*time.Second, 4100*time.Millisecond)
			if took := w.meters["us-1"].Times("propagation_seconds"); len(took) != n+1 || took[0] < 3*time.Second {
				t.Errorf("propagation_seconds %v", took)
			}
			if w.tables.item.Version != int64(n+1) || w.tables.item.Actor != "function:canary" {
				t.Errorf("%+v", w.tables.item)
			}
		}
		w.meters["eu-1"].Want(t, map[string]int64{"canary_missed": 0})
	})
}

// Guarantees that a cell that nothing was ever written to is measured, too.
func TestFirstChangeOfACell(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, map[string]time.Duration{"eu-1": time.Second})
		seen := w.run()["eu-1"]
		if seen.Missed {
			t.Fatalf("the canary measured %+v", seen)
		}
		wantBetween(t, "enforced", seen.Enforced, time.Second, 2200*time.Millisecond)
	})
}

// Guarantees that a cell that does not get the change, or whose table fails, counts as missed with the whole time, and
// delays no other.
func TestMissed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, map[string]time.Duration{"eu-1": 0, "us-1": -1, "ap-1": 0})
		w.seed()
		w.cells["ap-1"].err = errAway
		seen := w.run()
		wantBetween(t, "eu-1 enforced", seen["eu-1"].Enforced, 1, 1200*time.Millisecond)
		for _, id := range []string{"us-1", "ap-1"} {
			if !seen[id].Missed || seen[id].Enforced != 0 {
				t.Errorf("a missed change is reported as %+v", seen[id])
			}
			if took := w.meters[id].Times("propagation_seconds"); len(took) != 1 || took[0] != 10*time.Second {
				t.Errorf("%s: propagation_seconds %v", id, took)
			}
			w.meters[id].Want(t, map[string]int64{"canary_missed": 1})
		}
		if !errors.Is(seen["ap-1"].Err, errAway) {
			t.Errorf("%v, want %v", seen["ap-1"].Err, errAway)
		}
	})
}

// Guarantees that a cancelled run says nothing about a cell, and that a run whose deadline has passed, which for a
// function may come before the canary's own, says that the cell missed the change.
func TestCalledOff(t *testing.T) {
	for _, called := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, map[string]time.Duration{"eu-1": -1})
			w.seed()
			ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
			defer cancel()
			if called {
				time.AfterFunc(2*time.Second, cancel)
			}
			seen, err := w.c.Run(ctx)
			if err != nil || len(seen) != 1 || seen[0].Missed == called ||
				errors.Is(seen[0].Err, context.Canceled) != called {
				t.Errorf("cancelled %t: the canary measured %+v, %v", called, seen, err)
			}
			if took := w.meters["eu-1"].Times("propagation_seconds"); (len(took) == 0) != called {
				t.Errorf("cancelled %t: propagation_seconds %v", called, took)
			}
		})
	}
}

// Guarantees that an older canary that arrives late is not taken for the new one.
func TestOlderCanary(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, map[string]time.Duration{"eu-1": -1})
		w.seed()
		w.run()
		old := *w.tables.item
		w.delay["eu-1"] = 4 * time.Second
		time.AfterFunc(time.Second, func() { w.apply("eu-1", table.DocumentOf(old.Event())) })
		seen := w.run()["eu-1"]
		wantBetween(t, "enforced", seen.Enforced, 4*time.Second, 5200*time.Millisecond)
	})
}

// Guarantees that a conflict with another canary is retried, and that a write that fails is an error and no
// measurement.
func TestWrite(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, map[string]time.Duration{"eu-1": 0})
		w.seed()
		w.tables.conflicts = 2
		if seen := w.run()["eu-1"]; seen.Missed {
			t.Errorf("after a conflict the canary measured %+v", seen)
		}
		w.tables.conflicts = 100
		if _, err := w.c.Run(t.Context()); !errors.Is(err, control.ErrConflict) {
			t.Errorf("Run = %v, want a conflict", err)
		}
		w.tables.conflicts, w.tables.err = 0, errAway
		if _, err := w.c.Run(t.Context()); !errors.Is(err, errAway) {
			t.Errorf("%v, want %v", err, errAway)
		}
		if took := w.meters["eu-1"].Times("propagation_seconds"); len(took) != 1 {
			t.Errorf("propagation_seconds %v", took)
		}
	})
}

// Guarantees that the control tables accept the canary's change.
func TestRealTables(t *testing.T) {
	file, err := embedded.Open(filepath.Join(t.TempDir(), "control.db"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	memory := table.NewMemory(0)
	m := &streamstest.Meter{}
	put := putter{file, func(i control.Item) {
		if _, err := memory.Apply(t.Context(), []table.Document{table.DocumentOf(i.Event())}); err != nil {
			t.Error(err)
		}
	}}
	c := canary.New(canary.Config{Tables: put, Cells: []canary.Cell{{ID: "c", Table: memory, Meter: m}},
		Actor: "me"})
	for version := range int64(2) {
		if seen, err := c.Run(t.Context()); err != nil || seen[0].Missed {
			t.Fatalf("%+v, %v", seen, err)
		}
		if i, err := file.Get(t.Context(), control.Plans, events.CanaryKey); err != nil || i.Version != version+1 ||
			i.Verify() != nil {
			t.Fatalf("%+v, %v", i, err)
		}
	}
}

type putter struct {
	*embedded.Tables
	then func(control.Item)
}

func (p putter) Put(ctx context.Context, c control.Change) (control.Item, error) {
	i, err := p.Tables.Put(ctx, c)
	if err == nil {
		p.then(i)
	}
	return i, err
}
