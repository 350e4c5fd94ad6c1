package config_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/sluicelimits/sluice/authorizer"
	"github.com/sluicelimits/sluice/internal/cell/config"
	"github.com/sluicelimits/sluice/internal/cell/table"
	"github.com/sluicelimits/sluice/internal/cell/table/tabletest"
	"github.com/sluicelimits/sluice/internal/plan"
	"github.com/sluicelimits/sluice/internal/plan/shares"
)

// balanced holds the state of the shares after requests that every cell acknowledges, and the placements of its last
// transition.
type balanced struct {
	t      *testing.T
	state  shares.State
	stored map[string]*shares.Placement
	limits []shares.Limited
	now    time.Time
	serial int
}

func (b *balanced) do(requests ...shares.Request) {
	b.t.Helper()
	for i := range requests {
		b.serial++
		requests[i].ID = fmt.Sprint(b.serial)
	}
	b.step(shares.Input{Requests: requests})
	for range 10 {
		if b.state.Transition == nil {
			return
		}
		b.now = b.now.Add(time.Hour)
		in := shares.Input{}
		for _, cell := range b.state.Awaited() {
			in.Acks = append(in.Acks, shares.Ack{Cell: cell, Epoch: b.state.Epoch, Phase: b.state.Phase})
		}
		b.step(in)
	}
	b.t.Fatal("the transition does not end")
}

func (b *balanced) step(in shares.Input) {
	in.Placements, in.Limits = map[string]*shares.Placement{"t": b.stored["t"]}, b.limits
	next, out := b.state.Step(shares.Settings{}, in, b.now)
	b.state = next
	for i := range out.Store {
		b.stored[out.Store[i].Tenant] = &out.Store[i]
	}
}

func (b *balanced) document(version int64) table.Document {
	text, err := json.Marshal(b.state)
	if err != nil {
		b.t.Fatal(err)
	}
	return body(table.KindShares, table.SharesID, version, string(text))
}

func (b *balanced) placement(tenant string, version int64) table.Document {
	text, err := json.Marshal(b.stored[tenant])
	if err != nil {
		b.t.Fatal(err)
	}
	return body(table.KindPlacement, shares.PlacementKey(tenant), version, string(text))
}

func newBalanced(t *testing.T, cells ...string) *balanced {
	b := &balanced{t: t, stored: map[string]*shares.Placement{}, now: noon.AddDate(0, 0, -2)}
	for _, cell := range cells {
		b.do(shares.Request{Kind: shares.Join, Cell: cell, Weight: 1})
	}
	return b
}

func inCell(id string) func(*config.Config) {
	return func(c *config.Config) { c.Cell = id }
}

// Guarantees that a tenant has its cell's share of each limit as soon as the cell knows the shares, that it has the
// whole limit in a cell that is alone and has no shares, and that tenants with equal sets share them.
func TestShares(t *testing.T) {
	w := newWorld(t, inCell("eu-1"), setAlone)
	w.apply(tabletest.Plan("p", 11, 1), tabletest.Tenant("t", "p", 1), tabletest.Tenant("u", "p", 1))
	w.want(noon, "t", "11")
	b := newBalanced(t, "eu-1")
	w.apply(b.document(1))
	w.want(noon.Add(3*time.Second), "t", "11")
	b.do(shares.Request{Kind: shares.Join, Cell: "us-1", Weight: 1})
	w.apply(b.document(2))
	later := noon.Add(6 * time.Second)
	w.want(later, "t", "6") // the largest remainder goes to the first cell
	c, _ := w.begin(later)
	one, err := c.Tenant(t.Context(), "t")
	if err != nil {
		t.Fatal(err)
	}
	other, err := c.Tenant(t.Context(), "u")
	if err != nil {
		t.Fatal(err)
	}
	if one.Limits(later) == nil || one.ID == other.ID {
		t.Fatalf("two tenants of one plan are %+v and %+v, want different tenants with the same set", one, other)
	}
	from := ""
	for _, v := range one.Limits(later).Limits[0].Values() {
		if v.Text == "6" {
			from = v.Origin.Layer
		}
	}
	if want := "share 1/2 of cell eu-1, epoch 2 of 11 from plan p"; from != want {
		t.Errorf("the threshold is from %q, want %q", from, want)
	}
	if epoch, phase := w.r.Shares(); epoch != 2 || phase != shares.Steady {
		t.Errorf("the shares are of epoch %d in phase %s, want 2 and steady", epoch, phase)
	}
	grants := w.r.Grants(later)
	if len(grants) != 1 || grants[0].Whole != 11 || grants[0].Granted != 6 || grants[0].Homed {
		t.Errorf("the grants are %+v, want 6 of 11 units of one limit", grants)
	}
	if part, ok := config.Part(grants); part != 5455 || !ok { // 6 of 11
		t.Errorf("the cell's part is %d, %t, want 5455", part, ok)
	}
	grants[0].Homed = true
	if part, ok := config.Part(grants); ok {
		t.Errorf("the cell's part of limits with a home is %d, want none", part)
	}
	b.do(shares.Request{Kind: shares.Drain, Cell: "eu-1"})
	w.apply(b.document(3))
	c, _ = w.begin(later.Add(3 * time.Second))
	gone, err := c.Tenant(t.Context(), "t")
	if err != nil {
		t.Fatal(err)
	}
	set := gone.Limits(later.Add(3 * time.Second))
	if set.Withheld(set.AppendCharges(nil, &plan.Attributes{Method: "GET"})) == nil {
		t.Error("a drained cell grants a limit, want it withheld")
	}
}

func setAlone(c *config.Config) { c.Alone = true }

// Guarantees that a cell that is one of several grants nothing before it knows its shares, and then no more than they
// allow: also if tenants came first, if the cell has no share, and if the shares are missing later or the table was
// replaced. A cell that is alone grants everything until there are shares, and then its share.
func TestBeforeShares(t *testing.T) {
	two := newBalanced(t, "eu-1", "us-1").document(1)
	gone := table.Document{Ref: two.Ref, Version: 2, Deleted: true}
	none := body(table.KindShares, table.SharesID, 1,
		`{"version":2,"epoch":0,"phase":"","skew_us":0,"members":null,"generations":null}`)
	for _, tt := range []struct {
		name   string
		cell   string
		alone  bool
		shares []table.Document // documents that are written one after the other, after the tenant
		want   string
	}{
		{"none", "eu-1", false, nil, "not loaded"},
		{"none, and alone", "eu-1", true, nil, "10"},
		{"none, and no cell", "", false, nil, "10"},
		{"shares", "eu-1", false, []table.Document{two}, "5"},
		{"shares, and said to be alone", "eu-1", true, []table.Document{two}, "5"},
		{"shares, and no cell", "", false, []table.Document{two}, "10"},
		{"shares without the cell", "ap-1", false, []table.Document{two}, "withheld"},
		{"shares without the cell, and said to be alone", "ap-1", true, []table.Document{two}, "withheld"},
		{"shares before there is a cell", "eu-1", false, []table.Document{none}, "not loaded"},
		{"shares before there is a cell, and alone", "eu-1", true, []table.Document{none}, "10"},
		{"deleted", "eu-1", false, []table.Document{two, gone}, "5"},
		{"deleted, and said to be alone", "eu-1", true, []table.Document{two, gone}, "5"},
		{"deleted before they were heard", "eu-1", false, []table.Document{gone}, "not loaded"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld(t, inCell(tt.cell), func(c *config.Config) { c.Alone = tt.alone })
			w.apply(tabletest.Plan("p", 10, 1), tabletest.Tenant("t", "p", 1))
			now := noon
			got := w.granted(now, "t")
			for _, d := range tt.shares {
				w.apply(d)
				now = now.Add(3 * time.Second)
				got = w.granted(now, "t")
			}
			if got != tt.want {
				t.Errorf("granted is %s, want %s\n%s", got, tt.want, w.logged())
			}
			told := "not loaded" // by the grants, for metrics
			for _, g := range w.r.Grants(now) {
				if told = strconv.FormatInt(g.Granted, 10); g.Granted == 0 {
					told = "withheld"
				}
			}
			if told != tt.want {
				t.Errorf("the grants for metrics say %s, want %s", told, tt.want)
			}
		})
	}
}

// granted describes the threshold that the cell grants of the tenant's first limit.
func (w *world) granted(now time.Time, tenant string) string {
	w.t.Helper()
	c, join := w.begin(now)
	defer join()
	if got, err := c.Tenant(w.t.Context(), tenant); err == nil && got != nil {
		set := got.Limits(now)
		if set.Withheld(set.AppendCharges(nil, &plan.Attributes{Method: "GET"})) != nil {
			return "withheld"
		}
	}
	return threshold(c, tenant, now)
}

// Guarantees that the shares that were last read stay in force if the table is replaced by one without shares.
func TestSharesOfAnotherTable(t *testing.T) {
	w := newWorld(t, inCell("eu-1"))
	w.apply(tabletest.Plan("p", 10, 1), tabletest.Tenant("t", "p", 1),
		newBalanced(t, "eu-1", "us-1").document(1))
	w.want(noon, "t", "5")
	other, err := memtableOf(t, tabletest.Plan("p", 20, 1), tabletest.Tenant("t", "p", 1))
	if err != nil {
		t.Fatal(err)
	}
	w.table = other
	w.want(noon.Add(3*time.Second), "t", "10") // half of the new limit
}

// Guarantees that an environment that thaws after a day, in which its cell's share went to others, grants by the
// present shares from its first decision on; and, if the table does not answer, no more than by the shares that it
// last read, which is the documented bound.
func TestThawsWithShares(t *testing.T) {
	for away, want := range map[bool]string{false: "withheld", true: "5"} {
		w := newWorld(t, inCell("eu-1"))
		b := newBalanced(t, "eu-1", "us-1")
		w.apply(tabletest.Plan("p", 10, 1), tabletest.Tenant("t", "p", 1), b.document(1))
		w.want(noon, "t", "5")
		b.do(shares.Request{Kind: shares.Drain, Cell: "eu-1"})
		w.apply(b.document(2))
		w.away(away)
		if got := w.granted(noon.Add(24*time.Hour), "t"); got != want {
			t.Errorf("thawed after a day, the table away: %t: granted is %s, want %s", away, got, want)
		}
	}
}

// Guarantees that tenants of one plan share the divided set, and that a request that finds everything in the cache
// does not allocate.
func TestSharedSetsCostNothing(t *testing.T) {
	w := newWorld(t, inCell("eu-1"))
	b := newBalanced(t, "eu-1", "us-1")
	w.apply(tabletest.Plan("p", 11, 1), b.document(1))
	sets := map[*plan.Set]int{}
	for i := range 40 {
		w.apply(tabletest.Tenant(fmt.Sprint("t", i), "p", 1))
	}
	c, _ := w.begin(noon)
	for i := range 40 {
		got, err := c.Tenant(t.Context(), fmt.Sprint("t", i))
		if err != nil {
			t.Fatal(err)
		}
		sets[got.Limits(noon)]++
	}
	if len(sets) > 4 { // one for each combination of home cells
		t.Errorf("40 tenants of one plan have %d sets of limits, want at most 4", len(sets))
	}
	if n := testing.AllocsPerRun(100, func() {
		c, _ := w.r.Begin(t.Context(), noon)
		if got, err := c.Tenant(t.Context(), "t7"); err != nil || got.Limits(noon) == nil {
			t.Fatal(err)
		}
	}); n > 0 {
		t.Errorf("%v allocations for a tenant in the cache, want 0", n)
	}
}

// Guarantees that a tenant's placement applies from the state of the table in which it was written, that an absent
// placement means none, and that the last known one is used if the table does not answer.
func TestPlacements(t *testing.T) {
	w := newWorld(t, inCell("us-1"))
	b := newBalanced(t, "eu-1", "us-1")
	w.apply(tabletest.Plan("p", 10, 1), tabletest.Tenant("t", "p", 1), b.document(1))
	w.want(noon, "t", "5")
	b.do(shares.Request{Kind: shares.Place, Tenant: "t", Cells: []string{"us-1"}})
	w.apply(b.document(2), b.placement("t", 1))
	w.want(noon.Add(3*time.Second), "t", "10")
	w.away(true)
	w.want(noon.Add(6*time.Second), "t", "10")
	w.away(false)
	w.apply(body(table.KindPlacement, shares.PlacementKey("t"), 2, `{"version":2,"tenant":"other"}`))
	w.want(noon.Add(60*time.Second), "t", "10") // an unreadable placement does not replace a readable one
	r := w.reader(inCell("us-1"))
	c, _ := r.Begin(t.Context(), noon)
	if _, err := c.Tenant(t.Context(), "t"); !errors.Is(err, authorizer.ErrNotLoaded) {
		t.Errorf("a tenant whose placement is not known: %v, want ErrNotLoaded", err)
	}
}

// Guarantees that a tombstone of the shares or of a placement is never treated as their absence: it says that the cell
// does not know them. A cell that is alone then decides nothing, and no cell decides for the tenant of the placement,
// even if it knew an older one, since a cell that joins may have missed later ones.
func TestTombstonesAreNotAbsent(t *testing.T) {
	b := newBalanced(t, "eu-1", "us-1")
	tombstone := func(d table.Document, version int64) table.Document {
		return table.Document{Ref: d.Ref, Version: version, Deleted: true}
	}
	decides := func(r *config.Reader, at time.Time, tenant string) error {
		c, _ := r.Begin(t.Context(), at)
		_, err := c.Tenant(t.Context(), tenant)
		return err
	}

	w := newWorld(t, inCell("eu-1"), setAlone)
	w.apply(tabletest.Plan("p", 10, 1), tabletest.Tenant("t", "p", 1), tombstone(b.document(1), 1))
	if err := decides(w.r, noon, "t"); !errors.Is(err, authorizer.ErrNotLoaded) {
		t.Errorf("alone, with a tombstone of the shares: %v, want ErrNotLoaded", err)
	}

	w = newWorld(t, inCell("us-1"))
	w.apply(tabletest.Plan("p", 10, 1), tabletest.Tenant("t", "p", 1), tabletest.Tenant("u", "p", 1),
		b.document(1))
	w.want(noon, "t", "5")
	b.do(shares.Request{Kind: shares.Place, Tenant: "t", Cells: []string{"us-1"}})
	placed := b.placement("t", 2)
	for i, step := range []struct {
		d    table.Document
		want string
	}{{tombstone(placed, 1), ""}, {placed, "10"}, {tombstone(placed, 3), ""}, {b.placement("t", 4), "10"}} {
		now := noon.Add(time.Duration(i+1) * 3 * time.Second)
		if w.apply(step.d); i == 1 {
			w.apply(b.document(2))
		}
		for name, r := range map[string]*config.Reader{"a reader that knew more": w.r,
			"a reader that has just begun": w.reader(inCell("us-1"))} {
			if err := decides(r, now, "t"); errors.Is(err, authorizer.ErrNotLoaded) != (step.want == "") {
				t.Errorf("step %d, %s: %v, want that it decides %t", i+1, name, err, step.want != "")
			}
			if err := decides(r, now, "u"); err != nil {
				t.Errorf("step %d, %s: another tenant: %v", i+1, name, err)
			}
		}
		if step.want != "" {
			w.want(now, "t", step.want)
		}
	}
}

// Guarantees that shares that cannot be read leave the last valid ones in force, and that nothing is decided without
// any: a cell that does not know its share must not grant the whole limit.
func TestUnreadableShares(t *testing.T) {
	w := newWorld(t, inCell("eu-1"))
	b := newBalanced(t, "eu-1", "us-1")
	w.apply(tabletest.Plan("p", 10, 1), tabletest.Tenant("t", "p", 1), b.document(1))
	w.want(noon, "t", "5")
	w.apply(body(table.KindShares, table.SharesID, 2, `{"version":99}`))
	w.want(noon.Add(3*time.Second), "t", "5")
	r := w.reader(inCell("eu-1"))
	c, _ := r.Begin(t.Context(), noon)
	if _, err := c.Tenant(t.Context(), "t"); !errors.Is(err, authorizer.ErrNotLoaded) {
		t.Errorf("without shares that can be read: %v, want ErrNotLoaded", err)
	}
}

// Guarantees that a quota is granted as a whole in its tenant's home cell and not elsewhere, or is open if its limit
// says so, and that a limit that is too small to be divided is granted as a whole in one cell.
func TestQuotasAndHomedLimits(t *testing.T) {
	text := `{"id":"p","limits":[{"id":"month","quota":{"units":100,"every":"month"}},
		{"id":"loose","onStoreFailure":"open","quota":{"units":100,"every":"month"}},
		{"id":"tiny","algorithm":"fixed_window","period":"1s","threshold":1}]}`
	compiled, err := plan.CompilePlan(plan.Document{Kind: plan.KindPlan, ID: "p", Body: []byte(text)})
	if err != nil {
		t.Fatal(err)
	}
	b := newBalanced(t, "eu-1")
	for _, e := range compiled.Set().Limits {
		b.limits = append(b.limits, shares.Limited{Plan: "p", Limit: e.Limit})
	}
	b.now = noon.AddDate(0, -2, 0)
	b.do(shares.Request{Kind: shares.Join, Cell: "us-1", Weight: 1})
	for i := range 20 {
		id, here := fmt.Sprint("t", i), map[bool]int{}
		for _, cell := range []string{"eu-1", "us-1"} {
			w := newWorld(t, inCell(cell))
			w.apply(body(plan.KindPlan, "p", 1, text), tabletest.Tenant(id, "p", 1), b.document(1))
			c, _ := w.begin(noon)
			got, err := c.Tenant(t.Context(), id)
			if err != nil {
				t.Fatal(err)
			}
			set := got.Limits(noon)
			charges := set.AppendCharges(nil, &plan.Attributes{Method: "GET"})
			held := set.Withheld(charges) != nil
			if here[held]++; !held && len(charges) != 3 || held && len(charges) != 2 { // the limit loose is left out
				t.Errorf("%s in %s: %d charges, withheld %t", id, cell, len(charges), held)
			}
			if home := b.state.Document().View(cell, id, nil).Home(); (home == cell) == held {
				t.Errorf("the home of %s is %s, but the cell %s grants its quota: %t", id, home, cell, !held)
			}
		}
		if here[true] != 1 || here[false] != 1 {
			t.Errorf("the small limit of %s is granted in %d cells, want one", id, here[false])
		}
	}
}
