package ledger_test

import (
	"testing"

	"github.com/sluicelimits/sluice/internal/layers"
)

// Guarantees that the arithmetic of a ledger does not depend on where it is kept.
func TestLayers(t *testing.T) { layers.Only(t, layers.Std) }
