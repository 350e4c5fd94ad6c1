package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
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
	for name, text := range map[string]string{
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
		{[]string{"--script", script, "--plans", plans}, 1, "", "mine.yaml:3:1: tenants has no effect beside a plans"},
		{[]string{"--script", few, "--plans", broken}, 1, "", "broken.yaml:1:"},
		{[]string{"--script", few, "--plans", plans + ".no"}, 1, "", "plans.yaml.no"},
		{[]string{"--explore", "1", "--plans", plans}, 2, "", "--explore makes its own tenants"},
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
