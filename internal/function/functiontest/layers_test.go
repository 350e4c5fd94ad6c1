package functiontest_test

import (
	"testing"

	"github.com/sluicelimits/sluice/internal/layers"
)

// It knows functions from outside only.
func TestLayers(t *testing.T) {
	layers.Only(t, layers.Std, "./internal/lambdahost")
}
