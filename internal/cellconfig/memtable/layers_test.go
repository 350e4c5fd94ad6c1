package memtable_test

import (
	"testing"

	"github.com/sluicelimits/sluice/internal/layers"
)

// A table in memory knows what a table is, and nothing else.
func TestLayers(t *testing.T) {
	layers.Only(t, layers.Std, "./internal/cellconfig")
}
