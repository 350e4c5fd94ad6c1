package fleet_test

import (
	"testing"

	"github.com/sluicelimits/sluice/internal/layers"
)

// It counts in any store, and needs no code in one.
func TestLayers(t *testing.T) { layers.Only(t, layers.Std, "./internal/limit") }
