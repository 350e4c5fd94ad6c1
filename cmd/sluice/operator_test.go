package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluicelimits/sluice/internal/control/embedded"
	"github.com/sluicelimits/sluice/internal/control/operate"
	"github.com/sluicelimits/sluice/internal/limiter/store/memory/memorytest"
	"github.com/sluicelimits/sluice/internal/plan"
	"github.com/sluicelimits/sluice/internal/request/identity"
	"github.com/sluicelimits/sluice/internal/testkit/golden"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// operated starts control tables and a cell for the commands, as `sluice dev` has them, and returns the endpoint.
func operated(t *testing.T) (endpoint string) {
	t.Helper()
	tables, err := embedded.Open(filepath.Join(t.TempDir(), "control"))
	if err != nil {
		t.Fatal(err)
	}
	tables.Unsynced()
	t.Cleanup(func() { _ = tables.Close() })
	log := slog.New(slog.DiscardHandler)
	s := operate.NewControl(operate.ControlConfig{Tables: tables, Log: log,
		Hash: func(_ context.Context, key string) (string, string, error) {
			return identity.DevPepperID, identity.HashKey(identity.DevPepper(), key), nil
		}})
	store := memorytest.New(t)
	config, err := loadPlans(new(cobra.Command), []string{"testdata/operator/plans.yaml"})
	if err != nil {
		t.Fatal(err)
	}
	o := operate.NewCell(operate.CellConfig{Cell: "local", Store: store, Tables: tables, Log: log,
		Tenant: func(_ context.Context,
			id string) (*plan.Tenant, error) {
			tenant, _ := config.Tenant(id)
			return tenant, nil
		}})
	mux := http.NewServeMux()
	mux.Handle("/_sluice/admin/ops/local/", http.StripPrefix("/_sluice/admin/ops/local",
		operate.Local(o.Mux(), "ann@local")))
	mux.Handle("/_sluice/admin/", http.StripPrefix("/_sluice/admin", operate.Local(s.Mux(), "ann@local")))
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	t.Setenv("SLUICE_ENDPOINT", server.URL+"/_sluice/admin")
	return server.URL + "/_sluice/admin"
}

// moments matches times and ids, which differ in each run, with the spaces that a table puts behind them.
var moments = regexp.MustCompile(`20[0-9]{2}-[0-9]{2}-[0-9]{2}T[0-9:]{8}(\.[0-9]+)?Z|20[0-9]{6}T[0-9]{6}` +
	`Z-[0-9a-f]{16}|[0-9a-f]{64}`)

// Guarantees the exact output of each operators' command, as tables and as JSON.
func TestOperatorCommands(t *testing.T) {
	operated(t)
	plans := filepath.Join("testdata", "operator", "plans.yaml")
	changed := filepath.Join("testdata", "operator", "changed.yaml")
	var all strings.Builder
	for _, line := range [][]string{
		{"plan", "diff", plans},
		{"plan", "apply", plans, "--reason", "the first plans"},
		{"plan", "apply", plans, "--reason", "again"},
		{"plan", "list"},
		{"plan", "get", "pro"},
		{"plan", "diff", changed},
		{"plan", "apply", changed, "--reason", "no yes"},
		{"plan", "apply", "--dry-run", "--json", changed},
		{"plan", "apply", "--prune", changed, "--reason", "no yes"},
		{"plan", "apply", "--prune", "--yes", changed, "--reason", "free ends"},
		{"plan", "get", "free"},
		{"tenant", "list"},
		{"tenant", "set", "acme", "--override", "{ id: burst, burst: 800 }", "--reason", "launch"},
		{"tenant", "set", "acme", "--override", "{ id: burst, burst: 800 }", "--expect", "1", "--reason", "too late"},
		{"boost", "add", "acme", "burst", "--factor", "2", "--until", "2027-06-01T00:00:00Z", "--reason", "launch"},
		{"tenant", "suspend", "acme", "--reason", "invoice 4711"},
		{"tenant", "get", "acme"},
		{"tenant", "resume", "acme", "--reason", "paid"},
		{"boost", "remove", "acme", "burst", "--reason", "over"},
		{"tenant", "get", "nobody"},
		{"key", "revoke", "none", "--reason", "x"},
		{"cell", "add", "eu-1", "--weight", "3", "--reason", "first"},
		{"cell", "list"},
		{"cell", "remove", "eu-1", "--reason", "x"},
		{"cell", "drain", "eu-1", "--reason", "moved"},
		{"pace-plan", "set", "provider", "--total", "1000/s", "--instances", "96", "--reason", "their contract"},
		{"pace-plan", "set", "provider", "--total", "500/s", "--instances", "96", "--from", "2026-01-01T00:00:00Z",
			"--reason", "too late"},
		{"pace-plan", "set", "provider", "--total", "500/s", "--instances", "96", "--expect", "1", "--reason", "less"},
		{"pace-plan", "set", "provider", "--total", "500/m", "--instances", "96", "--reason", "another period"},
		{"pace-plan", "set", "provider", "--total", "500/s", "--instances", "96", "--expect", "1", "--reason", "again"},
		{"pace-plan", "get", "provider"},
		{"pace-plan", "get", "nobody"},
		{"pace-plan", "list"},
		{"pace-plan", "remove", "provider", "--reason", "no yes"},
		{"pace-plan", "remove", "provider", "--yes", "--expect", "1", "--reason", "too late"},
		{"pace-plan", "remove", "provider", "--yes", "--reason", "the contract has ended"},
		{"pace-plan", "remove", "provider", "--yes", "--reason", "again"},
		{"pace-plan", "get", "provider"},
		{"pace-plan", "list"},
		{"plan", "promote", "pro", "writes", "--reason", "a quiet week"},
		{"cell", "status"},
		{"counter", "peek", "acme"},
		{"counter", "reset", "acme", "burst", "--reason", "their loop is fixed"},
		{"counter", "refund", "acme", "monthly", "--units", "5", "--reason", "our outage"},
		{"counter", "refund", "acme", "burst", "--units", "5", "--reason", "our outage"},
		{"counter", "peek", "nobody", "--json"},
	} {
		r := sluice(t, "", line...)
		all.WriteString("$ sluice " + strings.Join(line, " ") + "\n" + r.stdout + r.stderr)
		if r.code != 0 {
			all.WriteString("exit status " + string(rune('0'+r.code)) + "\n")
		}
	}
	golden.Check(t, "operator/session.golden", moments.ReplaceAllString(all.String(), "…"))
}

// Guarantees that an operator is shown which items of the cells cannot be read, and what they belong to.
func TestUnreadableCells(t *testing.T) {
	for want, u := range map[string]operate.UnreadableCell{
		`cannot be read, so it is not carried out: placed.0a, version 7, the placement of tenant b <c>: ` +
			`unknown layout 2`: {
			Key: "placed.0a", Tenant: "b <c>", Version: 7, Error: "unknown layout 2"},
		`cannot be read, so it is not carried out: us-1, version 1: no JSON`: {Key: "us-1", Version: 1,
			Error: "no JSON"},
		`cannot be read, so it is not carried out: cells/"odd": attribute layout is 2`: {Error: `cells/"odd": ` +
			`attribute layout is 2`},
	} {
		if got := unreadable(&u); got != want {
			t.Errorf("%+v is printed as\n%s\nwant\n%s", u, got, want)
		}
	}
}

// Guarantees that a key is printed once, is the one whose hash is stored, and is in no other output, whether the server
// or the command made it.
func TestStoredKeys(t *testing.T) {
	operated(t)
	if r := sluice(t, "", "plan", "apply", filepath.Join("testdata", "operator", "plans.yaml"), "--reason",
		"x"); r.code != 0 {
		t.Fatal(r.stderr)
	}
	pepper := filepath.Join(t.TempDir(), "pepper")
	if err := os.WriteFile(pepper, []byte("a pepper of our own"), 0o600); err != nil {
		t.Fatal(err)
	}
	for id, c := range map[string]struct {
		flags  []string
		pepper []byte
	}{"there": {nil, identity.DevPepper()}, "here": {[]string{"--pepper", "own=" + pepper},
		[]byte("a pepper of our own")}} {
		r := sluice(t, "", append([]string{"key", "create", "--tenant", "acme", "--id", id, "--reason", "pipeline"},
			c.flags...)...)
		key := strings.TrimSuffix(r.stdout, "\n")
		if r.code != 0 || identity.CheckKey(key) != nil || strings.Contains(r.stderr, key) {
			t.Fatalf("key create: %+v", r)
		}
		list := sluice(t, "", "key", "list", "--json", "--tenant", "acme")
		if !strings.Contains(list.stdout, identity.HashKey(c.pepper, key)) || strings.Contains(list.stdout, key) {
			t.Errorf("the list is %s", list.stdout)
		}
		again := sluice(t, "", append([]string{"key", "create", "--tenant", "acme", "--id", id, "--reason", "pipeline",
			"--json"}, c.flags...)...)
		if again.code != exitConflict || strings.Contains(again.stdout+again.stderr, "slk_") {
			t.Errorf("a second key of the same id: %+v", again)
		}
		r = sluice(t, "", append([]string{"key", "create", "--tenant", "acme", "--reason", "pipeline", "--json"},
			c.flags...)...)
		var made struct{ Key string }
		if err := json.Unmarshal([]byte(r.stdout), &made); err != nil || identity.CheckKey(made.Key) != nil ||
			strings.Count(r.stdout+r.stderr, made.Key) != 1 {
			t.Errorf("key create --json: %+v, %v", r, err)
		}
		if r := sluice(t, "", "key", "revoke", made.Key, "--reason", "x"); r.code != exitUsage ||
			strings.Contains(r.stderr, made.Key) {
			t.Errorf("revoke by the key itself: %+v", r)
		}
		if r := sluice(t, "", "key", "revoke", id, "--reason", "leaked"); r.code != 0 {
			t.Errorf("key revoke: %+v", r)
		}
	}
	if r := sluice(t, "", "key", "list"); strings.Count(r.stdout, "revoked") != 2 ||
		strings.Count(r.stdout, "valid") != 2 {
		t.Errorf("the list is\n%s", r.stdout)
	}
}

// Guarantees that a rotation makes a key of the same tenant and subject, and that the old key is accepted until the
// overlap has passed; without an overlap, it is revoked.
func TestKeyRotate(t *testing.T) {
	operated(t)
	for _, args := range [][]string{
		{"plan", "apply", filepath.Join("testdata", "operator", "plans.yaml"), "--reason", "x"},
		{"key", "create", "--tenant", "acme", "--subject", "ci", "--id", "old", "--reason", "x"},
		{"key", "create", "--tenant", "acme", "--id", "soon", "--expires",
			time.Now().Add(time.Hour).UTC().Format(time.RFC3339), "--reason", "x"},
	} {
		if r := sluice(t, "", args...); r.code != 0 {
			t.Fatalf("%q: %s", args, r.stderr)
		}
	}
	rotate := func(id string, args ...string) (old, made keyBody, key string) {
		t.Helper()
		r := sluice(t, "", append([]string{"key", "rotate", id, "--reason", "once a year", "--json"}, args...)...)
		var out rotated
		if err := json.Unmarshal([]byte(r.stdout), &out); err != nil || r.code != 0 || out.Replaced == nil {
			t.Fatalf("key rotate %s: %+v", id, r)
		}
		if strings.Count(r.stdout+r.stderr, out.Key) != 1 || identity.CheckKey(out.Key) != nil {
			t.Errorf("key rotate %s: %+v", id, r)
		}
		_, old = stateOfKey(out.Replaced, time.Now())
		_, made = stateOfKey(out.Item, time.Now())
		return old, made, out.Key
	}
	old, made, _ := rotate("old", "--overlap", "7d")
	if in := time.Until(old.Expires); old.Revoked || in < 167*time.Hour || in > 168*time.Hour ||
		made.Tenant != "acme" || made.Subject != "ci" || !made.Expires.IsZero() {
		t.Errorf("the old key is %+v, the new one %+v; want an overlap of 7 days", old, made)
	}
	if old, _, _ := rotate("soon", "--overlap", "2d"); time.Until(old.Expires) > time.Hour {
		t.Errorf("a rotation extends a key to %s", old.Expires)
	}
	if old, _, _ := rotate("old", "--overlap", "0s"); !old.Revoked {
		t.Errorf("without an overlap the old key is %+v", old)
	}
	r := sluice(t, "", "key", "rotate", "old", "--reason", "again")
	if r.code != exitFailed || !strings.Contains(r.stderr, "key old is revoked: nothing was written") {
		t.Errorf("a revoked key: %+v", r)
	}
	if r := sluice(t, "", "key", "rotate", "none", "--reason", "x"); r.code != exitFailed || r.stdout != "" {
		t.Errorf("a key that does not exist: %+v", r)
	}
	r = sluice(t, "", "key", "rotate", "soon", "--overlap", "1h", "--reason", "x")
	if key := strings.TrimSpace(r.stdout); r.code != 0 || identity.CheckKey(key) != nil ||
		!strings.Contains(r.stderr, "the old key soon is accepted until 20") || strings.Contains(r.stderr, key) {
		t.Errorf("key rotate: %+v", r)
	}
	end := regexp.MustCompile(`accepted until .*`).FindString(r.stderr)
	r = sluice(t, "", "key", "rotate", "soon", "--overlap", "7d", "--reason", "x")
	if end == "" || !strings.Contains(r.stderr, end) {
		t.Errorf("key rotate says %q, want the end that the key had before: %q", r.stderr, end)
	}
}

// Guarantees that a rotation ends the old key only as it was read: not if another operator has changed it meanwhile.
func TestKeyRotateExpectsWhatItRead(t *testing.T) {
	revoked := make(chan operate.KeyRequest, 1)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		old := `{"table":"keys","key":"old","version":3,"body":{"tenant":"acme"}}`
		switch r.URL.Path {
		case "/documents/get":
			_, _ = io.WriteString(w, old)
		case "/keys/create":
			_, _ = io.WriteString(w, `{"key":"slk_x","item":`+old+`}`)
		case "/keys/revoke":
			var request operate.KeyRequest
			if err := json.NewDecoder(r.Body).Decode(&request); err != nil {
				t.Error(err)
			}
			revoked <- request
			_, _ = io.WriteString(w, old)
		}
	}))
	t.Cleanup(server.Close)
	t.Setenv("SLUICE_ENDPOINT", server.URL)
	if r := sluice(t, "", "key", "rotate", "old", "--reason", "x"); r.code != 0 {
		t.Fatalf("key rotate: %+v", r)
	}
	if r := <-revoked; r.ID != "old" || r.Expect == nil || *r.Expect != 3 {
		t.Errorf("the old key is ended by %+v, want it only at version 3", r)
	}
}

// A wrong command line has another exit status than a refusal by the server, and changes nothing.
func TestOperatorUsage(t *testing.T) {
	t.Setenv("SLUICE_ENDPOINT", "http://127.0.0.1:1/") // nobody listens there
	for _, args := range [][]string{
		{"plan", "apply"},
		{"plan", "apply", "testdata/operator/plans.yaml"},
		{"tenant", "suspend", "acme"},
		{"tenant", "suspend", "acme", "--reason", "two\nlines"},
		{"tenant", "set", "acme", "--reason", "x"},
		{"tenant", "set", "acme", "--reason", "x", "--override", "burst=3"},
		{"tenant", "set", "acme", "--reason", "x", "--cells", "a", "--all-cells"},
		{"boost", "add", "acme", "burst", "--reason", "x"},
		{"boost", "add", "acme", "burst", "--reason", "x", "--for", "1h", "--until", "2027-01-01T00:00:00Z"},
		{"boost", "add", "acme", "burst", "--reason", "x", "--for", "1h", "--factor", "twice"},
		{"boost", "add", "acme", "burst", "--reason", "x", "--until", "tomorrow"},
		{"counter", "refund", "acme", "burst", "--reason", "x"},
		{"counter", "peek"},
		{"counter", "reset", "acme", "--reason", "x"},
		{"cell", "add", "c", "--weight", "0", "--reason", "x"},
		{"plan", "list", "--endpoint", "http://example.com"},
		{"plan", "list", "--endpoint", "nowhere"},
		{"key", "create", "--tenant", "acme", "--json"},
		{"plan", "promote", "pro"},
		{"pace-plan", "set", "a", "--instances", "2", "--reason", "x"},
		{"pace-plan", "set", "a", "--total", "fast", "--instances", "2", "--reason", "x"},
		{"pace-plan", "set", "a", "--total", "0/s", "--instances", "2", "--reason", "x"},
		{"pace-plan", "set", "a", "--total", "5/s", "--reason", "x"},
		{"pace-plan", "set", "a", "--total", "5/s", "--instances", "2", "--from", "tomorrow", "--reason", "x"},
		{"pace-plan", "set", "a", "--total", "5/s", "--instances", "2"},
		{"pace-plan", "remove", "a", "--yes"},
		{"pace-plan", "remove", "--yes", "--reason", "x"},
	} {
		if r := sluice(t, "", args...); r.code != exitUsage {
			t.Errorf("sluice %q exits %d: %s", args, r.code, r.stderr)
		}
	}
	for want, args := range map[string][]string{
		"want TENANT LIMIT, got 1 argument":    {"counter", "reset", "acme", "--reason", "x"},
		"want TENANT [LIMIT], got 0 arguments": {"counter", "peek"},
		`(did you mean "rate"?)`: {"tenant", "set", "acme", "--reason", "x", "--override",
			"{ id: burst, rats: 5 }"},
	} {
		if r := sluice(t, "", args...); !strings.Contains(r.stderr, want) {
			t.Errorf("sluice %q: %s, want %q", args, r.stderr, want)
		}
	}
	r := sluice(t, "", "plan", "list", "--json")
	if r.code != exitFailed || !strings.Contains(r.stdout, `"error"`) || !strings.Contains(r.stderr, "127.0.0.1:1") {
		t.Errorf("without an answer: %+v", r)
	}
	bad := filepath.Join(t.TempDir(), "bad.yaml")
	if err := os.WriteFile(bad, []byte("plans:\n  - id: p\n    limits: [ { id: l, rate: 0 } ]\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if r := sluice(t, "", "plan", "apply", bad, "--reason", "x"); r.code != exitFailed ||
		!strings.Contains(r.stderr, "bad.yaml:3:") {
		t.Errorf("a bad file: %+v", r)
	}
}

// Guarantees that the help of each command says what it does, has one example or two and names a page that exists, and
// that there are few commands.
func TestHelp(t *testing.T) {
	page := regexp.MustCompile(`docs/[a-z-]+\.md`)
	var walk func(c *cobra.Command)
	walk = func(c *cobra.Command) {
		for _, inner := range c.Commands() {
			walk(inner)
		}
		if c.HasSubCommands() || c.Name() == "help" || c.HasParent() && c.Parent().Name() == "completion" {
			return
		}
		c.LocalFlags().VisitAll(func(f *pflag.Flag) {
			if _, usage := pflag.UnquoteUsage(f); strings.Contains(usage, "`") {
				t.Errorf("%s --%s: more than one name of a value has backticks, and the help prints them: %s",
					c.CommandPath(), f.Name, usage)
			}
		})
		text := sluice(t, "", append(strings.Fields(c.CommandPath())[1:], "--help")...).stdout
		name := page.FindString(c.Long)
		if _, err := os.Stat(filepath.Join("..", "..", name)); name == "" || err != nil {
			t.Errorf("the help of %s names no page: %q, %v", c.CommandPath(), name, err)
		}
		if n := strings.Count("\n"+c.Example, "\n  sluice "); n < 1 || n > 2 {
			t.Errorf("%s has %d examples, want one or two", c.CommandPath(), n)
		}
		if about, _, _ := strings.Cut(text, "\nUsage:"); strings.Count(about, "\n") > 24 {
			t.Errorf("the help of %s begins with a text of %d lines, want at most 24", c.CommandPath(),
				strings.Count(about, "\n"))
		}
	}
	root := newRootCommand()
	walk(root)
	help := sluice(t, "", "--help").stdout
	_, commands, _ := strings.Cut(help, "Available Commands:\n")
	commands, _, _ = strings.Cut(commands, "\n\n")
	if n := strings.Count(commands, "\n") + 1; n > 18 {
		t.Errorf("sluice --help names %d commands, want at most 18:\n%s", n, commands)
	}
}

// Guarantees that the help of the operators' commands does not change unnoticed.
func TestOperatorHelp(t *testing.T) {
	t.Setenv("SLUICE_ENDPOINT", "")
	var all strings.Builder
	var walk func(c *cobra.Command)
	walk = func(c *cobra.Command) {
		path := strings.Fields(c.CommandPath())[1:]
		all.WriteString("$ sluice " + strings.Join(path, " ") + " --help\n" +
			sluice(t, "", append(path, "--help")...).stdout + "\n")
		for _, inner := range c.Commands() {
			walk(inner)
		}
	}
	for _, c := range newRootCommand().Commands() {
		switch c.Name() {
		case "plan", "tenant", "boost", "counter", "cell", "key", "pace-plan":
			walk(c)
		}
	}
	golden.Check(t, "operator/help.golden", all.String())
}

// Calls to this machine are signed if a flag or a variable asks for it. Without a signature, no credentials are needed.
func TestSignHere(t *testing.T) {
	withAWS(t, "")
	var got string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		got = r.Header.Get("Authorization")
		_, _ = w.Write([]byte("{}"))
	}))
	defer server.Close()
	for _, tt := range []struct {
		variable string
		args     []string
		signed   bool
	}{
		{"", []string{"cell", "list"}, false},
		{"", []string{"cell", "list", "--sign"}, true},
		{"true", []string{"cell", "list"}, true},
		{"true", []string{"cell", "list", "--sign=false"}, false},
		{"true", []string{"counter", "peek", "acme", "--ops-endpoint", server.URL}, true},
		{"", []string{"counter", "peek", "acme", "--ops-endpoint", server.URL}, false},
	} {
		t.Setenv("SLUICE_SIGN", tt.variable)
		got = ""
		if r := sluice(t, "", append(tt.args, "--endpoint", server.URL)...); r.code != 0 {
			t.Fatal(r.stderr)
		}
		if signed := strings.HasPrefix(got, "AWS4-HMAC-SHA256 Credential=AKIAEXAMPLE/"); signed != tt.signed {
			t.Errorf("SLUICE_SIGN=%s sluice %q: signed %t (%q), want %t", tt.variable, tt.args, signed, got, tt.signed)
		}
	}
	t.Setenv("SLUICE_SIGN", "perhaps")
	if r := sluice(t, "", "cell", "list", "--endpoint", server.URL); r.code != exitUsage ||
		!strings.Contains(r.stderr, `SLUICE_SIGN is "perhaps"`) {
		t.Errorf("SLUICE_SIGN=perhaps: %d %s", r.code, r.stderr)
	}
}

// Guarantees that a stored URL of a cell, also one that an older version stored, gets a signed call only if it is an
// URL of API Gateway in the cell's region. A cell on this machine whose calls need no signature gets none.
func TestStoredOpsURLs(t *testing.T) {
	withAWS(t, "")
	var got []string
	evil := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		got = append(got, r.Header.Get("Authorization"))
		_, _ = w.Write([]byte("{}"))
	}))
	defer evil.Close()
	const good = "https://abc123.execute-api.eu-west-1.amazonaws.com/v1"
	row := operate.CellRow{Cell: "eu-1", State: "active"}
	control := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_ = json.NewEncoder(w).Encode(operate.CellsResponse{Cells: []operate.CellRow{row}})
	}))
	defer control.Close()
	for _, tt := range []struct {
		url, region string
		signed      bool
		says        string // "": the URL is called
	}{
		{evil.URL, "", true, "is not the URL of an API Gateway stage"},
		{evil.URL, "", false, ""},
		{strings.Replace(evil.URL, "http:", "https:", 1), "", true, "is not the URL of an API Gateway stage"},
		{"https://evil.example.com/v1", "", true, "is not the URL of an API Gateway stage"},
		{"https://evil.example.com/v1", "", false, "is not a URL of this machine"},
		{good + "/tenants", "", true, "is not the URL of an API Gateway stage"},
		{good, "us-east-1", true, "is in eu-west-1, and the cell is in us-east-1"},
		{good, "", false, "is not a URL of this machine"},
	} {
		row.Ops, row.Region, got = tt.url, tt.region, nil
		r := sluice(t, "", "counter", "reset", "acme", "burst", "--reason", "x", "--endpoint", control.URL,
			fmt.Sprintf("--sign=%t", tt.signed))
		if tt.says == "" {
			if r.code != 0 || len(got) != 1 || got[0] != "" {
				t.Errorf("%s, signed %t: exit code %d, calls with %q: %s", tt.url, tt.signed, r.code, got, r.stderr)
			}
			continue
		}
		if r.code != 1 || len(got) > 0 || !strings.Contains(r.stderr, tt.says) ||
			!strings.Contains(r.stderr, "nothing was sent there. Name a URL with --ops-endpoint") {
			t.Errorf("%s, signed %t: exit code %d, calls with %q: %s; want none, and %q", tt.url, tt.signed, r.code,
				got,
				r.stderr, tt.says)
		}
	}
	row = operate.CellRow{Cell: "eu-1", Ops: good, Region: "eu-west-1"}
	if err := checkStoredOps(&row, true); err != nil {
		t.Error(err)
	}
	row.Region = ""
	if err := checkStoredOps(&row, true); err != nil {
		t.Error(err)
	}
}

// Guarantees that the URL of a cell is replaced only if the operator agrees.
func TestCellAddAsks(t *testing.T) {
	operated(t)
	add := func(id string, more ...string) ran {
		url := "https://" + id + ".execute-api.eu-west-1.amazonaws.com/v1"
		return sluice(t, "", append([]string{"cell", "add", "eu-1", "--ops", url, "--reason", "x"}, more...)...)
	}
	if r := add("abc123"); r.code != 0 {
		t.Fatal(r.stderr)
	}
	if r := add("def456"); r.code != exitConfirm || !strings.Contains(r.stderr, "say yes (--yes)") {
		t.Errorf("another URL: exit code %d: %s", r.code, r.stderr)
	}
	if r := add("def456", "--yes"); r.code != 0 {
		t.Errorf("another URL with --yes: exit code %d: %s", r.code, r.stderr)
	}
	if r := add("def456"); r.code != 0 {
		t.Errorf("the same URL: exit code %d: %s", r.code, r.stderr)
	}
}

// Guarantees that calls to a deployed endpoint are signed for the correct service and region, including the body.
func TestSigning(t *testing.T) {
	withAWS(t, "")
	t.Setenv("AWS_REGION", "us-east-2")
	for url, want := range map[string][2]string{
		"https://abc.execute-api.eu-west-1.amazonaws.com/prod/apply": {"", "eu-west-1"},
		"https://admin.example.com/apply":                            {"", "us-east-2"},
		"https://other.example.com/apply":                            {"ap-south-1", "ap-south-1"},
	} {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, strings.NewReader("{}"))
		if err != nil {
			t.Fatal(err)
		}
		if err := (&signer{region: want[0]}).sign(t.Context(), r, strings.Repeat("0", 64)); err != nil {
			t.Fatal(err)
		}
		got := r.Header.Get("Authorization")
		if !strings.HasPrefix(got, "AWS4-HMAC-SHA256 Credential=AKIAEXAMPLE/") ||
			!strings.Contains(got, "/"+want[1]+"/execute-api/aws4_request") || strings.Contains(got, "example-secret") {
			t.Errorf("the call to %s has the signature %q, want region %s", url, got, want[1])
		}
	}
}

// Guarantees that what cannot be read in a control table hides nothing else: lists and the status print all the rest,
// then a line for each damaged item, and the error says how to write the item anew.
func TestDamagedItemsHideNothing(t *testing.T) {
	answers := map[string]string{
		"/documents/list": `{"items":[{"key":"acme","body":{"plan":"pro"},"version":3,"actor":"ann"}],` +
			`"damaged":["tenants/\"bad\": layout is 2\ntenants/\"worse\": version is missing"]}`,
		"/config/status": `{"documents":4,"cells":[{"cell":"eu-1","documents":4}],` +
			`"damaged":["tenants/\"bad\": layout is 2","tenants/\"worse\": version is missing"]}`,
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, answers[r.URL.Path]) // the client is this test
	}))
	t.Cleanup(server.Close)
	t.Setenv("SLUICE_ENDPOINT", server.URL)
	for _, args := range [][]string{{"tenant", "list"}, {"tenant", "list", "--json"},
		{"cell", "status"}, {"cell", "status", "--json"}} {
		got := sluice(t, "", args...)
		for _, want := range []string{"acme", "layout is 2", "version is missing"} {
			if args[0] == "cell" && want == "acme" {
				want = "eu-1"
			}
			if !strings.Contains(got.stdout, want) {
				t.Errorf("%q prints no %q:\n%s", args, want, got.stdout)
			}
		}
		if got.code != 1 || !strings.Contains(got.stderr, "forged_cell_documents.md") {
			t.Errorf("%q: exit %d, %s", args, got.code, got.stderr)
		}
	}
	got := sluice(t, "", "explain", "--path", "/product/1")
	for _, want := range []string{"? tenants/", "layout is 2", "version is missing"} {
		if !strings.Contains(got.stderr, want) {
			t.Errorf("explain says no %q:\n%s", want, got.stderr)
		}
	}
}

// Guarantees that --wait returns only when the balancer has done what was asked and no shares are changing, and that it
// says after its time what it waited for.
func TestCellCommandsWait(t *testing.T) {
	list := func(state, phase string) string {
		return `{"cells":[{"cell":"eu-1","state":"` + state + `"}],"epoch":3,"phase":"` + phase + `"}`
	}
	for _, c := range []struct {
		args     []string
		lists    []string
		code     int
		progress string
	}{
		{[]string{"drain", "--wait"}, []string{list("drained", "grow"), list("drained", "steady")}, 0,
			"state drained, phase grow"},
		{[]string{"remove", "--wait"}, []string{list("drained", "shrink"), list("removed", "steady")}, 0,
			"state drained, phase shrink"},
		{[]string{"remove", "--wait=10ms"}, []string{list("drained", "steady")}, 1, "is not removed after 10ms"},
		{[]string{"drain"}, []string{list("active", "steady")}, 0, ""},
	} {
		var asked atomic.Int64
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			answer := `{"key":"eu-1","version":2,"actor":"ann"}`
			if r.URL.Path == "/cells/list" {
				answer = c.lists[min(int(asked.Add(1)), len(c.lists))-1]
			}
			_, _ = io.WriteString(w, answer) // the client is this test
		}))
		t.Setenv("SLUICE_ENDPOINT", server.URL)
		got := sluice(t, "", append([]string{"cell", c.args[0], "eu-1", "--reason", "x"}, c.args[1:]...)...)
		if got.code != c.code || !strings.Contains(got.stderr, c.progress) {
			t.Errorf("%q: exit %d, want %d and %q: %s", c.args, got.code, c.code, c.progress, got.stderr)
		}
		server.Close()
	}
}
