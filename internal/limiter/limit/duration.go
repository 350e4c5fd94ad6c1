package limit

import (
	"strings"
	"time"
)

// DurationText spells a duration as plans files do: "1m" and "24h", where time.Duration writes "1m0s" and "24h0m0s".
func DurationText(d time.Duration) string {
	text := d.String()
	if strings.HasSuffix(text, "m0s") {
		text = strings.TrimSuffix(text, "0s")
	}
	if strings.HasSuffix(text, "h0m") {
		text = strings.TrimSuffix(text, "0m")
	}
	return text
}
