package limittest

import (
	"sync"
	"time"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
)

// calendarPeriod returns the period of a quota that contains now, in µs. The function searches day by day for the
// latest first day of a period that has begun, and for the next first day.
func calendarPeriod(c *limit.Calendar, now int64) (start, end int64) {
	y, m, _ := time.UnixMicro(now).UTC().Date()
	from, until := time.Date(y, m-2, 1, 0, 0, 0, 0, time.UTC), time.Date(y, m+3, 1, 0, 0, 0, 0, time.UTC)
	if c.Every == limit.Year {
		from, until = time.Date(y-2, 1, 1, 0, 0, 0, 0, time.UTC), time.Date(y+4, 1, 1, 0, 0, 0, 0, time.UTC)
	}
	if c.Every == limit.Day || c.Every == limit.Week {
		near := time.UnixMicro(now).UTC().Truncate(24 * time.Hour)
		from, until = near.AddDate(0, 0, -10), near.AddDate(0, 0, 10)
	}
	for day := from; day.Before(until); day = day.AddDate(0, 0, 1) {
		if !beginsPeriod(c, day) {
			continue
		}
		at := firstInstant(day, c.Location)
		if at > now {
			return start, at
		}
		start = at
	}
	panic("no period of " + c.String() + " holds " + time.UnixMicro(now).UTC().String())
}

// beginsPeriod reports whether a period begins on the day.
func beginsPeriod(c *limit.Calendar, day time.Time) bool {
	anchor := max(c.AnchorDay, 1)
	// The first day is the anchor's day, or the last day of a month that is too short for it.
	onAnchor := day.Day() == anchor || (day.Day() < anchor && day.AddDate(0, 0, 1).Day() == 1)
	switch c.Every {
	case limit.Day:
		return true
	case limit.Week:
		return day.Weekday() == time.Monday
	case limit.Month:
		return onAnchor
	default:
		return onAnchor && day.Month() == max(c.AnchorMonth, time.January)
	}
}

type civilDay struct {
	day  time.Time
	zone string
}

var firstInstants sync.Map // from civilDay to int64: the search of firstInstant is slow

// firstInstant returns the first time at which the clocks of loc show the day or a later one. It reads the clock every
// half minute, because since 1970 every change of a clock has been at a multiple of that. It skips hours without a
// change at whose end the day has not begun.
func firstInstant(day time.Time, loc *time.Location) int64 {
	key := civilDay{day, loc.String()}
	if at, ok := firstInstants.Load(key); ok {
		return at.(int64)
	}
	begun := func(at time.Time) bool {
		y, m, d := at.Date()
		return !time.Date(y, m, d, 0, 0, 0, 0, time.UTC).Before(day)
	}
	for at := day.Add(-30 * time.Hour).In(loc); ; {
		if begun(at) {
			firstInstants.Store(key, at.UnixMicro())
			return at.UnixMicro()
		}
		later := at.Add(time.Hour)
		_, offset := at.Zone()
		if _, after := later.Zone(); offset == after && !begun(later) {
			at = later
		} else {
			at = at.Add(30 * time.Second)
		}
	}
}
