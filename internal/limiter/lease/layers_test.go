package lease_test

import (
	"testing"

	"github.com/sluicelimits/sluice/internal/layers"
)

// Leases know the core, and no store: what is beneath them is a limit.Store.
func TestLayers(t *testing.T) {
	layers.Only(t, layers.Std, "./internal/limiter/limit", "./internal/limiter/clock", "./internal/limiter/singleflight")
}
