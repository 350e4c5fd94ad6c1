package events_test

import (
	"testing"

	"github.com/sluicelimits/sluice/internal/layers"
)

// Subscribers import this package: it brings nothing along, and knows no AWS.
func TestLayers(t *testing.T) {
	layers.Only(t, layers.Std, "./events/canonical")
}
