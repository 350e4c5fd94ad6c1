package killswitchtest_test

import (
	"testing"

	"github.com/sluicelimits/sluice/internal/layers"
)

// The stand-in knows the protocol alone, so that it cannot share a mistake with what is tested against it, and programs may use it
// without a test's packages.
func TestLayers(t *testing.T) {
	layers.Only(t, layers.Std)
	layers.Forbid(t, map[string]string{"testing": "programs use it too", "net/http/httptest": "it defines flags"})
}
