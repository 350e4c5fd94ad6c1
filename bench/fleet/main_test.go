package main

import (
	"bytes"
	"context"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// Guarantees the command line: the list of scenarios, a run with its page, a short exploration, and errors.
func TestFleet(t *testing.T) {
	page := filepath.Join(t.TempDir(), "page.html")
	for _, test := range []struct {
		args      []string
		code      int
		out, errs string
	}{
		{[]string{"-list"}, 0, "redis-failover", ""},
		{[]string{"-scenario", "retry-storm", "-html", page}, 0, "over a limit            0", ""},
		{[]string{"-scenario", "retry-storm", "-json"}, 0, `"over": 0`, ""},
		{[]string{"-scenario", "retry-storm", "-html", filepath.Join(page, "x")}, 1, "", "not a directory"},
		{[]string{"-explore", "3"}, 0, "3 seeds from 1 on broke no bound", ""},
		{nil, 2, "", "give one of -scenario"},
		{[]string{"-scenario", "retry-storm", "-explore", "1"}, 2, "", "give one of -scenario"},
		{[]string{"-scenario", "nothing"}, 2, "", `there is no scenario "nothing"`},
		{[]string{"-explore", "-1"}, 2, "", "below zero"},
		{[]string{"million"}, 2, "", `"million" is no flag`},
	} {
		var out, errs bytes.Buffer
		if code := run(t.Context(), test.args, &out, &errs); code != test.code ||
			!strings.Contains(out.String(), test.out) || !strings.Contains(errs.String(), test.errs) {
			t.Errorf("%v: exit %d, %s%s", test.args, code, out.String(), errs.String())
		}
	}
}

// Guarantees that Ctrl-C ends a run with its report so far, as text and as JSON, and with an exit code that is not 0.
func TestInterrupted(t *testing.T) {
	for _, test := range []struct {
		args      []string
		out, errs string
	}{
		{[]string{"-scenario", "million"}, "INTERRUPTED", "interrupted: the report is about the time until then"},
		{[]string{"-scenario", "million", "-json"}, `"partial": true`, "interrupted"},
		{[]string{"-explore", "1000000"}, "broke no bound", "interrupted before all seeds were run"},
	} {
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(300*time.Millisecond, cancel)
		var out, errs bytes.Buffer
		if code := run(ctx, test.args, &out, &errs); code != 1 || !strings.Contains(out.String(), test.out) ||
			!strings.Contains(errs.String(), test.errs) {
			t.Errorf("%v: exit %d, %s%s", test.args, code, out.String(), errs.String())
		}
	}
}
