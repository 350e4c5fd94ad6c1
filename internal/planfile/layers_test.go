package planfile_test

import (
	"testing"

	"github.com/sluicelimits/sluice/internal/layers"
)

// Plans are loaded for the library as for the local gateway, so neither a server nor a store comes with them.
func TestLayers(t *testing.T) {
	layers.Forbid(t, map[string]string{
		"./internal/dev/gateway":            "the gateway is given plans, never the reverse",
		"./internal/limiter/store/redis":    "a store that is shared is handed in by whoever wants one",
		"./internal/limiter/store/dynamodb": "a store that is shared is handed in by whoever wants one",
		"./cmd":                             "programs import packages, never the reverse",
		"github.com/aws/aws-sdk-go-v2":      "files are not on AWS",
		"github.com/redis/go-redis/v9":      "files are not in Redis",
	})
}
