// Package operations makes docs/permissions.md of the operations that operators may call.
package operations

import (
	_ "embed"
	"slices"
	"strings"
	"text/template"

	"github.com/sluicelimits/sluice/internal/control/admin"
	"github.com/sluicelimits/sluice/internal/control/call"
	"github.com/sluicelimits/sluice/internal/control/ops"
)

//go:embed permissions.md.tmpl
var pageText string

var page = template.Must(template.New("permissions.md").Parse(pageText))

// Page returns docs/permissions.md.
func Page() string {
	var b strings.Builder
	if err := page.Execute(&b, struct {
		Control, Cell []call.Operation
		Looking       []string
	}{admin.Operations(), ops.Operations(), readPaths()}); err != nil {
		panic(err) // a mistake in the template, which TestPage would show
	}
	return b.String()
}

// readPaths returns the paths of the operations that change nothing.
func readPaths() []string {
	var paths []string
	for _, o := range slices.Concat(admin.Operations(), ops.Operations()) {
		if !o.Writes {
			paths = append(paths, o.Path)
		}
	}
	return paths
}
