package main

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// Guarantees the command line of sluice fleet: a scenario file, the list of scenarios, a short exploration, and errors.
func TestFleet(t *testing.T) {
	t.Parallel()
	script := filepath.Join(t.TempDir(), "mine.yaml")
	text := "instances: 2\nrequestsPerSecond: 100\ntenants: 5\nmeasured: 3s\n"
	if err := os.WriteFile(script, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	cells, plans := filepath.Join(t.TempDir(), "cells.yaml"), filepath.Join(t.TempDir(), "plans.yaml")
	few, log := filepath.Join(t.TempDir(), "few.yaml"), filepath.Join(t.TempDir(), "access.log")
	broken := filepath.Join(t.TempDir(), "broken.yaml")
	held, wanted := filepath.Join(t.TempDir(), "held.yaml"), filepath.Join(t.TempDir(), "wanted.yaml")
	for name, text := range map[string]string{
		held: text + "bounds: { over: 0, p99: 10ms, storeCalls: 1000, earlyDenials: 50, degraded: 0, unserved: 0 }\n",
		wanted: text + "faults: [ { kind: storeAway, at: 1s, for: 800ms } ]\n" +
			"bounds: { over: 1000, storeCalls: 0.5, degraded: 1 }\n",
		few: "instances: 2\n",
		log: "198.51.100.7 - acme [17/May/2015:10:05:03 +0000] \"GET / HTTP/1.1\" 200 1\n" +
			"198.51.100.7 - acme [17/May/2015:10:05:07 +0000] \"GET / HTTP/1.1\" 200 1\n",
		broken: "plans: [ { id: pro, limits: [ { id: a, algorithm: token_bucket, rate: -20, period: 1s } ] } ]\n",
		cells:  "cells: 2\ninstances: 1\nrequestsPerSecond: 100\nmeasured: 3s\n",
		plans: "plans: [ { id: pro, limits: [ { id: a, algorithm: token_bucket, rate: 20, period: 1s } ] } ]\n" +
			"tenants: [ { id: acme, plan: pro } ]\n",
	} {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, test := range []struct {
		args         []string
		code         int
		stdout, errs string
	}{
		{[]string{"--script", script}, 0, "over a limit            0", ""},
		{[]string{"--script", script, "--json"}, 0, `"over": 0`, ""},
		{[]string{"--script", script, "--html", filepath.Join(t.TempDir(), "page.html")}, 0, "money", ""},
		{[]string{"--explore", "1", "--html", "page.html"}, 2, "", "--explore has no report"},
		{[]string{"--script", cells, "--plans", plans}, 0, "cell cell-2               allowed", ""},
		{[]string{"--script", few, "--plans", plans, "--log", log, "--scale", "50"}, 0,
			"access log              2  lines, each 50 requests", ""},
		{[]string{"--scenario", "store-away", "--plans", plans, "--log", log}, 0, "2  lines, each 1 requests", ""},
		{[]string{"--scenario", "retry-storm", "--plans", plans, "--log", log}, 1, "",
			"retryStorm at 15s: it has no effect"},
		{[]string{"--script", script, "--plans", plans, "--log", log}, 1, "", "mine.yaml:3:1: tenants has no effect"},
		{[]string{"--script", few, "--log", log}, 2, "", "--log needs --plans"},
		{[]string{"--script", few, "--scale", "2"}, 2, "", "--scale is for --log"},
		{[]string{"--script", few, "--plans", plans, "--log", log, "--tenant-from", "moon"}, 2, "",
			"--tenant-from: not a way"},
		{[]string{"--script", few, "--plans", plans, "--log", log, "--default-plan", "no"}, 2, "", "no such plan"},
		{[]string{"--script", few, "--plans", plans, "--log", log + ".no"}, 1, "", "read the log"},
		{[]string{"--script", script, "--plans", plans}, 1, "", "mine.yaml:3:1: tenants has no effect with a plans"},
		{[]string{"--script", few, "--plans", broken}, 1, "", "broken.yaml:1:"},
		{[]string{"--script", few, "--plans", plans + ".no"}, 1, "", "plans.yaml.no"},
		{[]string{"--explore", "1", "--plans", plans}, 2, "", "--explore makes its own tenants"},
		{[]string{"--script", held}, 0, "denied", ""},
		{[]string{"--script", wanted, "--json"}, 1, `degraded is 11.8`, "the run broke a bound: storeCalls is"},
		{[]string{"--script", wanted}, 1, "BROKEN: degraded is 11.8", "degraded is 11.8"},
		{[]string{"--list"}, 0, "redis-failover", ""},
		{[]string{"--explore", "3"}, 0, "3 seeds from 1 on broke no bound", ""},
		{nil, 2, "", "give one of --scenario"},
		{[]string{"--scenario", "nothing"}, 2, "", `there is no scenario "nothing"`},
		{[]string{"--explore", "-1"}, 2, "", "below zero"},
		{[]string{"--script", script, "--costs", script}, 1, "", "mine.yaml"},
		{[]string{"--script", script + ".no"}, 1, "", "cannot be read"},
	} {
		got := sluice(t, "", append([]string{"fleet"}, test.args...)...)
		if got.code != test.code || !strings.Contains(got.stdout, test.stdout) ||
			!strings.Contains(got.stderr, test.errs) {
			t.Errorf("%v: exit %d, %s%s", test.args, got.code, got.stdout, got.stderr)
		}
	}
}

// Guarantees that Ctrl-C ends a run with its report so far, as text and as JSON, and with an exit code that is not 0,
// and that a run says how far it is where nobody sees a bar.
func TestFleetInterrupted(t *testing.T) {
	t.Parallel()
	script := filepath.Join(t.TempDir(), "long.yaml")
	text := "instances: 2\nrequestsPerSecond: 200000\ntenants: 100\nmeasured: 48h\n"
	if err := os.WriteFile(script, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		args         []string
		stdout, errs string
	}{
		{[]string{"--script", script}, "INTERRUPTED", "interrupted: the report is about the time until then"},
		{[]string{"--script", script, "--json"}, `"partial": true`, "interrupted"},
		{[]string{"--explore", "1000000"}, "broke no bound", "interrupted before all seeds were run"},
	} {
		ctx, cancel := context.WithCancel(t.Context())
		root := newRootCommand()
		var out, errs bytes.Buffer
		root.SetArgs(append([]string{"fleet"}, test.args...))
		root.SetOut(&out)
		root.SetErr(&errs)
		time.AfterFunc(300*time.Millisecond, cancel)
		err := root.ExecuteContext(ctx)
		if err == nil || !strings.Contains(err.Error(), test.errs) || !strings.Contains(out.String(), test.stdout) {
			t.Errorf("%v: %v, %s%s", test.args, err, out.String(), errs.String())
		}
	}
}

// Guarantees that progress is written once in a while, and not at each step.
func TestLineProgress(t *testing.T) {
	var out bytes.Buffer
	at := time.Unix(0, 0)
	progress := lineProgress(&out, "simulated", func() time.Time { return at })
	for i := range 25 {
		at = at.Add(time.Second)
		progress(float64(i+1) / 25)
	}
	if want := "simulated: 40 %, after 10s\nsimulated: 80 %, after 20s\n"; out.String() != want {
		t.Errorf("wrote %q, want %q", out.String(), want)
	}
}
