package localstack_test

import (
	"testing"

	"github.com/sluicelimits/sluice/internal/layers"
)

// There is nothing but a sentence here.
func TestLayers(t *testing.T) { layers.Only(t) }
