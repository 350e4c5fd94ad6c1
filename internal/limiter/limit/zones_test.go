package limit_test

import (
	"archive/zip"
	"cmp"
	"crypto/sha256"
	"io"
	"math"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/testkit/soak"
)

// goZones returns every time zone of Go's own zone data. A program uses this data on a machine without zone files. Its
// tables end years before those of most systems. Of zones with equal data only the first one, by name, is returned.
func goZones(tb testing.TB) []*time.Location {
	tb.Helper()
	root, err := exec.CommandContext(tb.Context(), "go", "env", "GOROOT").Output()
	if err != nil {
		tb.Fatal(err)
	}
	files, err := zip.OpenReader(filepath.Join(strings.TrimSpace(string(root)), "lib", "time", "zoneinfo.zip"))
	if err != nil {
		tb.Fatal(err)
	}
	defer func() { _ = files.Close() }()
	seen := map[[sha256.Size]byte]bool{}
	var zones []*time.Location
	for _, f := range files.File {
		if f.FileInfo().IsDir() {
			continue
		}
		r, err := f.Open()
		if err != nil {
			tb.Fatal(err)
		}
		data, err := io.ReadAll(r)
		if err != nil {
			tb.Fatal(err)
		}
		if sum := sha256.Sum256(data); !seen[sum] {
			seen[sum] = true
			zone, err := time.LoadLocationFromTZData(f.Name, data)
			if err != nil {
				tb.Fatal(err)
			}
			zones = append(zones, zone)
		}
	}
	if len(zones) < 300 {
		tb.Fatalf("Go's zone data has only %d different zones: the test compares too little", len(zones))
	}
	return zones
}

// clock holds the offsets of a zone from UTC over some years, in ascending order of time.
type clock []offsetFrom

// offsetFrom is the offset of the zone from one time until that of the next offsetFrom, in seconds.
type offsetFrom struct{ from, offset int64 }

func offsetOf(loc *time.Location, at int64) int64 {
	_, offset := time.Unix(at, 0).In(loc).Zone()
	return int64(offset)
}

// readClock reads the clock every six hours, and every half minute of six hours in which it was changed. Since 1970,
// all changes of all zones have been on a half minute, and no zone has had two changes within four days.
func readClock(loc *time.Location, from, until int64) clock {
	c := clock{{from, offsetOf(loc, from)}}
	for at := from; at < until; at += 6 * 3600 {
		was := c[len(c)-1].offset
		if offsetOf(loc, at+6*3600) == was {
			continue
		}
		change := at
		for offsetOf(loc, change) == was {
			change += 30
		}
		c = append(c, offsetFrom{change, offsetOf(loc, change)})
	}
	return c
}

// firstOf returns the first time at which the clock shows the day or a later one, in µs. Over the spans of one offset,
// it is the earliest time at which the day has begun by that offset.
func (c clock) firstOf(day time.Time) int64 {
	midnight := day.Unix()
	i, _ := slices.BinarySearchFunc(c, midnight-30*3600,
		func(o offsetFrom, at int64) int { return cmp.Compare(o.from, at) })
	for i = max(i-1, 0); ; i++ {
		first := max(midnight-c[i].offset, c[i].from)
		if i+1 == len(c) || first < c[i+1].from {
			return first * 1_000_000
		}
	}
}

// changedNear reports whether the clock is changed within four days of the day.
func (c clock) changedNear(day time.Time) bool {
	const near = 4 * 86400
	at := day.Unix()
	i, _ := slices.BinarySearchFunc(c, at-near, func(o offsetFrom, at int64) int { return cmp.Compare(o.from, at) })
	return i < len(c) && c[i].from <= at+near && i > 0
}

// civilDay returns a date as its midnight in UTC. If the month does not have the day, it is the last day of the month.
func civilDay(y int, m time.Month, d int) time.Time {
	return time.Date(y, m, min(d, time.Date(y, m+1, 0, 0, 0, 0, 0, time.UTC).Day()), 0, 0, 0, 0, time.UTC)
}

// calendarsOf returns the calendars that are compared in every zone.
func calendarsOf(loc *time.Location) []*limit.Calendar {
	out := []*limit.Calendar{{Every: limit.Day}, {Every: limit.Week}, {Every: limit.Year}}
	for _, anchor := range []int{0, 29, 30, 31} {
		out = append(out, &limit.Calendar{Every: limit.Month, AnchorDay: anchor})
	}
	for _, anchor := range []time.Time{civilDay(2000, 2, 29), civilDay(2000, 3, 30), civilDay(2000, 4, 31),
		civilDay(2000, 10, 29), civilDay(2000, 12, 31)} {
		out = append(out, &limit.Calendar{Every: limit.Year, AnchorMonth: anchor.Month(), AnchorDay: anchor.Day()})
	}
	for _, c := range out {
		c.Location = loc
	}
	return out
}

// firstDays returns the days, within some years, on which a period begins.
func firstDays(c *limit.Calendar, from, to int) (days []time.Time) {
	last := civilDay(to, time.December, 31)
	switch day := civilDay(from, time.January, 1); c.Every {
	case limit.Day:
		for ; !day.After(last); day = day.AddDate(0, 0, 1) {
			days = append(days, day)
		}
	case limit.Week:
		for day.Weekday() != time.Monday {
			day = day.AddDate(0, 0, 1)
		}
		for ; !day.After(last); day = day.AddDate(0, 0, 7) {
			days = append(days, day)
		}
	case limit.Month:
		for m := time.Month(1); m <= time.Month(12*(to-from+1)); m++ {
			first := time.Date(from, m, 1, 0, 0, 0, 0, time.UTC)
			days = append(days, civilDay(first.Year(), first.Month(), max(c.AnchorDay, 1)))
		}
	case limit.Year:
		for y := from; y <= to; y++ {
			days = append(days, civilDay(y, max(c.AnchorMonth, 1), max(c.AnchorDay, 1)))
		}
	}
	return days
}

// Guarantees that in every time zone the periods of every calendar begin at the first instant of their first day,
// follow each other without a gap or an overlap, and are found from each of their instants. The years go far beyond the
// tables of the zones, where Go uses the rule of the zone. `make soak` tests every year until 2400. A usual run ends in
// 2110 and adds the last years, because from 2038 on every year of a zone follows one rule. A short run leaves out most
// years, and of the others most days on which nothing happens.
func TestCalendarInEveryZone(t *testing.T) {
	soak.SkipUnderRace(t)
	spans := [][2]int{{1970, 2110}, {2396, 2400}}
	switch {
	case soak.Times(1) > 1:
		spans = [][2]int{{1970, 2400}}
	case testing.Short():
		spans = [][2]int{{1970, 1972}, {2000, 2000}, {2024, 2029}, {2036, 2040}, {2096, 2101}, {2399, 2400}}
	}
	for _, loc := range goZones(t) {
		t.Run(loc.String(), func(t *testing.T) {
			t.Parallel()
			for _, span := range spans {
				year := func(y int) int64 { return time.Date(y, 1, 1, 0, 0, 0, 0, time.UTC).Unix() }
				clock := readClock(loc, year(span[0])-7*86400, year(span[1]+2))
				for _, c := range calendarsOf(loc) {
					comparePeriods(t, c, clock, firstDays(c, span[0], span[1]))
				}
			}
		})
	}
}

// comparePeriods compares the periods that begin on the days with the clock.
func comparePeriods(t *testing.T, c *limit.Calendar, clock clock, days []time.Time) {
	t.Helper()
	show := func(at int64) string { return time.UnixMicro(at).In(c.Location).Format(time.RFC3339Nano) }
	for i, day := range days[:len(days)-1] {
		start, end := clock.firstOf(day), clock.firstOf(days[i+1])
		if start == end { // the zone left out the day
			continue
		}
		eventful := clock.changedNear(day) || clock.changedNear(days[i+1]) || day.Month() != day.AddDate(0, 0,
			4).Month()
		if testing.Short() && c.Every < limit.Month && !eventful && i%17 != 0 {
			continue
		}
		instants := []int64{end - 1, start, start + (end-start)/2}
		if !eventful {
			instants = instants[:1]
		}
		for _, now := range instants {
			if s, e := c.Period(now); s != start || e != end {
				t.Fatalf("%s: the period that holds %s is [%s, %s), want [%s, %s)", c, show(now), show(s), show(e),
					show(start), show(end))
			}
		}
	}
}

// Guarantees that a period is found that contains the instant, whatever the zone data. The clocks of this zone change
// every ten minutes by forty days, so no search for the first instant of a day can succeed.
func TestCalendarOfAnOddZone(t *testing.T) {
	zone := oddZone(t)
	for every := limit.Day; every <= limit.Year; every++ {
		c := &limit.Calendar{Every: every, Location: zone}
		for _, now := range []int64{math.MinInt64, math.MinInt64 + 1, -62135596800_000000, -1, 0, 1, 86400_000000,
			400_000_000000, 1 << 53, math.MaxInt64 - 1} {
			if start, end := c.Period(now); start > now || end <= now {
				t.Errorf("%s: the period that holds %d is [%d, %d)", c, now, start, end)
			}
		}
		for now := int64(0); now < 864000_000000; now += 601_000000 {
			if start, end := c.Period(now); start > now || end <= now {
				t.Errorf("%s: the period that holds %d is [%d, %d)", c, now, start, end)
			}
		}
	}
}

// oddZone returns a zone whose clocks alternate every ten minutes between twenty days behind and twenty days ahead of
// UTC, in the first days of 1970.
func oddZone(tb testing.TB) *time.Location {
	tb.Helper()
	const changes, ahead = 1500, 20 * 86400
	number := func(b []byte, bytes int, v int64) []byte {
		for i := bytes - 1; i >= 0; i-- {
			b = append(b, byte(v>>(8*i)))
		}
		return b
	}
	header := append([]byte("TZif\x00"), make([]byte, 15)...)
	// The counts of UT and standard indicators, leap seconds, changes, types, and bytes of names.
	for _, count := range []int64{0, 0, 0, changes, 2, 4} {
		header = number(header, 4, count)
	}
	data := header
	for i := range int64(changes) {
		data = number(data, 4, i*600)
	}
	for i := range changes {
		data = append(data, byte(i%2))
	}
	for _, offset := range []int64{-ahead, ahead} {
		data = append(number(data, 4, offset), 0, 0)
	}
	zone, err := time.LoadLocationFromTZData("Odd", append(data, "ODD\x00"...))
	if err != nil {
		tb.Fatal(err)
	}
	return zone
}
