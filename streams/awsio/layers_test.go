package awsio_test

import (
	"testing"

	"github.com/sluicelimits/sluice/internal/layers"
)

// It says what others want said, and has no opinion on it.
func TestLayers(t *testing.T) {
	layers.Forbid(t, map[string]string{
		"./functions":                         "functions are made of this",
		"./internal/cell":                     "the authorizer speaks to neither service",
		"github.com/aws/aws-lambda-go":        "whoever starts it knows how it is invoked",
		"github.com/aws/aws-sdk-go-v2/config": "see internal/aws/awsenv",
	})
}
