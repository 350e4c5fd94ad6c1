package judge

import (
	"math/bits"
	"slices"
	"time"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
)

// windowJudge counts in windows. It keeps the counts of the keptWindows latest windows, so that a late admission is
// counted in its own window. An admission that is even later is counted in the oldest window that is kept.
type windowJudge struct {
	most     int64
	period   int64              // µs. Window k begins at k periods since 1970. If 0, the windows are those of calendar
	calendar calendarWindows    // of a quota
	latest   int64              // number of the latest window
	spent    [keptWindows]int64 // of the latest window, and of those before it
}

const keptWindows = 4

// Window implements [Judge].
func (j *windowJudge) Window(at int64) int64 {
	if j.period > 0 {
		return at / j.period
	}
	return j.calendar.number(at)
}

// spentIn returns the count of the window that contains a time, and moves on to that window if it is a new one.
func (j *windowJudge) spentIn(at int64) *int64 {
	w := j.Window(at)
	for ; j.latest < w; j.latest++ {
		if w-j.latest >= keptWindows {
			j.latest, j.spent = w, [keptWindows]int64{}
			break
		}
		copy(j.spent[1:], j.spent[:])
		j.spent[0] = 0
	}
	return &j.spent[min(j.latest-w, keptWindows-1)]
}

// Fits implements [Judge].
func (j *windowJudge) Fits(at, units int64) bool { return *j.spentIn(at)+units <= j.most }

// Spend implements [Judge].
func (j *windowJudge) Spend(at, units int64) int64 {
	spent := j.spentIn(at)
	before := max(*spent, j.most)
	*spent += units
	return max(*spent-before, 0)
}

// Clone implements [Judge].
func (j *windowJudge) Clone() Judge { c := *j; return &c }

// slidingJudge counts in windows that are aligned to the clock. The units of the previous window count in proportion to
// how much of the present window is left. slidingJudge keeps the counts of the latest window and of the two before it,
// so that a late admission is counted in its own window. An admission that is even later is counted in the window
// before the latest.
type slidingJudge struct{ most, period, window, older, last, spent int64 }

// spentIn returns the counts of the window that contains a time and of the window before it, and moves on to that
// window if it is a new one.
func (j *slidingJudge) spentIn(at int64) (spent *int64, previous int64) {
	switch w := at / j.period; {
	case w == j.window:
	case w < j.window:
		return &j.last, j.older
	case w == j.window+1:
		j.window, j.older, j.last, j.spent = w, j.last, j.spent, 0
	default:
		j.window, j.older, j.last, j.spent = w, 0, 0, 0
	}
	return &j.spent, j.last
}

// left returns how many units fit at a time, and the count to which they are added.
func (j *slidingJudge) left(at int64) (units int64, spent *int64) {
	spent, previous := j.spentIn(at)
	hi, lo := bits.Mul64(uint64(previous), uint64(j.period-at%j.period))
	weight, rest := bits.Div64(hi, lo, uint64(j.period)) // at most previous
	if rest > 0 {
		weight++
	}
	return j.most - int64(weight) - *spent, spent
}

// Fits implements [Judge].
func (j *slidingJudge) Fits(at, units int64) bool {
	left, _ := j.left(at)
	return units <= left
}

// Spend does not add the units above the limit to the count. Each of them is then counted as above the limit once, and
// not again while the weight of its window falls.
func (j *slidingJudge) Spend(at, units int64) int64 {
	left, spent := j.left(at)
	over := max(units-max(left, 0), 0)
	*spent += units - over
	return over
}

// Window implements [Judge].
func (j *slidingJudge) Window(at int64) int64 { return at / j.period }

// Clone implements [Judge].
func (j *slidingJudge) Clone() Judge { c := *j; return &c }

// calendarWindows are days, weeks, months or years of a time zone. The number of a window follows from the date of its
// first day, so the judge need not compute the times at which windows begin. The number is wrong for an hour if the
// clock is set back across midnight.
type calendarWindows struct{ calendar *limit.Calendar }

// number returns the number of the window that contains a time.
func (w calendarWindows) number(at int64) int64 {
	return w.numberOf(time.UnixMicro(at).In(w.calendar.Location))
}

// numberOf returns the number of the window of a date.
func (w calendarWindows) numberOf(date time.Time) int64 {
	year, month, day := date.Date()
	switch anchor := max(w.calendar.AnchorDay, 1); w.calendar.Every {
	case limit.Month:
		n := int64(year)*12 + int64(month) - 1
		if day < min(anchor, daysIn(year, month)) {
			n--
		}
		return n
	case limit.Year:
		first := max(w.calendar.AnchorMonth, time.January)
		if month < first || month == first && day < min(anchor, daysIn(year, first)) {
			year--
		}
		return int64(year)
	case limit.Week:
		return (daysSince1970(year, month, day) + 3) / 7 // 1970 began on a Thursday, and weeks begin on Mondays
	case limit.Day:
	}
	return daysSince1970(year, month, day)
}

func daysIn(year int, month time.Month) int {
	return time.Date(year, month+1, 0, 0, 0, 0, 0, time.UTC).Day()
}

func daysSince1970(year int, month time.Month, day int) int64 {
	return time.Date(year, month, day, 0, 0, 0, 0, time.UTC).Unix() / (24 * 60 * 60)
}

// bucketsJudge counts in buckets: the units of the present bucket and of the n buckets before it count against the
// limit. A late admission is counted in its own bucket, and must fit in each span of n+1 buckets that contains it. As
// in the limiter, the length of a bucket is the period divided by n, rounded up to a microsecond.
type bucketsJudge struct {
	most, width, n int64
	latest         int64   // number of the latest bucket
	spent          []int64 // of the latest bucket, and of those before it
}

func newBucketsJudge(c Counter, period int64) Judge {
	n := int64(max(c.Buckets, 1))
	return &bucketsJudge{most: c.Most, width: (period + n - 1) / n, n: n, spent: make([]int64, 3*n)}
}

// move makes the bucket of a time the latest one, unless it is older. It returns the largest number of units in n+1
// consecutive buckets that contain this bucket, and the count of this bucket.
func (j *bucketsJudge) move(at int64) (counted int64, spent *int64) {
	b, kept := at/j.width, int64(len(j.spent))
	if b > j.latest {
		by := min(b-j.latest, kept)
		copy(j.spent[by:], j.spent)
		clear(j.spent[:by])
		j.latest = b
	}
	i := min(j.latest-b, kept-1)
	for first := max(i-j.n, 0); first <= i; first++ {
		sum := int64(0)
		for _, n := range j.spent[first:min(first+j.n+1, kept)] {
			sum += n
		}
		counted = max(counted, sum)
	}
	return counted, &j.spent[i]
}

// Fits implements [Judge].
func (j *bucketsJudge) Fits(at, units int64) bool {
	counted, _ := j.move(at)
	return counted+units <= j.most
}

// Spend does not add the units above the limit to the count, so that each is counted once.
func (j *bucketsJudge) Spend(at, units int64) int64 {
	counted, spent := j.move(at)
	over := min(max(counted+units-j.most, 0), units)
	*spent += units - over
	return over
}

// Window implements [Judge]. All buckets that count together lie in two windows.
func (j *bucketsJudge) Window(at int64) int64 { return at / j.width / (j.n + 1) }

// Clone implements [Judge].
func (j *bucketsJudge) Clone() Judge {
	c := *j
	c.spent = slices.Clone(j.spent)
	return &c
}

// logJudge remembers each admission, and counts those of the last period. A late admission is inserted at its time, and
// must fit in each interval of a period that contains it.
type logJudge struct {
	most, period int64
	entries      []entry // in the order of time
	from         int     // index of the first entry that is less than a period older than the last one
	sum          int64   // units of the entries from there on
}

type entry struct{ at, units int64 }

// mostIn returns the largest number of units in a period that contains a time.
func (j *logJudge) mostIn(at int64) (largest int64) {
	if n := len(j.entries); n == 0 || at >= j.entries[n-1].at {
		j.dropUntil(at - j.period)
		return j.sum
	}
	from, sum := 0, int64(0)
	for _, e := range j.entries {
		if e.at >= at+j.period {
			break
		}
		sum += e.units
		for j.entries[from].at <= max(e.at, at)-j.period {
			sum -= j.entries[from].units
			from++
		}
		largest = max(largest, sum)
	}
	return largest
}

// dropUntil subtracts the entries up to a time from the sum.
func (j *logJudge) dropUntil(at int64) {
	for j.from < len(j.entries) && j.entries[j.from].at <= at {
		j.sum -= j.entries[j.from].units
		j.from++
	}
}

// Fits implements [Judge].
func (j *logJudge) Fits(at, units int64) bool { return j.mostIn(at)+units <= j.most }

// Spend does not add the units above the limit to the log, so that each is counted once.
func (j *logJudge) Spend(at, units int64) int64 {
	over := min(max(j.mostIn(at)+units-j.most, 0), units)
	if units -= over; units == 0 {
		return over
	}
	i := len(j.entries)
	for i > 0 && j.entries[i-1].at > at {
		i--
	}
	j.entries = slices.Insert(j.entries, i, entry{at, units})
	if i < j.from {
		j.from++
	} else {
		j.sum += units
	}
	last := j.entries[len(j.entries)-1].at
	j.dropUntil(last - j.period)
	if n := j.from / 2; n > 64 && j.entries[n].at < last-3*j.period { // too old to count with any later admission
		j.entries, j.from = slices.Delete(j.entries, 0, n), j.from-n
	}
	return over
}

// Window implements [Judge].
func (j *logJudge) Window(at int64) int64 { return at / j.period }

// Clone implements [Judge].
func (j *logJudge) Clone() Judge {
	c := *j
	c.entries = slices.Clone(j.entries)
	return &c
}

// leakyJudge checks the distance between admissions. The limit allows rate units per period, so after an admission of n
// units nothing may be admitted for n·period/rate. It remembers the latest admissions, so that a late one is compared
// with its neighbours in time.
type leakyJudge struct {
	rate, period int64
	entries      []entry // the latest ones, in the order of time
}

const keptEntries = 16

// follows reports whether an admission at a time comes late enough after an earlier one.
func (j *leakyJudge) follows(e entry, at int64) bool {
	passedHi, passedLo := bits.Mul64(uint64(at-e.at), uint64(j.rate))
	needHi, needLo := bits.Mul64(uint64(e.units), uint64(j.period))
	return passedHi > needHi || passedHi == needHi && passedLo >= needLo
}

// place returns the index in entries at which an admission at a time belongs.
func (j *leakyJudge) place(at int64) int {
	i := len(j.entries)
	for i > 0 && j.entries[i-1].at > at {
		i--
	}
	return i
}

// Fits implements [Judge].
func (j *leakyJudge) Fits(at, units int64) bool {
	i := j.place(at)
	return units <= j.rate && (i == 0 || j.follows(j.entries[i-1], at)) &&
		(i == len(j.entries) || j.follows(entry{at, units}, j.entries[i].at))
}

// Spend does not remember an admission that is above the limit.
func (j *leakyJudge) Spend(at, units int64) int64 {
	if !j.Fits(at, units) {
		return units
	}
	j.entries = slices.Insert(j.entries, j.place(at), entry{at, units})
	if len(j.entries) > keptEntries {
		j.entries = slices.Delete(j.entries, 0, 1)
	}
	return 0
}

// Window implements [Judge].
func (j *leakyJudge) Window(int64) int64 { return 0 }

// Clone implements [Judge].
func (j *leakyJudge) Clone() Judge {
	c := *j
	c.entries = slices.Clone(j.entries)
	return &c
}
