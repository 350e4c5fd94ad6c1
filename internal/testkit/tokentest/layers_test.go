package tokentest_test

import (
	"testing"

	"github.com/sluicelimits/sluice/internal/layers"
)

// What makes tokens must not be what verifies them, or both could be wrong in the same way. Only the form of published keys
// is the library's.
func TestLayers(t *testing.T) { layers.Only(t, layers.Std, "github.com/go-jose/go-jose/v4") }
