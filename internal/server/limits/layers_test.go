package limits_test

import (
	"testing"

	"github.com/sluicelimits/sluice/internal/layers"
)

// The API is handed what decides and a store, and knows nothing of Envoy.
func TestLayers(t *testing.T) {
	layers.Forbid(t, map[string]string{
		"./internal/limiter/store/redis":         "a store is handed in",
		"./internal/limiter/store/dynamodb":      "a store is handed in",
		"./internal/server/rls":                  "the two services stand beside each other",
		"./cmd":                                  "programs import packages, never the reverse",
		"github.com/aws":                         "the service runs anywhere",
		"github.com/redis/go-redis/v9":           "a store is handed in",
		"github.com/envoyproxy/go-control-plane": "this API is our own",
	})
}
