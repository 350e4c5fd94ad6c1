package streamevent_test

import (
	"testing"

	"github.com/sluicelimits/sluice/internal/layers"
)

// What functions of streams share knows none of them, and no AWS.
func TestLayers(t *testing.T) { layers.Only(t, layers.Std, "./internal/control") }
