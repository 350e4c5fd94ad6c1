package applier_test

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/sluicelimits/sluice/events"
	"github.com/sluicelimits/sluice/internal/control"
	"github.com/sluicelimits/sluice/internal/plan/shares"
	"github.com/sluicelimits/sluice/internal/testkit/soak"
)

// Guarantees that the cells together never exceed a limit, while cells join, drain, change their weights and lag, a
// tenant is pinned and freed, and messages are lost, repeated and reordered. The test uses the real control tables,
// balancer, configuration readers, leases and stores. It also guarantees that the shares change, and that the whole of
// a limit is granted when they do not change any more.
func TestCellsTogetherKeepTheLimits(t *testing.T) {
	soak.SkipUnderRace(t)
	for seed := range soak.Times(uint64(3)) {
		w := newSharesWorld(t, seed)
		w.cell("eu-1", 2)
		w.run(15*time.Second, true)
		w.cell("us-1", 1)
		w.run(40*time.Second, true)
		lags := w.cell("ap-1", 3)
		w.run(5*time.Second, true)
		lags.deaf = true
		w.run(20*time.Second, true)
		lags.deaf = false
		w.ask(shares.Request{Kind: shares.Place, Tenant: "acme", Cells: []string{"us-1", "ap-1"}})
		w.run(45*time.Second, true)
		w.ask(shares.Request{Kind: shares.Drain, Cell: "eu-1"})
		w.ask(shares.Request{Kind: shares.Weigh, Cell: "ap-1", Weight: 1})
		w.run(40*time.Second, true)
		w.ask(shares.Request{Kind: shares.Place, Tenant: "acme"})
		w.ask(shares.Request{Kind: shares.Join, Cell: "eu-1", Weight: 1})
		w.run(60*time.Second, true)
		for _, word := range w.violations() {
			t.Errorf("seed %d: %s", seed, word)
		}
		if w.epochs < 6 || !w.phases[shares.Shrink] || !w.phases[shares.Grow] || w.denied == 0 {
			t.Fatalf("seed %d: epoch %d, phases %v, %d denied since nothing is granted there: nothing was tried", seed,
				w.epochs, w.phases, w.denied)
		}
		w.loss = 0
		w.run(60*time.Second, true) // no more changes: whole windows follow
		rest := w.now.Add(time.Second).Truncate(10 * time.Second).Add(10 * time.Second)
		w.run(40*time.Second, true)
		if homed := w.homed("initech"); len(homed) != 1 || homed[0] != "window" {
			t.Errorf("seed %d: a limit of 2 in three cells is not homed: %q", seed, homed)
		}
		for tenant, most := range map[string]int64{"acme": 61, "globex": 61, "initech": 2} {
			if n := w.total("/window of "+tenant, rest); n < most*2 {
				t.Errorf("seed %d: %d units of %s since the shares are at rest, want all of several windows", seed, n,
					tenant)
			}
		}
		for _, c := range w.cells { // each cell grants a limit that is too small to be divided
			for name, at := range map[string][2]string{"/tiny of globex": {"globex", "/tiny"},
				"/window of initech": {"initech", "/window"}} {
				w.run(20*time.Second, false)
				before := w.total(name, begins)
				w.spend(c, c.envs[0], at[0], at[1])
				if n := w.total(name, begins) - before; n != 2 {
					t.Errorf("seed %d: cell %s grants %d of %s, want 2", seed, c.id, n, name)
				}
			}
		}
	}
}

// Guarantees the same while the placement of a pinned tenant cannot be read: its pin changes, a cell joins, another one
// gets no messages, weights change, and messages are lost. The shares of all other tenants change, and those of the
// tenant do as soon as the item is corrected.
func TestCellsTogetherKeepTheLimitsOfUnreadablePlacements(t *testing.T) {
	soak.SkipUnderRace(t)
	for seed := range soak.Times(uint64(3)) {
		w := newSharesWorld(t, seed)
		w.cell("eu-1", 2)
		lags := w.cell("us-1", 1)
		w.run(40*time.Second, true)
		w.ask(shares.Request{Kind: shares.Place, Tenant: "acme", Cells: []string{"us-1"}})
		w.run(45*time.Second, true)
		key := shares.PlacementKey("acme")
		item, err := w.tables.Get(t.Context(), control.Cells, key)
		if err != nil {
			t.Fatal(err)
		}
		w.put(control.Cells, key, `{"version":2,"tenant":"acme"}`)
		w.ask(shares.Request{Kind: shares.Place, Tenant: "acme", Cells: []string{"eu-1"}})
		before := w.epochs
		lags.deaf = true
		w.run(20*time.Second, true)
		lags.deaf = false
		w.cell("ap-1", 3)
		w.run(45*time.Second, true)
		w.ask(shares.Request{Kind: shares.Place, Tenant: "globex", Cells: []string{"ap-1"}})
		w.run(45*time.Second, true)
		if w.epochs < before+2 {
			t.Fatalf("seed %d: from epoch %d to %d: the others do not go on", seed, before, w.epochs)
		}
		w.loss = 0
		w.put(control.Cells, key, string(item.Body))
		w.run(90*time.Second, true)
		for _, word := range w.violations() {
			t.Errorf("seed %d: %s", seed, word)
		}
		rest := w.now.Add(time.Second).Truncate(10 * time.Second).Add(10 * time.Second)
		w.run(40*time.Second, true)
		for _, tenant := range []string{"acme", "globex"} {
			if n := w.total("/window of "+tenant, rest); n < 122 {
				t.Errorf("seed %d: %d units of %s since the item is mended, want all of several windows", seed, n,
					tenant)
			}
		}
		if p, err := w.tables.Get(t.Context(), control.Cells, key); err != nil || !strings.Contains(string(p.Body),
			`"eu-1"`) {
			t.Errorf("seed %d: the tenant is not where it is pinned: %s, %v", seed, p.Body, err)
		}
	}
}

// homed returns the limits that are homed for the tenant alone.
func (w *sharesWorld) homed(tenant string) []string {
	w.t.Helper()
	item, err := w.tables.Get(w.t.Context(), control.Cells, shares.PlacementKey(tenant))
	if err != nil {
		w.t.Fatal(err)
	}
	p, err := shares.DecodePlacement(item.Body)
	if err != nil {
		w.t.Fatal(err)
	}
	return p.Generations[len(p.Generations)-1].Homed
}

// Guarantees that the test above can fail: it finds that a cell grants too much if its acknowledgement is false.
func TestFalseAcknowledgementIsFound(t *testing.T) {
	w := newSharesWorld(t, 1)
	deaf := w.cell("eu-1", 1)
	w.run(15*time.Second, true)
	if over := w.violations(); len(over) > 0 {
		t.Fatalf("one cell passes the limit: %v", over)
	}
	deaf.deaf = true
	w.cell("us-1", 1)
	for range 60 {
		w.run(time.Second, true)
		item, err := w.tables.Get(t.Context(), control.Cells, events.SharesKey)
		if err != nil {
			t.Fatal(err)
		}
		s, err := shares.DecodeState(item.Body)
		if err != nil {
			t.Fatal(err)
		}
		lie, err := json.Marshal(shares.Ack{Cell: "eu-1", Epoch: s.Epoch, Phase: s.Phase, AtUS: w.now.UnixMicro()})
		if err != nil {
			t.Fatal(err)
		}
		w.put(control.Cells, shares.AckKey("eu-1"), string(lie))
	}
	if len(w.violations()) == 0 {
		t.Fatal("a cell that has not heard grants all of the limit, and so does another: nobody finds it")
	}
}
