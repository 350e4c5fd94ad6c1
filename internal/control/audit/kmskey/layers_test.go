package kmskey_test

import (
	"testing"

	"github.com/sluicelimits/sluice/internal/layers"
)

// A key knows nothing of what it signs.
func TestLayers(t *testing.T) {
	layers.Only(t, layers.Std, "./internal/control/audit", "github.com/aws/aws-sdk-go-v2/...")
}
