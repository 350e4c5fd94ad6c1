package lease_test

import (
	"testing"
	"time"
	"unsafe"
)

// machine is the clocks of one instance, which may be wrong. Times are µs; true time is the world's.
type machine struct {
	now        int64 // true time
	wallOff    int64 // what the wall clock is ahead
	monoOff    int64
	wallStands bool
	monoStands bool
}

// pass lets true time pass.
func (m *machine) pass(to int64) {
	gone := to - m.now
	m.now = to
	if m.wallStands {
		m.wallOff -= gone
	}
	if m.monoStands {
		m.monoOff -= gone
	}
}

// read is what time.Now would return there.
func (m *machine) read() time.Time { return reading(m.now+m.wallOff, m.now+m.monoOff) }

var began = time.Now()

// reading is a time with a wall clock and a monotonic one that go their own ways. The time package makes none, and so
// its fields are written here; TestReading holds that they are still where they were.
func reading(wall, mono int64) time.Time {
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

const wallBase = ((1970-1885)*365 + 20) * 86400 // s from 1885, where the time package begins, to 1970

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
		a, b := reading(wall.UnixMicro(), wall.UnixMicro()), reading(wall.Add(tt.wall).UnixMicro(),
			wall.Add(tt.mono).UnixMicro())
		if !a.Round(0).Equal(wall) || !b.Round(0).Equal(wall.Add(tt.wall)) || b.Sub(a) != tt.mono {
			t.Fatalf("%v, then %v: the wall clock has gone %s, the monotonic one %s; want %s and %s", a, b,
				b.Round(0).Sub(a.Round(0)), b.Sub(a), tt.wall, tt.mono)
		}
	}
}
