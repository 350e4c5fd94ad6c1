package cellconfig_test

import (
	"testing"

	"github.com/sluicelimits/sluice/internal/layers"
)

// The reader of a cell's configuration knows what the authorizer needs and not where the table is: AWS stands behind Table.
func TestLayers(t *testing.T) {
	layers.Only(t, layers.Std, "./authorizer", "./internal/request/identity", "./internal/limiter/limit", "./internal/limiter/clock", "./internal/limiter/resilience",
		"./internal/limiter/singleflight", "./internal/plan", "./internal/plan/route", "./internal/plan/shares",
		"github.com/hashicorp/golang-lru/v2/...")
}
