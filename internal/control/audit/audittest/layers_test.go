package audittest_test

import (
	"testing"

	"github.com/sluicelimits/sluice/internal/layers"
)

// The contract knows no implementation.
func TestLayers(t *testing.T) { layers.Only(t, layers.Std, "./internal/control/audit") }
