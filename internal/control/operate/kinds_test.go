package operate

import (
	"testing"

	"github.com/sluicelimits/sluice/internal/plan"
)

// Guarantees that the service checks and compares documents of every kind.
func TestKinds(t *testing.T) {
	for _, k := range plan.Kinds {
		if one := kinds[k]; one.check == nil || one.compare == nil {
			t.Errorf("kinds has no functions for a %s, want some for each kind", k)
		}
	}
}
