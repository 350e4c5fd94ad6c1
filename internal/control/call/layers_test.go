package call_test

import (
	"testing"

	"github.com/sluicelimits/sluice/internal/layers"
)

// How calls arrive knows no operation: the control plane's and a cell's share it.
func TestLayers(t *testing.T) {
	layers.Only(t, layers.Std, "./events", "./internal/control", "./events/canonical", "./internal/request/loopback")
}
