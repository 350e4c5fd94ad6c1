package endtoend_test

import (
	"testing"

	"github.com/sluicelimits/sluice/internal/layers"
)

// There is nothing but tests here.
func TestLayers(t *testing.T) { layers.Only(t) }
