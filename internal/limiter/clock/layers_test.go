package clock_test

import (
	"testing"

	"github.com/sluicelimits/sluice/internal/layers"
)

// Guarantees that a clock does not depend on what it is read for.
func TestLayers(t *testing.T) { layers.Only(t, layers.Std) }
