// Package mistake shows that tests can fail: it plants a mistake in the code of a package, and runs the package's
// tests. Only tests import it.
package mistake

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// Mistake is a change of one place in the code.
type Mistake struct {
	Name     string // says what is wrong with the changed code
	File     string // relative to the folder of the test
	Old, New string // Old occurs once in the file
}

// planted is set in runs with a mistake, which must not plant further ones.
const planted = "SLUICE_PLANTED_MISTAKE"

// all is the variable that make soak sets to "all", to try all mistakes. Any other run tries the first of every part
// mistakes. For each mistake, packages are compiled and tested again, which takes minutes for all mistakes of a
// package.
const (
	all  = "SLUICE_MISTAKES"
	part = 30
)

// FindAll fails t unless, for each mistake, a test of the package in the present folder or of one of the other packages
// fails with it. Outside of make soak it tries the first mistake of every thirty, and a short run skips t.
func FindAll(t *testing.T, mistakes []Mistake, others ...string) {
	if testing.Short() {
		t.Skip("compiles the package once for each mistake")
	}
	if os.Getenv(planted) != "" {
		t.Skip("this is a run with a mistake")
	}
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	packages := append([]string{"."}, others...)
	for i, m := range mistakes {
		if i%part != 0 && os.Getenv(all) != "all" {
			continue
		}
		t.Run(m.Name, func(t *testing.T) {
			t.Parallel()
			m.find(t, dir, packages)
		})
	}
}

func (m *Mistake) find(t *testing.T, dir string, packages []string) {
	path := filepath.Join(dir, m.File)
	code, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(string(code), m.Old); n != 1 {
		t.Fatalf("%s has %q %d times, want once", m.File, m.Old, n)
	}
	temp := t.TempDir()
	changed, overlay := filepath.Join(temp, "changed.go"), filepath.Join(temp, "overlay.json")
	replaced, err := json.Marshal(map[string]map[string]string{"Replace": {path: changed}})
	if err != nil {
		t.Fatal(err)
	}
	//nolint:gosec // the file is in a folder of the test's own
	if err := os.WriteFile(changed, []byte(strings.Replace(string(code), m.Old, m.New, 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(overlay, replaced, 0o600); err != nil {
		t.Fatal(err)
	}
	test := func(flags ...string) (found bool, out string) {
		flags = append([]string{"test", "-vet=off", "-count=1", "-failfast", "-timeout=3m", "-overlay=" + overlay},
			flags...)
		c := exec.CommandContext(t.Context(), "go", append(flags, packages...)...) //nolint:gosec // as above
		c.Env = append(os.Environ(), planted+"=1", "SLUICE_SOAK=1")
		text, err := c.CombinedOutput()
		out = string(text)
		return err != nil && !strings.Contains(out, "[build failed]") && strings.Contains(out, "FAIL"), out
	}
	if found, _ := test("-short"); found { // with SLUICE_SOAK, so that random tests are not shortened
		return
	}
	if found, out := test(); !found { // some mistakes show only in the tests that a short run skips
		t.Errorf("no test fails with it:\n%s", out)
	}
}
