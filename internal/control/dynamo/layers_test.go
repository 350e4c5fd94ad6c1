package dynamo_test

import (
	"testing"

	"github.com/sluicelimits/sluice/internal/layers"
)

// Of AWS, this one knows DynamoDB.
func TestLayers(t *testing.T) {
	layers.Only(t, layers.Std, "./events", "./internal/control", "./internal/control/row",
		"github.com/aws/aws-sdk-go-v2/aws", "github.com/aws/aws-sdk-go-v2/service/dynamodb/...")
}
