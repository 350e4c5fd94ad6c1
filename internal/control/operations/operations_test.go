package operations_test

import (
	"flag"
	"os"
	"regexp"
	"slices"
	"testing"

	"github.com/sluicelimits/sluice/internal/control/operations"
)

var update = flag.Bool("update", false, "rewrite docs/permissions.md; then read the diff")

const file = "../../../docs/permissions.md"

// TestPage guarantees that the page by which permissions are given has every operation, under the path that it has.
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
		t.Errorf("%s is not what is made now: make golden, and read the diff", file)
	}
}

// TestOperations guarantees that each operation has a path of the one form that the functions answer, is throttled, and
// that a throttle lets single calls through.
func TestOperations(t *testing.T) {
	form := regexp.MustCompile(`^(/[a-z]+){1,2}$`)
	var paths []string
	for _, o := range slices.Concat(operations.Control(), operations.Cell()) {
		if !form.MatchString(o.Path) || slices.Contains(paths, o.Path) {
			t.Errorf("%q is there twice, or no path of an operation", o.Path)
		}
		if o.PerSecond < 1 || o.PerSecond > 50 || o.Burst < o.PerSecond || o.Burst > 2*o.PerSecond {
			t.Errorf("%s: %d calls per second and %d at once", o.Path, o.PerSecond, o.Burst)
		}
		if o.Does == "" || len(o.Commands) == 0 {
			t.Errorf("%s: nothing is said of it", o.Path)
		}
		paths = append(paths, o.Path)
	}
}
