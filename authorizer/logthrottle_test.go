package authorizer

import (
	"testing"
	"time"
)

// Guarantees that a class is logged once a second, with the number of lines that were suppressed since the last one,
// and that one class does not suppress another.
func TestLogThrottle(t *testing.T) {
	var throttle logThrottle
	noon := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	for second, lines := range []int64{4, 3, 1, 1} {
		now := noon.Add(time.Duration(second) * time.Second)
		wantSuppressed := []int64{0, 3, 2, 0}[second]
		if n, ok := throttle.admit("key_expired", now); !ok || n != wantSuppressed {
			t.Errorf("second %d: %d suppressed, admitted %t; want %d, admitted", second, n, ok, wantSuppressed)
		}
		for range lines - 1 {
			if _, ok := throttle.admit("key_expired", now); ok {
				t.Errorf("second %d: another line is admitted", second)
			}
		}
		if n, ok := throttle.admit("token_expired", now); !ok || n != 0 {
			t.Errorf("second %d: %d suppressed of another class, admitted %t", second, n, ok)
		}
	}
}
