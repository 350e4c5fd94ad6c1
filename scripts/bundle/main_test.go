package main

import (
	"archive/zip"
	"bytes"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func put(t *testing.T, dir, name, text string, mode fs.FileMode, at time.Time) string {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := os.WriteFile(path, []byte(text), mode); err != nil {
		t.Fatal(err)
	}
	if err := os.Chtimes(path, at, at); err != nil {
		t.Fatal(err)
	}
	return path
}

func bundle(t *testing.T, out, program string, beside ...string) []byte {
	t.Helper()
	var said strings.Builder
	if err := run(&said, out, program, beside); err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(said.String(), out+": ") || !strings.Contains(said.String(), " MB, ") {
		t.Errorf("said %q, want the bundle and its size", said.String())
	}
	content, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	return content
}

// Guarantees that the same files make the same bundle, wherever they lie, whoever may read them and whenever they were
// made: so what is deployed can be compared with what is built.
func TestSameBytes(t *testing.T) {
	text := strings.Repeat("a program ", 10_000)
	var first []byte
	for _, at := range []time.Time{time.Date(2001, 2, 3, 4, 5, 6, 0, time.UTC), time.Now()} {
		dir := t.TempDir()
		mode := fs.FileMode(0o600)
		if first != nil {
			mode = 0o755
		}
		got := bundle(t, filepath.Join(dir, "out.zip"), put(t, dir, "built", text, mode, at),
			put(t, dir, "plans.yaml", "plans: []", mode, at))
		if first == nil {
			first = got
		} else if !bytes.Equal(first, got) {
			t.Error("two bundles of the same files differ")
		}
	}
	z, err := zip.NewReader(bytes.NewReader(first), int64(len(first)))
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []struct {
		name, text string
		mode       fs.FileMode
	}{{"bootstrap", text, 0o755}, {"plans.yaml", "plans: []", 0o644}} {
		f := z.File[i]
		r, err := f.Open()
		if err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(r)
		if err != nil || f.Name != want.name || f.Mode() != want.mode || string(got) != want.text ||
			!f.Modified.Equal(made) {
			t.Errorf("%s %s of %s, %d bytes, %v; want %s %s", f.Mode(), f.Name, f.Modified, len(got), err, want.mode,
				want.name)
		}
	}
	if len(z.File) != 2 {
		t.Errorf("%d files, want 2", len(z.File))
	}
}

// Guarantees that a bundle which cannot be made leaves the one that is there, and nothing beside it.
func TestNothingIsLeftBehind(t *testing.T) {
	dir := t.TempDir()
	good := put(t, dir, "good", "program", 0o755, made)
	other := filepath.Join(dir, "other")
	if err := os.Mkdir(other, 0o755); err != nil {
		t.Fatal(err)
	}
	out := filepath.Join(dir, "out.zip")
	before := bundle(t, out, good)
	for _, tt := range []struct {
		program string
		beside  []string
		want    string
	}{
		{filepath.Join(dir, "missing"), nil, "no such file"},
		{put(t, dir, "empty", "", 0o755, made), nil, "is empty"},
		{other, nil, "not a regular file"},
		{good, []string{put(t, other, "bootstrap", "x", 0o644, made)}, "two files are called bootstrap"},
		{good, []string{put(t, dir, "same", "x", 0o644, made), put(t, other, "same", "x", 0o644, made)},
			"two files are called same"},
	} {
		if err := run(io.Discard, out, tt.program, tt.beside); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s %q: %v, want an error with %q", tt.program, tt.beside, err, tt.want)
		}
	}
	after, err := os.ReadFile(out)
	if err != nil || !bytes.Equal(before, after) {
		t.Errorf("the bundle has changed: %v", err)
	}
	if left, err := filepath.Glob(filepath.Join(dir, ".bundle-*")); err != nil || len(left) > 0 {
		t.Errorf("left behind: %q, %v", left, err)
	}
}
