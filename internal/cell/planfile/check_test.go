package planfile

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Guarantees that a file which is still being written is not read: a change is read at the first check that finds the
// file as the check before did, and only once.
func TestCheckWaitsForTheEndOfAChange(t *testing.T) {
	file := filepath.Join(t.TempDir(), "plans.yaml")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("plans: []\n")
	var log strings.Builder
	p, err := Open(Config{Files: []string{file}, Log: slog.New(slog.NewTextHandler(&log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	for i, step := range []struct {
		write string // "": the file stays as it is
		plans int
	}{
		{"", 0},
		{"plans: [ { id: a, lim", 0}, // the first part of what an editor writes
		{"plans: [ { id: a, limits: [] } ]\n", 0},
		{"", 1},
		{"", 1},
	} {
		if step.write != "" {
			write(step.write)
		}
		if err := p.files.Check(); err != nil || len(p.Current().Config.Plans()) != step.plans {
			t.Errorf("check %d: %v, and %d plans are in force, want %d", i+1, err, len(p.Current().Config.Plans()),
				step.plans)
		}
	}
	if text := log.String(); strings.Count(text, "reloaded") != 1 {
		t.Errorf("the file was not read just once:\n%s", text)
	}
}
