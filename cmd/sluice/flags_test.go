package main

import (
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// Guarantees that durations are read in one syntax: days, and what Go writes.
func TestDuration(t *testing.T) {
	for text, want := range map[string]time.Duration{"7d": 168 * time.Hour, "0d": 0, "1d12h": 36 * time.Hour,
		"90m": 90 * time.Minute, "500ms": 500 * time.Millisecond, "0s": 0, "-1h": -time.Hour,
		"36500d": 876000 * time.Hour} {
		if d, err := readDuration(text); err != nil || d != want {
			t.Errorf("%q is %s, %v; want %s", text, d, err, want)
		}
	}
	for _, text := range []string{"", "d", "7", "7 d", "-7d", "+7d", "7d-1h", "7d+1h", "1.5d", "1d2d",
		"36501d", "x", "7days"} {
		if d, err := readDuration(text); err == nil {
			t.Errorf("%q is read as %s", text, d)
		}
	}
}

// Guarantees that each flag for a duration reads days, as every other does.
func TestDurationFlags(t *testing.T) {
	found := 0
	var walk func(c *cobra.Command)
	walk = func(c *cobra.Command) {
		c.Flags().VisitAll(func(f *pflag.Flag) {
			if f.Value.Type() != "duration" {
				return
			}
			found++
			if err := f.Value.Set("2d"); err != nil {
				t.Errorf("%s --%s 2d: %v", c.CommandPath(), f.Name, err)
			}
		})
		for _, sub := range c.Commands() {
			walk(sub)
		}
	}
	walk(newRootCommand())
	if found < 15 {
		t.Errorf("only %d flags for durations were found", found)
	}
	r := sluice(t, "", "boost", "add", "acme", "burst", "--for", "two days", "--reason", "x")
	if r.code != exitUsage || !strings.Contains(r.stderr, "it is not a duration such as 90m, 24h or 7d") {
		t.Errorf("a wrong duration: %+v", r)
	}
}

// Shell completion offers the words of a flag that takes one of a few words.
func TestCompletionOfWords(t *testing.T) {
	for _, c := range []struct{ args, want string }{
		{"dev --live-page", "loopback\nall\noff\n:4\n"},
		{"dev --log-level", "debug\ninfo\nwarn\nerror\n:4\n"},
	} {
		if got := sluice(t, "", append(append([]string{"__complete"}, strings.Fields(c.args)...),
			"")...); got.stdout != c.want {
			t.Errorf("%s: %q, want %q", c.args, got.stdout, c.want)
		}
	}
}
