package celldoc_test

import (
	"testing"

	"github.com/sluicelimits/sluice/internal/layers"
)

// Functions of the control plane and of cells agree on names here, so it knows neither.
func TestLayers(t *testing.T) {
	layers.Only(t, layers.Std, "./events", "./internal/cellconfig", "./internal/plan", "./internal/plan/shares")
}
