package lease_test

import (
	"testing"
	"time"
	"unsafe"
)

// machine holds the clocks of one instance. They may be wrong. Times are in µs; the true time is that of the world.
type machine struct {
	now        int64 // the true time
	wallOff    int64 // how far the wall clock is ahead
	monoOff    int64
	wallStands bool
	monoStands bool
}

// advanceTo lets true time pass.
func (m *machine) advanceTo(to int64) {
	gone := to - m.now
	m.now = to
	if m.wallStands {
		m.wallOff -= gone
	}
	if m.monoStands {
		m.monoOff -= gone
	}
}

// read returns what time.Now would return on this machine.
func (m *machine) read() time.Time { return newTime(m.now+m.wallOff, m.now+m.monoOff) }

var began = time.Now()

// newTime returns a time whose wall clock and monotonic clock are independent of each other. Package time cannot make
// such a time, so its fields are written here. TestReading checks that they have the same layout.
func newTime(wall, mono int64) time.Time {
	t := began
	f := (*struct {
		wall uint64
		ext  int64
		loc  *time.Location
	})(unsafe.Pointer(&t))
	const since = 1<<63 | uint64(wallBase)<<30
	sec := floorDiv(wall, 1_000_000)
	f.wall = since + uint64(sec)<<30 | uint64(wall-sec*1_000_000)*1000
	f.ext += (mono - began.UnixMicro()) * 1000
	return t
}

const wallBase = ((1970-1885)*365 + 20) * 86400 // seconds from 1885, where package time begins, to 1970

func floorDiv(a, b int64) int64 {
	q := a / b
	if a%b < 0 {
		q--
	}
	return q
}

func TestReading(t *testing.T) {
	wall := time.Date(2026, 3, 2, 23, 59, 50, 123_456_000, time.UTC)
	for _, tt := range []struct{ wall, mono time.Duration }{{0, 0}, {time.Hour, time.Second},
		{-time.Hour, time.Second}, {0, time.Hour}} {
		a, b := newTime(wall.UnixMicro(), wall.UnixMicro()), newTime(wall.Add(tt.wall).UnixMicro(),
			wall.Add(tt.mono).UnixMicro())
		if !a.Round(0).Equal(wall) || !b.Round(0).Equal(wall.Add(tt.wall)) || b.Sub(a) != tt.mono {
			t.Fatalf("from %v to %v the wall clock advanced by %s, the monotonic clock by %s; want %s and %s", a, b,
				b.Round(0).Sub(a.Round(0)), b.Sub(a), tt.wall, tt.mono)
		}
	}
}

// Guarantees that a lease ends with its window, even if the request that fetched it carries an earlier time than
// requests of its owner that came before it. Otherwise units of one window would be spent in the next one.
func TestLateRequest(t *testing.T) {
	s := openAt(t, &noon, newMemory(t), greedy{})
	w, other := window(t, "w", time.Second, 100), window(t, "other", time.Hour, 100)
	decide(t, s, request(other), noon.Add(700*time.Millisecond))
	decide(t, s, request(w), noon.Add(100*time.Millisecond)) // this request waited before it came here
	n := 0
	for at := noon.Add(time.Second); at.Before(noon.Add(2 * time.Second)); at = at.Add(5 * time.Millisecond) {
		if decide(t, s, request(w), at).Allowed {
			n++
		}
	}
	if n > 100 {
		t.Errorf("%d units are admitted in a window of 100, want at most 100", n)
	}
}
