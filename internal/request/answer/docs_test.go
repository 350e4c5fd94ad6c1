package answer_test

import (
	"os"
	"strings"
	"testing"

	"github.com/sluicelimits/sluice/internal/request/answer"
)

// Guarantees that docs/problems.md has a section for each type of problem, to which the address in the type leads.
func TestProblemTypesAreDescribed(t *testing.T) {
	page, err := os.ReadFile("../../../docs/problems.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, k := range answer.Kinds() {
		_, name, ours := strings.Cut(k.Type(), "/docs/problems.md#")
		if ours && !strings.Contains(string(page), "\n## "+name+"\n") {
			t.Errorf("%s: docs/problems.md has no heading %q", k, name)
		}
	}
}
