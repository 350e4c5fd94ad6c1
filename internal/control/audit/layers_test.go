package audit_test

import (
	"testing"

	"github.com/sluicelimits/sluice/internal/layers"
)

// What is found out is the same wherever the archive is: no AWS, no disk.
func TestLayers(t *testing.T) { layers.Only(t, layers.Std, "./events", "./internal/control") }
