package secrets_test

import (
	"testing"

	"github.com/sluicelimits/sluice/internal/layers"
)

// What is secret is known to as few as possible, and reading it needs no store and no gateway.
func TestLayers(t *testing.T) {
	layers.Only(t, layers.Std, "./internal/request/identity", "./internal/limiter/limit", "./internal/limiter/refresh", "github.com/aws/aws-sdk-go-v2/aws",
		"github.com/aws/aws-sdk-go-v2/service/secretsmanager", "github.com/aws/smithy-go")
}
