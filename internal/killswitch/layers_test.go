package killswitch_test

import (
	"testing"

	"github.com/sluicelimits/sluice/internal/layers"
)

// It says in which mode limits are, and knows neither who decides by it nor where counters are.
func TestLayers(t *testing.T) {
	layers.Forbid(t, map[string]string{
		"./authorizer":                        "it asks, never the reverse",
		"./internal/cell":                     "the cell is made of this",
		"./internal/limiter/store":            "no store is asked about the mode",
		"github.com/aws/aws-sdk-go-v2/config": "it adds 8 ms to a cold start",
		"github.com/aws/aws-lambda-go":        "whoever polls knows how it is invoked",
	})
}
