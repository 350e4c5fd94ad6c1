package stored

import (
	"testing"

	"github.com/sluicelimits/sluice/internal/layers"
)

// The package has nothing but tests, so nobody has a reason to import it, and it imports nothing.
func TestLayers(t *testing.T) {
	layers.Only(t)
}
