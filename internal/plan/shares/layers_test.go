package shares_test

import (
	"testing"

	"github.com/sluicelimits/sluice/internal/layers"
)

// The division of limits is arithmetic over the core's: it runs in the authorizer, the balancer and a simulation alike.
func TestLayers(t *testing.T) { layers.Only(t, layers.Std, "./internal/limiter/limit") }

// Nothing is read or sent, and nothing is by chance.
func TestPure(t *testing.T) {
	layers.Forbid(t, map[string]string{
		"os":           "a step can be replayed",
		"net":          "a step can be replayed",
		"log":          "what happened is in the output",
		"math/rand/v2": "a step can be replayed",
		"crypto/rand":  "a step can be replayed",
	})
}
