package sqsevent_test

import (
	"testing"

	"github.com/sluicelimits/sluice/internal/layers"
)

// Events are JSON: who reads them needs neither the SDK nor Lambda's library.
func TestLayers(t *testing.T) {
	layers.Only(t, layers.Std)
}
