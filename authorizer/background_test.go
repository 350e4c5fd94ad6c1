package authorizer

import (
	"testing"
	"time"
)

// Guarantees that background tasks start once in BackgroundEvery, and also after the clock was set back. Otherwise they
// would not run before the clock has reached its earlier time again, and this instance would not be counted.
func TestClaimStart(t *testing.T) {
	var b backgroundTasks
	noon := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	for _, c := range []struct {
		name string
		at   time.Time
		want bool
	}{
		{"the first time", noon, true},
		{"at once", noon, false},
		{"just before BackgroundEvery", noon.Add(BackgroundEvery - 1), false},
		{"after BackgroundEvery", noon.Add(BackgroundEvery), true},
		{"set back by an hour", noon.Add(-time.Hour), true},
		{"at once, on the clock that was set back", noon.Add(-time.Hour), false},
	} {
		if got := b.claimStart(c.at.UnixNano()); got != c.want {
			t.Errorf("%s: %t, want %t", c.name, got, c.want)
		}
	}
}
