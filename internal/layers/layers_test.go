package layers

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A border test that cannot fail protects nothing: these are modules with and without a broken border, and what must be
// said about each.
func TestBorders(t *testing.T) {
	m := writeModule(t, map[string]string{
		"go.mod":           "module example.test/m\n\ngo 1.26\n",
		"core/core.go":     "package core\n\nimport (\n\t\"time\"\n\n\t\"example.test/m/store\"\n)\n",
		"core/x_test.go":   "package core\n\nimport _ \"example.test/m/cmd\"\n",
		"store/store.go":   "package store\n\nimport _ \"example.test/m/store/disk\"\n",
		"store/disk/d.go":  "//go:build windows\n\npackage disk\n\nimport _ \"cloud.test/sdk/table\"\n",
		"storefront/s.go":  "package storefront\n\nimport _ \"example.test/m/core\"\n",
		"empty/readme.txt": "nothing",
		"broken/broken.go": "pakkage broken\n",
	})
	tests := []struct {
		name      string
		dir       string
		only      []string
		forbidden map[string]string
		want      []string // parts of the one error; none: no error
		fails     string   // part of the error that stops the check itself
	}{
		{name: "only: all allowed", dir: "core", only: []string{Std, "./store"}},
		{name: "only: a tree", dir: "core", only: []string{Std, "./..."}},
		{name: "only: not ours", dir: "core", only: []string{Std},
			want: []string{"example.test/m/core imports example.test/m/store", "only std"}},
		{name: "only: not even std", dir: "core", only: []string{"./store"}, want: []string{"imports time"}},
		{name: "only: a path is not its children's", dir: "store", only: []string{Std, "./store"},
			want: []string{"imports example.test/m/store/disk"}},
		{name: "only: std is not what has a dot", dir: "store/disk", only: []string{Std},
			want: []string{"imports cloud.test/sdk/table"}},
		{name: "forbid: nothing broken, a test's import is no matter", dir: "core",
			forbidden: map[string]string{"./cmd": "is a program"}},
		{name: "forbid: direct", dir: "core", forbidden: map[string]string{"./store": "stores know the core"},
			want: []string{"core imports example.test/m/store", "stores know the core"}},
		{name: "forbid: two steps away, behind a build tag", dir: "core", forbidden: map[string]string{"cloud.test/": "no cloud"},
			want: []string{"core imports example.test/m/store imports example.test/m/store/disk imports cloud.test/sdk/table: no cloud"}},
		{name: "forbid: a longer name is another package", dir: "storefront",
			forbidden: map[string]string{"./storefront/x": "", "./stor": "", "./cor": ""}},
		{name: "no Go file is not a pass", dir: "empty", only: []string{Std}, fails: "no Go file"},
		{name: "an unreadable file is not a pass", dir: "broken", only: []string{Std}, fails: "expected 'package'"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			dir := filepath.Join(m.root, tt.dir)
			var broken []error
			var err error
			if tt.only != nil {
				broken, err = m.only(dir, tt.only)
			} else {
				broken, err = m.forbid(dir, tt.forbidden)
			}
			if tt.fails != "" {
				if err == nil || !strings.Contains(err.Error(), tt.fails) {
					t.Fatalf("check of %s: error %v, want one with %q", tt.dir, err, tt.fails)
				}
				return
			}
			if err != nil {
				t.Fatalf("check of %s: %v", tt.dir, err)
			}
			if wantErrors := min(1, len(tt.want)); len(broken) != wantErrors {
				t.Fatalf("check of %s: %v, want %d errors", tt.dir, broken, wantErrors)
			}
			for _, part := range tt.want {
				if !strings.Contains(broken[0].Error(), part) {
					t.Errorf("check of %s: %q, want it to contain %q", tt.dir, broken[0], part)
				}
			}
		})
	}
}

// Outside a module there is nothing to go by, and a silent pass would leave every border open.
func TestNoModule(t *testing.T) {
	for _, text := range []string{"", "go 1.26\n"} {
		dir := t.TempDir()
		if text != "" {
			if err := os.WriteFile(filepath.Join(dir, "go.mod"), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if m, err := findModule(dir); err == nil {
			t.Errorf("findModule with go.mod %q = %+v, want an error", text, m)
		}
	}
}

func TestThisPackage(t *testing.T) { Only(t, Std) }

func writeModule(t *testing.T, files map[string]string) *module {
	t.Helper()
	root := t.TempDir()
	for name, text := range files {
		file := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	m, err := findModule(filepath.Join(root, "core"))
	if err != nil {
		t.Fatal(err)
	}
	return m
}
