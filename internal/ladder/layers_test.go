package ladder_test

import (
	"testing"

	"github.com/sluicelimits/sluice/internal/layers"
)

// It stacks what the others are, whichever stores are below.
func TestLayers(t *testing.T) {
	layers.Only(t, layers.Std, "./internal/limit", "./internal/outage", "./internal/lease", "./internal/fleet", "./internal/store/split")
}
