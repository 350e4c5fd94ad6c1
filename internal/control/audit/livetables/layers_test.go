package livetables_test

import (
	"testing"

	"github.com/sluicelimits/sluice/internal/layers"
)

// It carries items between two processes: where they are kept, and who runs the processes, are others' affair.
func TestLayers(t *testing.T) {
	layers.Forbid(t, map[string]string{
		"./cmd":                            "programs import packages, never the reverse",
		"./internal/dev/devcells":          "it is told what to serve",
		"./internal/control/dynamo":        "tables are handed in",
		"github.com/aws/aws-sdk-go-v2/aws": "calls go to this machine",
	})
}
