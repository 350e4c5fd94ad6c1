package main

import (
	"testing"

	"github.com/sluicelimits/sluice/examples/internal/exampletest"
)

func TestExample(t *testing.T) { exampletest.Run(t, handler) }
