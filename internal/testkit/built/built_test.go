package built

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"
)

// A test that is killed leaves an executable of many megabytes. The next one removes it, but no executable that another
// test is building, and none that is kept.
func TestRemoveAbandoned(t *testing.T) {
	dir := t.TempDir()
	long := time.Now().Add(-2 * abandoned)
	for name, at := range map[string]time.Time{newPrefix + "old": long, newPrefix + "fresh": time.Now(), "kept": long} {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(path, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(path, "target"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(path, at, at); err != nil {
			t.Fatal(err)
		}
	}
	if err := removeAbandoned(dir); err != nil {
		t.Fatal(err)
	}
	var left []string
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		left = append(left, e.Name())
	}
	if want := []string{newPrefix + "fresh", "kept"}; !slices.Equal(left, want) {
		t.Errorf("%q are left, want %q", left, want)
	}
}
