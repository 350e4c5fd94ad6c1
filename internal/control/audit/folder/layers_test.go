package folder_test

import (
	"testing"

	"github.com/sluicelimits/sluice/internal/layers"
)

// A folder needs no AWS, and knows nothing of what its files tell.
func TestLayers(t *testing.T) { layers.Only(t, layers.Std, "./internal/control/audit") }
