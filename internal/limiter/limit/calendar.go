package limit

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"time"
)

// Every is the length of a calendar period.
type Every uint8

// The calendar periods.
const (
	Day   Every = iota + 1
	Week        // ISO: begins on Monday
	Month       // begins on the anchor day
	Year        // begins on the anchor day of the anchor month
)

var everyNames = [...]string{"", "day", "week", "month", "year"}

// String returns the name used in plans.
func (e Every) String() string {
	if e >= Day && int(e) < len(everyNames) {
		return everyNames[e]
	}
	return "every(" + strconv.Itoa(int(e)) + ")"
}

// ParseEvery is the inverse of String. It reports false for an unknown name.
func ParseEvery(name string) (Every, bool) {
	for e := Day; e <= Year; e++ {
		if everyNames[e] == name {
			return e, true
		}
	}
	return 0, false
}

// Calendar divides time into the periods of a quota. A period begins at the first instant of its first day in the
// location: at the first instant that the day has, if it has no midnight (daylight saving), and at the earlier
// midnight, if midnight comes twice. So periods follow each other without gap or overlap in every zone.
type Calendar struct {
	Every       Every
	Location    *time.Location // required
	AnchorDay   int            // month and year: 1..31, default 1; a month that has no such day begins on its last one
	AnchorMonth time.Month     // year: 1..12, default January
}

func (c *Calendar) check() error {
	if c.Every < Day || c.Every > Year {
		return fmt.Errorf("%s is not day, week, month or year", c.Every)
	}
	if c.Location == nil {
		return errors.New("a calendar needs a time zone")
	}
	if c.AnchorDay != 0 && c.Every != Month && c.Every != Year {
		return fmt.Errorf("anchorDay is for month and year, not for %s", c.Every)
	}
	if c.AnchorMonth != 0 && c.Every != Year {
		return fmt.Errorf("anchorMonth is for year, not for %s", c.Every)
	}
	if c.AnchorDay < 0 || c.AnchorDay > 31 {
		return fmt.Errorf("anchorDay %d is outside 1..31", c.AnchorDay)
	}
	if c.AnchorMonth < 0 || c.AnchorMonth > time.December {
		return fmt.Errorf("anchorMonth %d is outside 1..12", int(c.AnchorMonth))
	}
	return nil
}

// String returns the canonical text, as in "month@15 Europe/Paris". It is part of the counter's identity.
func (c *Calendar) String() string {
	s := c.Every.String()
	switch c.Every {
	case Month:
		s += "@" + strconv.Itoa(max(c.AnchorDay, 1))
	case Year:
		s += "@" + strconv.Itoa(int(max(c.AnchorMonth, time.January))) + "-" + strconv.Itoa(max(c.AnchorDay, 1))
	case Day, Week: // begin at midnight, and on Monday
	}
	return s + " " + c.Location.String()
}

// Period returns the first instant of the period that holds now and of the one after it, in µs since 1970.
//
// The number of steps is bounded for every instant and whatever the zone data says. If the data contradicts itself so
// badly that no period holds now, Period widens the last one that it looked at until that period holds now.
func (c *Calendar) Period(now int64) (start, end int64) {
	if onPeriod != nil {
		onPeriod()
	}
	y, m, d := time.UnixMicro(now).In(c.Location).Date()
	n := c.index(y, m, d)
	start = c.begin(n)
	for range maxPeriodsOff {
		if start <= now {
			break
		}
		n--
		start = c.begin(n)
	}
	end = c.begin(n + 1)
	for range maxPeriodsOff {
		if end > now {
			break
		}
		n++
		start, end = end, c.begin(n+1)
	}
	return min(start, now), max(end, addSat(now, 1))
}

// onPeriod, if a test has set it, is called whenever a period is computed.
var onPeriod func()

// maxPeriodsOff is the largest error of index that Period corrects, in periods. In real zones index is at most one
// period off: if the date lies before the anchor, or if the clock has shown a later date before.
const maxPeriodsOff = 4

// index returns the number of the period that contains a civil date. It may be a few periods off; Period corrects that.
func (c *Calendar) index(y int, m time.Month, d int) int {
	switch c.Every {
	case Day:
		return civilDays(y, m, d)
	case Week:
		return floorDivInt(civilDays(y, m, d)+3, 7) // 1970-01-01 was a Thursday, three days after a Monday
	case Year:
		return y
	default:
		return y*12 + int(m) - 1
	}
}

// begin returns the first instant of period n, µs since 1970.
func (c *Calendar) begin(n int) int64 {
	switch c.Every {
	case Day:
		return startOfDay(1970, time.January, 1+n, c.Location)
	case Week:
		return startOfDay(1970, time.January, 1+n*7-3, c.Location)
	case Year:
		return anchored(n, max(c.AnchorMonth, time.January), c.AnchorDay, c.Location)
	default:
		return anchored(floorDivInt(n, 12), time.Month(n-12*floorDivInt(n, 12)+1), c.AnchorDay, c.Location)
	}
}

// anchored returns the first instant of a day of a month, or of its last day if the month has no such day, µs since
// 1970.
func anchored(y int, m time.Month, day int, loc *time.Location) int64 {
	last := time.Date(y, m+1, 0, 0, 0, 0, 0, time.UTC).Day()
	return startOfDay(y, m, min(max(day, 1), last), loc)
}

// startOfDay returns the first instant, µs since 1970, at which the clocks of loc show the date or a later one.
//
// It asks for the zone's offset at single instants only. time.Date promises nothing for a midnight that does not exist
// or comes twice. Time.ZoneBounds is wrong for years beyond the zone's table: on the last day of a leap year it returns
// an end before the instant, so a walk from end to end never arrives.
//
// The search begins at an instant before the day begins in any zone and assumes that the offset there stays. If the
// offset at the resulting midnight is the same, that is the answer; otherwise the search goes on from the instant at
// which the offset changed. This is exact if no zone changes its offset twice within the 52 hours around a midnight.
// The closest two changes since 1880 are 95 hours apart (Freetown, 1939).
func startOfDay(y int, m time.Month, d int, loc *time.Location) int64 {
	midnight := time.Date(y, m, d, 0, 0, 0, 0, time.UTC).Unix()
	at := midnight - maxOffset
	first := at
	for range maxChanges {
		offset := offsetAt(at, loc)
		first = max(at, midnight-offset)
		if offsetAt(first, loc) == offset {
			break
		}
		at = offsetChange(at, first, loc)
	}
	return micros(first)
}

const (
	maxOffset = 26 * 3600 // s; no zone is further ahead of UTC (RFC 9636, section 3.2)
	// changes of the offset that the search for one midnight follows; real zones have at most one
	maxChanges = 4
)

// offsetChange returns the first second after from, and at most until, at which the offset differs from that of from.
// The offsets at from and until must differ.
func offsetChange(from, until int64, loc *time.Location) int64 {
	offset := offsetAt(from, loc)
	for until-from > 1 {
		middle := from + (until-from)/2
		if offsetAt(middle, loc) == offset {
			from = middle
		} else {
			until = middle
		}
	}
	return until
}

// offsetAt returns by how many seconds the clocks of loc are ahead of UTC at an instant.
func offsetAt(unix int64, loc *time.Location) int64 {
	_, offset := time.Unix(unix, 0).In(loc).Zone()
	return int64(offset)
}

// micros converts seconds to µs. Instants that have no such number become the first or the last one that has.
func micros(seconds int64) int64 {
	const most = math.MaxInt64 / 1_000_000
	switch {
	case seconds > most:
		return math.MaxInt64
	case seconds < -most:
		return math.MinInt64
	}
	return seconds * 1_000_000
}

// civilDays returns the number of days from 1970-01-01 to a civil date.
func civilDays(y int, m time.Month, d int) int {
	return int(floorTo(time.Date(y, m, d, 0, 0, 0, 0, time.UTC).Unix(), 86400) / 86400)
}

// floorDivInt returns a/b rounded down, for b above 0.
func floorDivInt(a, b int) int {
	q := a / b
	if a%b < 0 {
		q--
	}
	return q
}
