package table_test

import (
	"testing"

	"github.com/sluicelimits/sluice/internal/layers"
)

// The table in DynamoDB is the one place of a cell's configuration that knows AWS.
func TestLayers(t *testing.T) {
	layers.Only(t, layers.Std, "./internal/cellconfig", "github.com/aws/aws-sdk-go-v2/aws/...", "github.com/aws/aws-sdk-go-v2/service/dynamodb/...")
}
