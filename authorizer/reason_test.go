package authorizer

import (
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"strings"
	"testing"
)

// Guarantees that each error by which a credential is refused has a word of its own in the log, and that an error which
// is not in the table has a fixed word, because its text could hold the credential.
func TestReasons(t *testing.T) {
	seen := map[string]bool{}
	for _, r := range reasons {
		wrapped := fmt.Errorf("wrapped: %w", r.err)
		if got, err := reasonOf(wrapped); got != r.name || seen[got] || !errors.Is(err, wrapped) ||
			strings.Trim(got, "abcdefghijklmnopqrstuvwxyz_") != "" {
			t.Errorf("%v is %q, want %q and no other's", r.err, got, r.name)
		}
		seen[r.name] = true
	}
	if got, err := reasonOf(errors.New("slk_secret")); got != reasonOther || strings.Contains(err.Error(), "secret") {
		t.Errorf("another error is %q, %v", got, err)
	}
}

// Guarantees that the table has each error of the packages that check credentials.
func TestEachRefusalHasAReason(t *testing.T) {
	// Not in the table: ErrBadToken, which the others wrap, and ErrKeysUnavailable, which says nothing about the
	// credential. Twice in it: ErrUnknownKey, which both packages have.
	// Only in the table: the errors of package authorizer.
	const notInTable, twiceInTable, ofThisPackage = 2, 1, 3
	names := exportedErrors(t, "../internal/request/identity/*.go", "../internal/request/identity/token/*.go")
	if want := len(reasons) - twiceInTable - ofThisPackage + notInTable; len(names) != want {
		t.Errorf("the packages declare %d errors, %v; the table has reasons for %d", len(names), names, want)
	}
}

// exportedErrors returns the names of the exported errors that the files declare.
func exportedErrors(t *testing.T, globs ...string) map[string]bool {
	t.Helper()
	out := map[string]bool{}
	for _, glob := range globs {
		files, err := filepath.Glob(glob)
		if err != nil || len(files) == 0 {
			t.Fatal(glob, err)
		}
		for _, f := range files {
			if strings.HasSuffix(f, "_test.go") {
				continue
			}
			parsed, err := parser.ParseFile(token.NewFileSet(), f, nil, 0)
			if err != nil {
				t.Fatal(err)
			}
			for _, d := range parsed.Decls {
				vars, ok := d.(*ast.GenDecl)
				if !ok || vars.Tok != token.VAR {
					continue
				}
				for _, spec := range vars.Specs {
					for _, name := range spec.(*ast.ValueSpec).Names {
						if strings.HasPrefix(name.Name, "Err") {
							out[name.Name] = true
						}
					}
				}
			}
		}
	}
	return out
}
