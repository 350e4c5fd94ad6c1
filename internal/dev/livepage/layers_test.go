package livepage_test

import (
	"testing"

	"github.com/sluicelimits/sluice/internal/layers"
)

// The page shows decisions and makes none: it must not reach what it watches.
func TestLayers(t *testing.T) {
	layers.Only(t, layers.Std, "./internal/limiter/limit")
}
