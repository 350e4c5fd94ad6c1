package refresh_test

import (
	"testing"

	"github.com/sluicelimits/sluice/internal/layers"
)

// What is read, and from where, is not known here.
func TestLayers(t *testing.T) {
	layers.Only(t, layers.Std, "./internal/limiter/clock", "./internal/limiter/singleflight")
}
