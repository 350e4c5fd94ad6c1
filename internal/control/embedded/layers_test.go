package embedded_test

import (
	"testing"

	"github.com/sluicelimits/sluice/internal/layers"
)

// A laptop has no AWS.
func TestLayers(t *testing.T) {
	layers.Only(t, layers.Std, "./events", "./internal/control", "go.etcd.io/bbolt/...")
}
