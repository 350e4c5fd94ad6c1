package redisstore_test

import (
	"testing"

	"github.com/sluicelimits/sluice/internal/layers"
)

// Whoever keeps counters in Redis links no AWS SDK.
func TestLayers(t *testing.T) {
	layers.Forbid(t, map[string]string{"github.com/aws": "Redis is not only ElastiCache", "./internal/limiter/store/dynamodb": "one store does not bring another"})
}
