package limit_test

import (
	"testing"

	"github.com/sluicelimits/sluice/internal/layers"
)

// The core must run anywhere, a fuzz loop and a replay included: nothing of ours, no AWS, no other module.
func TestLayers(t *testing.T) { layers.Only(t, layers.Std) }

// Inside the standard library the core still has no clock, no I/O and no randomness to reach for but by design.
func TestCoreDoesNoIO(t *testing.T) {
	layers.Forbid(t, map[string]string{
		"os":           "the core does no I/O",
		"net":          "the core does no I/O",
		"log":          "the core does no I/O",
		"math/rand":    "a decision can be replayed",
		"math/rand/v2": "a decision can be replayed",
		"crypto/rand":  "a decision can be replayed",
		"unsafe":       "bounds are held by the language",
	})
}
