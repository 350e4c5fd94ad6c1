package cost_test

import (
	"testing"

	"github.com/sluicelimits/sluice/internal/layers"
)

// A bill is arithmetic on data: what is deployed, what is written as metrics, and prices. It asks nobody.
func TestLayers(t *testing.T) {
	layers.Only(t, layers.Std, "./internal/aws/grants", "./internal/telemetry", "go.yaml.in/yaml/v3")
	layers.Forbid(t, map[string]string{"github.com/aws/": "a bill is known without an account"})
}
