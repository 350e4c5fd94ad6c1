package middleware_test

import (
	"testing"

	"github.com/sluicelimits/sluice/internal/layers"
)

// A service behind the middleware links no client of a store, no server of ours, and no AWS.
func TestLayers(t *testing.T) {
	layers.Forbid(t, map[string]string{
		"github.com/redis/go-redis/v9": "a store is handed to the limiter",
		"github.com/aws":               "a store is handed to the limiter",
		"./internal/dev/gateway":       "the gateway is a server of its own",
		"./cmd":                        "programs import packages, never the reverse",
	})
}
