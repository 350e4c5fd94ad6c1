package config_test

import (
	"bytes"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sluicelimits/sluice/internal/cell/config"
	"github.com/sluicelimits/sluice/internal/cell/table/tabletest"
	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/plan"
	"github.com/sluicelimits/sluice/internal/plan/shares"
)

// Guarantees that a quota that another cell keeps is passed to the store with that cell as its home if the cell is
// reachable, with the same identity, and is otherwise not granted, which the log says once.
func TestQuotasOfOtherCells(t *testing.T) {
	text := `{"id":"p","limits":[{"id":"month","quota":{"units":100,"every":"month"}},{"id":"rate",` +
		`"algorithm":"fixed_window","period":"1s","threshold":10}]}`
	b := newBalanced(t, "eu-1")
	b.now = noon.AddDate(0, -2, 0)
	b.do(shares.Request{Kind: shares.Join, Cell: "us-1", Weight: 1})
	var log bytes.Buffer
	reaching := func(homes ...string) func(*config.Config) {
		return func(c *config.Config) {
			inCell("eu-1")(c)
			c.Reaches = func(home string) bool { return slices.Contains(homes, home) }
			c.Log = slog.New(slog.NewTextHandler(&log, nil))
		}
	}
	away := 0
	for i := range 20 {
		id := fmt.Sprint("t", i)
		if b.state.Document().View("eu-1", id, nil).Home() == "eu-1" {
			continue
		}
		away++
		w := newWorld(t, reaching("us-1"))
		w.apply(body(plan.KindPlan, "p", 1, text), tabletest.Tenant(id, "p", 1), b.document(1))
		c, _ := w.begin(noon)
		got, err := c.Tenant(t.Context(), id)
		if err != nil {
			t.Fatal(err)
		}
		set := got.Limits(noon)
		charges := set.AppendCharges(nil, &plan.Attributes{Method: "GET"})
		if len(charges) != 2 || set.Withheld(charges) != nil || charges[0].Limit.Home != "us-1" ||
			charges[1].Limit.Home != "" {
			t.Fatalf("%s: %d charges, withheld %v, kept in %q; want the quota of us-1 and the rate of this cell", id,
				len(charges), set.Withheld(charges), charges[0].Limit.Home)
		}
		if e := set.Limits[0]; charges[0].Limit.Tiers[0].Identity() != e.Whole().Tiers[0].Identity() ||
			!strings.Contains(e.Share().Why, "kept in cell us-1") {
			t.Errorf("%s: identity %q, explanation %q; want the same identity as before, and that it is kept in us-1",
				id, charges[0].Limit.Tiers[0].Identity(), e.Share().Why)
		}
		if log.Len() > 0 {
			t.Errorf("the log has lines, want none: %s", &log)
		}

		w = newWorld(t, reaching("ap-1"))
		w.apply(body(plan.KindPlan, "p", 1, text), tabletest.Tenant(id, "p", 1),
			tabletest.Tenant("other", "p", 1), b.document(1))
		c, _ = w.begin(noon)
		for _, who := range []string{id, "other", id} {
			if got, err = c.Tenant(t.Context(), who); err != nil {
				t.Fatal(err)
			}
			got.Limits(noon)
		}
		if got.Limits(noon).Withheld(got.Limits(noon).AppendCharges(nil, &plan.Attributes{Method: "GET"})) == nil {
			t.Errorf("%s: a quota is granted although its home cell is not reachable", id)
		}
		if n := strings.Count(log.String(), "home=us-1"); n != 1 {
			t.Errorf("the log names the home %d times, want once: %s", n, &log)
		}
		log.Reset()
	}
	if away == 0 {
		t.Fatal("every tenant is at home in this cell: the test shows nothing")
	}
}

// Guarantees that requests do not wait while limits are divided between the cells, which computes calendar periods:
// the reader answers in the meantime, for a tenant and for calls without a credential.
func TestDividingHoldsNoLock(t *testing.T) {
	b := newBalanced(t, "eu-1")
	b.now = noon.AddDate(0, -2, 0) // a quota's period has begun since then
	b.do(shares.Request{Kind: shares.Join, Cell: "us-1", Weight: 1})
	cell := "eu-1" // a cell that is not the home of either, so that their quotas are kept elsewhere
	if b.state.Document().View(cell, "", nil).Home() == cell {
		cell = "us-1"
	}
	id := ""
	for i := 0; id == "" || b.state.Document().View(cell, id, nil).Home() == cell; i++ {
		id = fmt.Sprint("t", i)
	}
	var w *world
	divided := 0
	w = newWorld(t, inCell(cell), func(c *config.Config) {
		c.Reaches = func(string) bool {
			divided++
			done := make(chan struct{})
			go func() {
				w.r.Shares()
				close(done)
			}()
			select {
			case <-done:
			case <-time.After(5 * time.Second):
				t.Error("the reader does not answer while limits are divided")
			}
			return true
		}
	})
	w.apply(body(plan.KindPlan, "p", 1, `{"id":"p","limits":[{"id":"month","quota":{"units":100,"every":"month"}}]}`),
		tabletest.Tenant(id, "p", 1), b.document(1), settings(1, `{"anonymousPlan":"p"}`))
	c, _ := w.begin(noon)
	got, err := c.Tenant(t.Context(), id)
	if err != nil || got.Limits(noon).Limits[0].Limit.Home == "" {
		t.Fatalf("%+v, %v; want a tenant whose quota is kept elsewhere", got, err)
	}
	if again, err := c.Tenant(t.Context(), id); again != got || err != nil {
		t.Errorf("the second request gets another tenant value than the first one, want the same: %v", err)
	}
	forTenant := divided
	if _, set, err := c.Anonymous(t.Context()); err != nil || set.Limits[0].Limit.Home == "" {
		t.Fatalf("%+v, %v; want a quota that is kept elsewhere", set, err)
	}
	if forTenant == 0 || divided == forTenant {
		t.Errorf("divided %d times for the tenant and %d in all: the test shows nothing", forTenant, divided)
	}
}

// Guarantees that a rate too small to be divided is passed to the store with its home cell, also in the home cell
// itself, since the other cells use the same counter there; and that a cell that cannot reach the home grants nothing
// of it, or everything if the limit says open, and logs that.
func TestSmallLimitsOfOtherCells(t *testing.T) {
	text := `{"id":"p","limits":[{"id":"tiny","algorithm":"token_bucket","rate":1,"period":"1s","burst":5},` +
		`{"id":"open","algorithm":"fixed_window","period":"1s","threshold":1,"onStoreFailure":"open"}]}`
	p, err := plan.CompilePlan(plan.Document{Kind: plan.KindPlan, ID: "p", Body: []byte(text)})
	if err != nil {
		t.Fatal(err)
	}
	b := newBalanced(t)
	for _, e := range p.Set().Limits {
		b.limits = append(b.limits, shares.Limited{Plan: "p", Limit: e.Limit})
	}
	b.do(shares.Request{Kind: shares.Join, Cell: "eu-1", Weight: 1}, shares.Request{Kind: shares.Join, Cell: "us-1",
		Weight: 1})
	home := b.state.Document().View("eu-1", "t", nil).Home()
	for _, cell := range []string{"eu-1", "us-1"} {
		for _, reaches := range []bool{true, false} {
			var log bytes.Buffer
			w := newWorld(t, func(c *config.Config) {
				inCell(cell)(c)
				c.Reaches = func(string) bool { return reaches }
				c.Log = slog.New(slog.NewTextHandler(&log, nil))
			})
			w.apply(body(plan.KindPlan, "p", 1, text), tabletest.Tenant("t", "p", 1), b.document(1))
			c, _ := w.begin(noon)
			got, err := c.Tenant(t.Context(), "t")
			if err != nil {
				t.Fatal(err)
			}
			set := got.Limits(noon)
			charges := set.AppendCharges(nil, &plan.Attributes{Method: "GET"})
			if !reaches && cell != home {
				if e := set.Withheld(charges); e == nil || e.Limit.ID != "tiny" || !strings.Contains(log.String(),
					"home="+home) {
					t.Errorf("%s cannot reach the home %s: withheld %v, log %s; want the limit withheld, and a log "+
						"line", cell, home, e, &log)
				}
				if l := set.Limits[1].Limit; l.Mode != limit.Off {
					t.Errorf("%s cannot reach the home %s: the mode of a limit with onStoreFailure open is %s, want "+
						"off", cell, home, l.Mode)
				}
				continue
			}
			if set.Withheld(charges) != nil || len(charges) != 2 || charges[0].Limit.Home != home ||
				!charges[0].Limit.Exact || charges[1].Limit.Home != home {
				t.Errorf("%s: withheld %v, charges %+v; want both kept in %s", cell, set.Withheld(charges), charges,
					home)
			}
			if why := set.Limits[0].Share().Why; !strings.Contains(why, "counted in cell "+home+" for all cells") {
				t.Errorf("%s: the explanation is %q, want that the limit is counted in its home", cell, why)
			}
			if log.Len() > 0 {
				t.Errorf("the log of %s has lines, want none: %s", cell, &log)
			}
		}
	}
}
