package stage_test

import (
	"testing"

	"github.com/sluicelimits/sluice/internal/layers"
)

// The stand-in is built from what AWS documents, not from how our side reads it: a misreading of either then shows.
func TestLayers(t *testing.T) {
	layers.Forbid(t, map[string]string{
		"./authorizer":             "the authorizer is a function to it, as to API Gateway",
		"./internal/request/apigw": "what an event is, each side takes from AWS's documentation",
		"./cmd":                    "programs import packages, never the reverse",
		"github.com/spf13/cobra":   "command lines are the affair of programs",
	})
}
