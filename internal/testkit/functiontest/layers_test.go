package functiontest_test

import (
	"testing"

	"github.com/sluicelimits/sluice/internal/layers"
)

// It knows functions from outside only.
func TestLayers(t *testing.T) {
	layers.Forbid(t, map[string]string{
		"./functions":             "what is tested is the binary",
		"./streams":               "the same",
		"./internal/aws/function": "the same",
	})
}
