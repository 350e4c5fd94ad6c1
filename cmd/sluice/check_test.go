package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sluicelimits/sluice/internal/plan"
)

const (
	goodPlans = "testdata/plans/good.yaml"
	badPlans  = "testdata/plans/bad.yaml"
)

// A very bad file: all of its problems in one run, each at its place, on standard error, and a status for CI.
func TestCheckBad(t *testing.T) {
	got := sluice(t, "", "check", badPlans)
	if got.code != exitFailed || got.stdout != "" {
		t.Errorf("check exits with %d and prints %q, want 1 and nothing on standard output", got.code, got.stdout)
	}
	golden(t, "plans/bad.golden", got.stderr)
}

func TestCheckBadJSON(t *testing.T) {
	got := sluice(t, "", "check", "--json", badPlans)
	var report struct {
		OK       *bool          `json:"ok"`
		Problems []plan.Problem `json:"problems"`
	}
	if err := json.Unmarshal([]byte(got.stdout), &report); err != nil {
		t.Fatalf("%v in\n%s", err, got.stdout)
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

func TestCheckGood(t *testing.T) {
	text, err := os.ReadFile(goodPlans)
	if err != nil {
		t.Fatal(err)
	}
	summary := ": ok: 2 plans, 7 limits, 2 tenants, 1 IP limit\n"
	warned := filepath.Join(t.TempDir(), "warned.yaml")
	warning := "plans: [{id: p, limits: [{id: a, tiers: [{period: 1s, threshold: 20}, {period: 10s, threshold: 10}]}]}]\n"
	if err := os.WriteFile(warned, []byte(warning), 0o600); err != nil {
		t.Fatal(err)
	}
	says := warned + ":1:42: plans[0].limits[0].tiers[0]: the tier of 1s can never bind: the tier of 10s admits no more than 20 in it (warning)\n"
	for _, c := range []struct {
		name, stdin string
		args        []string
		want        ran
	}{
		{"file", "", []string{goodPlans}, ran{0, goodPlans + summary, ""}},
		{"standard input", string(text), []string{"-"}, ran{0, "<stdin>" + summary, ""}},
		{"quiet", "", []string{"-q", goodPlans}, ran{0, "", ""}},
		{"two files", "plans: []\n", []string{goodPlans, "-"}, ran{0, goodPlans + summary + "<stdin>: ok: nothing in it\n", ""}},
		{"the same twice", "", []string{"-q", goodPlans, goodPlans}, ran{code: exitFailed}},
		{"missing", "", []string{"nowhere.yaml"}, ran{exitFailed, "", "nowhere.yaml: cannot be read: no such file or directory\nsluice: 1 problem\n"}},
		{"directory", "", []string{"testdata"}, ran{exitFailed, "", "testdata: cannot be read: is a directory\nsluice: 1 problem\n"}},
		{"no file", "", nil, ran{exitUsage, "", "sluice: requires at least 1 arg(s), only received 0\n"}},
		{"unknown flag", "", []string{"--frobnicate"}, ran{exitUsage, "", "sluice: unknown flag: --frobnicate\n"}},
		{"tenant without effective", "", []string{"--tenant", "acme", goodPlans}, ran{exitUsage, "", "sluice: --tenant and --at go with --effective\n"}},
		{"bad time", "", []string{"--effective", "--at", "now", goodPlans}, ran{exitUsage, "", "sluice: --at \"now\" is not a time such as 2026-12-24T00:00:00Z\n"}},
		{"unknown tenant", "", []string{"--effective", "--tenant", "acne", goodPlans}, ran{exitFailed, "", "sluice: there is no tenant \"acne\" (did you mean \"acme\"?)\n"}},
		{"warning", "", []string{warned}, ran{0, warned + ": ok: 1 plan, 1 limit\n", says}},
		{"warning, quiet", "", []string{"-q", warned}, ran{0, "", ""}},
		{"warning, strict", "", []string{"-q", "--strict", warned}, ran{exitFailed, "", says + "sluice: 1 warning, and --strict is given\n"}},
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

func TestCheckEffective(t *testing.T) {
	for _, c := range []struct {
		name string
		args []string
	}{
		{"plans/effective.golden", []string{"check", "--effective", "--at", "2026-12-24T00:00:00Z", goodPlans}},
		{"plans/effective-acme.golden", []string{"check", "--effective", "--tenant", "acme", "--at", "2026-12-28T00:00:00Z", goodPlans}},
		{"plans/effective.json", []string{"check", "--json", "--effective", "--at", "2026-12-24T00:00:00Z", goodPlans}},
	} {
		got := sluice(t, "", c.args...)
		if got.code != 0 || got.stderr != "" {
			t.Errorf("%q exits with %d: %s", c.args, got.code, got.stderr)
		}
		golden(t, c.name, got.stdout)
	}
}

func TestCompletion(t *testing.T) {
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"__complete", "check", ""}, "yaml\nyml\njson\n:8\n"},
		{[]string{"__complete", "explain", "--plans", goodPlans, "--tenant", "a"}, "acme\n:4\n"},
		{[]string{"__complete", "check", goodPlans, "--effective", "--tenant", ""}, "acme\ngone\n:4\n"},
	} {
		if got := sluice(t, "", c.args...); got.stdout != c.want {
			t.Errorf("%q gives %q, want %q", c.args, got.stdout, c.want)
		}
	}
}

// Guarantees that a sliding_log which several cells may not be able to divide is warned of, since only one of them grants it then.
func TestCheckWarnsOfSmallLogs(t *testing.T) {
	for threshold, warns := range map[int]bool{9: true, 10: false} {
		text := fmt.Sprintf("plans: [{id: p, limits: [{id: a, algorithm: sliding_log, threshold: %d, period: 1s}]}]\n", threshold)
		r := sluice(t, text, "check", "-")
		if r.code != 0 || strings.Contains(r.stderr, "only the tenant's home cell grants it") != warns {
			t.Errorf("a sliding_log of %d: %d %s", threshold, r.code, r.stderr)
		}
	}
}
