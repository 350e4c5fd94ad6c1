package reconcile_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluicelimits/sluice/events"
	"github.com/sluicelimits/sluice/internal/cell/table"
	"github.com/sluicelimits/sluice/internal/control"
	"github.com/sluicelimits/sluice/internal/plan"
	"github.com/sluicelimits/sluice/internal/testkit/soak"
	"github.com/sluicelimits/sluice/streams/reconcile"
	"github.com/sluicelimits/sluice/streams/streamstest"
)

var errAway = errors.New("away")

// name identifies an item.
type name struct {
	table control.Table
	key   string
}

// world has control tables in memory, which list their items in random order, and a cell that is reconciled with them.
type world struct {
	*table.Memory
	t            testing.TB
	meter        streamstest.Meter
	log          bytes.Buffer
	now          time.Time
	grace        time.Duration
	spare        time.Duration
	items        map[name]control.Item
	order        map[control.Table][]string // the keys, in the order of lists
	unreadable   map[name]bool
	badRows      []table.BadRow                            // of the cell
	onList       func(t control.Table, after string) error // called before a page of a control table is read
	onCell       func(refs []table.Ref) error              // called before documents of the cell are read
	onCellList   func(kind table.Kind)                     // called before documents of the cell are listed
	onStep       func()                                    // called before a step is committed to the cell
	commits      int
	controlReads int // items that were read from the control tables
	cellReads    int // items that were read from the cell
}

func newWorld(t testing.TB) *world {
	t.Helper()
	memory := table.NewMemory(0)
	return &world{Memory: memory, t: t, now: streamstest.Written.Add(time.Hour), grace: time.Minute,
		items: map[name]control.Item{},
		order: map[control.Table][]string{}, unreadable: map[name]bool{}}
}

// put writes the next version of an item; an empty body deletes it.
func (w *world) put(table control.Table, key, body string) control.Item {
	w.t.Helper()
	var current *control.Item
	if i, ok := w.items[name{table, key}]; ok {
		current = &i
	}
	c := control.Change{Table: table, Key: key, Body: []byte(body), Delete: body == "", Actor: "tester", Reason: "test",
		Now: streamstest.Written}
	if current != nil {
		c.Expect = current.Version
	}
	c, err := c.Check()
	if err != nil {
		w.t.Fatal(err)
	}
	next, _, err := control.Next(current, c)
	if err != nil {
		w.t.Fatal(err)
	}
	if current == nil {
		order := w.order[table]
		at := rand.IntN(len(order) + 1)
		w.order[table] = append(order, key)
		last := len(order)
		w.order[table][at], w.order[table][last] = w.order[table][last], w.order[table][at]
	}
	w.items[name{table, key}] = next
	return next
}

// apply writes items to the cell.
func (w *world) apply(items ...control.Item) {
	w.t.Helper()
	var documents []table.Document
	for _, i := range items {
		documents = append(documents, table.DocumentOf(i.Event()))
	}
	if _, err := w.Memory.Apply(w.t.Context(), documents); err != nil {
		w.t.Fatal(err)
	}
}

// putEverywhere writes an item to the control tables and to the cell.
func (w *world) putEverywhere(table control.Table, key, body string) control.Item {
	i := w.put(table, key, body)
	w.apply(i)
	return i
}

func tenantBody(id string, n int) string { return fmt.Sprintf(`{"id":%q,"plan":"p%d"}`, id, n) }

// putTenants writes n tenants to the control tables and to the cell.
func (w *world) putTenants(n int) {
	var all []control.Item
	for i := range n {
		id := fmt.Sprintf("t%06d", i)
		all = append(all, w.put(control.Tenants, id, tenantBody(id, 1)))
	}
	w.apply(all...)
}

func (w *world) Get(ctx context.Context, refs ...table.Ref) ([]table.Document, error) {
	if w.onCell != nil {
		if err := w.onCell(refs); err != nil {
			return nil, err
		}
	}
	for i := range w.badRows {
		if slices.Contains(refs, w.badRows[i].Ref) {
			return nil, fmt.Errorf("get: %w", &w.badRows[i])
		}
	}
	w.cellReads += len(refs)
	return w.Memory.Get(ctx, refs...)
}

func (w *world) List(ctx context.Context, kind table.Kind) iter.Seq2[table.Document, error] {
	return func(yield func(table.Document, error) bool) {
		if w.onCellList != nil {
			w.onCellList(kind)
		}
		for _, row := range slices.Clone(w.badRows) {
			if row.Kind == kind && !yield(table.Document{}, fmt.Errorf("list: %w", &row)) {
				return
			}
		}
		for d, err := range w.Memory.List(ctx, kind) {
			if slices.ContainsFunc(w.badRows, func(row table.BadRow) bool { return row.Ref == d.Ref }) {
				continue // the row has taken its place
			}
			w.cellReads++
			if !yield(d, err) {
				return
			}
		}
	}
}

func (w *world) Commit(ctx context.Context, step table.Step) error {
	w.commits++
	if w.onStep != nil {
		w.onStep()
	}
	for i := range step.Rows {
		if step.Rows[i].Ref != (table.Ref{}) { // and what was there before the row
			step.Documents = append(step.Documents, table.Document{Ref: step.Rows[i].Ref})
		}
	}
	err := w.Memory.Commit(ctx, step)
	if err == nil && len(step.Rows) > 0 {
		w.badRows = slices.DeleteFunc(w.badRows, func(row table.BadRow) bool {
			return slices.ContainsFunc(step.Rows, func(gone table.BadRow) bool { return gone.Key == row.Key })
		})
	}
	return err
}

// badItem is the error about an item that cannot be read.
func badItem(t control.Table, key string) error {
	return &control.BadItemError{Table: t, Key: key, Err: errors.New("layout is 2")}
}

// tables is the control side of a world.
type tables struct{ *world }

func (w tables) Get(ctx context.Context, t control.Table, key string) (control.Item, error) {
	w.controlReads++
	i, ok := w.items[name{t, key}]
	switch {
	case ctx.Err() != nil:
		return control.Item{}, ctx.Err()
	case w.unreadable[name{t, key}]:
		return control.Item{}, badItem(t, key)
	case !ok:
		return control.Item{}, fmt.Errorf("get: %w", control.ErrNotFound)
	}
	return i, nil
}

func (w tables) List(ctx context.Context, t control.Table, after string, most int) (items []control.Item, next string,
	err error) {
	if w.onList != nil {
		if err := w.onList(t, after); err != nil {
			return nil, "", err
		}
	}
	if ctx.Err() != nil {
		return nil, "", ctx.Err()
	}
	from := 0
	if after != "" {
		from = slices.Index(w.order[t], after) + 1
	}
	to := min(from+min(most, 100), len(w.order[t]))
	for _, key := range w.order[t][from:to] {
		if w.unreadable[name{t, key}] {
			err = errors.Join(err, badItem(t, key))
			continue
		}
		w.controlReads++
		items = append(items, w.items[name{t, key}])
	}
	if to < len(w.order[t]) {
		next = w.order[t][to-1]
	}
	return items, next, err
}

// runOnce makes one run, after it has reset what the world counts and logs.
func (w *world) runOnce(ctx context.Context) (reconcile.Result, error) {
	w.t.Helper()
	w.meter, w.commits, w.controlReads, w.cellReads = streamstest.Meter{}, 0, 0, 0
	w.log.Reset()
	r := reconcile.New(reconcile.Config{Tables: tables{w}, Store: w, Meter: &w.meter,
		Log: slog.New(slog.NewTextHandler(&w.log, nil)),
		Now: func() time.Time { return w.now }, Grace: w.grace, Spare: w.spare})
	return r.Run(ctx)
}

// wantDrift runs once. It fails the test unless the run finishes and finds this drift.
func (w *world) wantDrift(want map[reconcile.Drift]int64) reconcile.Result {
	w.t.Helper()
	result, err := w.runOnce(w.t.Context())
	if err != nil || !result.Finished {
		w.t.Fatalf("got %+v, error %v; want a run that finishes", result, err)
	}
	all := int64(0)
	for _, d := range reconcile.Drifts() {
		if result.Drift[d] != want[d] || w.meter.Of("drift_"+string(d)) != want[d] {
			w.t.Errorf("got %d of the drift %q in the result, and %d in the metric, want %d\n%s", result.Drift[d], d,
				w.meter.Of("drift_"+string(d)),
				want[d], w.log.String())
		}
		all += want[d]
	}
	w.meter.Want(w.t, map[string]int64{"drift": all, "reconcile_unfinished": 0, "reconcile_repaired": result.Repaired,
		"reconcile_items": result.Items})
	if int(result.ControlReads) != w.controlReads || int(result.CellReads) != w.cellReads {
		w.t.Errorf("got %d reads of the control tables and %d of the cell in the result, want %d and %d",
			result.ControlReads, result.CellReads, w.controlReads, w.cellReads)
	}
	return result
}

// wantRepaired fails unless the cell has what the control tables have.
func (w *world) wantRepaired() {
	w.t.Helper()
	for n, i := range w.items {
		ref, ok := table.RefOf(n.table, n.key)
		if !ok {
			continue
		}
		got, err := w.Memory.Get(w.t.Context(), ref)
		if err != nil || got[0].Version != i.Version || got[0].Deleted != i.Deleted ||
			string(got[0].Body) != string(i.Body) {
			w.t.Fatalf("%s/%q: got version %d in the cell, deleted %t, error %v; want version %d, deleted %t, and "+
				"its body", n.table, n.key, got[0].Version, got[0].Deleted, err, i.Version, i.Deleted)
		}
	}
}

type drift = map[reconcile.Drift]int64

// readsPerItem returns how often an item or document was read, on average.
func readsPerItem(r *reconcile.Result) float64 {
	return float64(r.ControlReads+r.CellReads) / float64(r.Items+r.Documents)
}

// Guarantees that a cell without drift needs one read of each item and of each document, and no write, whatever its
// size. The metric is reconcile_reads_per_item.
func TestNothingDrifted(t *testing.T) {
	w := newWorld(t)
	w.putEverywhere(control.Plans, "p1", `{"id":"p1"}`)
	w.putEverywhere(control.Plans, events.SettingsKey, `{"routes":[]}`)
	w.putEverywhere(control.Cells, events.SharesKey, `{"version":2}`)
	w.put(control.Cells, "eu-1", `{"weight":1}`) // which no cell has
	w.putEverywhere(control.Keys, "k1",
		`{"hash":"`+strings.Repeat("a", 64)+`","id":"k1","pepper":"p","tenant":"t000001"}`)
	w.putTenants(10_000)
	w.putEverywhere(control.Tenants, "gone", tenantBody("gone", 1))
	w.putEverywhere(control.Tenants, "gone", "")
	result, err := w.runOnce(t.Context())
	if err != nil || !result.Finished || len(result.Drift) != 0 || w.commits != 0 {
		t.Fatalf("got %+v, error %v, %d writes; want a finished run without drift and writes\n%s", result, err,
			w.commits, w.log.String())
	}
	if result.Items != 10_005 || result.Documents != 10_006 || // with the document under the key's hash
		readsPerItem(&result) != 1 {
		t.Errorf("got %d items, %d documents and %.3f reads per item, want 10005, 10006 and 1", result.Items,
			result.Documents, readsPerItem(&result))
	}
	if w.controlReads != 10_006 || w.cellReads != 10_006 {
		t.Errorf("got %d reads of the control tables and %d of the cell, want 10006 of each", w.controlReads,
			w.cellReads)
	}
}

// Guarantees that everything that the cell has missed is found and repaired: new items, newer versions, tombstones, and
// keys with their hashes.
func TestRepairs(t *testing.T) {
	w := newWorld(t)
	w.putTenants(2000)
	w.put(control.Plans, "p1", `{"id":"p1"}`)
	w.put(control.Keys, "k1", `{"hash":"`+strings.Repeat("a", 64)+`","id":"k1","pepper":"p","tenant":"acme"}`)
	for i := range 300 {
		id := fmt.Sprintf("t%06d", 5*i)
		w.put(control.Tenants, id, tenantBody(id, 2))
	}
	w.put(control.Tenants, "t000001", "")
	result := w.wantDrift(drift{reconcile.Missing: 2, reconcile.Older: 301})
	if result.Repaired != 303 {
		t.Errorf("got %d repaired documents, want 303", result.Repaired)
	}
	w.wantRepaired()
	got, err := w.Memory.Get(t.Context(), table.Ref{Kind: table.KindKeyHash, ID: strings.Repeat("a", 64)})
	if err != nil || got[0].Version == 0 {
		t.Errorf("the document under the key's hash: got %+v, error %v; want one", got, err)
	}
	if w.wantDrift(drift{}); w.commits != 0 {
		t.Errorf("the next run writes %d times, want no write", w.commits)
	}
}

// Guarantees that an empty cell is repaired, and so is a cell whose documents are all old.
func TestMuchDrifted(t *testing.T) {
	w := newWorld(t)
	for i := range 3000 {
		id := fmt.Sprintf("t%06d", i)
		w.put(control.Tenants, id, tenantBody(id, 1))
	}
	w.wantDrift(drift{reconcile.Missing: 3000})
	w.wantRepaired()
	for i := range 3000 {
		id := fmt.Sprintf("t%06d", i)
		w.put(control.Tenants, id, tenantBody(id, 2))
	}
	result := w.wantDrift(drift{reconcile.Older: 3000})
	w.wantRepaired()
	// the control side twice; the cell a second time to compare, and a third time to write
	if readsPerItem(&result) > 2.5 {
		t.Errorf("got %.3f reads per item, want at most 2.5", readsPerItem(&result))
	}
	w.wantDrift(drift{})
}

// Guarantees that a repair never writes an item to a cell that was written without Sluice, or cannot be read.
func TestUnreadableItems(t *testing.T) {
	w := newWorld(t)
	w.putTenants(10)
	i := w.put(control.Tenants, "t000003", tenantBody("t000003", 2))
	i.Body = []byte(`{"id":"t000003","plan":"gold"}`) // by hand: the hash is that of another body
	w.items[name{control.Tenants, "t000003"}] = i
	w.unreadable[name{control.Tenants, "t000004"}] = true
	w.wantDrift(drift{reconcile.Unreadable: 2})
	got, err := w.Memory.Get(t.Context(), table.Ref{Kind: plan.KindTenant, ID: "t000003"})
	if err != nil || got[0].Version != 1 {
		t.Errorf("got version %d in the cell, error %v; want 1", got[0].Version, err)
	}
}

// Guarantees that a document that the cell's table refuses does not stop the others.
func TestRefusedDocument(t *testing.T) {
	w := newWorld(t)
	hash := strings.Repeat("a", 64)
	w.putEverywhere(control.Keys, "k1", `{"hash":"`+hash+`","id":"k1","pepper":"p","tenant":"acme"}`)
	w.put(control.Keys, "k2", `{"hash":"`+hash+`","id":"k2","pepper":"p","tenant":"acme"}`)
	w.put(control.Keys, "k3", `{"hash":"`+strings.Repeat("b", 64)+`","id":"k3","pepper":"p","tenant":"acme"}`)
	result := w.wantDrift(drift{reconcile.Missing: 2, reconcile.Refused: 1})
	if result.Repaired != 1 {
		t.Errorf("got %d repaired documents, want 1", result.Repaired)
	}
}

// Guarantees that two keys with one hash are reported in a new cell, too, and in each run.
func TestTwoKeysInANewCell(t *testing.T) {
	w := newWorld(t)
	for _, id := range []string{"k1", "k2"} {
		w.put(control.Keys, id, keyBody(id, strings.Repeat("a", 64)))
	}
	w.wantDrift(drift{reconcile.Missing: 2, reconcile.Refused: 1})
	w.wantDrift(drift{reconcile.Missing: 1, reconcile.Refused: 1})
}

// Guarantees that a change on its way is neither drift nor written by the run, and that a change with a time an hour
// off is drift.
func TestUnderWay(t *testing.T) {
	for _, tt := range []struct {
		off      time.Duration // of this clock from the writer's
		underWay bool
	}{
		{0, true}, {59 * time.Second, true}, {-59 * time.Second, true}, {time.Minute, false}, {time.Hour, false},
		{-time.Hour, false},
	} {
		w := newWorld(t)
		w.putTenants(10)
		w.put(control.Tenants, "new", tenantBody("new", 1))
		w.now = streamstest.Written.Add(tt.off)
		want := drift{reconcile.Missing: 1}
		if tt.underWay {
			want = drift{}
		}
		result := w.wantDrift(want)
		if (result.UnderWay == 1) != tt.underWay || (w.commits == 0) != tt.underWay {
			t.Errorf("%s off: got %+v, %d writes; want that the change is under way: %t", tt.off, result, w.commits,
				tt.underWay)
		}
	}
}

// Guarantees that an applier that writes between two reads causes no drift: the control tables then have a newer
// version in the cell, too.
func TestChangesMeanwhile(t *testing.T) {
	w := newWorld(t)
	w.putTenants(300)
	once := sync.OnceFunc(func() {
		for i := range 20 {
			id := fmt.Sprintf("t%06d", 10*i)
			w.putEverywhere(control.Tenants, id, tenantBody(id, 2))
		}
	})
	w.onList = func(_ control.Table, after string) error {
		if after != "" { // the cell was read, and half of the control table
			once()
		}
		return nil
	}
	w.grace = 0
	if result := w.wantDrift(drift{}); result.Repaired != 0 {
		t.Errorf("got %+v, want no repaired document", result)
	}
	w.wantRepaired()

	w = newWorld(t) // the same while the whole cell is filled
	for i := range 3000 {
		id := fmt.Sprintf("t%06d", i)
		w.put(control.Tenants, id, tenantBody(id, 1))
	}
	w.onCell = func(refs []table.Ref) error {
		if len(refs) > 1 && w.items[name{control.Tenants, refs[0].ID}].Version < 3 {
			w.putEverywhere(control.Tenants, refs[0].ID, tenantBody(refs[0].ID, 3))
		}
		return nil
	}
	result, err := w.runOnce(t.Context())
	if err != nil || result.Drift[reconcile.Ahead] != 0 || result.Drift[reconcile.Unknown] != 0 {
		t.Errorf("got %+v, error %v; want no document that is ahead or unknown", result, err)
	}
	w.onCell = nil
	w.wantRepaired()
}

// Guarantees that the time of a run ends it without an error, that it says so, and that what it has repaired is not
// repaired again by the next runs, so that one of them finishes.
func TestInterruptedRuns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.put(control.Plans, "p1", `{"id":"p1"}`)
		for i := range 3000 {
			id := fmt.Sprintf("t%06d", i)
			w.put(control.Tenants, id, tenantBody(id, 1))
		}
		pages := 0
		w.onCell = func(refs []table.Ref) error {
			if len(refs) > 1 {
				pages++
				<-time.After(4 * time.Second) // each page takes a while to read and write
			}
			return nil
		}
		repaired, runs := int64(0), 0
		for done := false; !done; runs++ {
			if runs > 20 {
				t.Fatal("no run has finished after 20 runs")
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			result, err := w.runOnce(ctx)
			cancel()
			if err != nil {
				t.Fatal(err)
			}
			repaired += result.Repaired
			done = result.Finished
			w.meter.Want(t, map[string]int64{"reconcile_unfinished": map[bool]int64{true: 0, false: 1}[done]})
		}
		// 30 pages, each read once and written in up to two steps, and some of them twice
		if most := 120; pages > most {
			t.Errorf("got %d reads of pages of the cell, want at most %d: a run began anew", pages, most)
		}
		if repaired != 3001 || runs < 3 {
			t.Errorf("got %d repaired documents in %d runs, want 3001 in at least 3", repaired, runs)
		}
		w.onCell = nil
		w.wantRepaired()
		w.wantDrift(drift{})
		if w.commits != 0 {
			t.Errorf("the next run writes %d times, want no write", w.commits)
		}
	})
}

// Guarantees that it is an error if the control tables or the cell do not answer: nothing then counts as missing, and
// the next run is complete. The alarm on drift goes off, because a run that always fails would otherwise look like a
// cell without drift.
func TestSideIsAway(t *testing.T) {
	for what, fail := range map[string]func(w *world){
		"a page of the control table": func(w *world) {
			w.onList = func(of control.Table, after string) error {
				if of == control.Tenants && after != "" {
					return errAway
				}
				return nil
			}
		},
		"the cell": func(w *world) { w.onCell = func([]table.Ref) error { return errAway } },
	} {
		t.Run(what, func(t *testing.T) {
			w := newWorld(t)
			w.putTenants(500)
			w.put(control.Tenants, "new", tenantBody("new", 1))
			fail(w)
			result, err := w.runOnce(t.Context())
			if !errors.Is(err, errAway) || result.Finished || len(result.Drift) != 0 || w.commits != 0 {
				t.Fatalf("got %+v, error %v, %d writes; want errAway, no drift and no write", result, err, w.commits)
			}
			w.meter.Want(t, map[string]int64{"drift": 1, "reconcile_unfinished": 1})
			w.onList, w.onCell = nil, nil
			w.wantDrift(drift{reconcile.Missing: 1})
			w.wantRepaired()
		})
	}
}

// Guarantees that two concurrent runs repair the cell as one run does.
func TestTwoRunsAtOnce(t *testing.T) {
	w := newWorld(t)
	for i := range 200 {
		id := fmt.Sprintf("t%06d", i)
		w.put(control.Tenants, id, tenantBody(id, 1))
	}
	var all sync.WaitGroup
	for range 2 {
		all.Go(func() {
			r := reconcile.New(reconcile.Config{Tables: readOnly{w.items, w.order}, Store: w.Memory,
				Meter: &w.meter, Log: slog.New(slog.DiscardHandler)})
			if _, err := r.Run(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	w.wantRepaired()
}

// readOnly has control tables that several runs can use at the same time.
type readOnly struct {
	items map[name]control.Item
	order map[control.Table][]string
}

func (r readOnly) Get(_ context.Context, t control.Table, key string) (control.Item, error) {
	if i, ok := r.items[name{t, key}]; ok {
		return i, nil
	}
	return control.Item{}, control.ErrNotFound
}

func (r readOnly) List(_ context.Context, t control.Table, _ string, _ int) (items []control.Item, _ string, _ error) {
	for _, key := range r.order[t] {
		items = append(items, r.items[name{t, key}])
	}
	return items, "", nil
}

// Guarantees that one run finds everything that a cell has lost, and that the next one finds nothing.
func TestRandomDrift(t *testing.T) {
	for seed := range soak.Times(uint64(16)) {
		r := rand.New(rand.NewPCG(seed, 7))
		w := newWorld(t)
		want := drift{}
		for i := range r.IntN(1500) {
			id := fmt.Sprintf("t%06d", i)
			versions := 1 + r.IntN(3)
			var all []control.Item
			for v := range versions {
				body := tenantBody(id, v)
				if v > 0 && r.IntN(4) == 0 && !w.items[name{control.Tenants, id}].Deleted {
					body = ""
				}
				all = append(all, w.put(control.Tenants, id, body))
			}
			if r.IntN(1+int(seed%4)*20) > 0 || seed%4 == 0 { // the cell has it
				w.apply(all[versions-1])
				continue
			}
			if have := r.IntN(versions); have > 0 {
				w.apply(all[have-1])
				want[reconcile.Older]++
			} else {
				want[reconcile.Missing]++
			}
		}
		w.wantDrift(want)
		w.wantRepaired()
		w.wantDrift(drift{})
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
}

// Guarantees that nothing is read without items.
func TestNoItems(t *testing.T) {
	w := newWorld(t)
	if got := w.wantDrift(drift{}); got.ControlReads+got.CellReads != 0 {
		t.Errorf("got %+v without items, want no read", got)
	}
	if got := slices.Collect(maps.Keys(w.items)); len(got) != 0 {
		t.Errorf("got the items %v after a run without items, want none", got)
	}
}
