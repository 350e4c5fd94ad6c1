package authorizer_test

import (
	"testing"

	"github.com/sluicelimits/sluice/internal/layers"
)

// The authorizer runs both in a Lambda and in the local gateway, so it imports neither of them, and never CDK.
func TestLayers(t *testing.T) {
	layers.Forbid(t, map[string]string{
		"./internal/dev/gateway":         "the gateway calls the authorizer, never the reverse",
		"./internal/dev/livepage":        "the live page shows decisions and makes none",
		"./internal/dev/simulate":        "no request is simulated",
		"./cmd":                          "programs import packages, never the reverse",
		"./functions":                    "programs import packages, never the reverse",
		"./infra":                        "CDK is imported by nobody",
		"github.com/aws/aws-cdk-go":      "CDK is imported by nobody",
		"github.com/aws/jsii-runtime-go": "CDK is imported by nobody",
		"github.com/aws/constructs-go":   "CDK is imported by nobody",
		"github.com/aws/aws-sdk-go-v2":   "whoever makes the authorizer passes in the stores that call AWS",
		"github.com/aws/aws-lambda-go":   "the function imports it, and hands the events in as bytes",
		"github.com/spf13/cobra":         "only programs have command lines",
	})
}
