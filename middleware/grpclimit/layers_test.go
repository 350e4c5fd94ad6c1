package grpclimit_test

import (
	"testing"

	"github.com/sluicelimits/sluice/internal/layers"
)

// A service behind the interceptors links no client of a store, no server of ours, no protocol of Envoy, and no AWS.
func TestLayers(t *testing.T) {
	layers.Forbid(t, map[string]string{
		"github.com/redis/go-redis/v9":           "a store is handed to the limiter",
		"github.com/aws":                         "a store is handed to the limiter",
		"github.com/envoyproxy/go-control-plane": "it is for any gRPC server",
		"./internal/server":                      "the rate limit service is a server of its own",
		"./cmd":                                  "programs import packages, never the reverse",
	})
}
