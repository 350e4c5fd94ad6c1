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
		"go.etcd.io/bbolt":                    "it is for one process on a laptop",
		"./internal/dev/gateway":              "it is for laptops and tests",
		"./internal/dev/lambdahost":           "it runs this function, not the reverse",
		"./streams/local":                     "it is for laptops",
		"./cmd":                               "it is for laptops",
	})
}
