package limit_test

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/sluicelimits/sluice/internal/limiter/limit"

	"github.com/sluicelimits/sluice/internal/testkit/soak"
)

// zones have every peculiarity: days without midnight, days with two midnights, changes a minute after midnight, a day
// that was left out, offsets of half and quarter hours, changes by half an hour, and dates that differ by a day.
var zones = []string{
	"UTC", "Europe/Paris", "America/New_York", "America/Sao_Paulo", "Africa/Cairo", "Asia/Beirut", "America/Havana",
	"America/Asuncion",
	"America/St_Johns", "America/Goose_Bay", "Pacific/Apia", "Pacific/Kwajalein", "Pacific/Kiritimati",
	"Australia/Lord_Howe",
	"Asia/Kathmandu", "Pacific/Chatham", "Asia/Tehran", "America/Scoresbysund", "Antarctica/Troll", "Asia/Pyongyang",
	"Africa/Monrovia",
	"America/Caracas", "Asia/Gaza", "Atlantic/Azores", "America/Godthab", "Europe/Dublin", "Africa/Casablanca",
}

func zone(tb testing.TB, name string) *time.Location {
	tb.Helper()
	loc, err := time.LoadLocation(name)
	if err != nil {
		tb.Fatal(err)
	}
	return loc
}

// Guarantees the right period in cases in which days of 24 hours, or a midnight that does not exist, would give a wrong
// one: a quota would reset an hour or a day off, twice, or never.
func TestCalendarPeriods(t *testing.T) {
	day := limit.Calendar{Every: limit.Day}
	month := func(anchor int) limit.Calendar { return limit.Calendar{Every: limit.Month, AnchorDay: anchor} }
	year := func(m time.Month, d int) limit.Calendar {
		return limit.Calendar{Every: limit.Year, AnchorMonth: m, AnchorDay: d}
	}
	week := limit.Calendar{Every: limit.Week}
	for _, tc := range []struct {
		name       string
		zone       string
		c          limit.Calendar
		now        string // RFC 3339
		start, end string
	}{
		{"a plain day", "UTC", day, "2026-03-02T12:00:00Z", "2026-03-02T00:00:00Z", "2026-03-03T00:00:00Z"},
		{"its first instant", "UTC", day, "2026-03-02T00:00:00Z", "2026-03-02T00:00:00Z", "2026-03-03T00:00:00Z"},
		{"its last µs", "UTC", day, "2026-03-01T23:59:59.999999Z", "2026-03-01T00:00:00Z", "2026-03-02T00:00:00Z"},
		{"before 1970", "UTC", day, "1969-12-31T12:00:00Z", "1969-12-31T00:00:00Z", "1970-01-01T00:00:00Z"},
		{"a day of 23 hours", "Europe/Paris", day, "2026-03-29T12:00:00+02:00", "2026-03-29T00:00:00+01:00",
			"2026-03-30T00:00:00+02:00"},
		{"a day of 25 hours", "Europe/Paris", day, "2026-10-25T12:00:00+01:00", "2026-10-25T00:00:00+02:00",
			"2026-10-26T00:00:00+01:00"},
		{"no midnight in Sao Paulo", "America/Sao_Paulo", day, "2017-10-15T12:00:00-02:00", "2017-10-15T01:00:00-02:00",
			"2017-10-16T00:00:00-02:00"},
		{"the day before", "America/Sao_Paulo", day, "2017-10-14T23:59:59-03:00", "2017-10-14T00:00:00-03:00",
			"2017-10-15T01:00:00-02:00"},
		{"no midnight in Cairo", "Africa/Cairo", day, "2024-04-26T12:00:00+03:00", "2024-04-26T01:00:00+03:00",
			"2024-04-27T00:00:00+03:00"},
		{"no midnight in Beirut", "Asia/Beirut", day, "2022-03-27T12:00:00+03:00", "2022-03-27T01:00:00+03:00",
			"2022-03-28T00:00:00+03:00"},
		{"midnight twice in Havana", "America/Havana", day, "2022-11-06T12:00:00-05:00", "2022-11-06T00:00:00-04:00",
			"2022-11-07T00:00:00-05:00"},
		{"between the two midnights", "America/Havana", day, "2022-11-06T00:30:00-04:00", "2022-11-06T00:00:00-04:00",
			"2022-11-07T00:00:00-05:00"},
		{"back across midnight in Sao Paulo", "America/Sao_Paulo", day, "2018-02-17T23:30:00-03:00",
			"2018-02-17T00:00:00-02:00", "2018-02-18T00:00:00-03:00"},
		{"back at 00:01 in St John's: the day has begun", "America/St_Johns", day, "2010-11-07T00:00:30-02:30",
			"2010-11-07T00:00:00-02:30", "2010-11-08T00:00:00-03:30"},
		{"and stays begun when the clock shows the day before", "America/St_Johns", day, "2010-11-06T23:30:00-03:30",
			"2010-11-07T00:00:00-02:30", "2010-11-08T00:00:00-03:30"},
		{"ahead at 00:01 in Goose Bay", "America/Goose_Bay", day, "2010-03-14T12:00:00-03:00",
			"2010-03-14T00:00:00-04:00", "2010-03-15T00:00:00-03:00"},
		{"the day Apia skipped, from before", "Pacific/Apia", day, "2011-12-29T23:59:59-10:00",
			"2011-12-29T00:00:00-10:00", "2011-12-31T00:00:00+14:00"},
		{"the day Apia skipped, from after", "Pacific/Apia", day, "2011-12-31T00:00:00+14:00",
			"2011-12-31T00:00:00+14:00", "2012-01-01T00:00:00+14:00"},
		{"a month that begins on the day Apia skipped", "Pacific/Apia", month(30), "2012-01-15T00:00:00+14:00",
			"2011-12-31T00:00:00+14:00", "2012-01-30T00:00:00+14:00"},
		{"a plain month", "UTC", month(0), "2026-02-14T00:00:00Z", "2026-02-01T00:00:00Z", "2026-03-01T00:00:00Z"},
		{"anchor 15, before it", "Europe/Paris", month(15), "2026-04-14T23:59:59+02:00", "2026-03-15T00:00:00+01:00",
			"2026-04-15T00:00:00+02:00"},
		{"anchor 15, on it", "Europe/Paris", month(15), "2026-04-15T00:00:00+02:00", "2026-04-15T00:00:00+02:00",
			"2026-05-15T00:00:00+02:00"},
		{"anchor 31 in April", "UTC", month(31), "2026-04-30T12:00:00Z", "2026-04-30T00:00:00Z",
			"2026-05-31T00:00:00Z"},
		{"anchor 31 before it", "UTC", month(31), "2026-04-29T12:00:00Z", "2026-03-31T00:00:00Z",
			"2026-04-30T00:00:00Z"},
		{"anchor 31 around February", "UTC", month(31), "2026-03-01T00:00:00Z", "2026-02-28T00:00:00Z",
			"2026-03-31T00:00:00Z"},
		{"anchor 30 in a leap year", "UTC", month(30), "2028-02-29T00:00:00Z", "2028-02-29T00:00:00Z",
			"2028-03-30T00:00:00Z"},
		{"anchor 29 in a leap year", "UTC", month(29), "2028-02-28T23:00:00Z", "2028-01-29T00:00:00Z",
			"2028-02-29T00:00:00Z"},
		{"anchor 29 in another", "UTC", month(29), "2026-02-28T00:00:00Z", "2026-02-28T00:00:00Z",
			"2026-03-29T00:00:00Z"},
		{"1900 was no leap year", "UTC", month(29), "1900-02-28T12:00:00Z", "1900-02-28T00:00:00Z",
			"1900-03-29T00:00:00Z"},
		{"over the turn of a year", "UTC", month(20), "2027-01-05T00:00:00Z", "2026-12-20T00:00:00Z",
			"2027-01-20T00:00:00Z"},
		{"a week begins on Monday", "UTC", week, "2026-03-01T23:59:59Z", "2026-02-23T00:00:00Z",
			"2026-03-02T00:00:00Z"},
		{"on its Monday", "UTC", week, "2026-03-02T00:00:00Z", "2026-03-02T00:00:00Z", "2026-03-09T00:00:00Z"},
		{"ISO week 53", "UTC", week, "2027-01-01T12:00:00Z", "2026-12-28T00:00:00Z", "2027-01-04T00:00:00Z"},
		{"a week before 1970", "UTC", week, "1969-12-28T12:00:00Z", "1969-12-22T00:00:00Z", "1969-12-29T00:00:00Z"},
		{"a week of 167 hours", "Europe/Paris", week, "2026-03-29T12:00:00+02:00", "2026-03-23T00:00:00+01:00",
			"2026-03-30T00:00:00+02:00"},
		{"a plain year", "UTC", year(0, 0), "2026-12-31T23:59:59Z", "2026-01-01T00:00:00Z", "2027-01-01T00:00:00Z"},
		{"a year from 29 February", "UTC", year(2, 29), "2027-02-27T00:00:00Z", "2026-02-28T00:00:00Z",
			"2027-02-28T00:00:00Z"},
		{"into a leap year", "UTC", year(2, 29), "2028-02-28T23:59:59Z", "2027-02-28T00:00:00Z",
			"2028-02-29T00:00:00Z"},
		{"out of a leap year", "UTC", year(2, 29), "2028-02-29T00:00:00Z", "2028-02-29T00:00:00Z",
			"2029-02-28T00:00:00Z"},
		{"a year from 31 April", "UTC", year(4, 31), "2026-04-30T00:00:00Z", "2026-04-30T00:00:00Z",
			"2027-04-30T00:00:00Z"},
		{"a fiscal year in Paris", "Europe/Paris", year(7, 1), "2026-06-30T23:59:59+02:00", "2025-07-01T00:00:00+02:00",
			"2026-07-01T00:00:00+02:00"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			parse := func(s string) time.Time {
				at, err := time.Parse(time.RFC3339Nano, s)
				if err != nil {
					t.Fatal(err)
				}
				return at
			}
			tc.c.Location = zone(t, tc.zone)
			start, end := tc.c.Period(parse(tc.now).UnixMicro())
			for _, p := range []struct {
				what string
				got  int64
				want time.Time
			}{{"starts", start, parse(tc.start)}, {"ends", end, parse(tc.end)}} {
				if p.got != p.want.UnixMicro() {
					t.Errorf("%s: the period that holds %s %s at %s, want %s", &tc.c, tc.now, p.what,
						time.UnixMicro(p.got).In(tc.c.Location).Format(time.RFC3339Nano),
						p.want.In(tc.c.Location).Format(time.RFC3339Nano))
				}
			}
		})
	}
}

// checkTiles fails unless the next period begins at the end of the period that contains now, the previous one ends at
// its beginning, and every instant within the period has the same period.
func checkTiles(t *testing.T, c *limit.Calendar, now, inside int64) {
	t.Helper()
	show := func(at int64) string { return time.UnixMicro(at).In(c.Location).Format(time.RFC3339Nano) }
	start, end := c.Period(now)
	if now < start || now >= end {
		t.Fatalf("%s: %s lies outside of its period [%s, %s)", c, show(now), show(start), show(end))
	}
	const longest = 367*24*time.Hour + 26*time.Hour
	if time.Duration(end-start)*time.Microsecond > longest {
		t.Fatalf("%s: the period [%s, %s) is longer than a year", c, show(start), show(end))
	}
	if next, after := c.Period(end); next != end || after <= end {
		t.Fatalf("%s: after [%s, %s) comes [%s, %s), a gap or an overlap", c, show(start), show(end), show(next),
			show(after))
	}
	if before, until := c.Period(start - 1); until != start || before >= start {
		t.Fatalf("%s: before [%s, %s) comes [%s, %s), a gap or an overlap", c, show(start), show(end), show(before),
			show(until))
	}
	at := start + inside%(end-start)
	if s, e := c.Period(at); s != start || e != end {
		t.Fatalf("%s: %s is in [%s, %s), yet its period is [%s, %s)", c, show(at), show(start), show(end), show(s),
			show(e))
	}
}

// FuzzCalendarPeriod guarantees that periods follow each other without a gap and without an overlap. In a gap there
// would be no quota; in an overlap units would be counted twice.
func FuzzCalendarPeriod(f *testing.F) {
	f.Add(uint8(10), uint8(0), uint8(30), uint8(1), int64(1325239200_000000), int64(1))
	f.Add(uint8(8), uint8(0), uint8(0), uint8(0), int64(1289097030_000000), int64(3_600_000_000))
	f.Add(uint8(3), uint8(2), uint8(31), uint8(2), int64(1508036400_000000), int64(86_399_999_999))
	f.Fuzz(func(t *testing.T, place, every, day, month uint8, now, inside int64) {
		const century = 100 * 366 * 24 * int64(time.Hour/time.Microsecond)
		c := &limit.Calendar{Every: limit.Day + limit.Every(every%4), Location: zone(t, zones[int(place)%len(zones)])}
		if c.Every >= limit.Month {
			c.AnchorDay = int(day % 32)
		}
		if c.Every == limit.Year {
			c.AnchorMonth = time.Month(month % 13)
		}
		checkTiles(t, c, now%(2*century), max(inside, 0)) // from 1770 to 2170
	})
}

func TestCalendarTiles(t *testing.T) {
	soak.SkipUnderRace(t)
	r := rand.New(rand.NewPCG(7, 7))
	for _, name := range zones {
		for every := limit.Day; every <= limit.Year; every++ {
			c := &limit.Calendar{Every: every, Location: zone(t, name)}
			for range 200 {
				if every >= limit.Month {
					c.AnchorDay = 1 + r.IntN(31)
				}
				if every == limit.Year {
					c.AnchorMonth = time.Month(1 + r.IntN(12))
				}
				checkTiles(t, c, r.Int64N(70*366*24*int64(time.Hour/time.Microsecond)), r.Int64())
			}
		}
	}
}

// Guarantees that an aligned limit may have a quota beside its windows, and that stores can get the parameters of each
// tier.
func TestAlignedQuota(t *testing.T) {
	l, err := limit.New(limit.Limit{ID: "l", AlignOwner: true,
		Tiers: []limit.Tier{{Algorithm: limit.Quota, Threshold: 5,
			Calendar: &limit.Calendar{Every: limit.Day, Location: time.UTC}}}})
	if err != nil {
		t.Fatal(err)
	}
	if p := l.Tiers[0].Params(limit.Owner{Kind: limit.Tenant, Name: "acme"}); p.Offset != 0 || p.Capacity != 5 {
		t.Errorf("the parameters of an aligned quota are %+v, want no offset and a capacity of 5", p)
	}
}
