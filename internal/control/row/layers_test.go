package row_test

import (
	"testing"

	"github.com/sluicelimits/sluice/internal/layers"
)

// A row is an item's attributes, whoever carries them: it knows no AWS.
func TestLayers(t *testing.T) {
	layers.Only(t, layers.Std, "./internal/control")
}
