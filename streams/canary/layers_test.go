package canary_test

import (
	"testing"

	"github.com/sluicelimits/sluice/internal/layers"
)

// It measures over whatever tables it is given.
func TestLayers(t *testing.T) {
	layers.Only(t, layers.Std, "./events", "./internal/cellconfig", "./internal/control/celldoc", "./internal/control")
}
