package local_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sluicelimits/sluice/authorizer"
	"github.com/sluicelimits/sluice/events"
	"github.com/sluicelimits/sluice/internal/cell/config"
	"github.com/sluicelimits/sluice/internal/cell/table"
	"github.com/sluicelimits/sluice/internal/control"
	"github.com/sluicelimits/sluice/internal/control/embedded"
	"github.com/sluicelimits/sluice/internal/testkit/soak"
	"github.com/sluicelimits/sluice/streams/applier"
	"github.com/sluicelimits/sluice/streams/delivery"
	"github.com/sluicelimits/sluice/streams/publisher"
	"github.com/sluicelimits/sluice/streams/reconcile"
	"github.com/sluicelimits/sluice/streams/streamstest"
)

// chaos is control tables and two cells, with every fault in between: a topic that accepts half a batch, queues that
// lose, repeat and reorder messages, tables that fail before and after a write, and two appliers for each cell.
type chaos struct {
	t         *testing.T
	r         *rand.Rand
	tables    *embedded.Tables
	publisher *publisher.Publisher
	cells     []*chaosCell
	loses     bool // messages are lost
	calm      bool // there are no more faults
	versions  map[string]int64
	deleted   map[string]bool
	now       time.Time // the time of the readers
	ids       int
}

type chaosCell struct {
	*table.Memory
	world    *chaos
	appliers []*applier.Applier
	reader   *config.Reader
	queue    []delivery.Message
}

func newChaos(t *testing.T, seed uint64, loses bool) *chaos {
	t.Helper()
	tables, err := embedded.Open(filepath.Join(t.TempDir(), "control.db"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = tables.Close() })
	w := &chaos{t: t, r: rand.New(rand.NewPCG(seed, 3)), tables: tables, loses: loses, versions: map[string]int64{},
		deleted: map[string]bool{}, now: time.Now()}
	keep, meter, quiet := &streamstest.Keeper{}, &streamstest.Meter{}, slog.New(slog.DiscardHandler)
	t.Cleanup(func() {
		if items := keep.Items(); len(items) > 0 {
			t.Errorf("kept %+v", items)
		}
	})
	w.publisher = publisher.New(publisher.Config{Topic: w, Keep: keep, Meter: meter, Log: quiet})
	for range 2 {
		c := &chaosCell{Memory: newCell(t), world: w}
		for range 2 {
			a := applier.New(applier.Config{Cell: "c", Tables: tables, Store: c, Keep: keep, Meter: meter,
				Log: quiet})
			c.appliers = append(c.appliers, a)
		}
		if c.reader, err = config.New(config.Config{Table: c.Memory, Log: quiet, Timeout: 10 * time.Second,
			FirstTimeout: 10 * time.Second}); err != nil {
			t.Fatal(err)
		}
		w.cells = append(w.cells, c)
	}
	return w
}

func (w *chaos) happens(of int) bool { return !w.calm && w.r.IntN(of) == 0 }

// Publish implements [publisher.Topic].
func (w *chaos) Publish(_ context.Context, messages []events.Message) []error {
	errs := make([]error, len(messages))
	for i, m := range messages {
		if w.happens(10) {
			errs[i] = errAway
			if w.r.IntN(2) == 0 {
				continue // the others were accepted, and nobody knows whether these were
			}
		}
		for _, c := range w.cells {
			times := 1
			switch {
			case w.loses && w.happens(15):
				times = 0
			case w.happens(5):
				times = 1 + w.r.IntN(3)
			}
			for range times {
				w.ids++
				at := w.r.IntN(len(c.queue) + 1)
				c.queue = slices.Insert(c.queue, at, delivery.Message{ID: fmt.Sprint(w.ids), Body: m.Body})
			}
		}
	}
	return errs
}

// Commit implements [table.Store].
func (c *chaosCell) Commit(ctx context.Context, step table.Step) error {
	switch {
	case c.world.happens(8):
		return errAway
	case c.world.happens(8): // another writer was faster, or seems to have been
		return table.ErrConflict
	}
	err := c.Memory.Commit(ctx, step)
	if err == nil && c.world.happens(8) {
		return errAway // the write was made, and the applier died
	}
	return err
}

// write changes any item, by a clock that is up to an hour off.
func (w *chaos) write() {
	w.t.Helper()
	r := w.r
	n := r.IntN(4)
	table, key, body := control.Plans, fmt.Sprintf("p%d", n), planOf(fmt.Sprintf("p%d", n), 1+r.IntN(1000))
	switch r.IntN(8) {
	case 0:
		table, key, body = control.Keys, fmt.Sprintf("k%d", n),
			fmt.Sprintf(`{"hash":%q,"id":"k%d","pepper":"p","revoked":%t,"tenant":"t1"}`,
				strings.Repeat(fmt.Sprint(n), 64), n, r.IntN(2) == 0)
	case 1:
		key, body = events.SettingsKey,
			fmt.Sprintf(`{"ipLimits":[{"id":"x","tiers":[{"period":"1s","threshold":%d}]}]}`, 1+r.IntN(100))
	case 2, 3, 4, 5:
		n = r.IntN(12)
		table, key = control.Tenants, fmt.Sprintf("t%d", n)
		body = tenantOf(key, fmt.Sprintf("p%d", r.IntN(4)))
	}
	name := string(table) + "/" + key
	c := control.Change{Table: table, Key: key, Expect: w.versions[name], Body: []byte(body), Actor: "tester",
		Reason: "test",
		Now:    time.Now().Add(time.Duration(r.Int64N(int64(2*time.Hour))) - time.Hour)}
	if table == control.Tenants && w.versions[name] > 0 && !w.deleted[name] && r.IntN(5) == 0 {
		c.Body, c.Delete = nil, true
	}
	i, err := w.tables.Put(w.t.Context(), c)
	if err != nil {
		w.t.Fatal(err)
	}
	w.versions[name], w.deleted[name] = i.Version, i.Deleted
}

// publish gives the stream's next records to the publisher, sometimes those that it had before, as a stream does.
func (w *chaos) publish() {
	w.t.Helper()
	ctx := w.t.Context()
	cursor, err := w.tables.Cursor(ctx, "stream")
	if err != nil {
		w.t.Fatal(err)
	}
	records, err := w.tables.Read(ctx, cursor, 1+w.r.IntN(20))
	if err != nil {
		w.t.Fatal(err)
	}
	if len(records) == 0 {
		return
	}
	done, _ := w.publisher.Handle(ctx, records) // the rest is delivered again
	if done > 0 && !w.happens(4) {
		if err := w.tables.Commit(ctx, "stream", records[done-1].Sequence); err != nil {
			w.t.Fatal(err)
		}
	}
}

// apply gives some messages of a cell's queue to one of its appliers. Those that fail go back, and others may be
// delivered once more.
func (c *chaosCell) apply() {
	w := c.world
	n := min(len(c.queue), 1+w.r.IntN(10))
	batch := slices.Clone(c.queue[:n])
	c.queue = c.queue[n:]
	failed, _ := c.appliers[w.r.IntN(2)].Handle(w.t.Context(), batch)
	for _, m := range batch {
		if slices.Contains(failed, m.ID) || w.happens(20) {
			c.queue = append(c.queue, m)
		}
	}
	_, join := c.reader.Begin(w.t.Context(), w.now) // a request
	if join != nil {
		join()
	}
	w.now = w.now.Add(time.Duration(w.r.Int64N(int64(3 * time.Second))))
}

// drain delivers everything that was not lost.
func (w *chaos) drain() {
	w.t.Helper()
	for range 10_000 {
		cursor, err := w.tables.Cursor(w.t.Context(), "stream")
		if err != nil {
			w.t.Fatal(err)
		}
		left, err := w.tables.Read(w.t.Context(), cursor, 1)
		if err != nil {
			w.t.Fatal(err)
		}
		queued := 0
		for _, c := range w.cells {
			c.apply()
			queued += len(c.queue)
		}
		if len(left) > 0 {
			w.publish()
		} else if queued == 0 {
			return
		}
	}
	w.t.Fatal("it never ends")
}

// threshold returns the threshold that applies to a request.
func threshold(r *config.Reader, now time.Time, tenant string) string {
	c, join := r.Begin(context.Background(), now)
	if join != nil {
		defer join()
	}
	got, err := c.Tenant(context.Background(), tenant)
	switch {
	case errors.Is(err, authorizer.ErrNotLoaded):
		return "not loaded"
	case err != nil:
		return err.Error()
	case got == nil:
		return "unknown"
	}
	limits := got.Limits(now).Limits
	if len(limits) == 0 {
		return "no limits"
	}
	return fmt.Sprint(limits[0].Limit.Tiers[0].Threshold)
}

// want returns the threshold that applies to a request according to the control tables.
func (w *chaos) want(tenant string) string {
	i, err := w.tables.Get(w.t.Context(), control.Tenants, tenant)
	if errors.Is(err, control.ErrNotFound) || i.Deleted {
		return "unknown"
	}
	_, planID, _ := strings.Cut(string(i.Body), `"plan":"`)
	p, err := w.tables.Get(w.t.Context(), control.Plans, strings.TrimRight(planID, `"}`))
	if errors.Is(err, control.ErrNotFound) {
		return "not loaded" // the tenant's plan was never written
	}
	_, n, _ := strings.Cut(string(p.Body), `"threshold":`)
	return strings.TrimRight(n, "]}")
}

// Guarantees that whatever is written, and however messages are repeated, delayed and reordered, with appliers that
// die, every cell ends in exactly the state of the control tables, and its readers decide by it; and that reconcile
// repairs what was lost, and finds nothing if nothing was.
func TestRandomHistories(t *testing.T) {
	soak.SkipUnderRace(t)
	for seed := range soak.Times(uint64(8)) {
		loses := seed%2 == 1
		t.Run(fmt.Sprintf("seed %d, loses %t", seed, loses), func(t *testing.T) {
			w := newChaos(t, seed, loses)
			for range 120 {
				w.write()
				if w.r.IntN(3) == 0 {
					w.publish()
				}
				if c := w.cells[w.r.IntN(2)]; w.r.IntN(3) == 0 {
					c.apply()
				}
			}
			w.drain()
			w.calm = true
			check := world{t: t, tables: w.tables}
			lost := int64(0)
			for _, c := range w.cells {
				r := reconcile.New(reconcile.Config{Tables: w.tables, Store: c, Meter: &streamstest.Meter{},
					Log: slog.New(slog.DiscardHandler)})
				if !loses {
					check.wantSame(c)
				}
				result, err := r.Run(t.Context())
				if err != nil || !result.Finished {
					t.Fatalf("%+v, %v", result, err)
				}
				lost += result.Repaired
				if !loses && len(result.Drift) > 0 {
					t.Errorf("nothing was lost, and drift is %v", result.Drift)
				}
				check.wantSame(c)
				w.now = w.now.Add(10 * time.Second)
				for n := range 12 {
					tenant := fmt.Sprintf("t%d", n)
					if got, want := threshold(c.reader, w.now, tenant), w.want(tenant); got != want {
						t.Errorf("a request of %s is held to %s, want %s", tenant, got, want)
					}
				}
			}
			if loses && lost == 0 {
				t.Log("nothing that was lost mattered")
			}
		})
	}
}

// Guarantees that a change between a reader's reads of a document and of the log takes effect with its next poll, and
// that no request sees the older document after the newer one.
func TestChangeBetweenDocumentAndLog(t *testing.T) {
	w := newChaos(t, 1, false)
	w.calm = true
	c := w.cells[0]
	between := &interrupting{Memory: c.Memory}
	reader, err := config.New(config.Config{Table: between, Log: slog.New(slog.DiscardHandler),
		Timeout: 10 * time.Second, FirstTimeout: 10 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	put := func(of control.Table, key, body string) {
		(&world{t: t, tables: w.tables}).put(of, key, body)
		w.drain()
	}
	put(control.Plans, "p", planOf("p", 1))
	put(control.Tenants, "acme", tenantOf("acme", "p"))
	if got := threshold(reader, w.now, "acme"); got != "1" {
		t.Fatalf("the first request is held to %s, want 1", got)
	}
	last := 1
	for n := 2; n < 12; n++ {
		between.mu.Lock()
		between.once = sync.OnceFunc(func() { put(control.Plans, "p", planOf("p", n)) })
		between.beforeGet = n%2 == 0
		between.mu.Unlock()
		put(control.Plans, "p", planOf("p", 1000+n)) // so that the document is read
		for range 3 {
			w.now = w.now.Add(5 * time.Second)
			_ = threshold(reader, w.now, "acme")
		}
		if got := threshold(reader, w.now, "acme"); got != fmt.Sprint(n) {
			t.Fatalf("held to %s, want %d and before it %d", got, n, last)
		}
		last = n
	}
}

// interrupting is a table that runs a function before or after a read of documents.
type interrupting struct {
	*table.Memory
	mu        sync.Mutex
	once      func()
	beforeGet bool
}

func (i *interrupting) Get(ctx context.Context, refs ...table.Ref) ([]table.Document, error) {
	i.mu.Lock()
	once, before := i.once, i.beforeGet
	i.mu.Unlock()
	if once != nil && before {
		once()
	}
	d, err := i.Memory.Get(ctx, refs...)
	if once != nil && !before {
		once()
	}
	return d, err
}

// Guarantees that a cell that was away for a day, with a log that holds less than it missed and messages that arrive at
// once and in reverse order, ends in the same state as the others, and that an environment of it that thaws decides by
// the new state at once.
func TestCellAwayForADay(t *testing.T) {
	w := newChaos(t, 1, false)
	w.calm = true
	short := table.NewMemory(3)
	c := w.cells[0]
	c.Memory = short
	thawed, err := config.New(config.Config{Table: short, Log: slog.New(slog.DiscardHandler),
		Timeout: 10 * time.Second, FirstTimeout: 10 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	(&world{t: t, tables: w.tables}).put(control.Plans, "p", planOf("p", 1))
	(&world{t: t, tables: w.tables}).put(control.Tenants, "acme", tenantOf("acme", "p"))
	w.drain()
	if got := threshold(thawed, w.now, "acme"); got != "1" {
		t.Fatalf("held to %s, want 1", got)
	}
	for n := 2; n < 60; n++ {
		(&world{t: t, tables: w.tables}).put(control.Plans, "p", planOf("p", n))
		w.publish()
	}
	for len(w.cells[1].queue) > 0 { // the other cell goes on
		w.cells[1].apply()
	}
	slices.Reverse(c.queue)
	for range 5 { // most messages of a day are lost for good, because SQS keeps them for a limited time
		c.queue = c.queue[:len(c.queue)*3/4]
	}
	w.drain()
	r := reconcile.New(reconcile.Config{Tables: w.tables, Store: c, Meter: &streamstest.Meter{},
		Log: slog.New(slog.DiscardHandler)})
	if _, err := r.Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	for n := range 5 { // more entries than the log holds
		(&world{t: t, tables: w.tables}).put(control.Tenants, fmt.Sprintf("new-%d", n),
			tenantOf(fmt.Sprintf("new-%d", n), "p"))
		w.drain()
	}
	w.now = w.now.Add(24 * time.Hour)
	if got := threshold(thawed, w.now, "acme"); got != "59" {
		t.Errorf("after a day the first request is held to %s, want 59", got)
	}
	if s := thawed.Stats(w.now); s.Resets != 1 {
		t.Errorf("the copy was dropped %d times, want once: its log was gone", s.Resets)
	}
	(&world{t: t, tables: w.tables}).wantSame(c)
}
