// Package built builds the executables that tests start.
package built

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// Function builds the function of a package into the file to. The executable differs from the deployed one only in the
// processor that it is built for.
func Function(to, pkg string) error {
	return Build(to, pkg, "-trimpath", "-tags", "lambda.norpc,nethttpomithttp2")
}

// Build builds the executable of a package into the file to, with these flags, without debug information and without
// cgo. The package is an import path or a folder relative to the test's.
//
// An executable takes seconds to link. Build therefore keeps it in the folder dist/tests of the module, and the go
// command links it anew only if its code has changed. Several processes may build it at the same time.
func Build(to, pkg string, flags ...string) error {
	const format = "{{.ImportPath}}\n{{.Module.Dir}}"
	list := exec.Command("go", "list", "-f", format, pkg) //nolint:gosec // the test names its own packages
	named, err := list.CombinedOutput()
	if err != nil {
		return fmt.Errorf("go list %s: %w\n%s", pkg, err, named)
	}
	path, root, _ := strings.Cut(strings.TrimSpace(string(named)), "\n")
	kept := filepath.Join(root, "dist", "tests", strings.ReplaceAll(path, "/", "_"))
	if err := os.MkdirAll(filepath.Dir(kept), 0o755); err != nil { //nolint:gosec // a folder of the work tree
		return err
	}
	if err := removeAbandoned(filepath.Dir(kept)); err != nil {
		return err
	}
	dir, err := os.MkdirTemp(filepath.Dir(kept), newPrefix)
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	// The go command leaves a target as it is if that is what it would link, and replaces it otherwise.
	target := filepath.Join(dir, "target")
	if err := os.Link(kept, target); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	arguments := append([]string{"build", "-buildvcs=false", "-ldflags=-s -w", "-o", target}, flags...)
	build := exec.Command("go", append(arguments, pkg)...) //nolint:gosec // the test names its own packages
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("go build %s: %w\n%s", pkg, err, out)
	}
	if err := place(target, to); err != nil {
		return err
	}
	return os.Rename(target, kept)
}

// The folders in which executables are built have names that begin with newPrefix. The process that made a folder older
// than abandoned was killed before it could remove it: by default go test ends a package after ten minutes.
const (
	newPrefix = ".new-"
	abandoned = time.Hour
)

// removeAbandoned removes the folders that killed processes left in dir.
func removeAbandoned(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), newPrefix) {
			continue
		}
		info, err := e.Info()
		switch {
		case errors.Is(err, os.ErrNotExist): // the process that made it has removed it meanwhile
		case err != nil:
			return err
		case time.Since(info.ModTime()) > abandoned:
			if err := os.RemoveAll(filepath.Join(dir, e.Name())); err != nil {
				return err
			}
		}
	}
	return nil
}

// place makes the executable from also appear as to: as a link, or as a copy if to lies on another file system.
func place(from, to string) error {
	if err := os.Link(from, to); err == nil {
		return nil
	}
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()                                                      //nolint:errcheck // only read
	out, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o755) //nolint:gosec // a program is executable
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}
