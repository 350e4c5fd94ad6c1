package simulate_test

import (
	"testing"

	"github.com/sluicelimits/sluice/internal/layers"
)

// A simulation runs the core that production runs, on a log instead of a network: no gateway, no AWS.
func TestLayers(t *testing.T) {
	layers.Only(t, layers.Std, "./internal/dev/accesslog", "./internal/request/identity", "./internal/limiter/limit", "./internal/plan",
		"./internal/plan/route", "./internal/limiter/store/memory")
}
