package loopback_test

import (
	"testing"

	"github.com/sluicelimits/sluice/internal/layers"
)

// Gateways and operators' calls share it, and it knows neither.
func TestLayers(t *testing.T) {
	layers.Only(t, layers.Std)
}
