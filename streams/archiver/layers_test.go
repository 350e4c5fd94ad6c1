package archiver_test

import (
	"testing"

	"github.com/sluicelimits/sluice/internal/layers"
)

// It runs over streams and S3, and in one process over neither: what it needs of AWS is in its interfaces.
func TestLayers(t *testing.T) {
	layers.Only(t, layers.Std, "./events", "./internal/control/audit", "./internal/control", "./streams/streamevent")
}
