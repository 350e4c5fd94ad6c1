package envoyconfig_test

import (
	"testing"

	"github.com/sluicelimits/sluice/internal/layers"
)

// A configuration is read without a server, a store or a network.
func TestLayers(t *testing.T) {
	layers.Only(t, layers.Std, "./internal/limiter/limit", "./internal/plan", "go.yaml.in/yaml/v3",
		"google.golang.org/protobuf/types/known/structpb")
}
