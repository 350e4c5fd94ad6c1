package authorizer_test

import (
	"testing"

	"github.com/sluicelimits/sluice/internal/layers"
)

// The authorizer runs in a Lambda as it runs in the local gateway, so it knows neither of them, and CDK never.
func TestLayers(t *testing.T) {
	layers.Forbid(t, map[string]string{
		"./internal/gateway":             "the gateway calls the authorizer, never the reverse",
		"./internal/livepage":            "what is shown is not what decides",
		"./internal/simulate":            "a simulation is no part of the request path",
		"./cmd":                          "programs import packages, never the reverse",
		"./functions":                    "programs import packages, never the reverse",
		"./infra":                        "CDK is imported by nobody",
		"github.com/aws/aws-cdk-go":      "CDK is imported by nobody",
		"github.com/aws/jsii-runtime-go": "CDK is imported by nobody",
		"github.com/aws/constructs-go":   "CDK is imported by nobody",
		"github.com/aws/aws-sdk-go-v2":   "stores that need AWS are handed in",
		"github.com/aws/aws-lambda-go":   "functions translate events; the authorizer knows requests only",
		"github.com/spf13/cobra":         "command lines are the affair of programs",
	})
}
