package ops_test

import (
	"testing"

	"github.com/sluicelimits/sluice/internal/layers"
)

// The operations know stores by their interface only, so that they run on whatever a cell counts in.
func TestLayers(t *testing.T) {
	layers.Only(t, layers.Std, "./events", "./internal/control/call", "./internal/control", "./events/canonical",
		"./internal/request/identity", "./internal/limiter/limit", "./internal/plan", "./internal/plan/route")
}
