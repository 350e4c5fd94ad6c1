package operations_test

import (
	"testing"

	"github.com/sluicelimits/sluice/internal/layers"
)

// It is data that templates and documentation are made from, and needs nothing of AWS.
func TestLayers(t *testing.T) { layers.Only(t, layers.Std) }
