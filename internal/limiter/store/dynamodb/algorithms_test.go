package dynamodb

import (
	"testing"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
)

// Guarantees that the table of algorithms.go says of each algorithm how it is stored, or that DynamoDB cannot count it.
func TestAlgorithmsHaveEntries(t *testing.T) {
	for _, a := range limit.Algorithms() {
		if int(a) >= len(algorithms) {
			t.Errorf("the table in algorithms.go has no entry for %s: add one, nil if DynamoDB cannot count it", a)
		}
	}
}
