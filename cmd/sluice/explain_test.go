package main

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/sluicelimits/sluice/internal/testkit/golden"
)

// Guarantees what explain prints.
func TestExplain(t *testing.T) {
	const at = "2026-12-24T00:00:00Z"
	for _, c := range []struct {
		golden string
		args   []string
	}{
		{"plans/explain-put.golden", []string{"--tenant", "acme", "--method", "PUT", "--path", "/product/1",
			"--subject", "ci",
			"--ip", "203.0.113.9", "--header", "X-Query-Cost: 25"}},
		{"plans/explain-get.golden", []string{"--tenant", "acme", "--path", "/reports/x"}},
		{"plans/explain-alias.golden", []string{"--tenant", "acme", "--method", "PUT", "--path", "/product%2F1"}},
		{"plans/explain-anonymous.golden", []string{"--path", "/product/1", "--ip", "2001:db8::1"}},
		{"plans/explain-suspended.json", []string{"--tenant", "gone", "--path", "/", "--json"}},
	} {
		got := sluice(t, "", append([]string{"explain", "--plans", goodPlans, "--at", at}, c.args...)...)
		if got.code != 0 || got.stderr != "" {
			t.Errorf("%q exits with %d: %s", c.args, got.code, got.stderr)
		}
		golden.Check(t, c.golden, got.stdout)
	}
}

// Guarantees that explain --json has the limits that apply to a request.
func TestExplainJSON(t *testing.T) {
	got := sluice(t, "", "explain", "--plans", goodPlans, "--tenant", "acme", "--method", "PUT", "--path",
		"/product/1", "--json")
	var x explanation
	if err := json.Unmarshal([]byte(got.stdout), &x); err != nil {
		t.Fatalf("decode the output: %v in\n%s", err, got.stdout)
	}
	var statuses []string
	for _, v := range x.Limits {
		statuses = append(statuses, v.ID+" "+string(v.Status))
	}
	want := "burst applies; products displaced; put-product applies; put-product-next reports; reports no match; " +
		"monthly applies"
	if joined := strings.Join(statuses, "; "); joined != want || len(x.IPLimits) != 1 {
		t.Errorf("statuses %q and %d ipLimits, want %q and 1", joined, len(x.IPLimits), want)
	}
}

// Guarantees that wrong arguments are usage errors, and that problems of the plans file are not.
func TestExplainUsage(t *testing.T) {
	base := []string{"explain", "--plans", goodPlans, "--path", "/"}
	for _, c := range []struct {
		name string
		args []string
		code int
		want string // part of standard error
	}{
		{"no plans", []string{"explain", "--path", "/", "--endpoint", "http://127.0.0.1:1/"}, exitFailed,
			"--plans names files"},
		{"no path", []string{"explain", "--plans", goodPlans}, exitUsage, "--path is missing"},
		{"argument", append(base, "x"), exitUsage, "unknown command"},
		{"method", append(base, "--method", "GET /"), exitUsage, "is not an HTTP method"},
		{"time", append(base, "--at", "noon"), exitUsage, "is not a time"},
		{"address", append(base, "--ip", "300.1.1.1"), exitUsage, "is not an IP address"},
		{"claim", append(base, "--claim", "region"), exitUsage, "is not NAME=VALUE"},
		{"header", append(base, "--header", "x"), exitUsage, "is not NAME:VALUE"},
		{"tenant", append(base, "--tenant", "acne"), exitFailed, `did you mean "acme"?`},
		{"bad plans", []string{"explain", "--plans", badPlans, "--path", "/"}, exitFailed,
			badPlans + ":4:5: plans[0]: unknown key"},
	} {
		got := sluice(t, "", c.args...)
		if got.code != c.code || !strings.Contains(got.stderr, c.want) || got.stdout != "" {
			t.Errorf("%s: %q gives %+v, want status %d and %q", c.name, c.args, got, c.code, c.want)
		}
	}
}

// Guarantees that without --plans, explain is by what is stored: with the tenant's overrides and the boosts that are
// active at the time, and with the settings.
func TestExplainStored(t *testing.T) {
	operated(t)
	boosted := time.Now().Add(time.Hour).UTC().Format(time.RFC3339)
	for _, args := range [][]string{
		{"plan", "apply", "testdata/operator/plans.yaml", "--reason", "x"},
		{"tenant", "set", "acme", "--override", "{ id: burst, rate: 300, burst: 700 }", "--reason", "x"},
		{"boost", "add", "acme", "burst", "--factor", "3", "--for", "2d", "--from", boosted, "--reason", "x"},
	} {
		if r := sluice(t, "", args...); r.code != 0 {
			t.Fatalf("%q: %s", args, r.stderr)
		}
	}
	settings := func(args ...string) map[string]string {
		r := sluice(t, "",
			append([]string{"explain", "--tenant", "acme", "--path", "/product/1", "--json"}, args...)...)
		var x explanation
		if err := json.Unmarshal([]byte(r.stdout), &x); err != nil || r.code != 0 {
			t.Fatalf("%q: %+v", args, r)
		}
		out := map[string]string{}
		for _, v := range x.Limits {
			for _, s := range v.Settings {
				out[v.ID+" "+s.Name] = s.Text + " from " + fmt.Sprint(s.Origin)
			}
		}
		return out
	}
	now, later := settings(), settings("--at", time.Now().Add(26*time.Hour).UTC().Format(time.RFC3339))
	for name, want := range map[string][2]string{"burst rate": {"300", "900"}, "burst burst": {"700", "2100"}} {
		if !strings.HasPrefix(now[name], want[0]+" ") || !strings.Contains(now[name], "override") ||
			!strings.HasPrefix(later[name], want[1]+" ") || !strings.Contains(later[name], "boost") {
			t.Errorf("%s is %q, and %q while the boost is active; want %s by the override, and %s by the boost", name,
				now[name], later[name], want[0], want[1])
		}
	}
	if r := sluice(t, "", "explain", "--tenant", "acne", "--path", "/"); r.code != exitFailed ||
		!strings.Contains(r.stderr, `there is no tenant "acne"`) {
		t.Errorf("an unknown tenant: %+v", r)
	}
}

// Guarantees that explain charges each limit the cost in its own unit, names the unit beside the amount, says why a
// limit is not asked, and refuses costs that cannot be charged.
func TestExplainCosts(t *testing.T) {
	const units = `
plans:
  - id: p
    limits:
      - { id: rpm, algorithm: fixed_window, period: 1m, threshold: 60 }
      - { id: tpm, unit: tokens, cost: { default: 1000 }, algorithm: fixed_window, period: 1m, threshold: 9000 }
      - { id: spend, unit: micro-usd, cost: 0, quota: { units: 50, every: month } }
ipLimits: [ { id: ip, algorithm: fixed_window, period: 1m, threshold: 90 } ]
tenants: [ { id: acme, plan: p } ]
`
	explain := func(args ...string) ran {
		return sluice(t, units, append([]string{"explain", "--plans", "-", "--tenant", "acme", "--path", "/"},
			args...)...)
	}
	text := strings.Join(strings.Fields(explain().stdout), " ")
	for _, want := range []string{"tpm applies 1000 tokens one", "rpm applies 1 one", "threshold 9000 tokens plan",
		"spend free - - the request names no cost in micro-usd, and the plan's cost is 0"} {
		if !strings.Contains(text, want) {
			t.Errorf("explain lacks %q:\n%s", want, text)
		}
	}
	var x explanation
	got := explain("--json", "--cost", "requests=3", "--cost", "tokens=0", "--cost", "micro-usd=5")
	if err := json.Unmarshal([]byte(got.stdout), &x); err != nil {
		t.Fatalf("%v in %s%s", err, got.stdout, got.stderr)
	}
	var all []string
	for _, v := range append(x.IPLimits, x.Limits...) {
		all = append(all, fmt.Sprint(v.ID, " ", v.Status, " ", v.Cost, " ", v.Unit))
	}
	if text := strings.Join(all, "; "); text != "ip applies 1 ; rpm applies 3 ; tpm free 0 tokens; "+
		"spend applies 5 micro-usd" {
		t.Errorf("with --cost: %s", text)
	}
	for _, bad := range []string{"tokens", "tokens=", "tokens=-1", "tokens=1e3", "tokens=1099511627777", "To=1",
		"tokens=99999999999999999999"} {
		if got := explain("--cost", bad); got.code != 2 || !strings.Contains(got.stderr, "--cost") {
			t.Errorf("--cost %s exits with %d: %s", bad, got.code, got.stderr)
		}
	}
}
