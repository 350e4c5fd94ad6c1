package dynamodbtest_test

import (
	"testing"

	"github.com/sluicelimits/sluice/internal/layers"
)

// A meter measures calls, whoever makes them: it knows DynamoDB and nothing of ours.
func TestLayers(t *testing.T) {
	layers.Only(t, layers.Std, "github.com/aws/aws-sdk-go-v2/aws/...", "github.com/aws/aws-sdk-go-v2/credentials/...",
		"github.com/aws/aws-sdk-go-v2/service/dynamodb/...")
}
