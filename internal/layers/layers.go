// Package layers holds the borders between packages: tests in a protected package say what it may import.
//
// The check stands in the package that it protects, and reads source files in the test's own process. Go's test cache
// then sees both a new import (the test binary changes) and a changed file, which it would not if go list read them.
package layers

import (
	"errors"
	"fmt"
	"go/parser"
	"go/token"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// Std stands for every package of the standard library in a list of allowed imports.
const Std = "std"

// Only fails t unless each import of the package under test is in allowed: [Std], an import path, or a path that ends in
// "/..." for everything below it. Paths that start with "./" are of this module. Test files are not looked at.
func Only(t *testing.T, allowed ...string) {
	t.Helper()
	report(t, func(m *module, dir string) ([]error, error) { return m.only(dir, allowed) })
}

// Forbid fails t if the package under test imports, directly or through packages of this module, a path that is a key of
// forbidden or lies below one. Each key's text is the reason. Keys that start with "./" are of this module.
func Forbid(t *testing.T, forbidden map[string]string) {
	t.Helper()
	report(t, func(m *module, dir string) ([]error, error) { return m.forbid(dir, forbidden) })
}

func report(t *testing.T, check func(*module, string) ([]error, error)) {
	t.Helper()
	dir, err := os.Getwd() // go test runs in the folder of the package under test
	if err != nil {
		t.Fatal(err)
	}
	m, err := findModule(dir)
	if err != nil {
		t.Fatal(err)
	}
	broken, err := check(m, dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, b := range broken {
		t.Error(b)
	}
}

// module is the module that the package under test belongs to.
type module struct {
	root string // folder of go.mod
	path string
}

func findModule(dir string) (*module, error) {
	for root := dir; ; root = filepath.Dir(root) {
		text, err := os.ReadFile(filepath.Join(root, "go.mod"))
		if errors.Is(err, os.ErrNotExist) {
			if root == filepath.Dir(root) {
				return nil, fmt.Errorf("find the module of %s: no go.mod above it", dir)
			}
			continue
		}
		if err != nil {
			return nil, err
		}
		for line := range strings.Lines(string(text)) {
			if name, ok := strings.CutPrefix(strings.TrimSpace(line), "module "); ok {
				return &module{root: root, path: strings.TrimSpace(name)}, nil
			}
		}
		return nil, fmt.Errorf("find the module of %s: go.mod in %s names none", dir, root)
	}
}

// only returns an error for each direct import of the package in dir that is not allowed.
func (m *module) only(dir string, allowed []string) ([]error, error) {
	imports, err := importsOf(dir)
	if err != nil {
		return nil, err
	}
	var broken []error
	for _, i := range imports {
		ok := slices.ContainsFunc(allowed, func(a string) bool {
			if a == Std {
				return isStd(i)
			}
			below, tree := strings.CutSuffix(m.absolute(a), "/...")
			return i == below || tree && strings.HasPrefix(i, below+"/")
		})
		if !ok {
			broken = append(broken, fmt.Errorf("%s imports %s, and may import only %s", m.name(dir), i, strings.Join(allowed, ", ")))
		}
	}
	return broken, nil
}

// forbid walks the imports of the package in dir, breadth first, so that the chain in an error is a shortest one.
func (m *module) forbid(dir string, forbidden map[string]string) ([]error, error) {
	type step struct {
		pkg   string
		chain []string
	}
	start := m.name(dir)
	seen := map[string]bool{start: true}
	var broken []error
	for queue := []step{{start, []string{start}}}; len(queue) > 0; queue = queue[1:] {
		s := queue[0]
		imports, err := importsOf(m.dir(s.pkg))
		if err != nil {
			return nil, err
		}
		for _, i := range imports {
			if seen[i] {
				continue
			}
			seen[i] = true
			chain := append(slices.Clone(s.chain), i)
			if reason, ok := m.forbids(forbidden, i); ok {
				broken = append(broken, fmt.Errorf("%s: %s", strings.Join(chain, " imports "), reason))
			} else if m.owns(i) {
				queue = append(queue, step{i, chain})
			}
		}
	}
	return broken, nil
}

func (m *module) forbids(forbidden map[string]string, pkg string) (reason string, ok bool) {
	for key, reason := range forbidden {
		key = strings.TrimSuffix(m.absolute(key), "/")
		if pkg == key || strings.HasPrefix(pkg, key+"/") {
			return reason, true
		}
	}
	return "", false
}

// absolute turns "./x" into the import path of x in this module, and "." into the module's own.
func (m *module) absolute(pkg string) string {
	if pkg == "." || strings.HasPrefix(pkg, "./") {
		return path.Join(m.path, pkg)
	}
	return pkg
}

func (m *module) owns(pkg string) bool { return pkg == m.path || strings.HasPrefix(pkg, m.path+"/") }

func (m *module) dir(pkg string) string {
	return filepath.Join(m.root, filepath.FromSlash(strings.TrimPrefix(pkg, m.path)))
}

func (m *module) name(dir string) string {
	rel, err := filepath.Rel(m.root, dir)
	if err != nil {
		return dir
	}
	return path.Join(m.path, filepath.ToSlash(rel))
}

// isStd goes by the rule of the go command: only paths outside the standard library have a dot in their first element.
func isStd(pkg string) bool {
	first, _, _ := strings.Cut(pkg, "/")
	return !strings.Contains(first, ".")
}

// importsOf lists what the Go files in dir import, tests left out, whatever their build tags.
func importsOf(dir string) ([]string, error) {
	files, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil {
		return nil, err
	}
	var imports []string
	found := false
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		found = true
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.ImportsOnly)
		if err != nil {
			return nil, err
		}
		for _, spec := range file.Imports {
			i, err := strconv.Unquote(spec.Path.Value)
			if err != nil {
				return nil, fmt.Errorf("import %s in %s: %w", spec.Path.Value, name, err)
			}
			imports = append(imports, i)
		}
	}
	if !found {
		return nil, fmt.Errorf("read the imports of %s: no Go file", dir)
	}
	slices.Sort(imports)
	return slices.Compact(imports), nil
}
