package operations_test

import (
	"flag"
	"os"
	"regexp"
	"slices"
	"testing"

	"github.com/sluicelimits/sluice/internal/control/admin"
	"github.com/sluicelimits/sluice/internal/control/operations"
	"github.com/sluicelimits/sluice/internal/control/ops"
)

var update = flag.Bool("update", false, "rewrite docs/permissions.md; then read the diff")

const file = "../../../docs/permissions.md"

// TestPage guarantees that the page about permissions has every operation under its path.
func TestPage(t *testing.T) {
	if *update {
		if err := os.WriteFile(file, []byte(operations.Page()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if string(text) != operations.Page() {
		t.Errorf("%s is out of date: run make golden, and read the diff", file)
	}
}

// TestOperations guarantees that each operation has a path in the only form that the functions answer, is throttled,
// and that a throttle admits single calls.
func TestOperations(t *testing.T) {
	form := regexp.MustCompile(`^(/[a-z]+){1,2}$`)
	var paths []string
	for _, o := range slices.Concat(admin.Operations(), ops.Operations()) {
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
