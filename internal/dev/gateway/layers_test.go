package gateway_test

import (
	"testing"

	"github.com/sluicelimits/sluice/internal/layers"
)

// The gateway stands before the authorizer and behind nothing: programs start it, and CDK has no part in it.
func TestLayers(t *testing.T) {
	layers.Forbid(t, map[string]string{
		"./cmd":                          "programs import packages, never the reverse",
		"./functions":                    "programs import packages, never the reverse",
		"./internal/dev/simulate":        "a simulation is no part of the request path",
		"./infra":                        "CDK is imported by nobody",
		"github.com/aws/aws-cdk-go":      "CDK is imported by nobody",
		"github.com/aws/jsii-runtime-go": "CDK is imported by nobody",
		"github.com/spf13/cobra":         "command lines are the affair of programs",
	})
}
