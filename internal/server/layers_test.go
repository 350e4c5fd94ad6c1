package server_test

import (
	"testing"

	"github.com/sluicelimits/sluice/internal/layers"
)

// The server is handed a store, and nothing that runs on Lambda.
func TestLayers(t *testing.T) {
	layers.Forbid(t, map[string]string{
		"./internal/limiter/store/redis":    "a store is handed in",
		"./internal/limiter/store/dynamodb": "a store is handed in",
		"./cmd":                             "programs import packages, never the reverse",
		"github.com/aws":                    "the service runs anywhere",
		"github.com/redis/go-redis/v9":      "a store is handed in",
	})
}
