package ledgertest_test

import (
	"testing"

	"github.com/sluicelimits/sluice/internal/layers"
)

// Guarantees that the contract does not depend on any of the stores that keep it.
func TestLayers(t *testing.T) {
	layers.Only(t, layers.Std, "./internal/limiter/ledger", "./internal/soak")
}
