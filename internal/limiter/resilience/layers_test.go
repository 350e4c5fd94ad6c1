package resilience_test

import (
	"testing"

	"github.com/sluicelimits/sluice/internal/layers"
)

// It wraps any store, and keeps its own count in the one that needs no server.
func TestLayers(t *testing.T) {
	layers.Only(t, layers.Std, "./internal/limiter/limit", "./internal/limiter/lease", "./internal/limiter/clock", "./internal/limiter/store/memory", "./internal/limiter/store/router", "github.com/sony/gobreaker/v2", "github.com/hashicorp/golang-lru/v2")
}
