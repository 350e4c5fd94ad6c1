package template_test

import (
	"testing"

	"github.com/sluicelimits/sluice/internal/layers"
)

// A template is read from what CloudFormation documents, with nothing of CDK and nothing of what our constructs put into it.
func TestLayers(t *testing.T) {
	layers.Only(t, layers.Std, "./internal/dev/gateway/stage")
}
