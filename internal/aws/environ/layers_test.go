package environ_test

import (
	"testing"

	"github.com/sluicelimits/sluice/internal/layers"
)

// Settings are words and numbers: what is built of them, and from which clients, is not known here.
func TestLayers(t *testing.T) {
	layers.Only(t, layers.Std, "./internal/request/identity", "./internal/request/identity/token")
}
