package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluicelimits/sluice/internal/control"
	"github.com/sluicelimits/sluice/internal/control/admin"
	"github.com/sluicelimits/sluice/internal/control/call"
	"github.com/sluicelimits/sluice/internal/control/client"
	"github.com/sluicelimits/sluice/internal/dev/livepage"
	"github.com/sluicelimits/sluice/internal/request/identity"
)

// operate runs an operators' command against a dev, and fails the test where it fails.
func operateOn(t *testing.T, base string, args ...string) string {
	t.Helper()
	r := sluice(t, "", append(args, "--endpoint", base+"/_sluice/admin")...)
	if r.code != 0 {
		t.Fatalf("sluice %q: %s", args, r.stderr)
	}
	return r.stdout
}

// until polls, since what crosses processes, files and cells has nothing else to wait on.
func until(t *testing.T, what string, holds func() bool) {
	t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for end := time.After(30 * time.Second); !holds(); {
		select {
		case <-tick.C:
		case <-end:
			t.Fatalf("30 s and still not: %s", what)
		}
	}
}

func dataOf(t *testing.T, base string) (d livepage.Data) {
	t.Helper()
	_, _, body := get(t, base+"/_sluice/data.json", "")
	if err := json.Unmarshal([]byte(body), &d); err != nil {
		t.Fatal(err)
	}
	return d
}

func limitOf(t *testing.T, base, key string) string {
	t.Helper()
	_, h, _ := get(t, base, key)
	return h.Get("X-RateLimit-Limit")
}

// Guarantees that what operators change is enforced and shown by the time that people look, and that a plans file which
// says nothing new about it leaves it alone, while what it says anew wins.
func TestDevOperators(t *testing.T) {
	file := filepath.Join(t.TempDir(), "plans.yaml")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(string(examplePlans))
	r := startDev(t, "--plans", file)
	globex := identity.ExampleKey("globex")
	if got := limitOf(t, r.base, globex); got != "5" {
		t.Fatalf("globex has a limit of %s, want 5", got)
	}
	operateOn(t, r.base, "tenant", "set", "globex", "--override", "{ id: burst, burst: 9 }", "--reason", "a test")
	until(t, "the limit that was raised is felt", func() bool { return limitOf(t, r.base, globex) == "9" })
	until(t, "and shown", func() bool {
		for _, row := range dataOf(t, r.base).Tenants {
			if row.ID == "globex" && len(row.Limits) > 0 && row.Limits[0].Capacity == 9 {
				return true
			}
		}
		return false
	})

	operateOn(t, r.base, "tenant", "set", "newcomer", "--create", "--plan", "free", "--reason", "signed up")
	key := strings.TrimSpace(operateOn(t, r.base, "key", "create", "--tenant", "newcomer", "--id", "theirs",
		"--reason", "signed up"))
	until(t, "the new key works", func() bool { code, _, _ := get(t, r.base, key); return code != 401 })
	operateOn(t, r.base, "key", "revoke", "theirs", "--reason", "lost")
	until(t, "the revoked key does not", func() bool { code, _, _ := get(t, r.base, key); return code == 401 })

	if out := sluice(t, "", "cell", "add", "x", "--reason", "a test", "--endpoint",
		r.base+"/_sluice/admin"); out.code != exitFailed || !strings.Contains(out.stderr, "--cells") {
		t.Errorf("a cell is added to one that is alone: %d %s", out.code, out.stderr)
	}

	// The file changes in another place: what operators said of globex stays. Then it says something of globex.
	write(edited(t, string(examplePlans), "burst: 5", "burst: 7"))
	until(t, "the file's change of the plan is in force", func() bool {
		for _, row := range dataOf(t, r.base).Tenants {
			if row.ID == "newcomer" {
				return row.Limits[0].Capacity == 7
			}
		}
		return false
	})
	if got := limitOf(t, r.base, globex); got != "9" {
		t.Errorf("globex has a limit of %s after the file changed elsewhere, want the operator's 9", got)
	}
	write(edited(t, string(examplePlans), "id: globex, plan: free",
		"id: globex, plan: free, overrides: [ { id: burst, burst: 8 } ]"))
	until(t, "what the file says of globex is in force", func() bool { return limitOf(t, r.base, globex) == "8" })

	// A file that operators' tenants could not live with is refused as a whole.
	write("plans: [ { id: other, limits: [ { id: l, tiers: [ { period: 1s, threshold: 1 } ] } ] } ]\ntenants: []\n")
	until(t, "the bad file is reported", func() bool {
		return strings.Contains(dataOf(t, r.base).Gateway.LastError, `tenant "newcomer" uses it`)
	})
	if got := limitOf(t, r.base, globex); got != "8" {
		t.Errorf("globex has a limit of %s after a bad file, want 8", got)
	}
	write("plans: [ { id: free, limits: [ { id: l, tiers: [ { period: 1s, threshold: 1 } ] } ] } ]\ntenants: []\n")
	until(t, "a tenant and its key that the file drops are gone",
		func() bool { code, _, _ := get(t, r.base, globex); return code == 401 })
	if keys := operateOn(t, r.base, "key", "list"); !strings.Contains(keys, "globex-web") {
		t.Errorf("the key is not in the list any more, not even as a revoked one:\n%s", keys)
	}
	if err := r.finish(t); err != nil {
		t.Error(err)
	}
	if log := r.stderr.String(); strings.Contains(log, key) {
		t.Errorf("the log holds a key: %s", log)
	}
}

// Guarantees that a restart keeps all that operators did, with the plans file as it was and without it, and that the
// audit trail of it verifies; and that one who changes that trail is found out, with the place.
func TestDevRestart(t *testing.T) {
	dir, file := t.TempDir(), filepath.Join(t.TempDir(), "plans.yaml")
	if err := os.WriteFile(file, examplePlans, 0o600); err != nil {
		t.Fatal(err)
	}
	r := startDev(t, "--data", dir, "--plans", file)
	operateOn(t, r.base, "tenant", "set", "globex", "--override", "{ id: burst, burst: 9 }", "--reason", "a test")
	key := strings.TrimSpace(operateOn(t, r.base, "key", "create", "--tenant", "globex", "--id", "theirs", "--reason",
		"a test"))
	operateOn(t, r.base, "key", "revoke", "globex-web", "--reason", "a test")
	if two := sluice(t, "", "dev", "--listen", "127.0.0.1:0", "--data", dir); two.code != exitFailed ||
		!strings.Contains(two.stderr, "another sluice dev uses it") {
		t.Errorf("a second dev on the same data: %d %s", two.code, two.stderr)
	}
	if err := r.finish(t); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"--data", dir, "--plans", file}, {"--data", dir}} {
		r := startDev(t, args...)
		if code, h, body := get(t, r.base, key); code != 200 || h.Get("X-RateLimit-Limit") != "9" {
			t.Errorf("dev %q: the key that was made gives %d with a limit of %s, want 200 and 9: %s", args, code,
				h.Get("X-RateLimit-Limit"), body)
		}
		if code, _, _ := get(t, r.base, identity.ExampleKey("globex")); code != 401 {
			t.Errorf("dev %q: the key that was revoked gives %d, want 401", args, code)
		}
		if err := r.finish(t); err != nil {
			t.Fatal(err)
		}
	}
	if v := sluice(t, "", "audit", "verify", "--data", dir); v.code != 0 {
		t.Fatalf("audit verify: %d %s%s", v.code, v.stdout, v.stderr)
	}
	name := control.ObjectName(control.Tenants, "globex", 2)
	at := filepath.Join(dir, "audit", filepath.FromSlash(name))
	text, err := os.ReadFile(at)
	if err != nil {
		t.Fatal(err)
	}
	altered := bytes.Replace(text, []byte(`"burst":9`), []byte(`"burst":8`), 1)
	if bytes.Equal(text, altered) {
		t.Fatalf("nothing to alter in %s", text)
	}
	if err := errors.Join(os.Chmod(at, 0o600), os.WriteFile(at, altered, 0o600)); err != nil {
		t.Fatal(err)
	}
	if v := sluice(t, "", "audit", "verify", "--data", dir); v.code != exitFailed ||
		!strings.Contains(v.stdout+v.stderr, "globex") || !strings.Contains(v.stdout+v.stderr, "version 2") {
		t.Errorf("audit verify of an altered trail: %d %s%s", v.code, v.stdout, v.stderr)
	}
}

// Guarantees that a kill in the middle of a burst of writes loses none that was acknowledged, whose chain is whole;
// also in the audit trail, which the next start completes.
func TestDevKilled(t *testing.T) {
	dir := t.TempDir()
	p := startProcess(t, "--data", dir)
	u, err := url.Parse(p.base + adminPath)
	if err != nil {
		t.Fatal(err)
	}
	to, err := localClient(u, "")
	if err != nil {
		t.Fatal(err)
	}
	const writers, enough = 8, 60
	var acknowledged [writers]atomic.Int64 // the newest version of each one's tenant
	var total atomic.Int64
	full := make(chan struct{})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var all sync.WaitGroup
	plan := "free"
	for i := range writers {
		all.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				plan, cells := &plan, &[]string{}
				item, err := client.Do[call.Item](ctx, to, "tenants/set", admin.SetTenantRequest{
					Tenant: fmt.Sprintf("t%d", i), Create: true, Plan: plan, Cells: cells,
					Reason:    fmt.Sprintf("write %d", n),
					Overrides: []json.RawMessage{fmt.Appendf(nil, `{"id":"burst","burst":%d}`, n+1)},
				})
				if err != nil {
					return // killed
				}
				acknowledged[i].Store(item.Version)
				if total.Add(1) == enough {
					close(full)
				}
			}
		})
	}
	select {
	case <-full:
	case <-time.After(60 * time.Second):
		t.Fatalf("%d writes in a minute", total.Load())
	}
	if err := p.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	<-p.done
	cancel()
	all.Wait()
	r := startDev(t, "--data", dir)
	for i := range writers {
		var got struct{ Version int64 }
		out := operateOn(t, r.base, "tenant", "get", fmt.Sprintf("t%d", i), "--json")
		if err := json.Unmarshal([]byte(out), &got); err != nil {
			t.Fatalf("%v in %s", err, out)
		}
		if want := acknowledged[i].Load(); got.Version < want || got.Version > want+1 {
			t.Errorf("t%d is at version %d, and %d was acknowledged", i, got.Version, want)
		}
	}
	if err := r.finish(t); err != nil {
		t.Fatal(err)
	}
	if v := sluice(t, "", "audit", "verify", "--data", dir); v.code != 0 {
		t.Errorf("audit verify: %d %s%s", v.code, v.stdout, v.stderr)
	}
}

// greedy are clients of several cells. Of each answer they know between which times it was decided.
type greedy struct {
	window time.Duration
	mu     sync.Mutex
	sums   map[int64]int // by window: what was surely admitted in it
	cells  map[string]int
}

// hammer calls a cell until ctx ends.
func (g *greedy) hammer(ctx context.Context, base, key string) {
	for ctx.Err() == nil {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, base+"/", nil)
		if err != nil {
			return
		}
		req.Header.Set("X-API-Key", key)
		from := time.Now()
		resp, err := http.DefaultTransport.RoundTrip(req)
		if err != nil {
			return // its cell is gone, or the test is over
		}
		_ = resp.Body.Close() // an echo that nobody reads
		to := time.Now()
		w := from.UnixMicro() / g.window.Microseconds()
		if resp.StatusCode == http.StatusOK && w == to.UnixMicro()/g.window.Microseconds() {
			g.mu.Lock()
			g.sums[w]++
			g.cells[base]++
			g.mu.Unlock()
		}
	}
}

// Guarantees through real requests that cells which share a limit never admit more than it together in any window,
// while greedy clients call all of them, one cell is drained and another is added.
func TestDevCells(t *testing.T) {
	const threshold = 90
	file := filepath.Join(t.TempDir(), "plans.yaml")
	text := fmt.Sprintf("plans: [ { id: p, limits: [ { id: l, tiers: [ { period: 1s, threshold: %d } ] } ] } "+
		"]\ntenants: [ { id: acme, plan: p } ]\n"+"keys: [ { id: k, tenant: acme, hash: %s, pepper: dev } ]\n",
		threshold, identity.HashKey(identity.DevPepper(), identity.ExampleKey("acme")))
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	r := startDev(t, "--cells", "3", "--plans", file)
	urls := regexp.MustCompile(`cell +(\S+) at (\S+)`).FindAllStringSubmatch(r.stdout.String(), -1)
	if len(urls) != 3 {
		t.Fatalf("%d cells:\n%s", len(urls), r.stdout)
	}
	state := func(name string) (s livepage.CellStatus) {
		for _, c := range dataOf(t, r.base).Cells {
			if c.Name == name {
				return c
			}
		}
		return s
	}
	for _, u := range urls {
		until(t, u[1]+" serves", func() bool { return state(u[1]).State == "active" && state(u[1]).Phase == "steady" })
	}
	g := &greedy{window: time.Second, sums: map[int64]int{}, cells: map[string]int{}}
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	defer all.Wait()
	defer cancel()
	for _, u := range urls {
		for range 2 {
			all.Go(func() { g.hammer(ctx, u[2], identity.ExampleKey("acme")) })
		}
	}
	operateOn(t, r.base, "cell", "drain", "cell-3", "--reason", "a test")
	until(t, "cell-3 is drained", func() bool { return state("cell-3").State == "drained" })
	operateOn(t, r.base, "cell", "add", "cell-4", "--weight", "2", "--reason", "a test")
	until(t, "cell-4 serves", func() bool { c := state("cell-4"); return c.State == "active" && c.URL != "" })
	added := state("cell-4").URL
	for range 2 {
		all.Go(func() { g.hammer(ctx, added, identity.ExampleKey("acme")) })
	}
	until(t, "shares sum to the limit, and clients of the new cell have theirs", func() bool {
		sum := int64(0)
		for _, c := range dataOf(t, r.base).Cells {
			for _, l := range c.Limits {
				sum += l.Share
			}
		}
		g.mu.Lock()
		defer g.mu.Unlock()
		return sum == threshold && g.cells[added] > threshold/2
	})
	operateOn(t, r.base, "cell", "remove", "cell-3", "--reason", "a test")
	until(t, "cell-3 is gone", func() bool { return state("cell-3").State == "removed" && state("cell-3").URL == "" })
	cancel()
	all.Wait()
	most := 0
	for _, w := range slices.Sorted(maps.Keys(g.sums)) {
		n := g.sums[w]
		t.Logf("window %d: %d admitted by all cells together, the limit is %d", w, n, threshold)
		if most = max(most, n); n > threshold {
			t.Errorf("window %d: %d requests were admitted by all cells together, and the limit is %d", w, n, threshold)
		}
	}
	if most < threshold/2 {
		t.Errorf("at most %d of %d requests were admitted in a window: the clients are not greedy", most, threshold)
	}
	if err := r.finish(t); err != nil {
		t.Error(err)
	}
}

// Guarantees through real requests that a limit too small to be divided is granted by every cell, and by all of them
// together never beyond it in any window, also while a drain makes it divisible and another cell makes it too small
// again.
func TestDevCellsSmall(t *testing.T) {
	const threshold = 2
	file := filepath.Join(t.TempDir(), "plans.yaml")
	text := fmt.Sprintf("plans: [ { id: p, limits: [ { id: l, tiers: [ { period: 1s, threshold: %d } ] } ] } "+
		"]\ntenants: [ { id: acme, plan: p } ]\n"+"keys: [ { id: k, tenant: acme, hash: %s, pepper: dev } ]\n",
		threshold, identity.HashKey(identity.DevPepper(), identity.ExampleKey("acme")))
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	r := startDev(t, "--cells", "3", "--plans", file)
	state := func(name string) (s livepage.CellStatus) {
		for _, c := range dataOf(t, r.base).Cells {
			if c.Name == name {
				return c
			}
		}
		return s
	}
	g := &greedy{window: time.Second, sums: map[int64]int{}, cells: map[string]int{}}
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	defer all.Wait()
	defer cancel()
	hammer := func(name string) string {
		until(t, name+" serves", func() bool {
			c := state(name)
			return c.State == "active" && c.Phase == "steady" &&
				c.URL != ""
		})
		base := state(name).URL
		all.Go(func() { g.hammer(ctx, base, identity.ExampleKey("acme")) })
		return base
	}
	everyCellGrants := func(when string, bases ...string) {
		t.Helper()
		g.mu.Lock()
		clear(g.cells)
		g.mu.Unlock()
		until(t, when+" every cell grants the limit", func() bool {
			g.mu.Lock()
			defer g.mu.Unlock()
			return !slices.ContainsFunc(bases, func(base string) bool { return g.cells[base] == 0 })
		})
	}
	one, two, three := hammer("cell-1"), hammer("cell-2"), hammer("cell-3")
	everyCellGrants("with three cells", one, two, three)
	operateOn(t, r.base, "cell", "drain", "cell-3", "--reason", "a test")
	until(t, "cell-3 is drained", func() bool { return state("cell-3").State == "drained" })
	everyCellGrants("divided between two cells", one, two)
	operateOn(t, r.base, "cell", "add", "cell-4", "--weight", "2", "--reason", "a test")
	four := hammer("cell-4")
	everyCellGrants("with another cell", one, two, four)
	cancel()
	all.Wait()
	most := 0
	for _, w := range slices.Sorted(maps.Keys(g.sums)) {
		if most = max(most, g.sums[w]); g.sums[w] > threshold {
			t.Errorf("window %d: %d requests were admitted by all cells together, and the limit is %d", w, g.sums[w],
				threshold)
		}
	}
	if most < threshold {
		t.Errorf("at most %d of %d requests were admitted in a window", most, threshold)
	}
	if err := r.finish(t); err != nil {
		t.Error(err)
	}
}

// Guarantees that a start on a data folder says it where the cells that run are not those that the command line or
// 'cell list' has, and that a cell which does not run is refused with those that do.
func TestDevCellsFromBefore(t *testing.T) {
	dir := t.TempDir()
	for _, tt := range []struct{ cells, says, run string }{
		{"2", "", "cell-1, cell-2"},
		{"a", `not the cells of --cells" cells="cell-1 cell-2"`, "cell-1, cell-2"},
		{"", `do not run, and one cell has all limits" cells="cell-1 cell-2"`, "local"},
	} {
		r := startDev(t, "--data", dir, "--cells", tt.cells)
		if got := r.stderr.String(); !strings.Contains(got, tt.says) || tt.says == "" && strings.Contains(got, "WARN") {
			t.Errorf("--cells %q: want %q, got\n%s", tt.cells, tt.says, got)
		}
		peek := sluice(t, "", "peek", "globex", "--cell", "gone", "--endpoint", r.base+"/_sluice/admin")
		if want := `no cell "gone" runs in this 'sluice dev'; name one of ` + tt.run +
			" with --cell"; peek.code != exitFailed ||
			!strings.Contains(peek.stderr, want) {
			t.Errorf("peek with --cells %q: %d %q, want %q", tt.cells, peek.code, peek.stderr, want)
		}
		if err := r.finish(t); err != nil {
			t.Fatal(err)
		}
	}
}

// Guarantees that a start that fails says why and nothing else: what it had begun ends without a word.
func TestDevFailsInOneLine(t *testing.T) {
	dir := t.TempDir()
	if r := sluice(t, "", "dev", "--listen", "127.0.0.1:0", "--plans", dir); r.code != exitFailed ||
		r.stderr != "sluice: "+dir+": cannot be read: is a directory\n" {
		t.Errorf("a folder for a plans file: %d %q", r.code, r.stderr)
	}
}

// Guarantees that a wrong number or name of cells is a wrong command line.
func TestDevCellsFlag(t *testing.T) {
	for _, text := range []string{"0", "65", "-1", "a,a", "a/b", "pin.x", "a,", "@shares"} {
		if r := sluice(t, "", "dev", "--cells", text); r.code != exitUsage {
			t.Errorf("--cells %q: exit %d, want %d: %s", text, r.code, exitUsage, r.stderr)
		}
	}
	if r := sluice(t, "", "dev", "--cells", "2", "--redis", "x"); r.code != exitUsage {
		t.Errorf("--cells with --redis: exit %d, want %d", r.code, exitUsage)
	}
}
