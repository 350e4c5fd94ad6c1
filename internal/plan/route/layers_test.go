package route_test

import (
	"testing"

	"github.com/sluicelimits/sluice/internal/layers"
)

// Matching knows paths and methods only, so that plans, gateways and simulations can all stand on it.
func TestLayers(t *testing.T) { layers.Only(t, layers.Std) }
