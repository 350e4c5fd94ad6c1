package limit

import "testing"

// OnPeriod calls f whenever a calendar period is computed, until the test ends.
func OnPeriod(t *testing.T, f func()) {
	onPeriod = f
	t.Cleanup(func() { onPeriod = nil })
}

func mustNew(tb testing.TB, l Limit) *Limit {
	tb.Helper()
	made, err := New(l)
	if err != nil {
		tb.Fatal(err)
	}
	return made
}
