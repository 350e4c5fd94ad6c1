package balancer_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sluicelimits/sluice/events"
	"github.com/sluicelimits/sluice/internal/control"
	"github.com/sluicelimits/sluice/internal/control/operate"
	"github.com/sluicelimits/sluice/internal/plan/shares"
)

// ofItsOwn is a plan whose limits any three cells of similar weight can divide.
const ofItsOwn = `{"id":"pro","limits":[
	{"id":"burst","algorithm":"token_bucket","rate":90,"period":"1s","burst":90},
	{"id":"calls","algorithm":"fixed_window","threshold":90,"period":"1s",
		"cost":{"max":20,"default":1,"trustedHeader":"x-cost"}},
	{"id":"month","quota":{"units":1,"every":"month"}}]}`

// pin writes a tenant's pin as admin does: the cells that shall serve it, and the parts of its document that are its
// own.
func (w *bench) pin(tenant, own string, cells ...string) {
	w.t.Helper()
	doc := operate.CellDocument{ID: operate.PinKey(tenant),
		Request: shares.Request{ID: "any", Kind: shares.Place, Tenant: tenant, Cells: cells}}
	if own != "" {
		doc.Tenant = fmt.Appendf(nil, `{"id":%q,"plan":"pro",%s}`, tenant, own)
	}
	body, err := events.MarshalCanonical(doc)
	if err != nil {
		w.t.Fatal(err)
	}
	w.put(control.Cells, doc.ID, string(body))
}

// homed returns the tenant's homed limits, from its stored placement.
func (w *bench) homed(tenant string) string {
	w.t.Helper()
	item, err := w.tables.Tables.Get(w.t.Context(), control.Cells, shares.PlacementKey(tenant))
	if errors.Is(err, control.ErrNotFound) {
		return ""
	}
	if err != nil {
		w.t.Fatal(err)
	}
	p, err := shares.DecodePlacement(item.Body)
	if err != nil {
		w.t.Fatal(err)
	}
	return strings.Join(p.Generations[len(p.Generations)-1].Homed, " ")
}

func (w *bench) wantHomed(why, tenant, want string) {
	w.t.Helper()
	if got := w.homed(tenant); got != want {
		w.t.Errorf("%s: homed of %s are %q, want %q\n%s", why, tenant, got, want, w.log.String())
	}
}

// Guarantees that a tenant's own limit whose smallest share is below its largest cost is homed, and that one that can
// be divided is not: otherwise every cell would deny a cost that the limit allows. Changes of a plan, of cells and of a
// boost count, too, and the end of a boost changes nothing.
func TestOverridesAreHomed(t *testing.T) {
	w := newBench(t)
	w.put(control.Plans, "pro", ofItsOwn)
	for _, cell := range []string{"a", "b", "c"} {
		w.putRequest(shares.Request{Kind: shares.Join, Cell: cell, Weight: 1})
	}
	w.settle()
	if n := len(w.state().Generations[0].Homed); n > 0 {
		t.Fatalf("%d limits of the plan are homed: the test is about those of tenants", n)
	}
	w.pin("small", `"overrides":[{"id":"burst","rate":2,"burst":2}]`)
	w.pin("large", `"overrides":[{"id":"burst","rate":500,"burst":500}]`)
	w.pin("costly", `"overrides":[{"id":"calls","threshold":59}]`) // 59/3 is below 20
	w.pin("just", `"overrides":[{"id":"calls","threshold":60}]`)
	w.pin("few", `"overrides":[{"id":"month","quota":{"units":2}}]`) // quotas are not divided
	w.pin("raised", `"overrides":[{"id":"burst","rate":2,"burst":2}],"boosts":[{"id":"burst","factor":100,`+
		`"until":"2026-11-21T13:00:00Z"}]`)
	w.settle()
	w.wantHomed("too small", "small", "burst")
	w.wantHomed("large", "large", "")
	w.wantHomed("below the largest cost", "costly", "calls")
	w.wantHomed("as large as the largest cost", "just", "")
	w.wantHomed("a quota", "few", "")
	w.wantHomed("too small without its boost", "raised", "burst")
	epoch := w.state().Epoch
	w.now = noon.AddDate(0, 0, 2)
	w.settle()
	if w.state().Epoch != epoch {
		t.Error("the end of a boost is a transition")
	}

	w.pin("small", `"overrides":[{"id":"burst","rate":60,"burst":60}]`)
	w.pin("large", "") // its override is removed
	w.settle()
	w.wantHomed("raised", "small", "")
	w.wantHomed("as all others", "large", "")

	w.putRequest(shares.Request{Kind: shares.Join, Cell: "d", Weight: 1})
	w.settle()
	w.wantHomed("a fourth cell", "just", "calls")
	w.putRequest(shares.Request{Kind: shares.Remove, Cell: "d"})
	w.settle()
	w.wantHomed("three again", "just", "")
	w.putRequest(shares.Request{Kind: shares.Weigh, Cell: "a", Weight: 2})
	w.settle()
	w.wantHomed("a quarter for the smallest", "just", "calls")

	w.put(control.Plans, "pro", strings.Replace(ofItsOwn, `"max":20`, `"max":2`, 1))
	w.settle()
	w.wantHomed("the plan lowers the cost", "just", "")
	w.wantHomed("the plan lowers the cost", "costly", "")
	w.put(control.Plans, "pro", "{}") // an invalid plan, which no command writes
	w.settle()
	w.wantHomed("a plan that cannot be read", "raised", "burst")
}

// Guarantees that limits of the plan are homed for a tenant that few cells serve if these cannot divide them, and that
// none is if one cell serves it.
func TestPinnedTenantsAreHomed(t *testing.T) {
	w := newBench(t)
	w.put(control.Plans, "pro",
		`{"id":"pro","limits":[{"id":"calls","algorithm":"fixed_window","threshold":10,"period":"1s",
		"cost":{"max":3,"default":1,"trustedHeader":"x-cost"}}]}`)
	for _, c := range []shares.Weight{{Cell: "a", Weight: 1}, {Cell: "b", Weight: 1}} {
		w.putRequest(shares.Request{Kind: shares.Join, Cell: c.Cell, Weight: c.Weight})
	}
	w.pin("both", `"overrides":[{"id":"calls","threshold":4}]`, "b", "a")
	w.pin("one", `"overrides":[{"id":"calls","threshold":4}]`, "b")
	w.settle()
	w.wantHomed("two cells", "both", "calls")
	w.wantHomed("one cell", "one", "")
	w.pin("both", `"overrides":[{"id":"calls","threshold":9}]`, "b", "a")
	w.settle()
	w.wantHomed("two cells, larger", "both", "")
}

// Guarantees that a join and the homing of the limits that it makes too small are one transition, and that homing
// counts in both of its phases: during the shrink no cell grants more than before, and after it only the home does.
func TestHomingIsATransition(t *testing.T) {
	w := newBench(t)
	w.put(control.Plans, "pro", ofItsOwn)
	w.putRequest(shares.Request{Kind: shares.Join, Cell: "a", Weight: 1})
	w.pin("acme", `"overrides":[{"id":"burst","rate":1,"burst":1}]`)
	w.settle()
	w.wantHomed("alone", "acme", "")
	w.putRequest(shares.Request{Kind: shares.Join, Cell: "b", Weight: 1})
	r := w.run()
	s := w.state()
	if r.Phase != shares.Shrink || len(s.Transition.Placements) != 1 || len(s.Generations) != 2 {
		t.Fatalf("the join is %+v, and places %d tenants", r, len(s.Transition.Placements))
	}
	p := &s.Transition.Placements[0]
	last := p.Generations[len(p.Generations)-1]
	if p.Tenant != "acme" || !slices.Equal(last.Homed, []string{"burst"}) || last.From != 0 {
		t.Fatalf("placed %+v", p)
	}
	w.wantHomed("it has not grown", "acme", "")
	w.settle()
	w.wantHomed("it has", "acme", "burst")

	// And back: no cell grants a share of it before the growth.
	w.pin("acme", `"overrides":[{"id":"burst","rate":80,"burst":80}]`)
	w.run()
	doc := w.state().Document()
	if doc.Phase != shares.Shrink || len(doc.Placements) != 1 ||
		doc.Placements[0].Generations[len(doc.Placements[0].Generations)-1].From != 0 {
		t.Fatalf("divided again: %+v", doc)
	}
}

// Guarantees that a pin that cannot be read homes nothing and stops nothing.
func TestPinsThatMakeNoSense(t *testing.T) {
	w := newBench(t)
	w.put(control.Plans, "pro", ofItsOwn)
	for _, cell := range []string{"a", "b", "c"} {
		w.putRequest(shares.Request{Kind: shares.Join, Cell: cell, Weight: 1})
	}
	w.pin("small", `"overrides":[{"id":"burst","rate":2,"burst":2}]`)
	w.settle()
	for i, own := range []string{`"overrides":[{"id":"burst","rate":-1}]`, `"overrides":[{"id":"no-such","rate":1}]`,
		`"plans":1`} {
		w.pin(fmt.Sprint("bad", i), own)
		w.pin("small", own)
	}
	w.pin("other", `"overrides":[{"id":"burst","rate":2,"burst":2}]`)
	w.settle()
	w.wantHomed("its pin cannot be read", "small", "burst")
	w.wantHomed("its pin can be read", "other", "burst")
	if got := strings.Count(w.log.String(), "the overrides or boosts of a tenant cannot be read"); got == 0 {
		t.Error("the log reports no pin that cannot be read")
	}
	if _, err := w.tables.Get(t.Context(), control.Cells, events.SharesKey); err != nil {
		t.Fatal(err)
	}
}

// Guarantees that more tenants than a transition can have are all homed, in the transitions that follow.
func TestManyAreHomed(t *testing.T) {
	w := newBench(t)
	w.put(control.Plans, "pro", ofItsOwn)
	w.putRequest(shares.Request{Kind: shares.Join, Cell: "a", Weight: 1})
	const many = shares.MaxPlaced + 10
	for i := range many {
		w.pin(fmt.Sprint("tenant ", i), `"overrides":[{"id":"burst","rate":1,"burst":1}]`)
	}
	w.settle()
	w.putRequest(shares.Request{Kind: shares.Join, Cell: "b", Weight: 1})
	began := w.now
	w.settle()
	for i := range many {
		w.wantHomed("after all transitions", fmt.Sprint("tenant ", i), "burst")
	}
	if w.state().Epoch != 3 || w.now.Sub(began) > 10*time.Minute {
		t.Errorf("it took until epoch %d and %s", w.state().Epoch, w.now.Sub(began))
	}
}

// Guarantees that a limit of the plan that all cells together can divide is homed for a tenant whose few cells cannot.
func TestFewCellsCannotDivide(t *testing.T) {
	w := newBench(t)
	w.put(control.Plans, "pro",
		`{"id":"pro","limits":[{"id":"calls","algorithm":"fixed_window","threshold":4,"period":"1s"}]}`)
	for _, c := range []shares.Weight{{Cell: "a", Weight: 1}, {Cell: "b", Weight: 1}, {Cell: "c", Weight: 3},
		{Cell: "d", Weight: 3}} {
		w.putRequest(shares.Request{Kind: shares.Join, Cell: c.Cell, Weight: c.Weight})
	}
	w.pin("acme", `"suspended":false`, "a", "c", "d") // shares of 0, 2 and 2
	w.pin("globex", `"suspended":false`, "c", "d")
	w.settle()
	if s := w.state(); len(s.Generations[len(s.Generations)-1].Homed) > 0 { // shares of 1 each
		t.Fatalf("%+v: all cells together cannot divide it either", s.Generations)
	}
	w.wantHomed("three cells", "acme", "calls")
	w.wantHomed("two cells", "globex", "")
}
