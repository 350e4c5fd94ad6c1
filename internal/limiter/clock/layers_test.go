package clock_test

import (
	"testing"

	"github.com/sluicelimits/sluice/internal/layers"
)

// A clock knows nothing of what it is read for.
func TestLayers(t *testing.T) { layers.Only(t, layers.Std) }
