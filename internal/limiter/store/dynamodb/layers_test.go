package dynamodb_test

import (
	"testing"

	"github.com/sluicelimits/sluice/internal/layers"
)

// Stores know the core, never what stands above it; of AWS, this one knows DynamoDB and how to speak to it.
func TestLayers(t *testing.T) {
	layers.Only(t, layers.Std, "./internal/limiter/limit", "./internal/limiter/ledger", "github.com/aws/aws-sdk-go-v2/aws/...",
		"github.com/aws/aws-sdk-go-v2/service/dynamodb/...", "github.com/aws/smithy-go/...",
		"github.com/hashicorp/golang-lru/v2/...")
}
