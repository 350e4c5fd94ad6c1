package singleflight_test

import (
	"testing"

	"github.com/sluicelimits/sluice/internal/layers"
)

// Guarantees that a call does not depend on what it is made for.
func TestLayers(t *testing.T) { layers.Only(t, layers.Std, "./internal/limiter/clock") }
