package devcells_test

import (
	"testing"

	"github.com/sluicelimits/sluice/internal/layers"
)

// What is put together here runs in one process and without AWS: no client of AWS comes with it, and no server.
func TestLayers(t *testing.T) {
	layers.Forbid(t, map[string]string{
		"./cmd":                             "programs import packages, never the reverse",
		"./functions":                       "programs import packages, never the reverse",
		"./internal/dev/gateway":            "requests are the affair of programs",
		"./internal/limiter/store/dynamodb": "what counts is handed in by whoever wants it",
		"./internal/limiter/store/redis":    "what counts is handed in by whoever wants it",
		"./internal/control/dynamo":         "the control tables are in a file here",
		"./internal/control/audit/bucket":   "the archive is a folder here",
		"github.com/aws/aws-sdk-go-v2/aws":  "nothing here is on AWS",
		"github.com/redis/go-redis/v9":      "nothing here is in Redis",
	})
}
