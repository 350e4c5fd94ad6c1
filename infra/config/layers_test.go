package config_test

import (
	"testing"

	"github.com/sluicelimits/sluice/internal/layers"
)

// Names and checks are words: reading a deployment file needs nothing of CDK, nor of what is deployed.
func TestLayers(t *testing.T) {
	layers.Only(t, layers.Std, "go.yaml.in/yaml/v3", "github.com/sluicelimits/sluice/internal/request/identity")
}
