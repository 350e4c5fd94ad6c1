package pacer

import (
	"math/rand/v2"
	"net/http"
	"testing"
	"time"

	"github.com/sluicelimits/sluice/internal/limiter/clock"
)

// A measurement never rules out the true difference, whatever the delays of requests and replies, also if the clocks
// drift apart. 300 requests at random times leave about 10 ms.
func TestMeasuredClock(t *testing.T) {
	var worst time.Duration
	for seed := range uint64(200) {
		random := rand.New(rand.NewPCG(seed, 21))
		const began = 1_800_000_000 * time.Second
		ahead := time.Duration(random.Int64N(int64(2*time.Second))) - time.Second
		drift := (2*random.Float64() - 1) * 90e-6
		provider := func(mono time.Duration) time.Duration {
			return began + mono + ahead + time.Duration(drift*float64(mono))
		}
		var m measurement
		mono := time.Duration(0)
		for i := range 600 {
			sent := mono + time.Duration(random.Int64N(int64(100*ms)))
			written := sent + time.Duration(random.Int64N(int64(6*ms)))
			mono = written + time.Duration(random.Int64N(int64(6*ms)))
			m.observe(provider(written).Truncate(time.Second), sent, mono)
			if i == 299 {
				worst = max(worst, m.highest(mono)-m.lowest(mono))
			}
			if i >= 300 && i%100 == 99 {
				mono += time.Duration(random.Int64N(int64(time.Hour)))
			}
			if actual := provider(mono) - mono; actual < m.lowest(mono) || actual > m.highest(mono) {
				t.Fatalf("seed %d: after %d replies the difference is %s, and %s to %s are left", seed, i+1, actual,
					m.lowest(mono), m.highest(mono))
			}
			now := clock.Instant{Mono: mono, Wall: began + mono}
			wall, clockError := m.correct(now, 5*time.Second)
			if off := provider(mono) - wall; off > clockError || off < -clockError {
				t.Fatalf("seed %d: the corrected clock is wrong by %s, and the stated bound is %s", seed, off,
					clockError)
			}
		}
	}
	t.Logf("what 300 replies leave is at most %s wide", worst)
	if worst > 60*ms {
		t.Errorf("after 300 replies the difference is only known to within %s", worst)
	}
}

// A measurement that contradicts the guard moves the clock by as little as it must. One that contradicts earlier ones
// replaces them, because a clock was set.
func TestMeasurementContradicts(t *testing.T) {
	const date = 1_800_000_000 * time.Second
	now := clock.Instant{Mono: 10 * time.Second, Wall: date}
	for _, tt := range []struct {
		name             string
		sent, received   time.Duration // when the reply with the Date was, after now
		wall, clockError time.Duration // the corrected clock, after now.Wall
	}{
		{"nothing new", 400 * ms, 500 * ms, 0, 20 * ms},
		{"a reply before the second began here", -30 * ms, -10 * ms, 15 * ms, 5 * ms},
		{"the provider's clock is ahead by 90 ms at least", -100 * ms, -90 * ms, 110 * ms, 20 * ms},
		{"the provider's clock is behind by 70 ms at least", 1070 * ms, 1080 * ms, -90 * ms, 20 * ms},
	} {
		var m measurement
		m.observe(date, now.Mono+tt.sent, now.Mono+tt.received)
		m.low.at, m.high.at = now.Mono, now.Mono // no time has passed
		wall, clockError := m.correct(now, 20*ms)
		if wall-now.Wall != tt.wall || clockError != tt.clockError {
			t.Errorf("%s: the correction is %s, with an error of %s; want %s, %s", tt.name, wall-now.Wall, clockError,
				tt.wall, tt.clockError)
		}
	}
	var m measurement
	m.observe(date, 0, 5*ms)
	m.observe(date+time.Hour, 100*ms, 105*ms)
	if got := m.lowest(105 * ms); got != date+time.Hour-105*ms {
		t.Errorf("after the provider's clock was set by an hour, the lowest difference is %s", got-date)
	}
}

func TestDateOf(t *testing.T) {
	const text = "Fri, 15 Jan 2027 08:00:00 GMT"
	for name, tt := range map[string]struct {
		header http.Header
		want   time.Duration
		ok     bool
	}{
		"a date":         {http.Header{"Date": {text}}, 1_800_000_000 * time.Second, true},
		"no header":      {nil, 0, false},
		"not a date":     {http.Header{"Date": {"noon"}}, 0, false},
		"from a cache":   {http.Header{"Date": {text}, "Age": {"0"}}, 0, false},
		"before 1970":    {http.Header{"Date": {"Wed, 01 Jan 1969 00:00:00 GMT"}}, 0, false},
		"the year 9999":  {http.Header{"Date": {"Fri, 31 Dec 9999 23:59:59 GMT"}}, 0, false},
		"the year 10000": {http.Header{"Date": {"Sat, 01 Jan 10000 00:00:00 GMT"}}, 0, false},
	} {
		if got, ok := dateOf(tt.header); got != tt.want || ok != tt.ok {
			t.Errorf("%s: the date is %s, %t", name, got, ok)
		}
	}
}

// After the wall clock was set or the machine was suspended, nothing is known of the provider's clock but what the
// guard says, also if the guard allows for as much.
func TestJumpForgetsTheMeasurement(t *testing.T) {
	const began = 1_800_000_000 * time.Second
	s := supply{limit: PerSecond(10), guard: Guard{ClockError: 100 * ms}, measure: new(measurement)}
	s.advance(s.correct(clock.Instant{Wall: began}))
	s.measure.observe(began+time.Second, 1020*ms, 1030*ms) // it arrived 20 to 30 ms after the provider's second began
	s.measure.observe(began+time.Second, 1970*ms, 1980*ms)
	now := s.correct(clock.Instant{Mono: 2 * time.Second, Wall: began + 2*time.Second})
	if got := s.clockError(); got > 31*ms || now.Wall > began+2*time.Second+20*ms {
		t.Fatalf("two replies leave %s, and the provider's clock is ahead by %s", got, now.Wall-began-2*time.Second)
	}
	now = s.correct(clock.Instant{Mono: 3 * time.Second, Wall: began + 3050*ms})
	if s.clockError() != 100*ms || now.Wall != began+3050*ms {
		t.Errorf("after a suspension of 50 ms, the clock may be wrong by %s, and is corrected by %s", s.clockError(),
			now.Wall-began-3050*ms)
	}
}
