package s3test_test

import (
	"testing"

	"github.com/sluicelimits/sluice/internal/layers"
)

// A stand-in knows nothing of what is tested against it.
func TestLayers(t *testing.T) { layers.Only(t, layers.Std, "github.com/aws/aws-sdk-go-v2/...") }
