package repotest

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"path"
	"slices"
	"strings"
	"testing"
)

// mostAlgorithmPlaces is how many places outside the algorithms' own files may compare, index or switch by algorithm.
// Each of them says why. All other code asks for a property, which is defined in an algorithm's own file.
const mostAlgorithmPlaces = 5

// noProduct are folders that are not counted: tests, and programs that measure.
var noProduct = []string{"bench/", "limittest/", "testdata/"}

// Guarantees that adding an algorithm needs one new file and few other lines, because few places know which algorithms
// exist.
func TestFewPlacesCompareAlgorithms(t *testing.T) {
	files := make(map[string][]byte)
	open(t).each(t, ".go", func(name string, content []byte) {
		in := func(folder string) bool { return strings.Contains("/"+name, "/"+folder) }
		if !strings.HasSuffix(name, "_test.go") && !slices.ContainsFunc(noProduct, in) {
			files[name] = content
		}
	})
	places, err := algorithmPlaces(files)
	switch {
	case err != nil:
		t.Fatal(err)
	case len(places) == 0:
		t.Error("no place was found that compares algorithms, not even the table of package limit: nothing is checked")
	case len(places) > mostAlgorithmPlaces:
		t.Errorf("%d places outside the algorithms' own files compare, index or switch by algorithm, want at most "+
			"%d; give package limit a property in their place:\n%s", len(places), mostAlgorithmPlaces,
			strings.Join(places, "\n"))
	}
}

// algorithmPlaces lists file and line of each place that compares, indexes or switches by algorithm: a comparison with
// an algorithm, a switch with one as a case, and a table or list of them. The algorithms are the constants of type
// Algorithm of package limit. The files that declare them are not listed.
func algorithmPlaces(files map[string][]byte) ([]string, error) {
	fset := token.NewFileSet()
	parsed := make(map[string]*ast.File)
	known, own := make(map[string]bool), make(map[string]bool)
	for name, content := range files {
		if !strings.Contains(string(content), "limit") { // neither of the package nor an import of it
			continue
		}
		file, err := parser.ParseFile(fset, name, content, parser.SkipObjectResolution)
		if err != nil {
			return nil, err
		}
		parsed[name] = file
		if path.Base(path.Dir(name)) == "limit" {
			for _, constant := range algorithmConstants(file) {
				known[constant], own[name] = true, true
			}
		}
	}
	var places []string
	for name, file := range parsed {
		if own[name] {
			continue
		}
		s := search{known: known, inside: path.Base(path.Dir(name)) == "limit", imported: importOfLimit(file)}
		ast.Inspect(file, func(n ast.Node) bool {
			if n != nil && s.compares(n) {
				p := fset.Position(n.Pos())
				places = append(places, fmt.Sprintf("%s:%d", p.Filename, p.Line))
			}
			return true
		})
	}
	slices.Sort(places)
	return slices.Compact(places), nil
}

// algorithmConstants returns the constants of type Algorithm that the file declares.
func algorithmConstants(file *ast.File) []string {
	var names []string
	for _, d := range file.Decls {
		g, ok := d.(*ast.GenDecl)
		if !ok || g.Tok != token.CONST {
			continue
		}
		for _, s := range g.Specs {
			v := s.(*ast.ValueSpec)
			if kind, ok := v.Type.(*ast.Ident); ok && kind.Name == "Algorithm" {
				for _, name := range v.Names {
					names = append(names, name.Name)
				}
			}
		}
	}
	return names
}

// importOfLimit returns the name under which the file imports package limit, or "" if it does not.
func importOfLimit(file *ast.File) string {
	for _, i := range file.Imports {
		if pkg := strings.Trim(i.Path.Value, "\"`"); strings.HasSuffix(pkg, "/limit") {
			if i.Name != nil {
				return i.Name.Name
			}
			return path.Base(pkg)
		}
	}
	return ""
}

// search finds such places in one file.
type search struct {
	known    map[string]bool // the names of the algorithms
	inside   bool            // the file belongs to package limit, where the names have no qualifier
	imported string          // otherwise, the name under which the file imports package limit
}

// names reports whether the expression is an algorithm.
func (s *search) names(e ast.Expr) bool {
	switch x := e.(type) {
	case *ast.ParenExpr:
		return s.names(x.X)
	case *ast.Ident:
		return s.inside && s.known[x.Name]
	case *ast.SelectorExpr:
		pkg, ok := x.X.(*ast.Ident)
		return ok && s.imported != "" && pkg.Name == s.imported && s.known[x.Sel.Name]
	}
	return false
}

func (s *search) compares(n ast.Node) bool {
	switch x := n.(type) {
	case *ast.BinaryExpr:
		switch x.Op {
		case token.EQL, token.NEQ, token.LSS, token.LEQ, token.GTR, token.GEQ:
			return s.names(x.X) || s.names(x.Y)
		}
	case *ast.SwitchStmt:
		return slices.ContainsFunc(x.Body.List, func(c ast.Stmt) bool {
			return slices.ContainsFunc(c.(*ast.CaseClause).List, s.names)
		})
	case *ast.IndexExpr:
		return s.names(x.Index)
	case *ast.CompositeLit:
		return slices.ContainsFunc(x.Elts, func(e ast.Expr) bool {
			if pair, ok := e.(*ast.KeyValueExpr); ok {
				e = pair.Key
			}
			return s.names(e)
		})
	}
	return false
}

func TestAlgorithmPlaces(t *testing.T) {
	const declared = "package limit\n\ntype Algorithm uint8\n\nconst Steady Algorithm = 1\n\nvar own = Steady == 2\n"
	const user = "package p\n\nimport \"example.com/internal/limiter/limit\"\n\n"
	const f = user + "func f(a, b limit.Algorithm) bool { return "
	const renamed = "package p\n\nimport l \"example.com/internal/limiter/limit\"\n\n"
	tests := []struct {
		name, file, text string
		want             string // the place; "" for none
	}{
		{"comparison", "p/p.go", f + "a == limit.Steady }\n", "p/p.go:5"},
		{"the other way round", "p/p.go", f + "(limit.Steady) != a }\n", "p/p.go:5"},
		{"two on one line", "p/p.go", f + "a == limit.Steady || b == limit.Steady }\n", "p/p.go:5"},
		{"switch", "p/p.go", user + "func f() {\n\tswitch own {\n\tcase 0, limit.Steady:\n\t}\n}\n", "p/p.go:6"},
		{"table", "p/p.go", user + "var t = map[limit.Algorithm]int{\n\tlimit.Steady: 1,\n}\n", "p/p.go:5"},
		{"list", "p/p.go", user + "var t = []limit.Algorithm{limit.Steady}\n", "p/p.go:5"},
		{"index", "p/p.go", user + "func f(t []int) int { return t[limit.Steady] }\n", "p/p.go:5"},
		{"another name of the package", "p/p.go", renamed + "var t = own == l.Steady\n", "p/p.go:5"},
		{"inside the package", "internal/limiter/limit/x.go", "package limit\n\nvar t = own == Steady\n",
			"internal/limiter/limit/x.go:3"},
		{"a tier is made", "p/p.go", user + "var t = limit.Tier{Algorithm: limit.Steady}\n", ""},
		{"assigned", "p/p.go", user + "func f(a *limit.Algorithm) { *a = limit.Steady }\n", ""},
		{"no algorithm", "p/p.go", user + "func f(m limit.Mode) bool { return m == limit.Enforce }\n", ""},
		{"another package", "p/p.go", "package p\n\nimport \"example.com/limits\"\n\nvar t = own == " +
			"limits.Steady\n", ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			files := map[string][]byte{"internal/limiter/limit/steady.go": []byte(declared), tt.file: []byte(tt.text)}
			places, err := algorithmPlaces(files)
			if got := strings.Join(places, " "); err != nil || got != tt.want {
				t.Errorf("algorithmPlaces = %q, %v; want %q", got, err, tt.want)
			}
		})
	}
}
