package soak_test

import (
	"testing"

	"github.com/sluicelimits/sluice/internal/layers"
)

// Tests of every package use it, so it imports none of them.
func TestLayers(t *testing.T) { layers.Only(t, layers.Std) }
