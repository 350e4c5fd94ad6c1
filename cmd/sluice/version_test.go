package main

import (
	"bytes"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"
	"testing"
)

// Guarantees that `sluice --version` identifies the build, however it was built.
func TestVersion(t *testing.T) {
	of := func(version string) func() (*debug.BuildInfo, bool) {
		return func() (*debug.BuildInfo, bool) {
			return &debug.BuildInfo{GoVersion: "go1.26", Main: debug.Module{Version: version}}, true
		}
	}
	inClone := func() (*debug.BuildInfo, bool) {
		return &debug.BuildInfo{GoVersion: "go1.26", Main: debug.Module{Version: "v0.1.1-0.x"},
			Settings: []debug.BuildSetting{{Key: "vcs.revision", Value: "abc"},
				{Key: "vcs.time", Value: "2026-11-29T09:00:00Z"}}}, true
	}
	for _, tt := range []struct {
		read func() (*debug.BuildInfo, bool)
		want string
	}{
		{of("v1.2.3"), "v1.2.3, go1.26"},
		{of(""), "(devel), go1.26"},
		{inClone, "v0.1.1-0.x, commit abc of 2026-11-29T09:00:00Z, go1.26"},
		{func() (*debug.BuildInfo, bool) { return nil, false }, "unknown: built without module support"},
	} {
		if got := version(tt.read); got != tt.want {
			t.Errorf("the version is %q, want %q", got, tt.want)
		}
	}
	for _, argument := range []string{"--version", "version"} {
		r := sluice(t, "", argument)
		if r.code != 0 || !strings.HasPrefix(r.stdout, "sluice version ") || !strings.Contains(r.stdout, "go1.") {
			t.Errorf("%s: exit status %d, standard output %q, standard error %q", argument, r.code, r.stdout, r.stderr)
		}
	}
}

// Guarantees that each command has a man page, and that two runs write the same: a release would otherwise differ from
// one that somebody builds again.
func TestManPages(t *testing.T) {
	t.Setenv("SOURCE_DATE_EPOCH", "1795000000") // a day of November 2026
	first, second := t.TempDir(), t.TempDir()
	for _, dir := range []string{first, second} {
		if r := sluice(t, "", "man", dir); r.code != 0 {
			t.Fatalf("exit status %d, standard error %q", r.code, r.stderr)
		}
	}
	for _, page := range []string{"sluice.1", "sluice-serve.1", "sluice-plan-diff.1"} {
		a, err := os.ReadFile(filepath.Join(first, page))
		if err != nil {
			t.Fatal(err)
		}
		b, err := os.ReadFile(filepath.Join(second, page))
		dated := bytes.Contains(a, []byte(`"Nov 2026"`)) && !bytes.Contains(a, []byte("Auto")) // without a day
		if err != nil || !bytes.Equal(a, b) || !dated {
			t.Errorf("%s: %v\n%s\nand of the second run:\n%s", page, err, a, b)
		}
	}
}
