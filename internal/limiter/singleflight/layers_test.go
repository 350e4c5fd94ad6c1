package singleflight_test

import (
	"testing"

	"github.com/sluicelimits/sluice/internal/layers"
)

// A call knows nothing of what it is made for.
func TestLayers(t *testing.T) { layers.Only(t, layers.Std, "./internal/limiter/clock") }
