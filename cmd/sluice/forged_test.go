package main

import (
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sluicelimits/sluice/events"
	celltable "github.com/sluicelimits/sluice/internal/cell/table"
	"github.com/sluicelimits/sluice/internal/configfile/configyaml"
	"github.com/sluicelimits/sluice/internal/dev/devcells"
	"github.com/sluicelimits/sluice/internal/limiter/store/memory/memorytest"
	"github.com/sluicelimits/sluice/internal/plan"
	"github.com/sluicelimits/sluice/internal/plan/shares"
	"github.com/sluicelimits/sluice/internal/request/identity"
	"github.com/sluicelimits/sluice/streams/reconcile"
	"github.com/sluicelimits/sluice/streams/streamstest"
)

// section is a part of a runbook, from its heading to the next one.
func section(t *testing.T, page, heading string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", "docs", "runbooks", page))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, found := strings.Cut(string(text), "\n## "+heading+"\n")
	if !found {
		t.Fatalf("%s has no section %q", page, heading)
	}
	part, _, _ := strings.Cut(rest, "\n## ")
	return part
}

const freePlan = "plans: [ { id: free, limits: [ { id: burst, tiers: [ { period: 1s, threshold: 5 } ] } ] } ]\n"

// newForgeable returns a cell with a plan and a tenant, and the plane whose control tables the commands of sluice
// operate on.
func newForgeable(t *testing.T) (*devcells.Plane, *devcells.Cell) {
	t.Helper()
	return newForgeableWith(t, true, freePlan+"tenants: [ { id: acme, plan: free } ]\n")
}

// newForgeableWith returns a cell with the contents of a plans file. The cell is one of several, or the only one.
func newForgeableWith(t *testing.T, several bool, plans string) (*devcells.Plane, *devcells.Cell) {
	t.Helper()
	store := memorytest.New(t)
	p, err := devcells.Open(devcells.Config{Store: store,
		Peppers: map[string][]byte{identity.DevPepperID: identity.DevPepper()}, NewKeys: identity.DevPepperID,
		Several: several,
		Log:     slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	if several {
		if _, err := p.Join(t.Context(), []string{"eu-1"}); err != nil {
			t.Fatal(err)
		}
		if err := p.Divide(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	cell, err := p.AddCell(t.Context(), "eu-1")
	if err != nil {
		t.Fatal(err)
	}
	file := []plan.Source{configyaml.Source("plans.yaml", []byte(plans))}
	if _, err := p.ApplyFiles(t.Context(), "plans.yaml", file); err != nil {
		t.Fatal(err)
	}
	if err := p.Settle(t.Context()); err != nil {
		t.Fatal(err)
	}
	operators := httptest.NewServer(http.StripPrefix("/_sluice/admin", p.Operate()))
	t.Cleanup(operators.Close)
	t.Setenv("SLUICE_ENDPOINT", operators.URL+"/_sluice/admin")
	return p, cell
}

// Guarantees that the runbook for a forged document works as it is written: its commands show what was forged;
// reconcile, when invoked, repairs it, whatever its version; after that nobody can use the forged key; and the same
// commands show that the cell is in order.
func TestForgedDocumentRunbook(t *testing.T) {
	p, cell := newForgeable(t)
	stolen := identity.NewKey()
	hash := identity.HashKey(identity.DevPepper(), stolen)
	forged := []celltable.Document{
		{Ref: celltable.Ref{Kind: plan.KindKey, ID: "backdoor"}, Version: 1,
			Body: []byte(`{"hash":"` + hash + `","id":"backdoor","pepper":"` + identity.DevPepperID +
				`","tenant":"acme"}`)},
		{Ref: celltable.Ref{Kind: plan.KindPlan, ID: "free"}, Version: events.MaxVersion,
			Body: []byte(`{"id":"free","limits":[]}`)},
	}
	if n, err := celltable.Apply(t.Context(), cell.Store(), forged, time.Now); n != 2 || err != nil {
		t.Fatalf("%d documents were forged, %v", n, err)
	}
	look := func() (limits int, key error) {
		t.Helper()
		now := time.Now()
		if err := cell.Reader.Load(t.Context(), now); err != nil {
			t.Fatal(err)
		}
		c, _ := cell.Reader.Begin(t.Context(), now)
		acme, err := c.Tenant(t.Context(), "acme")
		if err != nil || acme == nil {
			t.Fatalf("the tenant is %+v, %v", acme, err)
		}
		_, key = c.Key(t.Context(), stolen, now)
		return len(acme.Limits(now).Limits), key
	}
	if limits, err := look(); limits != 0 || err != nil {
		t.Fatalf("the forged documents are not in force: %d limits, the key: %v", limits, err)
	}

	text := section(t, "drift.md", "A forged document")
	commands := commandsOf(text)
	if len(commands) < 2 {
		t.Fatalf("the runbook has %d commands, too few or too many", len(commands))
	}
	says := func(code int, words ...string) {
		t.Helper()
		for _, command := range commands {
			r := sluice(t, "", command...)
			if r.code != code {
				t.Errorf("sluice %s: exit status %d, want %d: %s%s", strings.Join(command, " "), r.code, code,
					r.stdout, r.stderr)
			}
			for _, word := range words {
				if !strings.Contains(r.stdout, word) {
					t.Errorf("sluice %s does not print %q: %s", strings.Join(command, " "), word, r.stdout)
				}
			}
		}
	}
	says(1, "backdoor", "free", "DRIFTED")
	const invoke = "aws lambda invoke --function-name sluice-eu-1-reconcile"
	if before, _, found := strings.Cut(text, invoke); !found || strings.Contains(before, "sluice cell status") {
		t.Fatalf("the runbook does not begin with %q", invoke)
	}
	r := reconcile.New(reconcile.Config{
		Tables: p.Tables(), Store: cell.Store(), Meter: new(streamstest.Meter), Log: slog.New(slog.DiscardHandler),
		Grace: 2 * time.Minute,
	})
	if result, err := r.Run(t.Context()); err != nil || !result.Finished || result.Repaired != 2 {
		t.Fatalf("reconcile: %+v, %v", result, err)
	}
	says(0, "DRIFTED")
	if limits, err := look(); limits != 1 || !errors.Is(err, identity.ErrUnknownKey) {
		t.Errorf("after the repair: %d limits, the key: %v", limits, err)
	}
}

// Guarantees that reconcile keeps a cell's documents of a control table without any item, since the table may have been
// lost, and removes them once an operator has done what the runbook says for a table that is meant to be empty.
// Otherwise forged documents would stay there for ever.
func TestForgedDocumentsOfAnEmptyTable(t *testing.T) {
	tenants := freePlan + "tenants: [ { id: acme, plan: free } ]\n"
	for _, c := range []struct {
		heading, plans string
		several        bool
		forged         func(i int) celltable.Document
	}{
		{"Forged keys, and an empty table of keys", tenants, true, func(i int) celltable.Document {
			id := fmt.Sprintf("forged%d", i)
			return celltable.Document{Ref: celltable.Ref{Kind: plan.KindKey, ID: id},
				Body: fmt.Appendf(nil, `{"hash":"%064x","id":%q,"pepper":"p1","tenant":"acme"}`, i, id)}
		}},
		{"Forged tenants, and an empty table of tenants", freePlan, true, func(i int) celltable.Document {
			id := fmt.Sprintf("forged%d", i)
			return celltable.Document{Ref: celltable.Ref{Kind: plan.KindTenant, ID: id},
				Body: fmt.Appendf(nil, `{"id":%q}`, id)}
		}},
		{"Forged placements, and an empty table of cells", tenants, false, func(i int) celltable.Document {
			id := fmt.Sprintf("forged%d", i)
			return celltable.Document{Ref: celltable.Ref{Kind: celltable.KindPlacement, ID: shares.PlacementKey(id)},
				Body: fmt.Appendf(nil, `{"version":2,"tenant":%q}`, id)}
		}},
	} {
		t.Run(c.heading, func(t *testing.T) {
			p, cell := newForgeableWith(t, c.several, c.plans)
			var forged []celltable.Document
			for i := range 20 {
				d := c.forged(i)
				d.Version = 1
				forged = append(forged, d)
			}
			if n, err := celltable.Apply(t.Context(), cell.Store(), forged, time.Now); n != 20 || err != nil {
				t.Fatalf("%d documents were forged, %v", n, err)
			}
			run := func(want int64) {
				t.Helper()
				r := reconcile.New(reconcile.Config{
					Tables: p.Tables(), Store: cell.Store(), Meter: new(streamstest.Meter),
					Log: slog.New(slog.DiscardHandler),
				})
				result, err := r.Run(t.Context())
				if err != nil || result.Drift[reconcile.Unknown] != 20 || result.Repaired != want {
					t.Fatalf("%+v, %v; want 20 forged documents, of which %d are removed", result, err, want)
				}
			}
			run(0)
			commands := commandsOf(section(t, "forged_cell_documents.md", c.heading))
			if len(commands) < 2 {
				t.Fatalf("the runbook has %d commands", len(commands))
			}
			for _, command := range commands {
				if r := sluice(t, "", command...); r.code != 0 {
					t.Fatalf("sluice %s: exit status %d: %s%s", strings.Join(command, " "), r.code, r.stdout, r.stderr)
				}
			}
			if err := p.Settle(t.Context()); err != nil {
				t.Fatal(err)
			}
			run(20)
			if r := sluice(t, "", "cell", "status"); r.code != 0 {
				t.Errorf("after the repair the command prints %s%s", r.stdout, r.stderr)
			}
		})
	}
}
