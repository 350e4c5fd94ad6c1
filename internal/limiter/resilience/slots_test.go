package resilience

import "testing"

// Guarantees that the refill of pending units loses no fraction of a unit, however often it is computed. Otherwise a
// busy owner's units would stay pending, and the replay would charge them although the instance's part has refilled
// them.
func TestRefillLosesNoFraction(t *testing.T) {
	part := tierPart{units: 1, burst: 10, period: 1000}
	s := slot{units: 10}
	for now := int64(300); now <= 4500; now += 300 {
		s.refill(part, now)
		if want := 10 - now/1000; s.units != want {
			t.Errorf("at %d µs: %d units pending, want %d", now, s.units, want)
		}
	}
	if s.refill(part, 20_000); s.units != 0 {
		t.Errorf("%d units are pending after all have been refilled, want 0", s.units)
	}
}
