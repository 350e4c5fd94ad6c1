package lambdaproxy_test

import (
	"testing"

	"github.com/sluicelimits/sluice/internal/layers"
)

// A Lambda behind API Gateway starts as quickly with the wrapper as without: it links no limiter, no plans and no AWS SDK.
func TestLayers(t *testing.T) {
	layers.Only(t, layers.Std, "./caller", "./internal/request/answer", "./internal/request/apigw", "github.com/tidwall/gjson")
	layers.Forbid(t, map[string]string{
		"./internal/plan": "a backend decides nothing", "./authorizer": "a backend decides nothing",
		"./internal/request/identity": "a backend verifies nothing", "github.com/aws": "it takes a lambda.Handler as it is, without its module",
	})
}
