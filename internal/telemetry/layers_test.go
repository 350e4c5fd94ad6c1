package telemetry_test

import (
	"testing"

	"github.com/sluicelimits/sluice/internal/layers"
)

// It counts what others tell it in numbers, and must not know leases, stores or who asks.
func TestLayers(t *testing.T) { layers.Only(t, layers.Std, "./internal/request/answer") }
