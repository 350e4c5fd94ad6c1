package pacer_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/sluicelimits/sluice/pacer"
)

func TestParseLimit(t *testing.T) {
	for text, want := range map[string]pacer.Limit{
		"100/s": pacer.PerSecond(100), "5000/m": {Units: 5000, Period: time.Minute}, "7/min": {Units: 7,
			Period: time.Minute},
		"1/h": {Units: 1, Period: time.Hour}, "2/d": {Units: 2, Period: 24 * time.Hour},
		"10/500ms": {Units: 10, Period: 500 * time.Millisecond}, "3/1m30s": {Units: 3, Period: 90 * time.Second},
		"4/10": {Units: 4, Period: 10 * time.Second}, "5/1s": pacer.PerSecond(5), "6/24h": {Units: 6,
			Period: 24 * time.Hour},
	} {
		if got, err := pacer.ParseLimit(text); err != nil || got != want {
			t.Errorf("ParseLimit(%q) = %v, %v, want %v", text, got, err, want)
		}
	}
	for _, text := range []string{"", "100", "/s", "0/s", "-1/s", "1.5/s", "100/", "100/x", "100/-1s", "100/0s",
		"100/1us", "1/s/s", "100/sec", "100/1.5", "100/-5", "100/0", "100/31622401", "100/99999999999999999999",
		"9223372036854775807/s", "99999999999999999999/s", "100/10000h"} {
		if got, err := pacer.ParseLimit(text); !errors.Is(err, pacer.ErrConfig) {
			t.Errorf("ParseLimit(%q) = %v, %v, want ErrConfig", text, got, err)
		}
	}
	const want = `the period "sec" of "100/sec" is not s, m or min, h, d, a duration such as 500ms or 1m30s, or a ` +
		"number of seconds"
	if _, err := pacer.ParseLimit("100/sec"); err == nil || !strings.HasSuffix(err.Error(), want) {
		t.Errorf("ParseLimit of a period that does not exist: %v, want %q", err, want)
	}
}

// Guarantees that a pacer without a limit gets one error, and none about the guard that it does not have.
func TestNewWithoutLimit(t *testing.T) {
	if _, err := pacer.New(pacer.Config{}); !errors.Is(err, pacer.ErrConfig) ||
		strings.Contains(err.Error(), "guard") || strings.Contains(err.Error(), "\n") {
		t.Errorf("New without a limit = %v, want one error about the limit", err)
	}
}
