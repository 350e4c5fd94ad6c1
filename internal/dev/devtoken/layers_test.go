package devtoken_test

import (
	"testing"

	"github.com/sluicelimits/sluice/internal/layers"
)

// A token is a text in a file: who sends it and who asks for it are the affair of others.
func TestLayers(t *testing.T) {
	layers.Only(t, layers.Std)
}
