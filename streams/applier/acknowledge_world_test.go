package applier_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/sluicelimits/sluice/events"
	"github.com/sluicelimits/sluice/internal/cell/config"
	"github.com/sluicelimits/sluice/internal/cell/table"
	"github.com/sluicelimits/sluice/internal/control"
	"github.com/sluicelimits/sluice/internal/control/embedded"
	"github.com/sluicelimits/sluice/internal/limiter/lease"
	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/limiter/store/memory/memorytest"
	"github.com/sluicelimits/sluice/internal/limiter/store/router"
	"github.com/sluicelimits/sluice/internal/plan"
	"github.com/sluicelimits/sluice/internal/plan/route"
	"github.com/sluicelimits/sluice/internal/plan/shares"
	"github.com/sluicelimits/sluice/streams/applier"
	"github.com/sluicelimits/sluice/streams/balancer"
	"github.com/sluicelimits/sluice/streams/delivery"
)

// The world of these tests consists of the real parts, in virtual time: control tables, balancer, cells with their
// configuration tables, and environments that read these tables and lease from the cell's store. Messages between the
// control tables and the cells are lost, repeated and reordered.

var begins = time.Date(2026, 11, 21, 18, 0, 0, 0, time.UTC)

const tick = 250 * time.Millisecond

// grace is short, so that a run has many transitions; its Lease is the life of leases.
var grace = shares.Settings{Copy: 2 * time.Second, Lease: time.Second, Decision: 500 * time.Millisecond,
	Skew: 2 * time.Second}

// The limits. Each has a path of its own.
const pro = `{"id":"pro","limits":[
	{"id":"window","match":{"pathPattern":"/window"},"algorithm":"fixed_window","threshold":61,"period":"10s"},
	{"id":"bucket","match":{"pathPattern":"/bucket"},"algorithm":"token_bucket","rate":40,"period":"10s","burst":25},
	{"id":"tiny","match":{"pathPattern":"/tiny"},"algorithm":"fixed_window","threshold":2,"period":"10s"}]}`

var paths = []string{"/window", "/bucket", "/tiny"}

type environment struct {
	reader *config.Reader
	homes  *router.Store
	leases *lease.Store
}

// clocked is a store with a clock of its own.
type clocked struct {
	limit.Store
	now func() time.Time
}

func (c *clocked) Decide(ctx context.Context, req *limit.Request, _ time.Time, d *limit.Decision) error {
	return c.Store.Decide(ctx, req, c.now(), d)
}

type cell struct {
	id    string
	skew  time.Duration
	table *table.Memory
	heard *applier.Acknowledger
	kept  *clocked // the store that other cells call
	envs  []*environment
	deaf  bool
}

type message struct {
	at   time.Time
	to   *cell
	docs []table.Document
}

type sharesWorld struct {
	t       *testing.T
	r       *rand.Rand
	now     time.Time
	tables  *embedded.Tables
	b       *balancer.Balancer
	cells   []*cell
	net     []message
	after   string // position in the feed
	loss    int    // lost messages, of 100
	epochs  int64
	granted map[string]map[time.Time]int64 // units by path and tenant
	phases  map[shares.Phase]bool
	denied  int // denied because nothing is granted in the cell
}

func newSharesWorld(t *testing.T, seed uint64) *sharesWorld {
	t.Helper()
	tables, err := embedded.Open(filepath.Join(t.TempDir(), "control.db"))
	if err != nil {
		t.Fatal(err)
	}
	tables.Unsynced() // no test here simulates a loss of power
	t.Cleanup(func() {
		if err := tables.Close(); err != nil {
			t.Error(err)
		}
	})
	w := &sharesWorld{t: t, r: rand.New(rand.NewPCG(seed, 11)), now: begins, tables: tables, loss: 15,
		granted: map[string]map[time.Time]int64{}, phases: map[shares.Phase]bool{}}
	w.b = w.balancer()
	w.put(control.Plans, "pro", pro)
	w.put(control.Tenants, "acme", `{"id":"acme","plan":"pro"}`)
	w.put(control.Tenants, "globex", `{"id":"globex","plan":"pro"}`)
	w.putOwnLimits("initech", `{"id":"initech","plan":"pro","overrides":[{"id":"window","threshold":2}]}`)
	return w
}

func (w *sharesWorld) balancer() *balancer.Balancer {
	b := balancer.New(balancer.Config{Tables: w.tables, Meter: delivery.NoMeter{}, Settings: grace,
		Log: slog.New(slog.DiscardHandler),
		Now: func() time.Time { return w.now }})
	return b
}

// put writes the next version of an item.
func (w *sharesWorld) put(table control.Table, key, body string) {
	w.t.Helper()
	item, err := w.tables.Get(w.t.Context(), table, key)
	if err != nil && !errors.Is(err, control.ErrNotFound) {
		w.t.Fatal(err)
	}
	if _, err := w.tables.Put(w.t.Context(),
		control.Change{Table: table, Key: key, Expect: item.Version, Body: []byte(body),
			Actor: "an operator", Reason: "a test", Now: w.now}); err != nil {
		w.t.Fatal(err)
	}
}

// putOwnLimits writes a tenant that has limits of its own, and its pin, which says so.
func (w *sharesWorld) putOwnLimits(tenant, body string) {
	w.t.Helper()
	pin, err := json.Marshal(balancer.Wish{Request: shares.Request{Kind: shares.Place, Tenant: tenant},
		Tenant: []byte(body)})
	if err != nil {
		w.t.Fatal(err)
	}
	w.put(control.Cells, shares.PinPrefix+tenant, string(pin))
	w.put(control.Tenants, tenant, body)
}

// ask writes a wish for a cell or a tenant's pin.
func (w *sharesWorld) ask(r shares.Request) {
	w.t.Helper()
	key := r.Cell
	if r.Kind == shares.Place {
		key = shares.PinPrefix + r.Tenant
	}
	body, err := json.Marshal(balancer.Wish{Request: r})
	if err != nil {
		w.t.Fatal(err)
	}
	w.put(control.Cells, key, string(body))
}

// cell makes a cell with a whole configuration, as after a reconcile, and asks for a share for it.
func (w *sharesWorld) cell(id string, weight int64) *cell {
	w.t.Helper()
	c := w.empty(id)
	w.reconcile(c)
	w.cells = append(w.cells, c)
	w.ask(shares.Request{Kind: shares.Join, Cell: id, Weight: weight})
	return c
}

// empty makes a cell with an empty table, which gets no messages.
func (w *sharesWorld) empty(id string) *cell {
	w.t.Helper()
	cellTable := table.NewMemory(0)
	c := &cell{id: id, table: cellTable, skew: time.Duration(w.r.IntN(1000)-500) * time.Millisecond}
	var err error
	c.heard = applier.NewAcknowledger(applier.AcknowledgerConfig{Cell: id, Tables: w.tables, Store: cellTable,
		Now: func() time.Time { return w.now.Add(c.skew) }})
	rates := memorytest.New(w.t)
	kept := memorytest.New(w.t)
	c.kept = &clocked{kept, func() time.Time { return w.now.Add(c.skew) }}
	began := slices.ContainsFunc(w.cells, func(other *cell) bool { return other.id == id })
	for range 2 {
		e := &environment{}
		if e.reader, err = config.New(config.Config{Table: cellTable, Cell: id, Timeout: 10 * time.Second,
			FirstTimeout: 10 * time.Second,
			Reaches:      func(string) bool { return true }, Log: slog.New(slog.DiscardHandler)}); err != nil {
			w.t.Fatal(err)
		}
		others := map[string]router.Backend{}
		for _, other := range w.cells {
			if other.id == id { // the cell begins anew
				continue
			}
			others[other.id] = router.Backend{Store: other.kept}
			for _, theirs := range other.envs {
				if len(c.envs) > 0 { // its environments know of this cell
					break
				}
				if err := theirs.homes.Add(id, router.Backend{Store: c.kept}); err != nil && !began {
					w.t.Fatal(err)
				}
			}
		}
		if e.homes, err = router.New(router.Config{Cell: id, Rates: router.Backend{Store: rates},
			Quotas: router.Backend{Store: c.kept}, Homes: others}); err != nil {
			w.t.Fatal(err)
		}
		if e.leases, err = lease.New(lease.Config{Store: e.homes,
			Instances: func(*limit.Limit) int { return 2 }, Life: grace.Lease,
			GiveBackEvery: -1,
			Clock:         func() time.Time { return w.now.Add(c.skew) }}); err != nil {
			w.t.Fatal(err)
		}
		c.envs = append(c.envs, e)
	}
	return c
}

// reconcile copies everything to a cell, except for old versions.
func (w *sharesWorld) reconcile(c *cell) {
	var docs []table.Document
	for _, of := range []control.Table{control.Plans, control.Tenants, control.Cells} {
		for item, err := range control.All(w.t.Context(), w.tables, of) {
			if err != nil {
				w.t.Fatal(err)
			}
			if e := item.Event(); e != nil {
				docs = append(docs, table.DocumentOf(e))
			}
		}
	}
	w.apply(c, docs)
}

// apply stores documents as an applier does: an unreadable document replaces nothing.
func (w *sharesWorld) apply(c *cell, docs []table.Document) {
	docs = slices.DeleteFunc(slices.Clone(docs),
		func(d table.Document) bool { return table.Readable(&d) != nil })
	if _, err := table.Apply(w.t.Context(), c.table, docs, func() time.Time { return w.now }); err != nil {
		w.t.Fatal(err)
	}
	if w.r.IntN(100) < w.loss {
		return // the applier died before it acknowledged
	}
	if _, err := c.heard.Run(w.t.Context()); err != nil && !errors.Is(err, control.ErrBadItem) {
		w.t.Fatal(err)
	}
}

// run lets time pass, with or without clients that use all that is granted.
func (w *sharesWorld) run(d time.Duration, clients bool) {
	w.t.Helper()
	for end := w.now.Add(d); w.now.Before(end); w.now = w.now.Add(tick) {
		changed := w.publish()
		schedule := w.now.Sub(begins)%(3*time.Second) == 0
		if changed || schedule {
			r, err := w.b.Run(w.t.Context())
			if err != nil {
				w.t.Fatal(err)
			}
			w.epochs, w.phases[r.Phase] = r.Epoch, true
		}
		w.deliver()
		if schedule {
			for _, c := range w.cells {
				if !c.deaf && w.r.IntN(2) == 0 {
					w.reconcile(c)
				}
			}
		}
		if clients {
			w.grantAll()
		}
	}
}

// publish sends the records of the feed to each cell: some not at all, some twice, and in any order.
func (w *sharesWorld) publish() (changed bool) {
	records, err := w.tables.Read(w.t.Context(), w.after, control.MaxPage)
	if err != nil {
		w.t.Fatal(err)
	}
	for i := range records {
		w.after, changed = records[i].Sequence, true
		e := records[i].Record.Event()
		if e == nil {
			continue
		}
		text, err := events.Encode(e)
		if err != nil {
			w.t.Fatalf("what was written cannot be published: %v", err)
		}
		again, err := events.Decode(text)
		if err != nil {
			w.t.Fatal(err)
		}
		for _, c := range w.cells {
			for n := 1 + w.r.IntN(2); n > 0 && w.r.IntN(100) >= w.loss; n-- {
				at := w.now.Add(time.Duration(w.r.IntN(2000)) * time.Millisecond)
				sent := []table.Document{table.DocumentOf(again.(*events.Changed))}
				w.net = append(w.net, message{at, c, sent})
			}
		}
	}
	return changed
}

func (w *sharesWorld) deliver() {
	var due []message
	w.net = slices.DeleteFunc(w.net, func(m message) bool {
		if m.at.After(w.now) {
			return false
		}
		due = append(due, m)
		return true
	})
	w.r.Shuffle(len(due), func(i, j int) { due[i], due[j] = due[j], due[i] })
	for _, m := range due {
		if !m.to.deaf {
			w.apply(m.to, m.docs)
		}
	}
}

// grantAll lets each environment of each cell grant what it may.
func (w *sharesWorld) grantAll() {
	for _, i := range w.r.Perm(len(w.cells)) {
		for _, e := range w.cells[i].envs {
			for _, tenant := range []string{"acme", "globex", "initech"} {
				for _, path := range paths {
					w.spend(w.cells[i], e, tenant, path)
				}
			}
		}
	}
}

func (w *sharesWorld) spend(c *cell, e *environment, tenant, path string) {
	now := w.now.Add(c.skew)
	configuration, join := e.reader.Begin(w.t.Context(), now)
	if join != nil {
		defer join()
	}
	t, err := configuration.Tenant(w.t.Context(), tenant)
	if err != nil || t == nil {
		return // the cell does not know the tenant yet
	}
	set := t.Limits(now)
	clean := route.Clean(path)
	charges := set.AppendCharges(nil, &plan.Attributes{Method: "GET", Path: &clean})
	if set.Withheld(charges) != nil {
		w.denied++
		return
	}
	var d limit.Decision
	for range 100 {
		req := &limit.Request{Owner: limit.Owner{Kind: limit.Tenant, Name: tenant}, Charges: charges}
		if err := e.leases.Decide(context.Background(), req, now, &d); err != nil {
			w.t.Fatal(err)
		}
		if !d.Allowed {
			return
		}
		name := path + " of " + tenant
		for _, home := range w.cells {
			if home.id == charges[0].Limit.Home {
				now = home.kept.now()
			}
		}
		if w.granted[name] == nil {
			w.granted[name] = map[time.Time]int64{}
		}
		w.granted[name][now] += charges[0].Cost
	}
}

// violations returns a text for each way in which the cells together have granted more than the limits.
func (w *sharesWorld) violations() []string {
	var out []string
	for name, at := range w.granted {
		times := make([]time.Time, 0, len(at))
		for t := range at {
			times = append(times, t)
		}
		slices.SortFunc(times, time.Time.Compare)
		most := map[byte]int64{'w': 61, 't': 2}[name[1]]
		if name == "/window of initech" {
			most = 2
		}
		if name[1] != 'b' {
			sums := map[time.Time]int64{}
			for _, t := range times {
				sums[t.Truncate(10*time.Second)] += at[t]
			}
			for start, n := range sums {
				if n > most {
					out = append(out, fmt.Sprintf("%s: %d of %d in the window of +%s", name, n, most,
						start.Sub(begins)))
				}
			}
			continue
		}
		level, last := int64(25_000_000), times[0] // in millionths of a unit: 4 units a second
		for _, t := range times {
			level = min(level+4*t.Sub(last).Microseconds(), 25_000_000) - at[t]*1_000_000
			if last = t; level < 0 {
				out = append(out, fmt.Sprintf("%s: %d units too many at +%s", name, -level/1_000_000+1, t.Sub(begins)))
			}
		}
	}
	slices.Sort(out)
	return out
}

// total returns how many units were granted since a time.
func (w *sharesWorld) total(name string, since time.Time) (n int64) {
	for t, units := range w.granted[name] {
		if !t.Before(since) {
			n += units
		}
	}
	return n
}
