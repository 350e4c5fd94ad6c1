package reconcile

import (
	"slices"
	"testing"

	"github.com/sluicelimits/sluice/events"
)

// Guarantees that each control table that has documents is compared, so that a kind of document in another table is not
// forgotten.
func TestEveryTableIsCompared(t *testing.T) {
	got, want := order(), events.DocumentTables()
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("the tables %v are compared, want those that have documents, %v", got, want)
	}
}
