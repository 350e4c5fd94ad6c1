package audit_test

import (
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"github.com/sluicelimits/sluice/internal/control/audit"
	"github.com/sluicelimits/sluice/internal/control/audit/audittest"
)

func open(t *testing.T, dir string) audit.Archive {
	t.Helper()
	a := audit.NewFolder(dir)
	return a
}

func TestContract(t *testing.T) {
	audittest.Run(t, func(t *testing.T) func() audit.Archive {
		dir := filepath.Join(t.TempDir(), "data")
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		return func() audit.Archive { return open(t, dir) }
	})
}

// Guarantees that no name leads out of the folder, and that no object can have the name of a file that is being
// written.
func TestNames(t *testing.T) {
	dir := t.TempDir()
	a := open(t, filepath.Join(dir, "archive"))
	for _, name := range []string{"../x", "audit/../../x", "/x", "audit//x", "audit/./x", `audit\x`, "audit/\x00", ".",
		"audit/.begun-1"} {
		if made, err := a.Put(t.Context(), name, []byte("x")); err == nil || made {
			t.Errorf("a put of %q: got no error, want one", name)
		}
		if _, err := a.Get(t.Context(), audit.Entry{Name: name}); err == nil {
			t.Errorf("a get of %q: got no error, want one", name)
		}
	}
	left, err := os.ReadDir(dir)
	if err != nil || len(left) != 0 {
		t.Errorf("got the files %v after names that are refused, error %v; want none", left, err)
	}
}

// Guarantees that a file which is not a regular one ends a read with an error: a read of a named pipe would wait
// for ever.
func TestNamedPipe(t *testing.T) {
	dir := t.TempDir()
	if err := syscall.Mkfifo(filepath.Join(dir, "pipe"), 0o600); err != nil {
		t.Fatal(err)
	}
	a := open(t, dir)
	if _, err := a.Get(t.Context(), audit.Entry{Name: "pipe"}); err == nil || !strings.Contains(err.Error(),
		"not a regular file") {
		t.Errorf("a get of a named pipe: %v, want an error that says what it is", err)
	}
}

// Guarantees that files are read-only, that a crash during a write leaves no object, and that a write leaves no
// temporary file.
func TestFiles(t *testing.T) {
	dir := t.TempDir()
	a := open(t, dir)
	if _, err := a.Put(t.Context(), "audit/a/1", []byte("one")); err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(filepath.Join(dir, "audit", "a", "1"))
	if err != nil || runtime.GOOS != "windows" && info.Mode().Perm() != 0o400 {
		t.Errorf("the file is %v, %v; want -r--------", info.Mode(), err)
	}
	if err := os.WriteFile(filepath.Join(dir, "audit", "a", ".begun-123"), []byte("on"), 0o600); err != nil {
		t.Fatal(err)
	}
	var names []string
	for e, err := range a.List(t.Context(), "", "") {
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, e.Name)
	}
	if got := strings.Join(names, " "); got != "audit/a/1" {
		t.Errorf("got the list %s, want audit/a/1", got)
	}
	if left, _ := filepath.Glob(filepath.Join(dir, "audit", "a", ".begun-*")); len(left) != 1 {
		t.Errorf("got the unfinished files %v, want one", left)
	}
}

// Guarantees that an absent folder is an error and not an empty archive, so that a wrong path is noticed.
func TestNoFolder(t *testing.T) {
	a := open(t, filepath.Join(t.TempDir(), "none"))
	var failed error
	for _, err := range a.List(t.Context(), "", "") {
		failed = err
	}
	if failed == nil {
		t.Error("the list of an absent folder: got no error, want one")
	}
}
