package sluice_test

import (
	"bytes"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/sluicelimits/sluice"
)

// logged returns a limiter and what it logs.
func logged(t *testing.T, plans string) (*sluice.Limiter, *bytes.Buffer) {
	t.Helper()
	var log bytes.Buffer
	l := open(t, plans, func(c *sluice.Config) { c.Log = slog.New(slog.NewTextHandler(&log, nil)) })
	return l, &log
}

// Guarantees that a plan id of the program that does not exist is named in the decision's error and once in the log,
// and that a program which takes plan ids from its clients cannot fill the log.
func TestUnknownPlanIsNamed(t *testing.T) {
	l, log := logged(t, hourly)
	ask := func(plan string) sluice.Decision {
		return l.Decide(t.Context(), sluice.Identity{Tenant: "globex", Plan: plan}, sluice.Request{})
	}
	for range 3 {
		if d := ask("nope"); d.Reason != sluice.NoPlan || d.Err == nil || !strings.Contains(d.Err.Error(), `"nope"`) {
			t.Fatalf("%s, error %v; want no_plan, and an error that names the plan", d.Reason, d.Err)
		}
	}
	if n := strings.Count(log.String(), "nope"); n != 1 || !strings.Contains(log.String(), "level=WARN") {
		t.Errorf("the log names the plan %d times, want one warning:\n%s", n, log)
	}
	log.Reset()
	for i := range 1000 {
		ask(fmt.Sprint(strings.Repeat("x", 1000), i))
		ask(fmt.Sprint("plan-", i))
	}
	if lines := strings.Count(log.String(), "\n"); lines == 0 || lines > 100 || log.Len() > 100*1000 {
		t.Errorf("2000 unknown plans write %d lines, %d bytes; want at most 100 lines of at most 1000 bytes", lines,
			log.Len())
	}
}

// Guarantees that the log says once why all callers are denied because nobody can be identified. A program that uses
// the middleware does not see Decision.Err.
func TestNobodyCanCallIsLogged(t *testing.T) {
	l, log := logged(t, hourly)
	for range 3 {
		if d := l.Authorize(t.Context(), sluice.Request{Peer: "192.0.2.1:1"}); d.Reason != sluice.NoCredential {
			t.Fatalf("%s, want no_credential", d.Reason)
		}
	}
	if n := strings.Count(log.String(), "nobody can call"); n != 1 || !strings.Contains(log.String(), "level=WARN") {
		t.Errorf("the log says %d times that nobody can call, want one warning:\n%s", n, log)
	}
}
