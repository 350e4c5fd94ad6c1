package kept_test

import (
	"testing"

	"github.com/sluicelimits/sluice/internal/layers"
)

// What is kept may be anything, so this knows nothing of it.
func TestLayers(t *testing.T) {
	layers.Only(t, layers.Std)
}
