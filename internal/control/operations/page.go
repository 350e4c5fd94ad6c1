package operations

import (
	_ "embed"
	"slices"
	"strings"
	"text/template"
)

//go:embed permissions.md.tmpl
var pageText string

var page = template.Must(template.New("permissions.md").Parse(pageText))

// Page returns docs/permissions.md.
func Page() string {
	var b strings.Builder
	if err := page.Execute(&b, struct {
		Control, Cell []Operation
		Looking       []string
	}{Control(), Cell(), readPaths()}); err != nil {
		panic(err) // a mistake in the template, which TestPage would show
	}
	return b.String()
}

// readPaths returns the paths of the operations that change nothing.
func readPaths() []string {
	var paths []string
	for _, o := range slices.Concat(Control(), Cell()) {
		if !o.Writes {
			paths = append(paths, o.Path)
		}
	}
	return paths
}
