package dynamodbstore_test

import (
	"testing"

	"github.com/sluicelimits/sluice/internal/layers"
)

// Whoever keeps counters in DynamoDB links no client of Redis.
func TestLayers(t *testing.T) {
	layers.Forbid(t, map[string]string{"github.com/redis/go-redis/v9": "one store does not bring another", "./internal/limiter/store/redis": "one store does not bring another"})
}
