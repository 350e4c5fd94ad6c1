package plan_test

import (
	"testing"

	"github.com/sluicelimits/sluice/internal/layers"
)

// A plan is text about limits and routes; what is done with it is not its affair.
func TestLayers(t *testing.T) {
	layers.Only(t, layers.Std, "./internal/limiter/limit", "./internal/plan/route", "go.yaml.in/yaml/v3")
}
