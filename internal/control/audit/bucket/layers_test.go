package bucket_test

import (
	"testing"

	"github.com/sluicelimits/sluice/internal/layers"
)

// A bucket knows nothing of what its objects tell.
func TestLayers(t *testing.T) {
	layers.Only(t, layers.Std, "./internal/control/audit", "./internal/aws/awsenv", "github.com/aws/aws-sdk-go-v2/...",
		"github.com/aws/smithy-go")
}
