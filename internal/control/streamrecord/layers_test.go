package streamrecord_test

import (
	"testing"

	"github.com/sluicelimits/sluice/internal/layers"
)

// Records are JSON: who reads them needs neither the SDK nor Lambda's library.
func TestLayers(t *testing.T) {
	layers.Only(t, layers.Std, "./internal/control", "./internal/control/row")
}
