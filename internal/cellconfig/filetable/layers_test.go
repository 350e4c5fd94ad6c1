package filetable_test

import (
	"testing"

	"github.com/sluicelimits/sluice/internal/layers"
)

// A file as a table is a plans file in a table in memory.
func TestLayers(t *testing.T) {
	layers.Only(t, layers.Std, "./internal/cellconfig", "./internal/cellconfig/memtable", "./internal/plan")
}
