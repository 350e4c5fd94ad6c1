package lambdahost_test

import (
	"testing"

	"github.com/sluicelimits/sluice/internal/layers"
)

// It runs any function, and knows nothing of what ours does. The function's own library is for its tests only: the host
// speaks the protocol, not one client's idea of it.
func TestLayers(t *testing.T) { layers.Only(t, layers.Std) }
