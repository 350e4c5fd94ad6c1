package memory_test

import (
	"testing"

	"github.com/sluicelimits/sluice/internal/layers"
)

// Stores know the core, never what stands above it.
func TestLayers(t *testing.T) { layers.Only(t, layers.Std, "./internal/limiter/limit") }
