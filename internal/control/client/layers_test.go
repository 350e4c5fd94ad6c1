package client_test

import (
	"testing"

	"github.com/sluicelimits/sluice/internal/layers"
)

// The operator's side knows calls, not tables: whatever it does, the other side has checked. Signing is the command's affair.
func TestLayers(t *testing.T) {
	layers.Only(t, layers.Std, "./internal/control/admin", "./internal/control/call", "./internal/control", "./events/canonical", "./internal/request/loopback", "./internal/plan")
}
