package limit_test

import (
	"testing"
	"time"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
)

// Guarantees that parts of zero are left out only at the end, and that the text means the same duration.
func TestDurationText(t *testing.T) {
	for d, want := range map[time.Duration]string{
		0: "0s", time.Second: "1s", 10 * time.Second: "10s", 1500 * time.Millisecond: "1.5s", time.Microsecond: "1µs",
		time.Minute: "1m", 90 * time.Second: "1m30s", 10 * time.Minute: "10m", time.Hour: "1h", 20 * time.Hour: "20h",
		24 * time.Hour: "24h", time.Hour + 30*time.Second: "1h0m30s", 100 * time.Minute: "1h40m", -time.Hour: "-1h",
	} {
		got := limit.DurationText(d)
		if back, err := time.ParseDuration(got); got != want || err != nil || back != d {
			t.Errorf("DurationText(%v) = %q, which is %v (%v), want %q", d, got, back, err, want)
		}
	}
}
