package awsenv_test

import (
	"testing"

	"github.com/sluicelimits/sluice/internal/layers"
)

// It is linked into every function, so it has the client that all of them use and no other.
func TestLayers(t *testing.T) {
	layers.Only(t, layers.Std, "github.com/aws/aws-sdk-go-v2/aws", "github.com/aws/aws-sdk-go-v2/aws/transport/http",
		"github.com/aws/aws-sdk-go-v2/service/dynamodb")
}
