package redis_test

import (
	"testing"

	"github.com/sluicelimits/sluice/internal/layers"
)

// Guarantees that the store imports the core, and neither what uses the store nor AWS: credentials come through a
// callback.
func TestLayers(t *testing.T) {
	layers.Only(t, layers.Std, "./internal/limiter/limit", "./internal/limiter/ledger", "github.com/redis/go-redis/v9/...")
}
