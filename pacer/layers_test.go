package pacer_test

import (
	"testing"

	"github.com/sluicelimits/sluice/internal/layers"
)

// A client that limits itself links no client of a store, no AWS and no server of ours.
func TestLayers(t *testing.T) {
	layers.Only(t, layers.Std, "./internal/limiter/clock", "./internal/limiter/ledger", "github.com/dunglas/httpsfv")
}
