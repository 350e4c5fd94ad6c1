package dynamodbtest_test

import (
	"testing"

	"github.com/sluicelimits/sluice/internal/layers"
)

// Guarantees that the meter, which measures the calls of any package, imports DynamoDB and no package of this
// repository.
func TestLayers(t *testing.T) {
	layers.Only(t, layers.Std, "github.com/aws/aws-sdk-go-v2/aws/...", "github.com/aws/aws-sdk-go-v2/credentials/...",
		"github.com/aws/aws-sdk-go-v2/service/dynamodb/...")
}
