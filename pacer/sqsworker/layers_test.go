package sqsworker_test

import (
	"testing"

	"github.com/sluicelimits/sluice/internal/layers"
)

// A worker links the client of SQS, and no store.
func TestLayers(t *testing.T) {
	layers.Only(t, layers.Std, "./pacer", "github.com/aws/aws-sdk-go-v2/aws", "github.com/aws/aws-sdk-go-v2/service/sqs/...")
}
