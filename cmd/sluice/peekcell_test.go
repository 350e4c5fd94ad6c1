package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/sluicelimits/sluice/internal/dev/livepage"
)

// If only one cell runs, or only one serves, operators need not name it. With several cells, peek reads the tenant's
// home cell and says so. A command that changes counters asks for the cell, and lists the cells.
func TestCountersFindTheirCell(t *testing.T) {
	t.Parallel()
	plans := filepath.Join(t.TempDir(), "plans.yaml")
	text := "plans: [ { id: p, limits: [ { id: burst, algorithm: token_bucket, rate: 900, period: 1h, burst: 900 }, " +
		"{ id: monthly, quota: { units: 1000, every: month } } ] } ]\n" +
		"tenants: [ { id: acme, plan: p }, { id: pinned, plan: p, cells: [cell-3, cell-1] }, { id: narrow, " +
		"plan: p, cells: [cell-2] } ]\n" + "ipLimits: [ { id: per-address, algorithm: token_bucket, rate: " +
		"9, period: 1h, burst: 9 } ]\n"
	if err := os.WriteFile(plans, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	r := startDev(t, "--data", dir, "--cells", "3", "--plans", plans)
	waitUntil(t, "the cells serve", func() bool {
		for _, c := range dataOf(t, r.base).Cells {
			if c.State != "active" || c.Phase != "steady" {
				return false
			}
		}
		return true
	})
	on := func(args ...string) ran { return sluice(t, "", append(args, "--endpoint", r.base+"/_sluice/admin")...) }
	for _, c := range []struct{ tenant, home string }{{"acme", "cell-[123]"}, {"pinned", "cell-3"},
		{"narrow", "cell-2"}} {
		got := on("counter", "peek", c.tenant)
		said := regexp.MustCompile(`^sluice: these are the counters of cell (` + c.home +
			`), the home cell of tenant "` + c.tenant +
			`": it counts the quotas, and its own share of other limits; ` +
			`--cell selects one of (cell-\d, cell-\d, cell-\d)\n$`).FindStringSubmatch(got.stderr)
		if got.code != 0 || !strings.Contains(got.stdout, "monthly") || said == nil ||
			said[2] != "cell-1, cell-2, cell-3" {
			t.Fatalf("peek %s: exit code %d\n%s%s", c.tenant, got.code, got.stdout, got.stderr)
		}
		if explicit := on("counter", "peek", c.tenant, "--cell", said[1]); explicit.code != 0 || explicit.stderr != "" {
			t.Errorf("peek %s --cell %s: exit code %d: %s", c.tenant, said[1], explicit.code, explicit.stderr)
		}
	}
	if got := on("counter", "peek", "pinned", "--json"); got.code != 0 || !strings.HasPrefix(got.stdout, "{") ||
		!strings.Contains(got.stderr, "cell-3") {
		t.Errorf("peek --json: exit status %d\n%s%s", got.code, got.stdout, got.stderr)
	}
	for _, args := range [][]string{
		{"counter", "reset", "pinned", "burst", "--reason", "x"},
		{"counter", "refund", "pinned", "monthly", "--units", "1", "--reason", "x"},
	} {
		got := on(args...)
		home := ""
		if args[1] == "pinned" {
			home = `; cell-3 is the home cell of tenant "pinned", and counts its quotas`
		}
		if want := "several cells serve, each with its own counters: select one with --cell: cell-1, cell-2, cell-3" +
			home; got.code != exitUsage || !strings.Contains(got.stderr, want) {
			t.Errorf("sluice %q: exit code %d: %s, want %q", args, got.code, got.stderr, want)
		}
	}
	if got := on("counter", "reset", "pinned", "burst", "--cell", "cell-3", "--reason", "x"); got.code != 0 {
		t.Errorf("reset --cell cell-3 fails: %s", got.stderr)
	}
	operateOn(t, r.base, "cell", "drain", "cell-1", "--reason", "a test")
	operateOn(t, r.base, "cell", "drain", "cell-2", "--reason", "a test")
	waitUntil(t, "one cell serves", func() bool {
		serve := func(c livepage.CellStatus) bool { return c.State != "drained" }
		n := 0
		for _, c := range dataOf(t, r.base).Cells {
			if serve(c) {
				n++
			}
		}
		return n == 1
	})
	if got := on("counter", "reset", "pinned", "burst", "--reason", "x"); got.code != 0 || got.stderr != "" {
		t.Errorf("with one cell that serves: exit status %d: %s", got.code, got.stderr)
	}
	if err := r.finish(t); err != nil {
		t.Fatal(err)
	}

	r = startDev(t, "--data", dir) // one cell only
	for _, args := range [][]string{{"counter", "peek", "acme"},
		{"counter", "reset", "acme", "burst", "--reason", "x"}} {
		if got := on(args...); got.code != 0 || got.stderr != "" || !strings.Contains(got.stdout, "burst") {
			t.Errorf("on a dev with a single cell: sluice %q: exit code %d\n%s%s", args, got.code, got.stdout,
				got.stderr)
		}
	}
}
