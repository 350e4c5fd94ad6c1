package main

import (
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
	for _, tt := range []struct {
		read func() (*debug.BuildInfo, bool)
		want string
	}{
		{of("v1.2.3"), "v1.2.3, go1.26"},
		{of(""), "(devel), go1.26"},
		{func() (*debug.BuildInfo, bool) { return nil, false }, "unknown: built without module support"},
	} {
		if got := version(tt.read); got != tt.want {
			t.Errorf("the version is %q, want %q", got, tt.want)
		}
	}
	if r := sluice(t, "", "--version"); r.code != 0 || !strings.HasPrefix(r.stdout, "sluice version ") ||
		!strings.Contains(r.stdout, "go1.") {
		t.Errorf("exit status %d, standard output %q, standard error %q", r.code, r.stdout, r.stderr)
	}
}
