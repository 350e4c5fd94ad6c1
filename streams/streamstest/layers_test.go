package streamstest_test

import (
	"testing"

	"github.com/sluicelimits/sluice/internal/layers"
)

// It is for tests of all streams, so it knows none of them.
func TestLayers(t *testing.T) {
	layers.Only(t, layers.Std, "./internal/control", "./streams/kept")
}
