package limit

import "testing"

// OnPeriod calls f whenever a calendar period is computed, until the test ends.
func OnPeriod(t *testing.T, f func()) {
	onPeriod = f
	t.Cleanup(func() { onPeriod = nil })
}
