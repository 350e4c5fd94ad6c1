package alarm_test

import (
	"testing"

	"github.com/sluicelimits/sluice/internal/layers"
)

// What is alarming is data: it can be looked at, counted and checked without CDK.
func TestLayers(t *testing.T) {
	layers.Only(t, layers.Std, "github.com/sluicelimits/sluice/infra/config", "github.com/sluicelimits/sluice/internal/aws/grants")
}
