package anchor_test

import (
	"testing"

	"github.com/sluicelimits/sluice/internal/layers"
)

// It signs with whatever key it is given.
func TestLayers(t *testing.T) {
	layers.Only(t, layers.Std, "./events", "./internal/control/audit", "./internal/control")
}
