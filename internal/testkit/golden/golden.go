// Package golden compares what tests make with files. In the packages that import it, go test . -update rewrites the
// files; read the diff afterwards.
package golden

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "rewrite golden files; then read the diff")

// Check compares got with the file of that name in testdata.
func Check(tb testing.TB, name, got string) {
	tb.Helper()
	CheckFile(tb, filepath.Join("testdata", name), got)
}

// CheckFile compares got with a file. It reports the first line that differs.
func CheckFile(tb testing.TB, path, got string) {
	tb.Helper()
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o600); err != nil {
			tb.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		tb.Fatal(err)
	}
	if got == string(want) {
		return
	}
	gotLines, wantLines := strings.Split(got, "\n"), strings.Split(string(want), "\n")
	for i := range min(len(gotLines), len(wantLines)) {
		if gotLines[i] != wantLines[i] {
			tb.Errorf("%s:%d, the first line that differs\ngot  %s\nwant %s\n(-update rewrites the file)", path, i+1,
				gotLines[i], wantLines[i])
			return
		}
	}
	tb.Errorf("%s: got %d lines, want %d (-update rewrites the file)", path, len(gotLines), len(wantLines))
}
