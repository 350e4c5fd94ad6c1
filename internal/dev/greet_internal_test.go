package dev

import (
	"os/exec"
	"strings"
	"testing"

	"github.com/sluicelimits/sluice/internal/dev/devcells"
	"github.com/sluicelimits/sluice/internal/plan"
)

// Guarantees that no command to try is printed if no request could be identified, and that printed text has no control
// characters.
func TestTryLinesWithoutKeys(t *testing.T) {
	if lines := tryLines(devcells.Overview{Tenants: []*plan.Tenant{{ID: "acme", Plan: "p"}}}, nil, "", "http://x",
		nil); len(lines) != 0 {
		t.Errorf("without keys the commands to try are %v, want none", lines)
	}
	overview := devcells.Overview{Tenants: []*plan.Tenant{{ID: "acme", Plan: "p"}, {ID: "globex", Plan: "q"}}}
	keys := []*plan.Key{{Tenant: "acme", Hash: "a"}, {Tenant: "globex", Hash: "b"}}
	lines := tryLines(overview, keys, "", "http://x", func(*plan.Tenant) string { return "http://x" })
	if want := "tenant acme, plan p (put its key into KEY); or tenant globex, plan q (put its key into KEY)"; len(
		lines) != 3 || lines[0].about != want || lines[1].about != "no key: 401" {
		t.Errorf("with keys whose text is not known, the commands to try are %q; want one for %q", lines, want)
	}
	if got := printable("a\x1b[31m"); strings.ContainsRune(got, 0x1b) {
		t.Errorf("printable = %q", got)
	}
}

// Guarantees that the commands that dev prints start this program if they are pasted into a shell.
func TestProgramName(t *testing.T) {
	missing := func(string) (string, error) { return "", exec.ErrNotFound }
	found := func(string) (string, error) { return "/usr/bin/sluice", nil }
	for _, tt := range []struct {
		started  string
		lookPath func(string) (string, error)
		want     string
	}{
		{"sluice", found, "sluice"},
		{"/tmp/go-build123/b001/exe/sluice", found, "sluice"},
		{"/tmp/go-build123/b001/exe/sluice", missing, "go run ./cmd/sluice"},
		{"/home/ann/.cache/go-build/ab/abcd-d/sluice", missing, "go run ./cmd/sluice"},
		{"bin/sluice", missing, "bin/sluice"},
		{"/home/ann/my programs/sluice", missing, "sluice"},
		{"/tmp/sluice.test", missing, "sluice"},
	} {
		if got := programName(tt.started, tt.lookPath); got != tt.want {
			t.Errorf("started as %s: %q, want %q", tt.started, got, tt.want)
		}
	}
}
