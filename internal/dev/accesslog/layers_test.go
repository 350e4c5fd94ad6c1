package accesslog_test

import (
	"testing"

	"github.com/sluicelimits/sluice/internal/layers"
)

// Reading a log line needs nothing that decides about it.
func TestLayers(t *testing.T) { layers.Only(t, layers.Std) }
