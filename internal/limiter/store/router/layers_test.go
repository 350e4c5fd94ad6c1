package router_test

import (
	"testing"

	"github.com/sluicelimits/sluice/internal/layers"
)

// Guarantees that the router imports the core, and neither what uses the router nor another store.
func TestLayers(t *testing.T) { layers.Only(t, layers.Std, "./internal/limiter/limit") }
