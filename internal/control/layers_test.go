package control_test

import (
	"testing"

	"github.com/sluicelimits/sluice/internal/layers"
)

// The rules of versions and of the chain hold wherever the tables are: no AWS, no file, no clock.
func TestLayers(t *testing.T) { layers.Only(t, layers.Std, "./events", "./events/canonical") }
