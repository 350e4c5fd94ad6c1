package front_test

import (
	"testing"

	"github.com/sluicelimits/sluice/internal/layers"
)

// What is shared by gateways knows none of them, and nothing of who decides.
func TestLayers(t *testing.T) {
	layers.Only(t, layers.Std, "./internal/request/answer", "./internal/request/loopback")
}
