package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
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
	"github.com/sluicelimits/sluice/internal/control/client"
	"github.com/sluicelimits/sluice/internal/control/operate"
	"github.com/sluicelimits/sluice/internal/dev"
	"github.com/sluicelimits/sluice/internal/dev/livepage"
	"github.com/sluicelimits/sluice/internal/request/identity"
)

// operateOn runs an operators' command against a dev, and fails the test if the command fails.
func operateOn(t *testing.T, base string, args ...string) string {
	t.Helper()
	r := sluice(t, "", append(args, "--endpoint", base+"/_sluice/admin")...)
	if r.code != 0 {
		t.Fatalf("sluice %q: %s", args, r.stderr)
	}
	return r.stdout
}

// waitUntil waits until condition returns true. It polls, since a change that crosses processes, files or cells gives
// no signal.
func waitUntil(t *testing.T, what string, condition func() bool) {
	t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for end := time.After(patience); !condition(); {
		select {
		case <-tick.C:
		case <-end:
			t.Fatalf("after %s it is still not true that %s", patience, what)
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

// A change by an operator is enforced, and shown on the live page. An entry of the plans file that did not change
// leaves the operator's change alone, and an entry that did change replaces it.
func TestDevOperators(t *testing.T) {
	t.Parallel()
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
	const fromPlan = "5" // the burst of plan free in the example
	if got := limitOf(t, r.base, globex); got != fromPlan {
		t.Fatalf("globex has a limit of %s, want %s", got, fromPlan)
	}
	operateOn(t, r.base, "tenant", "set", "globex", "--override", "{ id: burst, burst: 9 }", "--reason", "a test")
	waitUntil(t, "the raised limit is in force", func() bool { return limitOf(t, r.base, globex) == "9" })
	waitUntil(t, "the live page shows the raised limit", func() bool {
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
	waitUntil(t, "the new key works", func() bool { code, _, _ := get(t, r.base, key); return code != 401 })
	operateOn(t, r.base, "key", "revoke", "theirs", "--reason", "lost")
	waitUntil(t, "the revoked key is refused", func() bool { code, _, _ := get(t, r.base, key); return code == 401 })

	if out := sluice(t, "", "cell", "add", "x", "--reason", "a test", "--endpoint",
		r.base+"/_sluice/admin"); out.code != exitFailed || !strings.Contains(out.stderr, "--cells") {
		t.Errorf("adding a cell to a dev with a single cell: exit status %d: %s", out.code, out.stderr)
	}

	// The file changes in another place: the operator's change of globex stays. Then the file changes globex.
	write(edited(t, string(examplePlans), "burst: 5", "burst: 7"))
	waitUntil(t, "the file's change of the plan is in force", func() bool {
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
	waitUntil(t, "what the file says of globex is in force", func() bool { return limitOf(t, r.base, globex) == "8" })

	// A file that contradicts the tenants of operators is refused as a whole.
	write("plans: [ { id: other, limits: [ { id: l, tiers: [ { period: 1s, threshold: 1 } ] } ] } ]\ntenants: []\n")
	waitUntil(t, "the bad file is reported", func() bool {
		return strings.Contains(dataOf(t, r.base).Gateway.LastError, `tenant "newcomer" uses it`)
	})
	if got := limitOf(t, r.base, globex); got != "8" {
		t.Errorf("globex has a limit of %s after a bad file, want 8", got)
	}
	write("plans: [ { id: free, limits: [ { id: l, tiers: [ { period: 1s, threshold: 1 } ] } ] } ]\ntenants: []\n")
	waitUntil(t, "a tenant and its key that the file drops are gone",
		func() bool { code, _, _ := get(t, r.base, globex); return code == 401 })
	if keys := operateOn(t, r.base, "key", "list"); !strings.Contains(keys, "globex-web") {
		t.Errorf("the revoked key is missing in the list:\n%s", keys)
	}
	if err := r.finish(t); err != nil {
		t.Error(err)
	}
	if log := r.stderr.String(); strings.Contains(log, key) {
		t.Errorf("the log holds a key: %s", log)
	}
}

// A restart keeps what operators did, with the same plans file and without one, and the audit trail verifies. A record
// that was altered is reported with its place.
func TestDevRestart(t *testing.T) {
	t.Parallel()
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
		t.Errorf("a second dev on the same data: exit status %d: %s", two.code, two.stderr)
	}
	if err := r.finish(t); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"--data", dir, "--plans", file}, {"--data", dir}} {
		r := startDev(t, args...)
		if code, h, body := get(t, r.base, key); code != 200 || h.Get("X-RateLimit-Limit") != "9" {
			t.Errorf("dev %q: the new key gives status %d with a limit of %s, want 200 and 9: %s", args, code,
				h.Get("X-RateLimit-Limit"), body)
		}
		if code, _, _ := get(t, r.base, identity.ExampleKey("globex")); code != 401 {
			t.Errorf("dev %q: the revoked key gives status %d, want 401", args, code)
		}
		if err := r.finish(t); err != nil {
			t.Fatal(err)
		}
	}
	if v := sluice(t, "", "audit", "verify", "--data", dir); v.code != 0 {
		t.Fatalf("audit verify: exit status %d: %s%s", v.code, v.stdout, v.stderr)
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
		t.Errorf("audit verify of an altered trail: exit status %d: %s%s", v.code, v.stdout, v.stderr)
	}
}

// Guarantees that a start with other plans files on kept data is refused, with a list, as long as nobody confirms that
// it removes or replaces what operators or the earlier files wrote; that nothing is written then; and that an edit of
// the same file needs no confirmation.
func TestDevKeepsWhatOthersWrote(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	r := startDev(t, "--data", dir)
	operateOn(t, r.base, "tenant", "set", "globex", "--override", "{ id: burst, burst: 9 }", "--reason", "a test")
	if err := r.finish(t); err != nil {
		t.Fatal(err)
	}
	const rule = "plans: [ { id: free, limits: [ { id: burst, algorithm: token_bucket, rate: 1, period: 1s, " +
		"burst: 5 } ] } ]\n"
	file := plansFile(t, rule+
		"tenants: [ { id: globex, plan: free, suspended: true }, { id: umbrella, plan: free } ]\n")
	start := []string{"dev", "--listen", "127.0.0.1:0", "--data", dir, "--plans", file}
	for range 2 { // the first one has written nothing
		refused := sluice(t, "", start...)
		if refused.code != exitConfirm {
			t.Fatalf("exit status %d, want %d: %s", refused.code, exitConfirm, refused.stderr)
		}
		for _, want := range []string{`removes tenant "initech" (written by dev: plans file example.yaml)`,
			`removes plan "pro" (`, `removes key "acme-ci" (`, `removes limit daily`, "--yes", dir,
			`removes the override of limit burst (burst 9) from tenant "globex" (written by `, ": a test)"} {
			if !strings.Contains(refused.stderr, want) {
				t.Errorf("the refusal does not contain %q: %s", want, refused.stderr)
			}
		}
	}
	r = startDev(t, append(start[3:], "--yes")...)
	for range 2 {
		if err := r.finish(t); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(rule+"tenants: [ { id: globex, plan: free } ]\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		r = startDev(t, start[3:]...)
		if out := operateOn(t, r.base, "tenant", "list"); strings.Contains(out, "umbrella") ||
			strings.Contains(out, "initech") || !strings.Contains(out, "globex") {
			t.Errorf("the tenants are %s, want globex only", out)
		}
	}
}

// Guarantees that plans without keys are greeted with a command that creates a key, and that it works as printed.
func TestDevFirstKey(t *testing.T) {
	t.Parallel()
	r := startDev(t, "--plans", plansFile(t, "plans: [ { id: p, limits: [] } ]\ntenants: [ { id: acme, plan: p } ]\n"))
	found := regexp.MustCompile(`KEY=\$\(sluice (key create --tenant acme) --reason 'first key' --endpoint (\S+)\)`).
		FindStringSubmatch(r.stdout.String())
	if found == nil || !strings.Contains(r.stdout.String(), `curl -i -H "X-API-Key: $KEY" `+r.base+"/product/1") {
		t.Fatalf("no command to create a key is printed: %s", r.stdout)
	}
	made := sluice(t, "", append(strings.Fields(found[1]), "--reason", "first key", "--endpoint", found[2])...)
	if made.code != 0 {
		t.Fatalf("exit status %d: %s", made.code, made.stderr)
	}
	waitUntil(t, "a call with the key is admitted", func() bool {
		code, _, _ := get(t, r.base, strings.TrimSpace(made.stdout))
		return code == 200
	})
}

// A kill during a burst of writes loses no write that was acknowledged, in the tables and in the audit trail. The next
// start completes the trail, and its chain verifies.
func TestDevKilled(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	p := startProcess(t, "--data", dir)
	u, err := url.Parse(p.base + dev.AdminPath)
	if err != nil {
		t.Fatal(err)
	}
	to, err := dev.Client(u)
	if err != nil {
		t.Fatal(err)
	}
	const writers, enough = 8, 60
	var acknowledged [writers]atomic.Int64 // the newest version of each writer's tenant
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
				item, err := client.Do(ctx, to, operate.SetTenant, &operate.SetTenantRequest{
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
		t.Fatalf("only %d writes in a minute", total.Load())
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
			t.Fatalf("decode the tenant: %v in %s", err, out)
		}
		if want := acknowledged[i].Load(); got.Version < want || got.Version > want+1 {
			t.Errorf("tenant t%d is at version %d after the kill, but version %d was acknowledged", i, got.Version,
				want)
		}
	}
	if err := r.finish(t); err != nil {
		t.Fatal(err)
	}
	if v := sluice(t, "", "audit", "verify", "--data", dir); v.code != 0 {
		t.Errorf("audit verify: exit status %d: %s%s", v.code, v.stdout, v.stderr)
	}
}

// greedy counts the admitted calls of clients that send more than their limit. It knows of each answer between which
// times the decision was made.
type greedy struct {
	window time.Duration
	mu     sync.Mutex
	sums   map[int64]int  // window → calls that were certainly admitted in it
	cells  map[string]int // URL of a cell → calls that it admitted
}

// pauseAfterDenial keeps the clients of [greedy] from taking the processors from the cells. Each still makes far more
// calls in a second than any limit here allows.
const pauseAfterDenial = 5 * time.Millisecond

// callUntilGone calls a cell until ctx ends, or until the cell is gone.
func (g *greedy) callUntilGone(ctx context.Context, base, key string) {
	for ctx.Err() == nil {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, base+"/", nil)
		if err != nil {
			return
		}
		req.Header.Set("X-API-Key", key)
		from := time.Now()
		code, _, _, err := send(req)
		if err != nil {
			return // the cell has gone, or the test has ended
		}
		to := time.Now()
		if code != http.StatusOK {
			select {
			case <-ctx.Done():
			case <-time.After(pauseAfterDenial):
			}
			continue
		}
		g.mu.Lock()
		g.cells[base]++
		if w := from.UnixMicro() / g.window.Microseconds(); w == to.UnixMicro()/g.window.Microseconds() {
			g.sums[w]++
		}
		g.mu.Unlock()
	}
}

// Cells that share a limit never admit more than the limit together in any window, while clients ask each of them for
// more, one cell is drained and another is added. The calls are real requests.
func TestDevCells(t *testing.T) {
	t.Parallel()
	const threshold = 30 // clients send several times as many, also on a busy machine
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
		t.Fatalf("the output names %d cells:\n%s", len(urls), r.stdout)
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
		waitUntil(t, u[1]+" serves", func() bool {
			return state(u[1]).State == "active" &&
				state(u[1]).Phase == "steady"
		})
	}
	g := &greedy{window: time.Second, sums: map[int64]int{}, cells: map[string]int{}}
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	defer all.Wait()
	defer cancel()
	for _, u := range urls {
		for range 2 {
			all.Go(func() { g.callUntilGone(ctx, u[2], identity.ExampleKey("acme")) })
		}
	}
	operateOn(t, r.base, "cell", "drain", "cell-3", "--reason", "a test")
	waitUntil(t, "cell-3 is drained", func() bool { return state("cell-3").State == "drained" })
	operateOn(t, r.base, "cell", "add", "cell-4", "--weight", "2", "--reason", "a test")
	waitUntil(t, "cell-4 serves", func() bool { c := state("cell-4"); return c.State == "active" && c.URL != "" })
	added := state("cell-4").URL
	for range 2 {
		all.Go(func() { g.callUntilGone(ctx, added, identity.ExampleKey("acme")) })
	}
	waitUntil(t, "shares sum to the limit, and clients of the new cell have theirs", func() bool {
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
	waitUntil(t, "cell-3 is gone", func() bool {
		return state("cell-3").State == "removed" &&
			state("cell-3").URL == ""
	})
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
		t.Errorf("at most %d of %d requests were admitted in a window: the clients send too little to test the limit",
			most, threshold)
	}
	if err := r.finish(t); err != nil {
		t.Error(err)
	}
}

// If the cells that run are not those of the command line or of 'cell list', a start on a data folder says so. A
// command for a cell that does not run is refused, and the error names the cells that run.
func TestDevCellsFromBefore(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, tt := range []struct{ cells, says, run string }{
		{"2", "", "cell-1, cell-2"},
		{"a", `not the cells of --cells" cells="cell-1 cell-2"`, "cell-1, cell-2"},
		{"", `do not run, and one cell has all limits" cells="cell-1 cell-2"`, "local"},
	} {
		r := startDev(t, "--data", dir, "--cells", tt.cells)
		if got := r.stderr.String(); !strings.Contains(got, tt.says) || tt.says == "" && strings.Contains(got, "WARN") {
			t.Errorf("--cells %q: want the output to contain %q, got\n%s", tt.cells, tt.says, got)
		}
		peek := sluice(t, "", "counter", "peek", "globex", "--cell", "gone", "--endpoint", r.base+"/_sluice/admin")
		if want := `no cell "gone" runs in this 'sluice dev'; name one of ` + tt.run +
			" with --cell"; peek.code != exitFailed ||
			!strings.Contains(peek.stderr, want) {
			t.Errorf("peek with --cells %q: exit status %d, %q; want %q", tt.cells, peek.code, peek.stderr, want)
		}
		if err := r.finish(t); err != nil {
			t.Fatal(err)
		}
	}
}

// Guarantees that a failed start prints what is wrong, where, and what to do, and nothing else: what has started
// already ends without output.
func TestDevSaysOnlyWhyItFails(t *testing.T) {
	dir := t.TempDir()
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	port := taken.Addr().String()
	none, bad := filepath.Join(dir, "none.yaml"), plansFile(t, "plans: 3\n")
	for want, args := range map[string][]string{
		dir + ": cannot be read: is a directory: give the names of its files\n" +
			"sluice: 1 problem\n": {"--plans", dir},
		none + ": cannot be read: there is no such file: correct the name, or create the file\n" +
			"sluice: 1 problem\n": {"--plans", none},
		bad + ":1:8: plans: want a list of plans, got the integer 3\n" +
			"sluice: 1 problem\n": {"--plans", bad},
		"sluice: listen on " + port + ": another program uses that port, perhaps a 'sluice dev' or 'sluice serve' " +
			"that still runs. End it, or choose another port with --listen\n": {"--listen", port},
	} {
		r := sluice(t, "", append([]string{"dev", "--listen", "127.0.0.1:0"}, args...)...)
		if r.code != exitFailed || r.stderr != want {
			t.Errorf("dev %q: exit code %d: %q, want %q", args, r.code, r.stderr, want)
		}
	}
}

// A wrong number or a wrong name in --cells is a usage error.
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

// Guarantees that a start that is refused until it is confirmed says first what will stop it then: here a tenant of an
// operator has a plan that the other file does not have.
func TestDevSaysFirstWhatStopsAStart(t *testing.T) {
	folder := t.TempDir()
	for name, text := range map[string]string{"a.yaml": "free", "b.yaml": "gold"} {
		write(t, filepath.Join(folder, name), "plans: [ { id: "+text+", limits: [ { id: burst, algorithm: "+
			"token_bucket, rate: 5, period: 1s } ] } ]\ntenants: [ { id: "+text+"-1, plan: "+text+" } ]\n")
	}
	start := []string{"--data", filepath.Join(folder, "data"), "--plans"}
	dev := startDev(t, append(start, filepath.Join(folder, "a.yaml"))...)
	if got := sluice(t, "", "tenant", "set", "zed", "--create", "--plan", "free", "--reason", "x", "--endpoint",
		dev.base+"/_sluice/admin"); got.code != 0 {
		t.Fatalf("exit %d: %s", got.code, got.stderr)
	}
	if err := dev.finish(t); err != nil {
		t.Fatal(err)
	}
	start = append([]string{"dev", "--listen", "127.0.0.1:0"}, append(start, filepath.Join(folder, "b.yaml"))...)
	got := sluice(t, "", start...)
	const stops = `plan "free": tenant "zed" uses it`
	if got.code != 5 || !strings.Contains(got.stderr, stops) ||
		strings.Index(got.stderr, stops) > strings.Index(got.stderr, "removes ") {
		t.Errorf("exit %d, want 5 and first %s:\n%s", got.code, stops, got.stderr)
	}
	if got = sluice(t, "", append(start, "--yes")...); got.code != 1 || !strings.Contains(got.stderr, stops) {
		t.Errorf("with --yes: exit %d, want 1 and %s:\n%s", got.code, stops, got.stderr)
	}
}
