package main

import (
	"testing"

	"github.com/sluicelimits/sluice/internal/layers"
)

// What is linked into the function is loaded at each cold start.
func TestLayers(t *testing.T) {
	layers.Forbid(t, map[string]string{
		"github.com/aws/aws-sdk-go-v2/config": "it adds 8 ms to a cold start, and looks for what a Lambda has not",
		"github.com/spf13":                    "a function has no command line",
		"./internal/dev/gateway":              "it is for laptops and tests",
		"./internal/dev/livepage":             "it is for laptops",
		"./internal/dev/simulate":             "it is for laptops",
		"./internal/dev/lambdahost":           "it runs this function, not the reverse",
		"./internal/control":                  "the data path never needs the control plane",
		"./cmd":                               "it is for laptops",
	})
}
