package stand_test

import (
	"testing"

	"github.com/sluicelimits/sluice/internal/layers"
)

// What drives a deployment is outside of it: it knows the local gateway, and nothing that decides or is deployed.
func TestLayers(t *testing.T) {
	layers.Only(t, layers.Std, "./internal/dev/gateway/...", "./internal/dev/lambdaremote", "./internal/control/admin/...", "github.com/aws/aws-sdk-go-v2/...", "go.yaml.in/yaml/v3",
		"github.com/redis/go-redis/v9")
}
