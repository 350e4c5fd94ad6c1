package cell_test

import (
	"testing"

	"github.com/sluicelimits/sluice/internal/layers"
)

// It puts together what others are. How it is invoked, and what happens elsewhere than in its cell, is not its affair.
func TestLayers(t *testing.T) {
	layers.Forbid(t, map[string]string{
		"github.com/aws/aws-lambda-go":        "whoever starts it knows how it is invoked",
		"github.com/aws/aws-sdk-go-v2/config": "see functions/authorizer",
		"./internal/control":                  "the data path never needs the control plane",
		"./internal/dev/gateway":              "it is for laptops and tests",
		"./functions":                         "functions are made of this",
	})
}
