package main

import (
	"testing"

	"github.com/sluicelimits/sluice/internal/layers"
)

// It is an app as others write them: it may use what they may, and nothing of Sluice's inside.
func TestLayers(t *testing.T) {
	layers.Only(t, layers.Std, "github.com/sluicelimits/sluice/infra", "github.com/sluicelimits/sluice/infra/config", "github.com/aws/aws-cdk-go/...", "github.com/aws/constructs-go/...", "github.com/aws/jsii-runtime-go")
}
