package balancer_test

import (
	"testing"

	"github.com/sluicelimits/sluice/internal/layers"
)

// What shares there are is decided from the control tables alone: by the same code in Lambda and in one process.
func TestLayers(t *testing.T) {
	layers.Only(t, layers.Std, "./events", "./internal/control", "./internal/limiter/limit", "./internal/plan", "./internal/plan/shares")
}
