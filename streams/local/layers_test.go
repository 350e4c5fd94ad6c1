package local_test

import (
	"testing"

	"github.com/sluicelimits/sluice/internal/layers"
)

// It is the deployed code on other parts, so it has no rules of its own.
func TestLayers(t *testing.T) {
	layers.Forbid(t, map[string]string{
		"github.com/aws":         "it is what runs without AWS",
		"./internal/dev/gateway": "who serves requests is another's affair",
		"./streams/awsio":        "it is what runs without AWS",
		"./cmd":                  "the CLI is made of this",
		"./functions":            "the same code, started otherwise",
	})
}
