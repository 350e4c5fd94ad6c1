package operate_test

import (
	"regexp"
	"slices"
	"strings"
	"testing"
	"text/template"

	"github.com/sluicelimits/sluice/internal/control/operate"
	"github.com/sluicelimits/sluice/internal/testkit/golden"
)

const file = "../../../docs/permissions.md"

// page returns docs/permissions.md, which is made of the table of operations.
func page(t *testing.T) string {
	t.Helper()
	var looking []string
	for _, o := range slices.Concat(operate.ControlOperations(), operate.CellOperations()) {
		if !o.Writes {
			looking = append(looking, o.Path)
		}
	}
	var b strings.Builder
	err := template.Must(template.ParseFiles("permissions.md.tmpl")).Execute(&b, struct {
		Control, Cell []operate.Operation
		Looking       []string
	}{operate.ControlOperations(), operate.CellOperations(), looking})
	if err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// TestPage guarantees that the page about permissions has every operation under its path.
func TestPage(t *testing.T) {
	golden.CheckFile(t, file, page(t))
}

// TestOperations guarantees that each operation has a path in the only form that the functions answer, is throttled,
// and that a throttle admits single calls.
func TestOperations(t *testing.T) {
	form := regexp.MustCompile(`^(/[a-z]+){1,2}$`)
	var paths []string
	for _, o := range slices.Concat(operate.ControlOperations(), operate.CellOperations()) {
		if !form.MatchString(o.Path) || slices.Contains(paths, o.Path) {
			t.Errorf("got the path %q, want one of an operation, and each once", o.Path)
		}
		if o.PerSecond < 1 || o.PerSecond > 50 || o.Burst < o.PerSecond || o.Burst > 2*o.PerSecond {
			t.Errorf("%s: got %d calls per second and %d at once, want 1 to 50, and up to twice as many at once",
				o.Path, o.PerSecond, o.Burst)
		}
		if o.Does == "" || len(o.Commands) == 0 {
			t.Errorf("%s: Does or Commands is empty, want both", o.Path)
		}
		paths = append(paths, o.Path)
	}
}
