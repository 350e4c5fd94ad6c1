package store_test

import (
	"testing"

	"github.com/sluicelimits/sluice/internal/layers"
)

// What stands between the library and its stores links none of them.
func TestLayers(t *testing.T) { layers.Only(t, "./internal/limiter/limit") }
