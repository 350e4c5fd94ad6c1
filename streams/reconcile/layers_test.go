package reconcile_test

import (
	"testing"

	"github.com/sluicelimits/sluice/internal/layers"
)

// It compares what both sides say of themselves, wherever they are kept.
func TestLayers(t *testing.T) {
	layers.Only(t, layers.Std, "./internal/cellconfig", "./internal/control/celldoc", "./internal/control")
}
