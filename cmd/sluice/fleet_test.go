package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestFleet tests the command line of sluice fleet: a script, the list, a short exploration, and what is refused.
func TestFleet(t *testing.T) {
	script := filepath.Join(t.TempDir(), "mine.yaml")
	text := "instances: 2\nrequestsPerSecond: 100\ntenants: 5\nmeasured: 3s\n"
	if err := os.WriteFile(script, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		args         []string
		code         int
		stdout, errs string
	}{
		{[]string{"--script", script}, 0, "over a limit            0", ""},
		{[]string{"--script", script, "--json"}, 0, `"over": 0`, ""},
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
