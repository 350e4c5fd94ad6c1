package applier_test

import (
	"testing"

	"github.com/sluicelimits/sluice/internal/layers"
)

// It runs over SQS and DynamoDB, and in one process over neither.
func TestLayers(t *testing.T) {
	layers.Only(t, layers.Std, "./events", "./internal/cellconfig", "./internal/control/celldoc", "./internal/control",
		"./streams/kept", "./streams/sqsevent")
}
