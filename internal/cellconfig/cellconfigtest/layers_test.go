package cellconfigtest_test

import (
	"testing"

	"github.com/sluicelimits/sluice/internal/layers"
)

// The suite knows what a table is, and no table.
func TestLayers(t *testing.T) {
	layers.Only(t, layers.Std, "./internal/cellconfig", "./internal/plan")
}
