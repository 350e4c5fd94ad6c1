package applier_test

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/sluicelimits/sluice/events"
	"github.com/sluicelimits/sluice/internal/cell/table"
	"github.com/sluicelimits/sluice/internal/control"
	"github.com/sluicelimits/sluice/internal/plan/shares"
	"github.com/sluicelimits/sluice/streams/applier"
)

// newQuietSharesWorld returns a world in which nothing happens unless the test calls it.
func newQuietSharesWorld(t *testing.T) *sharesWorld {
	w := newSharesWorld(t, 1)
	w.loss = 0
	return w
}

// balance runs the balancer, and sends its state to the named cells.
func (w *sharesWorld) balance(cells ...*cell) *shares.State {
	w.t.Helper()
	if _, err := w.b.Run(w.t.Context()); err != nil {
		w.t.Fatal(err)
	}
	item, err := w.tables.Get(w.t.Context(), control.Cells, events.SharesKey)
	if err != nil {
		w.t.Fatal(err)
	}
	for _, c := range cells {
		changed := []table.Document{table.DocumentOf(item.Event())}
		if _, err := table.Apply(w.t.Context(), c.table, changed, time.Now); err != nil {
			w.t.Fatal(err)
		}
	}
	s, err := shares.DecodeState(item.Body)
	if err != nil {
		w.t.Fatal(err)
	}
	return s
}

// ack returns what the cell has acknowledged, and the version of the acknowledgement.
func (w *sharesWorld) ack(c *cell) (shares.Ack, int64) {
	w.t.Helper()
	item, err := w.tables.Get(w.t.Context(), control.Cells, shares.AckKey(c.id))
	if errors.Is(err, control.ErrNotFound) {
		return shares.Ack{}, 0
	}
	var a shares.Ack
	if err == nil {
		err = json.Unmarshal(item.Body, &a)
	}
	if err != nil {
		w.t.Fatal(err)
	}
	return a, item.Version
}

func (w *sharesWorld) pollOnce(c *cell) bool {
	w.t.Helper()
	wrote, err := c.heard.Run(w.t.Context())
	if err != nil {
		w.t.Fatal(err)
	}
	return wrote
}

func (w *sharesWorld) has(c *cell, tenant string) bool {
	w.t.Helper()
	got, err := c.table.Get(w.t.Context(),
		table.Ref{Kind: table.KindPlacement, ID: shares.PlacementKey(tenant)})
	if err != nil {
		w.t.Fatal(err)
	}
	return got[0].Version > 0
}

// Guarantees that a cell acknowledges, once, what it has stored, and nothing else, and that an acknowledgement is never
// replaced by an older one.
func TestAcknowledgesWhatIsStored(t *testing.T) {
	w := newQuietSharesWorld(t)
	eu := w.cell("eu-1", 1)
	w.balance(eu)
	if w.pollOnce(eu) {
		t.Error("the first shares were acknowledged, although no acknowledgement is awaited")
	}
	us := w.cell("us-1", 1)
	w.balance(us)
	if w.pollOnce(eu) {
		t.Error("a cell acknowledges shares that it has not received")
	}
	if !w.pollOnce(us) || w.pollOnce(us) {
		t.Error("a cell does not acknowledge shares exactly once")
	}
	if a, v := w.ack(us); a.Epoch != 2 || a.Phase != shares.Shrink || v != 1 ||
		a.AtUS != w.now.Add(us.skew).UnixMicro() {
		t.Errorf("%+v, version %d", a, v)
	}
	w.put(control.Cells, shares.AckKey("eu-1"), `{"cell":"eu-1","epoch":9,"phase":"grow","at_us":1}`)
	w.balance(eu)
	if w.pollOnce(eu) {
		t.Error("a newer acknowledgement was replaced")
	}
	w.put(control.Cells, shares.AckKey("eu-1"), `{"cell":7}`)
	if !w.pollOnce(eu) {
		t.Error("an invalid acknowledgement was not replaced")
	}
}

// Guarantees that a cell does not acknowledge shares that somebody has forged in it: after a forged epoch no
// acknowledgement would count any more, and no change of the shares would end.
func TestForgedSharesAreNotAcknowledged(t *testing.T) {
	w := newQuietSharesWorld(t)
	eu := w.cell("eu-1", 1)
	w.balance(eu)
	us := w.cell("us-1", 1)
	state := w.balance(eu, us)
	forged := *state
	forged.Epoch += 1000
	forged.Generations = slices.Clone(state.Generations)
	forged.Generations[len(forged.Generations)-1].Epoch = forged.Epoch
	body, err := json.Marshal(&forged)
	if err != nil {
		t.Fatal(err)
	}
	ref := table.Ref{Kind: table.KindShares, ID: table.SharesID}
	d := table.Document{Ref: ref, Version: events.MaxVersion, Body: body}
	if _, err := table.Apply(t.Context(), us.table, []table.Document{d}, time.Now); err != nil {
		t.Fatal(err)
	}
	if w.pollOnce(us) {
		a, _ := w.ack(us)
		t.Errorf("it acknowledges %+v, and the shares are at epoch %d", a, state.Epoch)
	}
	got, err := us.table.Get(t.Context(), ref)
	if err != nil {
		t.Fatal(err)
	}
	item, err := w.tables.Get(t.Context(), control.Cells, events.SharesKey)
	if err != nil {
		t.Fatal(err)
	}
	repair := []table.Replacement{{Found: got[0], Want: table.DocumentOf(item.Event())}}
	if n, err := table.Repair(t.Context(), us.table, repair, time.Now); n != 1 || err != nil {
		t.Fatal(n, err)
	}
	if !w.pollOnce(us) {
		t.Error("after the repair nothing is acknowledged")
	}
}

// Guarantees that a cell that joins acknowledges only after it has all existing placements, and that a growth is
// acknowledged with the placements of its transition: the shares that follow do not contain them, and a cell without
// them would grant too much.
func TestPlacementsComeFirst(t *testing.T) {
	w := newQuietSharesWorld(t)
	eu, us := w.cell("eu-1", 1), w.cell("us-1", 1)
	w.run(60*time.Second, false)
	w.ask(shares.Request{Kind: shares.Place, Tenant: "acme", Cells: []string{"us-1"}})
	w.balance(eu, us)
	if !w.pollOnce(eu) || !w.pollOnce(us) || w.has(eu, "acme") {
		t.Fatal("a shrink waits for placements")
	}
	w.balance()
	w.now = w.now.Add(time.Minute)
	if s := w.balance(eu, us); s.Phase != shares.Grow {
		t.Fatalf("phase %s", s.Phase)
	}
	// the balancer has not stored the placement yet, which it does before it can end the transition
	if w.pollOnce(eu) || w.has(eu, "acme") {
		t.Fatal("a growth was acknowledged without its placement")
	}
	w.balance()
	if !w.pollOnce(eu) || !w.has(eu, "acme") {
		t.Fatal("a growth whose placement can be had was not acknowledged")
	}
	w.pollOnce(us)
	if s := w.balance(eu, us); s.Phase != shares.Steady {
		t.Fatalf("phase %s", s.Phase)
	}
	ap := w.cell("ap-1", 1)
	empty := *ap
	fresh := newSharesWorld(t, 2).cell("ap-1", 1).table // a cell that has received the shares and nothing else
	empty.table = fresh
	empty.heard = applier.NewAcknowledger(applier.AcknowledgerConfig{Cell: "ap-1", Tables: w.tables,
		Store: fresh})
	w.balance(&empty)
	if w.has(&empty, "acme") || !w.pollOnce(&empty) || !w.has(&empty, "acme") {
		t.Fatal("a cell that joins acknowledges without the placements from before")
	}
}

// Guarantees that a cell whose table was lost while it serves grants nothing before it has its shares, and after that
// nothing to a tenant that is pinned to another cell, because the placements come first. The test also shows that with
// the shares alone the cell would grant units to that tenant.
func TestLostTable(t *testing.T) {
	w := newQuietSharesWorld(t)
	w.cell("eu-1", 1)
	w.cell("us-1", 1)
	w.run(60*time.Second, false)
	w.ask(shares.Request{Kind: shares.Place, Tenant: "acme", Cells: []string{"us-1"}})
	w.run(60*time.Second, false)
	items := func(of control.Table, keys ...string) (docs []table.Document) {
		for _, key := range keys {
			item, err := w.tables.Get(t.Context(), of, key)
			if err != nil {
				t.Fatal(err)
			}
			docs = append(docs, table.DocumentOf(item.Event()))
		}
		return docs
	}
	for _, prepared := range []bool{true, false} {
		lost := w.empty("eu-1")
		grants := func(tenant string) int64 {
			name := "/window of " + tenant
			w.granted = map[string]map[time.Time]int64{}
			w.now = w.now.Add(10 * time.Second)
			w.spend(lost, lost.envs[0], tenant, "/window")
			return w.total(name, time.Time{})
		}
		w.apply(lost, append(items(control.Tenants, "acme", "globex"), items(control.Plans, "pro")...))
		if n := grants("globex"); n != 0 {
			t.Errorf("before it has heard its shares the cell grants %d", n)
		}
		if prepared {
			if err := lost.heard.Prepare(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		w.apply(lost, items(control.Cells, events.SharesKey))
		if n := grants("globex"); n == 0 || n > 31 {
			t.Errorf("of 61 in two cells it grants %d", n)
		}
		if n := grants("acme"); (n == 0) != prepared {
			t.Errorf("prepared %t, it grants %d to a tenant that is pinned to another cell", prepared, n)
		}
	}
}

// Guarantees that Prepare does nothing in a cell that has shares, and fails if a cell cannot be prepared.
func TestPrepare(t *testing.T) {
	w := newQuietSharesWorld(t)
	eu := w.cell("eu-1", 1)
	w.cell("us-1", 1)
	w.ask(shares.Request{Kind: shares.Place, Tenant: "acme", Cells: []string{"us-1"}})
	w.run(60*time.Second, false)
	away := errors.New("unavailable")
	for _, tt := range []struct {
		name string
		cell *cell
		want error
	}{{"a cell that has shares", eu, nil}, {"a cell that has none", w.empty("eu-1"), away}} {
		a := applier.NewAcknowledger(applier.AcknowledgerConfig{Cell: "eu-1", Tables: unread{w.tables, away},
			Store: tt.cell.table})
		if err := a.Prepare(t.Context()); !errors.Is(err, tt.want) {
			t.Errorf("%s, with tables that do not answer: %v, want %v", tt.name, err, tt.want)
		}
	}
}

// Guarantees that a placement that cannot be read does not stop a cell that joins, or that has lost its table: it
// serves every other tenant, and grants nothing to the tenant of that placement until the item is corrected. With its
// shares alone it would.
func TestUnreadablePlacementFromBefore(t *testing.T) {
	w := newQuietSharesWorld(t)
	w.cell("eu-1", 1)
	w.cell("us-1", 1)
	w.run(60*time.Second, false)
	w.ask(shares.Request{Kind: shares.Place, Tenant: "acme", Cells: []string{"us-1"}})
	w.run(60*time.Second, false)
	key := shares.PlacementKey("acme")
	item, err := w.tables.Get(t.Context(), control.Cells, key)
	if err != nil {
		t.Fatal(err)
	}
	readable := string(item.Body)
	w.put(control.Cells, key, `{"version":3,"tenant":"acme"}`)
	grants := func(c *cell, tenant string) int64 {
		w.granted = map[string]map[time.Time]int64{}
		w.now = w.now.Add(10 * time.Second)
		w.spend(c, c.envs[0], tenant, "/window")
		return w.total("/window of "+tenant, time.Time{})
	}
	joins := w.cell("ap-1", 1)
	stale := table.Document{Ref: table.Ref{Kind: table.KindPlacement, ID: key}, Version: 1,
		Body: []byte(`{"version":2,"tenant":"acme","generations":[{"cells":["ap-1"],"epoch":0,"from":1}]}`)}
	// it served before, and did not hear of later changes after it had left
	w.apply(joins, []table.Document{stale})
	grants(joins, "acme") // and its environment knows the tenant
	w.run(90*time.Second, false)
	lost := w.empty("us-1")
	if err := lost.heard.Prepare(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.reconcile(lost)
	for name, c := range map[string]*cell{"joins": joins, "lost its table": lost} {
		if n := grants(c, "globex"); n < 20 || n > 21 {
			t.Errorf("a cell that %s grants %d of 61 in three cells to another tenant", name, n)
		}
		if n := grants(c, "acme"); n != 0 {
			t.Errorf("a cell that %s grants %d to a tenant of whom it does not know where it is served", name, n)
		}
	}
	w.put(control.Cells, key, readable)
	w.run(30*time.Second, false)
	w.reconcile(lost)
	if n := grants(joins, "acme"); n != 0 {
		t.Errorf("after the correction, a cell that the tenant is not pinned to grants %d", n)
	}
	if n := grants(lost, "acme"); n != 61 {
		t.Errorf("after the correction, the cell that the tenant is pinned to grants %d of 61", n)
	}
}

// Guarantees that a cell that has stored an unreadable placement fetches the present one, and then acknowledges:
// otherwise it would stop the transitions of all tenants and cells.
func TestUnreadablePlacementIsFetchedAgain(t *testing.T) {
	w := newQuietSharesWorld(t)
	eu, us := w.cell("eu-1", 1), w.cell("us-1", 1)
	w.run(60*time.Second, false)
	w.ask(shares.Request{Kind: shares.Place, Tenant: "acme", Cells: []string{"us-1"}})
	w.run(60*time.Second, false)
	key := shares.PlacementKey("acme")
	w.put(control.Cells, key, `{"version":3}`)
	item, err := w.tables.Get(t.Context(), control.Cells, key)
	if err != nil {
		t.Fatal(err)
	}
	d := table.DocumentOf(item.Event())
	if _, err := table.Apply(t.Context(), eu.table, []table.Document{d},
		time.Now); err != nil { // as an older applier did
		t.Fatal(err)
	}
	w.put(control.Cells, key,
		`{"version":2,"tenant":"acme","generations":[{"epoch":0,"from":1},{"cells":["us-1"],"epoch":1,"from":2}]}`)
	w.ask(shares.Request{Kind: shares.Place, Tenant: "acme"})
	w.balance(eu, us)
	if !w.pollOnce(eu) || !w.pollOnce(us) {
		t.Fatal("the shrink is not acknowledged")
	}
	w.balance()
	w.now = w.now.Add(time.Minute)
	if s := w.balance(eu, us); s.Phase != shares.Grow {
		t.Fatalf("phase %s", s.Phase)
	}
	w.balance() // stores the placement
	if !w.pollOnce(eu) {
		t.Error("a growth whose placement can be had is not acknowledged")
	}
	got, err := eu.table.Get(t.Context(), d.Ref)
	if err != nil || table.Readable(&got[0]) != nil {
		t.Errorf("the cell has %s, %v", got[0].Body, err)
	}
}

// Guarantees that a tombstone of the shares counts as no shares when a cell is prepared: it says only that there are
// some.
func TestPrepareWithoutReadableShares(t *testing.T) {
	w := newQuietSharesWorld(t)
	w.cell("eu-1", 1)
	w.cell("us-1", 1)
	w.ask(shares.Request{Kind: shares.Place, Tenant: "acme", Cells: []string{"us-1"}})
	w.run(60*time.Second, false)
	lost := w.empty("eu-1")
	shared := table.Document{Ref: table.Ref{Kind: table.KindShares, ID: table.SharesID}, Version: 1,
		Deleted: true}
	if _, err := table.Apply(t.Context(), lost.table, []table.Document{shared}, time.Now); err != nil {
		t.Fatal(err)
	}
	if err := lost.heard.Prepare(t.Context()); err != nil || !w.has(lost, "acme") {
		t.Errorf("the cell is not given the placements from before: %v", err)
	}
}

// spoilt is control tables with a row in the table of cells that cannot be read.
type spoilt struct {
	control.Tables
	key string
}

func (s spoilt) List(ctx context.Context, t control.Table, after string, most int) ([]control.Item, string, error) {
	items, next, err := s.Tables.List(ctx, t, after, most)
	items = slices.DeleteFunc(items, func(i control.Item) bool { return i.Key == s.key })
	return items, next, errors.Join(err, &control.BadItemError{Table: t, Key: s.key, Err: errors.New("layout is 2")})
}

// Guarantees that a cell that begins gets every placement although the acknowledgement of another cell cannot be read,
// which that cell can cause by itself, and that an unreadable row that may be a placement stops it.
func TestSpoiltAcknowledgement(t *testing.T) {
	w := newQuietSharesWorld(t)
	w.cell("eu-1", 1)
	w.cell("us-1", 1)
	w.ask(shares.Request{Kind: shares.Place, Tenant: "acme", Cells: []string{"us-1"}})
	w.run(60*time.Second, false)
	for key, stored := range map[string]bool{shares.AckKey("us-1"): true, shares.PlacementKey("acme"): false} {
		lost := w.empty("eu-1")
		a := applier.NewAcknowledger(applier.AcknowledgerConfig{Cell: "eu-1", Tables: spoilt{w.tables, key},
			Store: lost.table})
		if err := a.Prepare(t.Context()); (err == nil) != stored || w.has(lost, "acme") != stored {
			t.Errorf("%s cannot be read: %v, and that the placement is stored is %t", key, err, w.has(lost, "acme"))
		}
	}
}

// unread is control tables whose reads fail.
type unread struct {
	control.Tables
	err error
}

func (u unread) List(context.Context, control.Table, string, int) ([]control.Item, string, error) {
	return nil, "", u.err
}

func TestConcerned(t *testing.T) {
	if !applier.Concerned([]byte(`{"Records":[{"body":"{\"type\":\"shares.changed\"}"}]}`)) ||
		applier.Concerned([]byte(`{"type":"plan.changed"}`)) {
		t.Error("which messages concern the shares")
	}
}
