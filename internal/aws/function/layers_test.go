package function_test

import (
	"testing"

	"github.com/sluicelimits/sluice/internal/layers"
)

// It is linked into every function, so it knows none of them.
func TestLayers(t *testing.T) {
	layers.Forbid(t, map[string]string{
		"github.com/aws/aws-sdk-go-v2/config": "see internal/aws/awsenv",
		"./streams":                           "what a function does is its own",
		"./functions":                         "functions are made of this",
		"./internal/cell":                     "the authorizer is put together elsewhere",
		"./internal/control":                  "the data path never needs the control plane, and has this",
	})
}
