package limit

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Guarantees that no two algorithms have the same name in plans, or the same letter in the short names of counters.
// Algorithms with the same letter would share counters.
func TestKindsAreDistinct(t *testing.T) {
	names, letters := map[string]Algorithm{}, map[byte]Algorithm{}
	for _, a := range Algorithms() {
		k := &kinds[a]
		if k.name == "" || k.letter < 'a' || k.letter > 'z' {
			t.Errorf("algorithm %d has the name %q and the letter %q, want both, and a letter of a to z", a, k.name,
				k.letter)
		}
		if other, taken := names[k.name]; taken {
			t.Errorf("algorithms %d and %d have the same name %q, want different ones", other, a, k.name)
		}
		if other, taken := letters[k.letter]; taken {
			t.Errorf("%s and %s have the same letter %q, want different ones", other, a, k.letter)
		}
		names[k.name], letters[k.letter] = a, a
	}
}

// Guarantees that each constant of type Algorithm has a line in kinds. An algorithm without one would be neither
// counted nor tested.
func TestConstantsAreInKinds(t *testing.T) {
	constants := map[string]bool{}
	inKinds := map[string]bool{}
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		source, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, source, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range file.Decls {
			addConstants(d, constants)
			addKinds(d, inKinds)
		}
	}
	if len(inKinds) != len(Algorithms()) {
		t.Fatalf("the variable kinds has %d lines, want %d, one for each algorithm", len(inKinds), len(Algorithms()))
	}
	for name := range constants {
		if !inKinds[name] {
			t.Errorf("the constant %s of type Algorithm has no line in the variable kinds: add one", name)
		}
	}
	for name := range inKinds {
		if !constants[name] {
			t.Errorf("the variable kinds has a line for %s, which is not a constant that is declared with the type "+
				"Algorithm", name)
		}
	}
}

// addConstants adds the names of the constants of type Algorithm that d declares.
func addConstants(d ast.Decl, names map[string]bool) {
	group, ok := d.(*ast.GenDecl)
	if !ok || group.Tok != token.CONST {
		return
	}
	typed := false // a constant without a value has the type of the previous one
	for _, spec := range group.Specs {
		c := spec.(*ast.ValueSpec)
		if c.Type != nil || len(c.Values) > 0 {
			of, ok := c.Type.(*ast.Ident)
			typed = ok && of.Name == "Algorithm"
		}
		for _, name := range c.Names {
			if typed && name.Name != "_" {
				names[name.Name] = true
			}
		}
	}
}

// addKinds adds the indexes of the lines of kinds, if d declares that variable.
func addKinds(d ast.Decl, names map[string]bool) {
	group, ok := d.(*ast.GenDecl)
	if !ok || group.Tok != token.VAR {
		return
	}
	for _, spec := range group.Specs {
		v := spec.(*ast.ValueSpec)
		if v.Names[0].Name != "kinds" || len(v.Values) != 1 {
			continue
		}
		for _, line := range v.Values[0].(*ast.CompositeLit).Elts {
			names[line.(*ast.KeyValueExpr).Key.(*ast.Ident).Name] = true
		}
	}
}
