package balancer_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sluicelimits/sluice/events"
	"github.com/sluicelimits/sluice/internal/cell/table"
	"github.com/sluicelimits/sluice/internal/control"
	"github.com/sluicelimits/sluice/internal/control/operate"
	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/plan/shares"
	"github.com/sluicelimits/sluice/internal/testkit/soak"
)

// fleet is cells that hear of shares and placements at different times, and store them as appliers do: an unreadable
// item never replaces a readable one. It adds up what they may grant to a tenant of a limit of 90 units in each period.
type fleet struct {
	*bench
	limit   *limit.Limit
	tenant  string
	cells   map[string]*heard
	granted map[string]map[time.Time]int64 // by cell and window: the most that the cell could grant in it at any time
}

const period = 2 * time.Minute

// heard is what a cell has stored.
type heard struct {
	doc    *shares.Document
	placed *shares.Placement
}

func newFleet(t *testing.T, tenant string, cells ...string) *fleet {
	t.Helper()
	l, err := limit.New(limit.Limit{ID: "l", Tiers: []limit.Tier{
		{Algorithm: limit.FixedWindow, Threshold: 90, Period: period}}})
	if err != nil {
		t.Fatal(err)
	}
	f := &fleet{bench: newBench(t), limit: l, tenant: tenant, cells: map[string]*heard{},
		granted: map[string]map[time.Time]int64{}}
	for _, cell := range cells {
		f.cells[cell] = &heard{}
		f.granted[cell] = map[time.Time]int64{}
		f.putRequest(shares.Request{Kind: shares.Join, Cell: cell, Weight: 1})
	}
	f.settle()
	return f
}

// storeAndAcknowledge lets a cell store the present state, and acknowledge it.
func (f *fleet) storeAndAcknowledge(cell string) {
	f.t.Helper()
	c := f.cells[cell]
	c.doc = f.state().Document()
	if item, err := f.tables.Tables.Get(f.t.Context(), control.Cells, shares.PlacementKey(f.tenant)); err == nil {
		d := table.DocumentOf(item.Event())
		if table.Readable(&d) == nil {
			if c.placed, err = shares.DecodePlacement(d.Body); err != nil {
				f.t.Fatal(err)
			}
		}
	}
	if slices.Contains(f.state().Awaited(), cell) {
		f.acknowledge(cell)
	}
}

// grant adds up what each cell may grant now, and returns it.
func (f *fleet) grant() map[string]int64 {
	f.t.Helper()
	now := map[string]int64{}
	for cell, c := range f.cells {
		if c.doc == nil {
			continue
		}
		span, _ := shares.At(c.doc.View(cell, f.tenant, c.placed).Limit("pro", f.limit, f.tenant), f.now.UnixMicro())
		if span.Limit != nil {
			now[cell] = span.Limit.Tiers[0].Threshold
		}
		window := f.now.Truncate(period)
		f.granted[cell][window] = max(f.granted[cell][window], now[cell])
	}
	sum := int64(0)
	for _, windows := range f.granted {
		sum += windows[f.now.Truncate(period)]
	}
	if sum > 90 {
		f.t.Fatalf("at %s the cells may grant %d of 90 in one window", f.now.Format(time.TimeOnly), sum)
	}
	return now
}

// run lets time pass: the balancer runs every ten seconds, and each cell hears now and then.
func (f *fleet) run(r *rand.Rand, d time.Duration, deaf ...string) {
	f.t.Helper()
	for end := f.now.Add(d); f.now.Before(end); f.now = f.now.Add(10 * time.Second) {
		f.bench.run()
		for _, cell := range slices.Sorted(maps.Keys(f.cells)) {
			if !slices.Contains(deaf, cell) && r.IntN(3) == 0 {
				f.storeAndAcknowledge(cell)
			}
		}
		f.grant()
	}
}

// newest returns the newest version of the tenant's placement.
func (f *fleet) newest() control.Item {
	f.t.Helper()
	item, err := f.tables.Tables.Get(f.t.Context(), control.Cells, shares.PlacementKey(f.tenant))
	if err != nil {
		f.t.Fatal(err)
	}
	return item
}

// Guarantees that a placement that cannot be read changes nobody's share of the tenant, whatever is asked for and in
// whatever order cells hear; that other tenants and cells are still served; that it is reported; and that the tenant is
// served again by itself when the item is corrected. The cells never grant more than the limit together.
func TestUnreadablePlacement(t *testing.T) {
	soak.SkipUnderRace(t)
	for name, spoil := range map[string]func(f *fleet, readable string){
		"a newer layout": func(f *fleet, _ string) {
			f.put(control.Cells, shares.PlacementKey("acme"), `{"version":2,"tenant":"acme","zones":[1]}`)
		},
		"no JSON of ours": func(f *fleet, _ string) { f.put(control.Cells, shares.PlacementKey("acme"), `{}`) },
		"another tenant's": func(f *fleet, readable string) {
			f.put(control.Cells, shares.PlacementKey("acme"), strings.Replace(readable, `"acme"`, `"other"`, 1))
		},
		"deleted": func(f *fleet, _ string) {
			if _, err := f.tables.Tables.Put(f.t.Context(), control.Change{Table: control.Cells,
				Key: shares.PlacementKey("acme"), Expect: f.newest().Version,
				Delete: true, Actor: "somebody", Reason: "a test", Now: f.now}); err != nil {
				f.t.Fatal(err)
			}
		},
		"written past us":     func(f *fleet, _ string) { f.tables.altered = shares.PlacementKey("acme") },
		"no item of ours":     func(f *fleet, _ string) { f.tables.bad = shares.PlacementKey("acme") },
		"absent until it was": func(f *fleet, _ string) { f.tables.bad = shares.PlacementKey("acme") },
	} {
		t.Run(name, func(t *testing.T) {
			for seed := range soak.Times(uint64(3)) {
				r := rand.New(rand.NewPCG(seed, 7))
				f := newFleet(t, "acme", "a", "b", "c")
				before := map[string]int64{"a": 90, "b": 0, "c": 0}
				if name == "absent until it was" {
					before = map[string]int64{"a": 30, "b": 30, "c": 30}
				} else {
					f.putRequest(shares.Request{Kind: shares.Place, Tenant: "acme", Cells: []string{"a"}})
				}
				f.run(r, 5*time.Minute)
				readable := ""
				if name != "absent until it was" {
					readable = string(f.newest().Body)
				}
				spoil(f, readable)
				f.putRequest(shares.Request{Kind: shares.Place, Tenant: "acme", Cells: []string{"b", "c"}})
				f.run(r, 4*time.Minute, "a")
				f.run(r, 3*time.Minute)
				for cell, want := range before {
					if got := f.grant()[cell]; got != want {
						t.Fatalf("cell %s grants %d, want the %d of before", cell, got, want)
					}
				}
				if res := f.bench.run(); res.Unread != 1 || res.Phase != shares.Steady {
					t.Fatalf("%+v: want that one item is told to be unreadable, and nothing is under way\n%s", res,
						f.log.String())
				}
				if log := f.log.String(); !strings.Contains(log, "cannot be read") ||
					!strings.Contains(log, shares.PlacementKey("acme")) {
					t.Fatalf("the log does not name the item: %s", log)
				}

				// All other changes go on.
				f.putRequest(shares.Request{Kind: shares.Place, Tenant: "globex", Cells: []string{"c"}})
				f.putRequest(shares.Request{Kind: shares.Weigh, Cell: "b", Weight: 5})
				f.run(r, 4*time.Minute)
				f.wantCells("a active 1, b active 5, c active 1")
				if placed, err := f.tables.Tables.Get(t.Context(), control.Cells,
					shares.PlacementKey("globex")); err != nil ||
					!strings.Contains(string(placed.Body), `"c"`) {
					t.Fatalf("another tenant is not placed: %s, %v", placed.Body, err)
				}

				f.tables.altered, f.tables.bad = "", ""
				if readable != "" && string(f.newest().Body) != readable {
					f.put(control.Cells, shares.PlacementKey("acme"), readable)
				}
				f.run(r, 6*time.Minute)
				if got := f.grant(); got["a"] != 0 || got["b"] != 75 || got["c"] != 15 {
					t.Fatalf("mended, the cells grant %v, want 75 and 15 of 90 by b and c\n%s", got, f.log.String())
				}
			}
		})
	}
}

// Guarantees that a placement that becomes unreadable at any time during its transition stops nothing: the state has
// the placement, and the balancer writes it again.
func TestPlacementIsSpoiltInItsTransition(t *testing.T) {
	soak.SkipUnderRace(t)
	during := map[bool]int{}
	for _, at := range []int{0, 1, 2, 3, 4, 5, 6, 7, 8, 60} {
		t.Run(fmt.Sprint("look ", at), func(t *testing.T) {
			r := rand.New(rand.NewPCG(uint64(at), 9))
			f := newFleet(t, "acme", "a", "b", "c")
			f.putRequest(shares.Request{Kind: shares.Place, Tenant: "acme", Cells: []string{"a"}})
			f.run(r, 5*time.Minute)
			f.putRequest(shares.Request{Kind: shares.Place, Tenant: "acme", Cells: []string{"b", "c"}})
			f.bench.run()
			for range at {
				f.run(r, 10*time.Second)
			}
			under := f.state().Phase != shares.Steady
			during[under]++
			f.put(control.Cells, shares.PlacementKey("acme"), `{"version":7}`)
			f.putRequest(shares.Request{Kind: shares.Weigh, Cell: "a", Weight: 2})
			f.run(r, 5*time.Minute)
			f.wantCells("a active 2, b active 1, c active 1")
			if got := f.grant(); got["a"] != 0 || got["b"] != 45 || got["c"] != 45 {
				t.Errorf("the cells grant %v, want 45 by b and by c", got)
			}
			if _, err := shares.ReadPlacement(shares.PlacementKey("acme"), f.newest().Body); (err == nil) != under {
				t.Errorf("with the transition under way %t, the item is %s", under, f.newest().Body)
			}
		})
	}
	if during[true] < 3 || during[false] == 0 {
		t.Errorf("%d of the looks are in the transition, and %d after it: want some of both", during[true],
			during[false])
	}
}

// Guarantees that a placement whose item cannot be overwritten, during the growth of its own transition, stops that
// transition and is no failure of the balancer, and that the transition ends when the item is corrected.
func TestGrowthWaitsForItsPlacement(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	f := newFleet(t, "acme", "a", "b")
	f.putRequest(shares.Request{Kind: shares.Place, Tenant: "acme", Cells: []string{"a"}})
	for f.state().Phase != shares.Grow {
		f.run(r, 10*time.Second)
	}
	f.tables.bad = shares.PlacementKey("acme")
	for range 50 {
		f.acknowledge("a", "b")
		f.now = f.now.Add(time.Minute)
		if res := f.bench.run(); res.Phase != shares.Grow || res.Changed || res.Unread == 0 {
			t.Fatalf("%+v, want that the growth waits", res)
		}
		f.grant()
	}
	f.tables.bad = ""
	f.settle()
	if p, err := shares.ReadPlacement(shares.PlacementKey("acme"), f.newest().Body); err != nil ||
		!slices.Equal(p.Generations[1].Cells, []string{"a"}) {
		t.Errorf("the placement is %+v, %v", p, err)
	}
}

// Guarantees that a balancer with old data never overwrites an unreadable placement of a later transition with an old
// one.
func TestStaleLookLeavesUnreadablePlacements(t *testing.T) {
	r := rand.New(rand.NewPCG(2, 2))
	f := newFleet(t, "acme", "a", "b")
	f.putRequest(shares.Request{Kind: shares.Place, Tenant: "acme", Cells: []string{"a"}})
	for f.state().Phase != shares.Grow {
		f.run(r, 10*time.Second)
	}
	other, once := f.balancer(func() time.Time { return f.now }), false
	f.tables.before = func(call, _ string) error {
		if call != "list cells" || once {
			return nil
		}
		// The state has been read. Meanwhile others end the transition, and a newer balancer writes the placement.
		once = true
		f.acknowledge("a", "b")
		for range 3 {
			if _, err := other.Run(t.Context()); err != nil {
				return err
			}
			f.now = f.now.Add(10 * time.Second)
		}
		f.put(control.Cells, shares.PlacementKey("acme"), `{"version":3,"tenant":"acme"}`)
		return nil
	}
	f.bench.run()
	if s := f.state(); !once || s.Phase != shares.Steady {
		t.Fatalf("phase %s, %t: nothing was tried", s.Phase, once)
	}
	if body := string(f.newest().Body); !strings.Contains(body, `"version":3`) {
		t.Errorf("the newer placement was written over: %s", body)
	}
}

// Guarantees that tenants whose placements cannot be read, more of them than a transition can have, do not take the
// places of others.
func TestManyUnreadablePlacements(t *testing.T) {
	w := newBench(t)
	w.putRequest(shares.Request{Kind: shares.Join, Cell: "a", Weight: 1})
	w.putRequest(shares.Request{Kind: shares.Join, Cell: "b", Weight: 1})
	w.settle()
	for i := range 2 * shares.MaxPlaced {
		tenant := fmt.Sprintf("bad %03d", i)
		w.put(control.Cells, shares.PlacementKey(tenant), `{"version":3}`)
		w.putRequest(shares.Request{Kind: shares.Place, Tenant: tenant, Cells: []string{"a"}})
	}
	for i := range 10 {
		w.putRequest(shares.Request{Kind: shares.Place, Tenant: fmt.Sprint("good ", i), Cells: []string{"a"}})
	}
	w.settle()
	for i := range 10 {
		key := shares.PlacementKey(fmt.Sprint("good ", i))
		if _, err := w.tables.Tables.Get(t.Context(), control.Cells, key); err != nil {
			t.Error(err)
		}
	}
	if r := w.run(); r.Unread != 2*shares.MaxPlaced {
		t.Errorf("%d items are told to be unreadable", r.Unread)
	}
}

// Guarantees that a cell whose acknowledgement cannot be read, which each cell can cause by itself, stops nobody once
// it was removed by force, and is named in the log.
func TestSpoiltAcknowledgement(t *testing.T) {
	w := newBench(t)
	w.putRequest(shares.Request{Kind: shares.Join, Cell: "a", Weight: 1})
	w.putRequest(shares.Request{Kind: shares.Join, Cell: "b", Weight: 1})
	w.settle()
	w.tables.bad = shares.AckKey("b")
	w.putRequest(shares.Request{Kind: shares.Force, Cell: "b"})
	w.settle()
	w.wantCells("a active 1")
	w.putRequest(shares.Request{Kind: shares.Join, Cell: "c", Weight: 1})
	if r := w.settle(); r.Unread != 1 || !strings.Contains(w.log.String(), shares.AckKey("b")) ||
		!strings.Contains(w.log.String(), `the acknowledgement of cell \"b\"`) {
		t.Errorf("%+v\n%s", r, w.log.String())
	}
	w.wantCells("a active 1, c active 1")
}

// Guarantees that an unreadable mark of the canary does not prevent a limit from being homed, and is named in the log.
func TestSpoiltMark(t *testing.T) {
	w := newBench(t)
	w.put(control.Plans, "pro",
		`{"id":"pro","limits":[{"id":"tiny","algorithm":"fixed_window","threshold":1,"period":"10s"}]}`)
	w.tables.bad = events.CanaryKey
	w.putRequest(shares.Request{Kind: shares.Join, Cell: "a", Weight: 1})
	w.putRequest(shares.Request{Kind: shares.Join, Cell: "b", Weight: 1})
	w.settle()
	s := w.state()
	last := s.Generations[len(s.Generations)-1]
	if len(last.Homed) != 1 || !strings.Contains(w.log.String(), events.CanaryKey) {
		t.Errorf("%+v: want that the limit is homed\n%s", last, w.log.String())
	}
}

// Guarantees that items that were altered without Sluice do not count as wishes, acknowledgements or plans, and are
// named in the log, and that altered shares stop every change, with an error that names them.
func TestAlteredItems(t *testing.T) {
	w := newBench(t)
	w.putRequest(shares.Request{Kind: shares.Join, Cell: "a", Weight: 1})
	w.putRequest(shares.Request{Kind: shares.Join, Cell: "b", Weight: 1})
	w.settle()
	names := func(key string) {
		t.Helper()
		if r := w.run(); r.Unread != 1 || !strings.Contains(w.log.String(), key) {
			t.Errorf("%+v; want that %s is named\n%s", r, key, w.log.String())
		}
		w.log.Reset()
	}
	w.putRequest(shares.Request{Kind: shares.Join, Cell: "c", Weight: 1})
	w.tables.altered = "c"
	names("c")
	w.wantCells("a active 1, b active 1")
	pin := operate.PinKey("acme")
	w.putRequest(shares.Request{Kind: shares.Place, Tenant: "acme", Cells: []string{"a"}})
	w.putRequest(shares.Request{Kind: shares.Weigh, Cell: "c", Weight: 0})
	w.tables.altered = pin
	names(pin)
	if s := w.state(); s.Phase != shares.Steady {
		t.Errorf("an altered pin was carried out: %+v", s)
	}
	w.tables.altered = ""
	w.run()
	w.acknowledge("a", "b")
	w.tables.altered = shares.AckKey("a")
	names(shares.AckKey("a"))
	if r := w.run(); !slices.Equal(r.Awaited, []string{"a"}) {
		t.Errorf("%+v: an altered acknowledgement counts", r)
	}
	w.tables.altered = ""
	w.put(control.Plans, "pro", `{"id":"pro","limits":[]}`)
	w.now = w.now.Add(time.Minute)
	for w.state().Phase == shares.Shrink {
		w.run()
		w.now = w.now.Add(time.Minute)
	}
	w.tables.altered = "pro"
	w.log.Reset()
	if w.run(); !strings.Contains(w.log.String(), "a plan cannot be read") {
		t.Errorf("an altered plan counts\n%s", w.log.String())
	}
	w.tables.altered = events.SharesKey
	puts := w.tables.puts
	_, err := w.b.Run(t.Context())
	if err == nil || !strings.Contains(err.Error(), events.SharesKey) || w.tables.puts != puts {
		t.Errorf("shares that were altered: %v, %d writes", err, w.tables.puts-puts)
	}
}

// Guarantees that no cell joins while an item cannot be read at all, because the cell could not get every placement and
// its transition would stop all others, and that it joins when the item is corrected.
func TestJoinWaitsForUnreadableItems(t *testing.T) {
	w := newBench(t)
	w.putRequest(shares.Request{Kind: shares.Join, Cell: "a", Weight: 1})
	w.putRequest(shares.Request{Kind: shares.Join, Cell: "b", Weight: 1})
	w.putRequest(shares.Request{Kind: shares.Place, Tenant: "acme", Cells: []string{"a"}})
	w.settle()
	w.tables.bad = shares.PlacementKey("acme")
	w.putRequest(shares.Request{Kind: shares.Join, Cell: "c", Weight: 1})
	w.putRequest(shares.Request{Kind: shares.Weigh, Cell: "b", Weight: 3})
	w.settle()
	w.wantCells("a active 1, b active 3")
	if !strings.Contains(w.log.String(), "joins") {
		t.Errorf("the log does not say that the cell waits: %s", w.log.String())
	}
	w.tables.bad = ""
	w.settle()
	w.wantCells("a active 1, b active 3, c active 1")
}
