package lambdaremote_test

import (
	"testing"

	"github.com/sluicelimits/sluice/internal/layers"
)

// It calls any function, and knows nothing of what ours does.
func TestLayers(t *testing.T) {
	layers.Only(t, layers.Std, "./internal/dev/lambdahost", "github.com/aws/aws-sdk-go-v2/...", "github.com/aws/smithy-go/...")
}
