package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sluicelimits/sluice/internal/plan"
	"github.com/sluicelimits/sluice/internal/request/identity"
	"github.com/sluicelimits/sluice/internal/testkit/golden"
)

const (
	goodPlans = "testdata/plans/good.yaml"
	badPlans  = "testdata/plans/bad.yaml"
)

// Guarantees that check reports all problems of a very bad file in one run, each with its place, on standard error, and
// with a status for CI.
func TestCheckBad(t *testing.T) {
	got := sluice(t, "", "check", badPlans)
	if got.code != exitFailed || got.stdout != "" {
		t.Errorf("check exits with %d and prints %q, want 1 and nothing on standard output", got.code, got.stdout)
	}
	golden.Check(t, "plans/bad.golden", got.stderr)
}

// Guarantees that check --json reports the same problems as the text.
func TestCheckBadJSON(t *testing.T) {
	got := sluice(t, "", "check", "--json", badPlans)
	var report struct {
		OK       *bool          `json:"ok"`
		Problems []plan.Problem `json:"problems"`
	}
	if err := json.Unmarshal([]byte(got.stdout), &report); err != nil {
		t.Fatalf("decode the report: %v in\n%s", err, got.stdout)
	}
	lines := strings.Split(strings.TrimSpace(sluice(t, "", "check", badPlans).stderr), "\n")
	if got.code != exitFailed || report.OK == nil || *report.OK || len(report.Problems) != len(lines)-1 {
		t.Fatalf("status %d, %d problems; want 1 and the %d of the text", got.code, len(report.Problems), len(lines)-1)
	}
	for i, p := range report.Problems {
		if p.String() != lines[i] {
			t.Errorf("problem %d is %q, in the text %q", i, p, lines[i])
		}
	}
}

// Guarantees what check prints for good files, with its warnings.
func TestCheckGood(t *testing.T) {
	text, err := os.ReadFile(goodPlans)
	if err != nil {
		t.Fatal(err)
	}
	summary := ": ok: 2 plans, 7 limits, 2 tenants, 1 IP limit\n"
	warned := filepath.Join(t.TempDir(), "warned.yaml")
	warning := "plans: [{id: p, limits: [{id: a, tiers: [{period: 1s, threshold: 20}, {period: 10s, threshold: " +
		"10}]}]}]\n"
	if err := os.WriteFile(warned, []byte(warning), 0o600); err != nil {
		t.Fatal(err)
	}
	says := warned + ":1:42: plans[0].limits[0].tiers[0]: the tier of 1s can never bind: the tier of 10s admits no " +
		"more than 20 in it (warning)\n"
	for _, c := range []struct {
		name, stdin string
		args        []string
		want        ran
	}{
		{"file", "", []string{goodPlans}, ran{0, goodPlans + summary, ""}},
		{"standard input", string(text), []string{"-"}, ran{0, "<stdin>" + summary, ""}},
		{"quiet", "", []string{"-q", goodPlans}, ran{0, "", ""}},
		{"two files", "plans: []\n", []string{goodPlans, "-"},
			ran{0, goodPlans + summary + "<stdin>: ok: empty\n", ""}},
		{"the same twice", "", []string{"-q", goodPlans, goodPlans}, ran{code: exitFailed}},
		{"missing", "", []string{"nowhere.yaml"}, ran{exitFailed, "", "nowhere.yaml: cannot be read: there is no " +
			"such file: correct the name, or create the file\nsluice: 1 problem\n"}},
		{"directory", "", []string{"testdata"}, ran{exitFailed, "", "testdata: cannot be read: is a " +
			"directory: give the names of its files\nsluice: 1 problem\n"}},
		{"no file", "", nil, ran{exitUsage, "", "sluice: want FILE..., got 0 arguments; for example: sluice " +
			"check plans.yaml tenants.yaml\n"}},
		{"misspelt flag", "", []string{"--strikt", goodPlans}, ran{exitUsage, "", "sluice: unknown flag: --strikt: " +
			"did you mean --strict?\n"}},
		{"unknown flag", "", []string{"--frobnicate"}, ran{exitUsage, "", "sluice: unknown flag: --frobnicate\n"}},
		{"a misspelt key", "plans: [{id: p, limits: [{id: a, algorithn: token_bucket, rate: 1, period: 1s}]}]\n",
			[]string{"-"}, ran{exitFailed, "", "<stdin>:1:34: plans[0].limits[0]: unknown key \"algorithn\" in a " +
				"limit (did you mean \"algorithm\"?)\nsluice: 1 problem\n"}},
		{"a file of serve", "# of Envoy\ndomain: api\ndescriptors: []\n", []string{"-"}, ran{exitFailed, "",
			"<stdin>:2:1: the key domain belongs to a file for 'sluice serve --config'; a plans file has at least " +
				"one of plans, tenants, ipLimits, ipv6Prefix, anonymousPlan, routes, keys, slas\nsluice: 1 problem\n"}},
		{"tenant without effective", "", []string{"--tenant", "acme", goodPlans},
			ran{exitUsage, "", "sluice: --tenant and --at need --effective\n"}},
		{"bad time", "", []string{"--effective", "--at", "now", goodPlans},
			ran{exitUsage, "", "sluice: invalid argument \"now\" for \"--at\" flag: it is not a time such " +
				"as 2026-12-24T00:00:00Z\n"}},
		{"unknown tenant", "", []string{"--effective", "--tenant", "acne", goodPlans},
			ran{exitFailed, "", "sluice: there is no tenant \"acne\" (did you mean \"acme\"?)\n"}},
		{"warning", "", []string{warned}, ran{0, warned + ": ok: 1 plan, 1 limit\n", says}},
		{"warning, quiet", "", []string{"-q", warned}, ran{0, "", ""}},
		{"warning, strict", "", []string{"-q", "--strict", warned}, ran{exitFailed, "", says + noIPLimits(warned) +
			"sluice: 2 warnings, which --strict makes fail the check\n"}},
		{"strict", "", []string{"-q", "--strict", goodPlans}, ran{0, "", ""}},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := sluice(t, c.stdin, append([]string{"check"}, c.args...)...)
			if c.name == "the same twice" {
				got.stderr = ""
			}
			if got != c.want {
				t.Errorf("check %q\ngot  %+v\nwant %+v", c.args, got, c.want)
			}
		})
	}
}

// noIPLimits is the warning of --strict about a file without ipLimits.
func noIPLimits(file string) string {
	return file + ": ipLimits: there are plans and no ipLimits, so attempts to guess an API key are not limited: " +
		"add a limit for each address, such as { id: per-address, algorithm: token_bucket, rate: 50, period: 1s, " +
		"burst: 100 } (warning)\n"
}

// Guarantees that the plans of examples/plans, which users copy, are valid and give no warning.
func TestCheckPlansToCopy(t *testing.T) {
	files, err := filepath.Glob("../../examples/plans/*.yaml")
	if err != nil || len(files) < 6 {
		t.Fatalf("%d example plans, %v; want at least 6", len(files), err)
	}
	for _, file := range files {
		if got := sluice(t, "", "check", "--strict", file); got.code != 0 || got.stderr != "" {
			t.Errorf("check --strict %s exits with %d and says %s", file, got.code, got.stderr)
		}
	}
}

// Guarantees that check --strict fails for what is acceptable only on a laptop: keys that anyone can compute, and
// credentials that anyone can guess without a limit. Without --strict there is no warning about them.
func TestCheckStrict(t *testing.T) {
	example, err := os.ReadFile("example.yaml")
	if err != nil {
		t.Fatal(err)
	}
	public := func(id, tenant string) string {
		return "<stdin>: keys." + id + ": this is the example key of tenant " + tenant +
			", which anyone can compute: remove it, and create another key with `sluice key create` (warning)\n"
	}
	hash := func(tenant string) string { return identity.HashKey(identity.DevPepper(), identity.ExampleKey(tenant)) }
	const plans = "plans: [ { id: p, limits: [] } ]\ntenants: [ { id: t, plan: p }, { id: u, plan: p } ]\n"
	const addresses = "ipLimits: [ { id: a, algorithm: token_bucket, rate: 5, period: 1s } ]\n"
	withKey := func(key string) string { return plans + addresses + "keys: [ { id: k, pepper: dev, " + key + " } ]\n" }
	for name, c := range map[string]struct{ text, want string }{
		"the example": {string(example),
			public("acme-ci", "acme") + public("globex-web", "globex") + public("initech-web", "initech")},
		"an example key of another tenant":    {withKey("tenant: u, hash: " + hash("t")), public("k", "t")},
		"an example key of the built-in plan": {withKey("tenant: t, hash: " + hash("acme")), public("k", "acme")},
		"an example key that is revoked":      {withKey("tenant: t, revoked: true, hash: " + hash("t")), ""},
		"another key":                         {withKey("tenant: t, hash: " + hash("nobody")), ""},
		"no ipLimits":                         {plans, noIPLimits("<stdin>")},
		"tenants alone":                       {"tenants: []\n", ""},
	} {
		t.Run(name, func(t *testing.T) {
			want := ran{0, "", c.want}
			if n := strings.Count(c.want, "\n"); n > 0 {
				want.code = exitFailed
				want.stderr = fmt.Sprintf("%ssluice: %s, which --strict makes fail the check\n", c.want,
					count(n, "warning"))
			}
			if got := sluice(t, c.text, "check", "-q", "--strict", "-"); got != want {
				t.Errorf("check --strict\ngot  %+v\nwant %+v", got, want)
			}
			if got := sluice(t, c.text, "check", "-q", "-"); got != (ran{}) {
				t.Errorf("check without --strict: %+v, want nothing", got)
			}
		})
	}
}

// Guarantees that check warns of a plan that leaves options unset, and does not fail because of it.
func TestCheckSpellings(t *testing.T) {
	const text = "plans: [ { id: p, limits: [ { id: a, match: { methods: [GET], pathPattern: /a }, " +
		"tiers: [ { period: 1s, threshold: 1 } ] } ] } ]\n"
	got := sluice(t, text, "check", "-")
	if got.code != 0 || !strings.Contains(got.stderr, "write caseInsensitive: true and impliesHead: true in the plan") {
		t.Errorf("check: %+v, want a warning of both options", got)
	}
}

// Guarantees that check --effective prints the limits of a tenant.
func TestCheckEffective(t *testing.T) {
	for _, c := range []struct {
		name string
		args []string
	}{
		{"plans/effective.golden", []string{"check", "--effective", "--at", "2026-12-24T00:00:00Z", goodPlans}},
		{"plans/effective-acme.golden", []string{"check", "--effective", "--tenant", "acme", "--at",
			"2026-12-28T00:00:00Z", goodPlans}},
		{"plans/effective.json", []string{"check", "--json", "--effective", "--at", "2026-12-24T00:00:00Z", goodPlans}},
	} {
		got := sluice(t, "", c.args...)
		if got.code != 0 || got.stderr != "" {
			t.Errorf("%q exits with %d: %s", c.args, got.code, got.stderr)
		}
		golden.Check(t, c.name, got.stdout)
	}
}

// check warns of a sliding_log that may be too small to be divided between cells, since then only one cell grants it.
func TestCheckWarnsOfSmallLogs(t *testing.T) {
	for threshold, warns := range map[int]bool{9: true, 10: false} {
		text := fmt.Sprintf("plans: [{id: p, limits: [{id: a, algorithm: sliding_log, threshold: %d, period: 1s}]}]\n",
			threshold)
		r := sluice(t, text, "check", "-")
		if r.code != 0 || strings.Contains(r.stderr, "only the tenant's home cell grants it") != warns {
			t.Errorf("a sliding_log of %d: %d %s", threshold, r.code, r.stderr)
		}
	}
}
