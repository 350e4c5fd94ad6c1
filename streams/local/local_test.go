package local_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/sluicelimits/sluice/events"
	"github.com/sluicelimits/sluice/internal/cell/config"
	"github.com/sluicelimits/sluice/internal/cell/table"
	"github.com/sluicelimits/sluice/internal/control"
	"github.com/sluicelimits/sluice/internal/control/embedded"
	"github.com/sluicelimits/sluice/internal/plan"
	"github.com/sluicelimits/sluice/streams/local"
	"github.com/sluicelimits/sluice/streams/streamstest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var errAway = errors.New("away")

// world is control tables in a file, with the pump.
type world struct {
	t      testing.TB
	path   string
	tables *embedded.Tables
	pump   *local.Pump
	meter  *streamstest.Meter
	keep   *streamstest.Keeper
	stop   context.CancelFunc
	ended  chan error
}

func newWorld(t testing.TB) *world {
	t.Helper()
	w := &world{t: t, path: filepath.Join(t.TempDir(), "control.db")}
	w.open()
	t.Cleanup(w.close)
	return w
}

func (w *world) open() {
	w.t.Helper()
	var err error
	if w.tables, err = embedded.Open(w.path); err != nil {
		w.t.Fatal(err)
	}
	w.meter, w.keep = &streamstest.Meter{}, &streamstest.Keeper{}
	w.pump = local.New(local.Config{Feed: w.tables, Tables: w.tables, Keep: w.keep, Meter: w.meter,
		Log: slog.New(slog.DiscardHandler)})
}

func (w *world) start() {
	var ctx context.Context
	ctx, w.stop = context.WithCancel(context.Background())
	w.ended = make(chan error, 1)
	go func() { w.ended <- w.pump.Run(ctx) }()
}

// close ends everything that runs. It may be called twice.
func (w *world) close() {
	if w.stop != nil {
		w.stop()
		if err := <-w.ended; err != nil {
			w.t.Error(err)
		}
		w.stop = nil
	}
	if err := w.tables.Close(); err != nil {
		w.t.Error(err)
	}
}

// put writes the next version of an item; an empty body deletes it.
func (w *world) put(table control.Table, key, body string) control.Item {
	w.t.Helper()
	i, err := w.write(table, key, body)
	if err != nil {
		w.t.Fatal(err)
	}
	return i
}

func (w *world) write(table control.Table, key, body string) (control.Item, error) {
	before, err := w.tables.Get(context.Background(), table, key)
	if err != nil && !errors.Is(err, control.ErrNotFound) {
		return before, err
	}
	return w.tables.Put(context.Background(),
		control.Change{Table: table, Key: key, Expect: before.Version, Body: []byte(body), Delete: body == "",
			Actor: "tester", Reason: "test", Now: time.Now()})
}

func planOf(id string, threshold int) string {
	return fmt.Sprintf(`{"id":%q,"limits":[{"id":"all","tiers":[{"period":"1s","threshold":%d}]}]}`, id, threshold)
}

func tenantOf(id, plan string) string { return fmt.Sprintf(`{"id":%q,"plan":%q}`, id, plan) }

func newCell(t testing.TB) *table.Memory {
	t.Helper()
	memory := table.NewMemory(0)
	return memory
}

func (w *world) add(id string, store table.Store) {
	w.t.Helper()
	if err := w.pump.Add(w.t.Context(), id, store); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) settle() {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), time.Minute)
	defer cancel()
	if err := w.pump.Settle(ctx); err != nil {
		w.t.Fatal(err)
	}
}

// wantSame fails unless the cell has what the control tables have.
func (w *world) wantSame(cell table.Table) {
	w.t.Helper()
	for _, of := range []control.Table{control.Plans, control.Tenants, control.Keys, control.Cells} {
		for i, err := range control.All(w.t.Context(), w.tables, of) {
			if err != nil {
				w.t.Fatal(err)
			}
			ref, ok := table.RefOf(of, i.Key)
			if !ok {
				continue
			}
			got, err := cell.Get(w.t.Context(), ref)
			if err != nil || got[0].Version != i.Version || got[0].Deleted != i.Deleted ||
				string(got[0].Body) != string(i.Body) {
				w.t.Fatalf("%s/%q is at version %d in the cell, %v; want %d", of, i.Key, got[0].Version, err,
					i.Version)
			}
		}
	}
}

// Guarantees that each change arrives in every cell, also in those that are added while the pump runs, and that a
// removed cell stops nothing.
func TestCarries(t *testing.T) {
	w := newWorld(t)
	first, second := newCell(t), newCell(t)
	w.put(control.Plans, "pro", planOf("pro", 5))
	w.add("one", first)
	w.wantSame(first) // before the pump runs
	w.start()
	w.put(control.Tenants, "acme", tenantOf("acme", "pro"))
	w.settle()
	w.wantSame(first)
	w.add("two", second)
	w.wantSame(second)
	w.put(control.Tenants, "acme", "")
	w.put(control.Plans, events.SettingsKey, `{"anonymousPlan":"pro"}`)
	w.settle()
	w.wantSame(first)
	w.wantSame(second)
	if got := w.pump.Cells(); !slices.Equal(got, []string{"one", "two"}) {
		t.Errorf("cells %q", got)
	}
	w.pump.Remove("one")
	w.pump.Remove("never")
	w.put(control.Plans, "pro", planOf("pro", 7))
	w.settle()
	w.wantSame(second)
	if d, err := first.Get(t.Context(), table.Ref{Kind: plan.KindPlan, ID: "pro"}); err != nil ||
		d[0].Version != 1 {
		t.Errorf("a removed cell has version %d, %v", d[0].Version, err)
	}
	if err := w.pump.Add(t.Context(), "two", second); err == nil {
		t.Error("a cell could be added twice")
	}
}

// Guarantees that changes from before the process ended arrive after a restart, in a cell that kept its content and in
// one that begins empty.
func TestRestart(t *testing.T) {
	w := newWorld(t)
	kept := newCell(t)
	w.add("one", kept)
	w.start()
	w.put(control.Plans, "pro", planOf("pro", 5))
	w.settle()
	w.stop()
	if err := <-w.ended; err != nil {
		t.Fatal(err)
	}
	w.stop = nil
	w.put(control.Plans, "pro", planOf("pro", 6)) // the pump does not run
	w.put(control.Tenants, "acme", tenantOf("acme", "pro"))
	if err := w.tables.Close(); err != nil {
		t.Fatal(err)
	}
	w.open()
	empty := newCell(t)
	w.add("one", kept)
	w.add("two", empty)
	w.start()
	w.settle()
	w.wantSame(kept)
	w.wantSame(empty)
	if got := w.meter.Of("records_read"); got != 2 {
		t.Errorf("%d records were read again, want those 2 that no cell had", got)
	}
}

// failing is a cell whose table fails.
type failing struct {
	*table.Memory
	mu  sync.Mutex
	err error
}

func (f *failing) away(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.err = err
}

func (f *failing) Commit(ctx context.Context, s table.Step) error {
	f.mu.Lock()
	err := f.err
	f.mu.Unlock()
	if err != nil {
		return err
	}
	return f.Memory.Commit(ctx, s)
}

// Guarantees that the cursor waits for a cell that fails, that the cell gets everything when it works again, and that
// the others get everything, too, if it is removed instead.
func TestCellIsAway(t *testing.T) {
	for _, removed := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t)
			good, bad := newCell(t), &failing{Memory: newCell(t)}
			w.add("good", good)
			w.add("bad", bad)
			w.start()
			bad.away(errAway)
			for n := range 5 {
				w.put(control.Plans, "pro", planOf("pro", 5+n))
			}
			synctest.Wait()
			if cursor, err := w.tables.Cursor(t.Context(), local.Consumer); err != nil || cursor != "" {
				t.Errorf("the cursor is at %q, %v, and a cell has nothing of it", cursor, err)
			}
			if removed {
				w.pump.Remove("bad")
			} else {
				bad.away(nil)
			}
			w.settle()
			w.wantSame(good)
			if !removed {
				w.wantSame(bad)
			}
			w.close()
		})
	}
}

// Guarantees that a cell that cannot be filled is not added, and that a feed that fails ends the pump with its error.
func TestFailures(t *testing.T) {
	w := newWorld(t)
	w.put(control.Plans, "pro", planOf("pro", 5))
	bad := &failing{Memory: newCell(t), err: errAway}
	if err := w.pump.Add(t.Context(), "bad", bad); !errors.Is(err, errAway) || len(w.pump.Cells()) != 0 {
		t.Errorf("adding a cell that cannot be filled: %v, cells %q", err, w.pump.Cells())
	}
	p := local.New(local.Config{Feed: broken{w.tables}, Tables: w.tables, Log: slog.New(slog.DiscardHandler)})
	if err := p.Run(t.Context()); !errors.Is(err, errAway) {
		t.Errorf("a pump whose feed fails ends with %v, want %v", err, errAway)
	}
}

// broken is a feed whose cursor cannot be moved.
type broken struct{ *embedded.Tables }

func (broken) Commit(context.Context, string, string) error { return errAway }

// slow is a cell's table with the latencies of DynamoDB.
type slow struct {
	*table.Memory
}

func (s slow) Head(ctx context.Context) (table.Head, error) {
	<-time.After(5 * time.Millisecond)
	return s.Memory.Head(ctx)
}

func (s slow) Get(ctx context.Context, refs ...table.Ref) ([]table.Document, error) {
	<-time.After(5 * time.Millisecond)
	return s.Memory.Get(ctx, refs...)
}

func (s slow) Commit(ctx context.Context, step table.Step) error {
	<-time.After(25 * time.Millisecond)
	return s.Memory.Commit(ctx, step)
}

// Guarantees the figures of a burst, with a simulated clock and calls as slow as those of AWS: readers in each of 3
// cells enforce 500 changes of tenants within 5 s at p99, with at most 60 publishes.
func TestBurst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		const changes, cells = 500, 3
		w.put(control.Plans, "pro", planOf("pro", 5))
		var mu sync.Mutex
		written := map[string]time.Time{}
		took := map[string][]time.Duration{}
		ctx, cancel := context.WithCancel(t.Context())
		var readers sync.WaitGroup
		for n := range cells {
			id := fmt.Sprintf("cell-%d", n)
			store := slow{newCell(t)}
			w.add(id, store)
			r, err := config.New(config.Config{Table: store, Log: slog.New(slog.DiscardHandler),
				OnApply: func(e table.Entry, now time.Time) {
					mu.Lock()
					defer mu.Unlock()
					for _, c := range e.Changes {
						if at, ok := written[c.ID]; ok && c.Kind == plan.KindTenant {
							took[id] = append(took[id], now.Sub(at))
						}
					}
				}})
			if err != nil {
				t.Fatal(err)
			}
			if err := r.Load(ctx, time.Now()); err != nil {
				t.Fatal(err)
			}
			readers.Go(func() { // requests
				for ctx.Err() == nil {
					if _, join := r.Begin(ctx, time.Now()); join != nil {
						join()
					}
					<-time.After(20 * time.Millisecond)
				}
			})
		}
		before := w.meter.Of("publish_calls")
		w.start()
		var writers sync.WaitGroup
		for n := range 10 {
			writers.Go(func() {
				for i := range changes / 10 {
					id := fmt.Sprintf("t%d-%d", n, i)
					mu.Lock()
					written[id] = time.Now()
					mu.Unlock()
					if _, err := w.write(control.Tenants, id, tenantOf(id, "pro")); err != nil {
						t.Error(err)
					}
				}
			})
		}
		writers.Wait()
		w.settle()
		<-time.After(3 * time.Second) // until each reader has polled
		cancel()
		readers.Wait()
		calls := w.meter.Of("publish_calls") - before
		if calls > 60 {
			t.Errorf("%d publishes, want at most 60", calls)
		}
		for _, id := range slices.Sorted(maps.Keys(took)) {
			all := slices.Sorted(slices.Values(took[id]))
			if len(all) != changes {
				t.Fatalf("%s: %d changes were seen, want %d", id, len(all), changes)
			}
			p99 := all[len(all)*99/100]
			t.Logf("%s: propagation_p99_s %.3f, median %.3f, %d publishes of %d events", id, p99.Seconds(),
				all[len(all)/2].Seconds(), calls, changes)
			if p99 > 5*time.Second {
				t.Errorf("%s: p99 is %s, want at most 5s", id, p99)
			}
		}
		if len(took) != cells {
			t.Errorf("%d cells saw anything, want %d", len(took), cells)
		}
		w.close()
	})
}

// Guarantees that a change of a plan is one event, one publish, and one document in each cell, however many tenants
// have the plan. The metric is publish_events_per_plan_change.
func TestPlanOfManyTenants(t *testing.T) {
	w := newWorld(t)
	w.put(control.Plans, "pro", planOf("pro", 5))
	var writers sync.WaitGroup
	for n := range 50 {
		writers.Go(func() {
			for i := range 40 {
				id := fmt.Sprintf("t%d-%d", n, i)
				if _, err := w.write(control.Tenants, id, tenantOf(id, "pro")); err != nil {
					t.Error(err)
				}
			}
		})
	}
	writers.Wait()
	cells := []*table.Memory{newCell(t), newCell(t)}
	w.add("one", cells[0])
	w.add("two", cells[1])
	w.start()
	w.settle()
	before := map[string]int64{}
	for _, name := range []string{"events_published", "publish_calls", "documents_applied", "messages_read"} {
		before[name] = w.meter.Of(name)
	}
	w.put(control.Plans, "pro", planOf("pro", 50))
	w.settle()
	for name, want := range map[string]int64{"events_published": 1, "publish_calls": 1, "messages_read": 2,
		"documents_applied": 2} {
		if got := w.meter.Of(name) - before[name]; got != want {
			t.Errorf("a change of a plan with 2,000 tenants: %s grew by %d, want %d", name, got, want)
		}
	}
	w.wantSame(cells[0])
	if items := w.keep.Items(); len(items) > 0 {
		t.Errorf("kept %+v", items)
	}
}
