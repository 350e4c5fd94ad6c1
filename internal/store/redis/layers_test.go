package redis_test

import (
	"testing"

	"github.com/sluicelimits/sluice/internal/layers"
)

// Stores know the core, never what stands above it; and of AWS nothing: credentials come through a callback.
func TestLayers(t *testing.T) {
	layers.Only(t, layers.Std, "./internal/limit", "github.com/redis/go-redis/v9/...")
}
