package canonical_test

import (
	"testing"

	"github.com/sluicelimits/sluice/internal/layers"
)

// What is hashed must not change because something else did.
func TestLayers(t *testing.T) { layers.Only(t, layers.Std) }
