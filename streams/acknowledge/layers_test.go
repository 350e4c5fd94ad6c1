package acknowledge_test

import (
	"testing"

	"github.com/sluicelimits/sluice/internal/layers"
)

// What a cell tells the control plane goes through the control tables, wherever these are.
func TestLayers(t *testing.T) {
	layers.Forbid(t, map[string]string{"github.com/aws/": "tables are behind interfaces"})
}
