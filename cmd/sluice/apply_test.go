package main

import (
	"bytes"
	"encoding/json"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluicelimits/sluice/internal/control/client"
)

// everything is a plans file with each section that a control plane stores.
const everything = `
plans:
  - id: pro
    limits:
      - { id: burst, algorithm: token_bucket, rate: 100, period: 1s, burst: 200 }
      - { id: writes, match: { methods: [PUT] }, tiers: [ { period: 1s, threshold: 5 }, { period: 1m,
        threshold: 60 } ], onStoreFailure: closed }
  - { id: public, limits: [ { id: per-ip, per: ip, algorithm: token_bucket, rate: 5, period: 1s } ] }
tenants:
  - { id: acme, plan: pro, cells: [eu-1] }
  - { id: tiny, plan: pro, overrides: [ { id: writes, mode: shadow } ] }
ipLimits:
  - { id: per-address, algorithm: token_bucket, rate: 50, period: 1s, burst: 100 }
  - { id: per-hour, algorithm: sliding_window, threshold: 9000, period: 1h }
ipv6Prefix: 56
anonymousPlan: public
routes:
  - { methods: [GET, PUT], pathPattern: "/product/*" }
  - { pathPattern: "/health" }
keys:
  - { id: k1, tenant: acme, subject: ci, hash: 0f1e2d3c4b5a69788796a5b4c3d2e1f00f1e2d3c4b5a69788796a5b4c3d2e1f0,
    pepper: dev, expires: 2030-01-01T00:00:00Z }
`

// plansFile writes a plans file and returns its path.
func plansFile(t *testing.T, text string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "plans.yaml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// must runs a command that has to succeed, and returns what it prints.
func must(t *testing.T, args ...string) string {
	t.Helper()
	r := sluice(t, "", args...)
	if r.code != 0 {
		t.Fatalf("sluice %q exits %d: %s%s", args, r.code, r.stdout, r.stderr)
	}
	return r.stdout
}

// applyAll writes a file to the control tables, with --yes.
func applyAll(t *testing.T, text string) {
	t.Helper()
	must(t, "plan", "apply", plansFile(t, text), "--yes", "--reason", "the first plans")
}

// stored returns what is in the control tables: bodies by table and key.
func stored(t *testing.T) map[string]string {
	t.Helper()
	out := map[string]string{}
	for table, command := range map[string]string{"plans": "plan", "tenants": "tenant", "keys": "key"} {
		var list struct {
			Items []struct {
				Key  string
				Body json.RawMessage
			}
		}
		if err := json.Unmarshal([]byte(must(t, command, "list", "--json")), &list); err != nil {
			t.Fatal(err)
		}
		for _, i := range list.Items {
			var flat bytes.Buffer
			if err := json.Compact(&flat, i.Body); err != nil {
				t.Fatal(err)
			}
			out[table+"/"+i.Key] = flat.String()
		}
	}
	if r := sluice(t, "", "plan", "get", "@settings"); r.code == 0 {
		_, out["plans/@settings"], _ = strings.Cut(r.stdout, "\n") // without the line about who wrote it
	}
	return out
}

// sameStored fails the test unless the stored items are the same as before, except for the named ones.
func sameStored(t *testing.T, before map[string]string, apart ...string) {
	t.Helper()
	after := stored(t)
	for _, key := range slices.Sorted(maps.Keys(before)) {
		if after[key] != before[key] && !slices.Contains(apart, key) {
			t.Errorf("%s is now %q, want it to stay %q", key, after[key], before[key])
		}
	}
}

// An apply does not change what its files do not name: whole documents, sections of the settings, entries of such a
// section, and members of a tenant or key, whoever has set them. The diff lists what stays.
func TestApplyLeavesWhatFilesDoNotName(t *testing.T) {
	operated(t)
	applyAll(t, everything)
	must(t, "tenant", "set", "acme", "--override", "{ id: burst, rate: 500 }", "--reason", "contract 4711")
	must(t, "boost", "add", "acme", "burst", "--factor", "2", "--for", "48h", "--reason", "launch")
	must(t, "tenant", "suspend", "acme", "--reason", "invoice 4712")
	must(t, "key", "revoke", "k1", "--reason", "leaked")
	for _, tt := range []struct {
		name, file string
		changes    []string
	}{
		{"a new plan", "plans: [ { id: basic, limits: [ { id: l, tiers: [ { period: 1s, threshold: 1 } ] } ] } ]\n",
			nil},
		{"a tenant by its plan alone", "tenants: [ { id: acme, plan: pro }, { id: tiny, plan: pro } ]\n", nil},
		{"a tenant by its id alone", "tenants: [ { id: acme } ]\n", nil},
		{"a key by what it must have", "keys: [ { id: k1, tenant: acme, hash: " +
			"0f1e2d3c4b5a69788796a5b4c3d2e1f00f1e2d3c4b5a69788796a5b4c3d2e1f0, pepper: dev } ]\n", nil},
		{"an empty file", "{}\n", nil},
		{"empty sections", "plans: []\ntenants: []\nipLimits: []\nroutes: []\nkeys: []\n", nil},
		{"what is so without being written", "tenants: [ { id: tiny, suspended: false, boosts: [], cells: [] } ]\n",
			nil},
		{"one of the ip limits", "ipLimits: [ { id: per-address, algorithm: token_bucket, rate: 40, period: 1s, " +
			"burst: 100 } ]\n", []string{"plans/@settings"}},
		{"another route", "routes: [ { pathPattern: \"/version\" } ]\n", []string{"plans/@settings"}},
		{"a tenant's cells", "tenants: [ { id: tiny, cells: [us-1] } ]\n", []string{"tenants/tiny"}},
		{"a tenant's suspension", "tenants: [ { id: tiny, suspended: true } ]\n", []string{"tenants/tiny"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			before, file := stored(t), plansFile(t, tt.file)
			if r := sluice(t, "", "plan", "apply", file, "--reason", tt.name); r.code != 0 {
				t.Fatalf("exit status %d: %s%s", r.code, r.stdout, r.stderr)
			}
			sameStored(t, before, tt.changes...)
			if tt.changes != nil && maps.Equal(before, stored(t)) {
				t.Error("the apply changed nothing")
			}
		})
	}
	settings := stored(t)["plans/@settings"]
	for _, want := range []string{"anonymousPlan: public", "ipv6Prefix: 56", "per-address", "rate: 40", "per-hour",
		"threshold: 9000", "/product/*", "/health", "/version"} {
		if !strings.Contains(settings, want) {
			t.Errorf("the settings have no %q: %s", want, settings)
		}
	}
	if tiny := stored(t)["tenants/tiny"]; tiny != `{"cells":["us-1"],"id":"tiny","overrides":[{"id":"writes",`+
		`"mode":"shadow"}],"plan":"pro","suspended":true}` {
		t.Errorf("tiny is %s", tiny)
	}
	if out := must(t, "plan", "diff", plansFile(t, "plans: [ { id: basic, limits: [] } ]\n")); !strings.Contains(out,
		"not in the files, and left as they are: 2 plans, 2 tenants, 2 ipLimits, ipv6Prefix, anonymousPlan, 3 routes") {
		t.Errorf("the output does not list what stays: %s", out)
	}
}

// refusal returns what an apply prints that removes something, without --yes and without a terminal. It checks that the
// apply changes nothing.
func refusal(t *testing.T, args ...string) string {
	t.Helper()
	before := stored(t)
	diff := sluice(t, "", append([]string{"plan", "diff"}, args...)...)
	if diff.code != 0 {
		t.Errorf("sluice plan diff %q exits %d: %s", args, diff.code, diff.stderr)
	}
	r := sluice(t, "", append([]string{"plan", "apply", "--reason", "x"}, args...)...)
	if r.code != exitConfirm || !strings.Contains(r.stderr, ": add --yes to confirm; nothing was written") {
		t.Errorf("sluice plan apply %q exits %d: %s%s; want status %d and a message that names --yes", args, r.code,
			r.stdout, r.stderr,
			exitConfirm)
	}
	if after := stored(t); !maps.Equal(before, after) {
		t.Errorf("a refused apply changed the tables: %v, want %v", after, before)
	}
	var lines []string
	for line := range strings.SplitSeq(diff.stdout, "\n") {
		if text, is := strings.CutPrefix(line, "! "); is {
			lines = append(lines, text)
			if !strings.Contains(r.stderr, "  "+text+"\n") {
				t.Errorf("the refusal does not name %q: %s", text, r.stderr)
			}
		}
	}
	return strings.Join(lines, "\n")
}

// What an apply removes or weakens is printed with its old and its new value, and is written only with --yes. Other
// changes are written without --yes. Package plan tests what counts as either.
func TestApplyAsksForWhatItTakesAway(t *testing.T) {
	const base = everything + "\n"
	of := func(pairs ...string) string { // the text of everything, with changes
		text := strings.NewReplacer(pairs...).Replace(base)
		if text == base {
			t.Fatalf("%q changes nothing", pairs)
		}
		return text
	}
	for name, tt := range map[string]struct{ file, want string }{
		"rate": {of("rate: 100", "rate: 150"),
			`weakens plan "pro": limit burst: rate rises from 100 to 150 per 1s`},
		"lower": {of("rate: 100", "rate: 90", "threshold: 60", "threshold: 50"), ""},
		"override": {of("overrides: [ { id: writes, mode: shadow } ]", "overrides: []"),
			`removes the override of limit writes (mode shadow) from tenant "tiny"`},
		"cells": {of("cells: [eu-1]", "cells: []"),
			`removes cells (eu-1) from tenant "acme": every cell serves the tenant`},
		"not by name": {strings.Replace(base, "anonymousPlan: public\n", "", 1), ""},
		"suspends":    {of("{ id: tiny, ", "{ id: tiny, suspended: true, "), ""},
	} {
		t.Run(name, func(t *testing.T) {
			operated(t)
			applyAll(t, base)
			file := plansFile(t, tt.file)
			if tt.want == "" {
				if r := sluice(t, "", "plan", "apply", file, "--reason", name); r.code != 0 ||
					strings.Contains(r.stdout, "! ") {
					t.Errorf("exit status %d: %s%s", r.code, r.stdout, r.stderr)
				}
				return
			}
			if got := refusal(t, file); !strings.Contains(got+"\n", tt.want+"\n") {
				t.Errorf("the output is\n%s\nwant\n%s", got, tt.want)
			}
			must(t, "plan", "apply", file, "--reason", name, "--yes")
			if out := must(t, "plan", "diff", file); !strings.Contains(out, "0 to create, 0 to change, 0 to delete") {
				t.Errorf("after the apply: %s", out)
			}
		})
	}
	operated(t)
	applyAll(t, strings.Replace(base, "anonymousPlan: public\n", "", 1))
	want := `weakens settings: anonymousPlan goes from none to public, so calls without a credential are admitted`
	if got := refusal(t, plansFile(t, base)); got != want {
		t.Errorf("the output is\n%s\nwant\n%s", got, want)
	}
	must(t, "tenant", "suspend", "acme", "--reason", "invoice 4712")
	want = `weakens tenant "acme": the tenant is resumed`
	if got := refusal(t, plansFile(t, "tenants: [ { id: acme, suspended: false } ]\n")); got != want {
		t.Errorf("the output is\n%s\nwant\n%s", got, want)
	}
}

// For each value that a file replaces or removes, a diff says who set the value, when and why. This holds also for a
// tenant that was suspended after it got its overrides.
func TestDiffSaysWhoseItWas(t *testing.T) {
	operated(t)
	applyAll(t, everything)
	for _, tenant := range []string{"acme", "tiny"} {
		must(t, "tenant", "set", tenant, "--override", "{ id: burst, rate: 500 }", "--reason", "contract 4711")
		must(t, "tenant", "suspend", tenant, "--reason", "invoice 4712")
	}
	must(t, "tenant", "set", "acme", "--override", "{ id: burst, burst: 700 }", "--reason", "contract 4713")
	const when = `20[0-9-]{8}T[0-9:]{8}Z`
	for _, tt := range []struct{ file, want string }{
		{"tenants: [ { id: tiny, overrides: [ { id: burst, rate: 400 } ] } ]\n",
			`overrides, boosts, cells and plan were last changed by ann@local at ` + when + `: contract 4711\n`},
		{"tenants: [ { id: tiny, overrides: [] } ]\n", `cells and plan were last changed by ann@local at ` + when +
			`: contract 4711\n`},
		{"tenants: [ { id: tiny, suspended: false } ]\n", `version 3 is by ann@local at ` + when + `: invoice 4712\n`},
		// of one cell
		{"tenants: [ { id: acme, overrides: [] } ]\n", `version 4 is by ann@local at ` + when + `: contract 4713\n`},
		{"plans: [ { id: public, limits: [] } ]\n", `version 1 is by ann@local at ` + when + `: the first plans\n`},
	} {
		out := must(t, "plan", "diff", plansFile(t, tt.file))
		if !regexp.MustCompile(tt.want).MatchString(out) {
			t.Errorf("the diff of %s lacks %q: %s", tt.file, tt.want, out)
		}
		if strings.Contains(tt.file, "acme") && strings.Contains(out, "were last changed by") {
			t.Errorf("the diff of %s says something that it cannot know: %s", tt.file, out)
		}
	}
}

// Only --prune removes what the files do not name, in all sections or in the named ones, and it asks first. It keeps
// API keys, and the values that operators have set for tenants that stay.
func TestPruneBySection(t *testing.T) {
	const only = `
plans: [ { id: pro, limits: [ { id: burst, algorithm: token_bucket, rate: 100, period: 1s, burst: 200 }, { id: writes,
  match: { methods: [PUT] }, tiers: [ { period: 1s, threshold: 5 }, { period: 1m,
    threshold: 60 } ], onStoreFailure: closed } ] } ]
tenants: [ { id: acme } ]
ipLimits: [ { id: per-hour, algorithm: sliding_window, threshold: 9000, period: 1h } ]
`
	const (
		public  = `removes plan "public"`
		tiny    = `removes tenant "tiny"`
		address = `removes limit per-address (token_bucket: 50 per 1s, burst 100) from settings: ipLimits`
		network = "settings: counters of IPv6 addresses start afresh: they were by /56, and are by /64\n" +
			"weakens settings: ipv6Prefix rises from 56 to 64, so a network of IPv6 has more counters"
		anonymous = `removes anonymousPlan (public) from settings: calls without a credential get 401`
		routes    = "removes the route GET, PUT /product/* from settings\nremoves the route /health from settings\n" +
			"weakens " +
			"settings: no route is declared, so every request is passed on"
	)
	for flag, want := range map[string]string{
		"--prune": strings.Join([]string{anonymous, address, network, routes, tiny, public},
			"\n"),
		"--prune=ipLimits":                address,
		"--prune=anonymousPlan,plans":     strings.Join([]string{anonymous, public}, "\n"),
		"--prune=routes --prune=ipLimits": strings.Join([]string{address, routes}, "\n"),
	} {
		t.Run(flag, func(t *testing.T) {
			operated(t)
			applyAll(t, everything)
			must(t, "tenant", "set", "acme", "--override", "{ id: burst, rate: 500 }", "--reason", "contract 4711")
			before := stored(t)
			args := append([]string{plansFile(t, only)}, strings.Fields(flag)...)
			got := strings.Split(refusal(t, args...), "\n")
			slices.Sort(got)
			lines := strings.Split(want, "\n")
			slices.Sort(lines)
			if !slices.Equal(got, lines) {
				t.Errorf("the output is\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(lines, "\n"))
			}
			must(t, append([]string{"plan", "apply", "--yes", "--reason", "less"}, args...)...)
			sameStored(t, before, "plans/@settings", "plans/public", "tenants/tiny")
			_, there := stored(t)["tenants/tiny"]
			if gone := strings.Contains(want, tiny); gone == there {
				t.Errorf("after the apply the plan tiny exists: %t", there)
			}
		})
	}
	operated(t)
	applyAll(t, everything)
	if r := sluice(t, "", "plan", "diff", plansFile(t, only), "--prune=plans"); r.code != exitFailed ||
		!strings.Contains(r.stderr, `anonymousPlan: there will be no plan "public"`) {
		t.Errorf("pruning the plan for requests without a credential: exit status %d: %s%s", r.code, r.stdout, r.stderr)
	}
	if r := sluice(t, "", "plan", "diff", plansFile(t, only), "--prune=limits"); r.code != exitUsage ||
		!strings.Contains(r.stderr, "plans, tenants, ipLimits, ipv6Prefix, anonymousPlan, routes") {
		t.Errorf("an unknown section: exit status %d: %s", r.code, r.stderr)
	}
}

// `plan diff --exit-code` has different exit statuses for no difference, a difference and a failure. Without the flag,
// a diff succeeds whether there is a difference or not.
func TestDiffExitCode(t *testing.T) {
	operated(t)
	applyAll(t, everything)
	for _, tt := range []struct {
		file string
		code int
	}{
		{everything, 0},
		{"plans: [ { id: basic, limits: [] } ]\n", exitDiffers},
		{"tenants: [ { id: acme, plan: none } ]\n", exitFailed},
		{"tenants: [ { id: acme, plan: public, overrides: [ { id: none, rate: 1 } ] } ]\n", exitFailed},
		{"plans: 3\n", exitFailed},
	} {
		file := plansFile(t, tt.file)
		if r := sluice(t, "", "plan", "diff", "--exit-code", file); r.code != tt.code {
			t.Errorf("%s: exit status %d, want %d: %s%s", tt.file, r.code, tt.code, r.stdout, r.stderr)
		}
		if r := sluice(t, "", "plan", "diff", "--json", "--exit-code", file); r.code != tt.code ||
			!json.Valid([]byte(r.stdout)) {
			t.Errorf("%s as JSON: exit status %d, want %d: %s%s", tt.file, r.code, tt.code, r.stdout, r.stderr)
		}
		if r := sluice(t, "", "plan", "diff", file); (r.code == 0) != (tt.code != exitFailed) {
			t.Errorf("%s without --exit-code: exit status %d: %s%s", tt.file, r.code, r.stdout, r.stderr)
		}
	}
}

// Guarantees that a file without plans is checked against the plans of the server, and that errors name the file, line
// and column.
func TestTenantsOnly(t *testing.T) {
	operated(t)
	applyAll(t, everything)
	must(t, "tenant", "set", "tiny", "--override", "{ id: burst, rate: 50 }", "--reason", "theirs")
	must(t, "plan", "apply", plansFile(t, "tenants:\n  - { id: newcomer, plan: pro, overrides: [ { id: burst, rate: "+
		"50 } ] }\nkeys:\n"+"  - { id: k2, tenant: tiny, hash: "+
		"1f1e2d3c4b5a69788796a5b4c3d2e1f00f1e2d3c4b5a69788796a5b4c3d2e1f0, pepper: dev }\n"), "--reason", "signed up")
	if got := stored(t)["tenants/newcomer"]; got != `{"id":"newcomer","overrides":[{"id":"burst","rate":50}],`+
		`"plan":"pro"}` {
		t.Errorf("the new tenant is %s", got)
	}
	for text, want := range map[string]string{
		"tenants:\n  - { id: new, plan: prro }\n": `:2:22: tenants[0].plan: ` +
			`there is no plan "prro", neither in the files nor on the server (did you mean "pro"?)`,
		"tenants:\n  - { id: new }\n": `:2:5: tenants[0]: plan ` +
			`is missing: the id of a plan, since the server has no tenant "new"`,
		"tenants:\n  - { id: new, plan: pro, overrides: [ { id: bursts, rate: 1 } ] }\n": `:2:46: ` +
			`tenants[0].overrides[0].id: plan pro has no limit "bursts" (did you mean "burst"?)`,
		"anonymousPlan: none\n": `:1:16: anonymousPlan: ` +
			`there is no plan "none", neither in the files nor on the server`,
		"plans: []\nkeys: [ { id: k, tenant: who, hash: " + strings.Repeat("ab", 32) +
			", pepper: dev } ]\n": `:2:26: keys[0].tenant: there is no tenant "who", neither in the files nor on ` +
			`the server`,
		"tenants:\n  - id: tiny\n    plan: public\n": `:2:5: tenants[0]: with what the tenant keeps from the server,` +
			` overrides[0].id: plan public has no limit "writes"`,
	} {
		file := plansFile(t, text)
		for _, command := range [][]string{{"plan", "diff", file}, {"plan", "apply", file, "--reason", "x"}} {
			if r := sluice(t, "", command...); r.code != exitFailed || !strings.Contains(r.stderr, file+want) {
				t.Errorf("sluice %q: %d %s%s\nwant %s", command[:2], r.code, r.stdout, r.stderr, want)
			}
		}
	}
}

// between is a proxy in front of an admin endpoint that can disturb the calls through it.
type between struct {
	applies atomic.Int64
	gone    atomic.Bool        // refuses all calls
	before  func(n int64)      // called before the nth apply is passed on
	after   func(n int64) bool // reports whether the answer to the nth apply is lost
}

// putBetween makes the commands of the test call the endpoint through a between.
func putBetween(t *testing.T, endpoint string) *between {
	t.Helper()
	to, err := url.Parse(endpoint)
	if err != nil {
		t.Fatal(err)
	}
	b := &between{}
	proxy := &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) {
		r.SetURL(&url.URL{Scheme: to.Scheme, Host: to.Host}) // and no X-Forwarded-For: the endpoint answers no proxies
	}}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if b.gone.Load() {
			panic(http.ErrAbortHandler)
		}
		if !strings.HasSuffix(r.URL.Path, "/apply") {
			proxy.ServeHTTP(w, r)
			return
		}
		n := b.applies.Add(1)
		if b.before != nil {
			b.before(n)
		}
		if b.after != nil && b.after(n) {
			proxy.ServeHTTP(httptest.NewRecorder(), r)
			panic(http.ErrAbortHandler)
		}
		proxy.ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	t.Setenv("SLUICE_ENDPOINT", server.URL+to.Path)
	return b
}

// If another operator changes a document between the diff and the write, the change is not overwritten. The command
// names that operator and lists which documents it has written. A second run writes the rest.
func TestAnotherOperatorBetweenDiffAndWrite(t *testing.T) {
	endpoint := operated(t)
	applyAll(t, everything)
	b := putBetween(t, endpoint)
	b.before = func(n int64) {
		if n == 2 { // the plans are written, the tenants follow
			must(t, "tenant", "suspend", "acme", "--reason", "invoice 4712", "--endpoint", endpoint)
		}
	}
	file := plansFile(t, "plans: [ { id: basic, limits: [] } ]\ntenants: [ { id: acme, plan: basic }, { id: tiny, "+
		"cells: [eu-1] } ]\n")
	r := sluice(t, "", "plan", "apply", file, "--yes", "--reason", "moved")
	if r.code != exitConflict || !strings.Contains(r.stderr, "ann@local") ||
		!strings.Contains(r.stderr, "invoice 4712") {
		t.Errorf("exit status %d: %s%s", r.code, r.stdout, r.stderr)
	}
	for _, want := range []string{"written: plan basic\n", "not written: tenant acme, tenant tiny\n",
		"the same command again"} {
		if !strings.Contains(r.stderr, want) {
			t.Errorf("the error lacks %q: %s", want, r.stderr)
		}
	}
	b.before = nil
	out := must(t, "plan", "apply", file, "--yes", "--reason", "moved")
	if !strings.Contains(out, "applied: 2 documents written, 1 was already as in the files") {
		t.Errorf("the second run: %s", out)
	}
	if got := stored(t)["tenants/acme"]; got != `{"cells":["eu-1"],"id":"acme","plan":"basic","suspended":true}` {
		t.Errorf("acme is %s", got)
	}
}

// If the connection breaks during an apply, the command reads the tables again and lists what was written and what was
// not, or says that it cannot know. A second run writes the rest.
func TestApplyWithALostConnection(t *testing.T) {
	const more = "plans: [ { id: basic, limits: [] } ]\ntenants: [ { id: one, plan: basic }, { id: two, plan: basic " +
		"} ]\n"
	for name, tt := range map[string]struct {
		lost, refused int64 // number of the apply whose answer is lost, or that is not passed on
		want, again   string
	}{
		"the answer to the plans": {lost: 1, want: "written: plan basic\nnot written: tenant one, tenant two\n",
			again: "applied: 2 documents written, 1 was already as in the files"},
		"the answer to the tenants": {lost: 2, want: "written: plan basic, tenant one, tenant two\n",
			again: "nothing to change"},
		"the way to the tenants": {refused: 2, want: "written: plan basic\nnot written: tenant one, tenant two\n",
			again: "applied: 2 documents written, 1 was already as in the files"},
		"the way to the first of it": {refused: 1, want: "not written: plan basic, tenant one, tenant two\n",
			again: "applied: 3 documents written"},
	} {
		t.Run(name, func(t *testing.T) {
			b := putBetween(t, operated(t))
			b.after = func(n int64) bool { return n == tt.lost }
			b.before = func(n int64) {
				if n == tt.refused {
					panic(http.ErrAbortHandler)
				}
			}
			file := plansFile(t, more)
			r := sluice(t, "", "plan", "apply", file, "--reason", "more")
			if r.code != exitFailed || !strings.Contains(r.stderr, tt.want) {
				t.Errorf("exit status %d: %s%s\nwant %s", r.code, r.stdout, r.stderr, tt.want)
			}
			b.after, b.before = nil, nil
			if out := must(t, "plan", "apply", file, "--reason", "more"); !strings.Contains(out, tt.again) {
				t.Errorf("the second run: %s, want %s", out, tt.again)
			}
		})
	}
	t.Run("for good", func(t *testing.T) {
		endpoint := operated(t)
		b := putBetween(t, endpoint)
		b.after = func(n int64) bool {
			b.gone.Store(n == 2)
			return n == 2
		}
		file := plansFile(t, more)
		r := sluice(t, "", "plan", "apply", file, "--reason", "more")
		const want = "written: plan basic\nnot known, because the answer was lost: tenant one, tenant two\n"
		if r.code != exitFailed || !strings.Contains(r.stderr, want) {
			t.Errorf("exit status %d: %s%s\nwant %s", r.code, r.stdout, r.stderr, want)
		}
		if out := must(t, "plan", "apply", file, "--reason", "more", "--endpoint", endpoint); !strings.Contains(out,
			"nothing to change") {
			t.Errorf("the second run: %s", out)
		}
	})
}

// With --json, the output lists for each document what the change removes and weakens, and who made the version before.
// After a failure, it lists what was written and what was not.
func TestApplyAsJSON(t *testing.T) {
	endpoint := operated(t)
	applyAll(t, everything)
	file := plansFile(t, "plans: [ { id: public, limits: [] }, { id: basic, limits: [] } ]\ntenants: [ { id: new, "+
		"plan: basic } ]\n")
	var out struct {
		Diff struct {
			Changes []struct {
				ID     string
				Losses []struct{ Kind, Text string }
				Was    struct {
					Version       int64
					Actor, Reason string
					ChangedAt     time.Time `json:"changed_at"`
				}
			}
			Stay map[string]int
		}
		Result client.Result
		Error  struct{ Code string }
	}
	read := func(text string) {
		t.Helper()
		if err := json.Unmarshal([]byte(text), &out); err != nil {
			t.Fatalf("decode the output: %v: %s", err, text)
		}
	}
	read(must(t, "plan", "diff", "--json", file))
	if len(out.Diff.Changes) != 3 || out.Diff.Stay["plans"] != 1 || out.Diff.Stay["ipLimits"] != 2 {
		t.Fatalf("the output is %+v", out)
	}
	change := out.Diff.Changes[0]
	if change.ID != "public" || len(change.Losses) != 1 || change.Losses[0].Kind != "removes" ||
		change.Losses[0].Text != `limit per-ip (token_bucket: 5 per 1s) from plan "public"` {
		t.Errorf("the change is %+v", change)
	}
	if change.Was.Version != 1 || change.Was.Actor != "ann@local" || change.Was.Reason != "the first plans" ||
		change.Was.ChangedAt.IsZero() {
		t.Errorf("the version before was %+v", change.Was)
	}
	b := putBetween(t, endpoint)
	b.before = func(n int64) {
		if n == 2 {
			panic(http.ErrAbortHandler)
		}
	}
	r := sluice(t, "", "plan", "apply", "--json", "--yes", "--reason", "x", file)
	read(r.stdout)
	if r.code != exitFailed || out.Error.Code != "failed" || out.Result.Written != 2 || len(out.Result.Documents) != 3 {
		t.Fatalf("exit status %d: %+v", r.code, out)
	}
	var states []string
	for _, d := range out.Result.Documents {
		states = append(states, string(d.Kind)+" "+d.ID+": "+string(d.State))
	}
	if want := []string{"plan public: written", "plan basic: written",
		"tenant new: not written"}; !slices.Equal(states, want) {
		t.Errorf("the states are %q, want %q", states, want)
	}
}
