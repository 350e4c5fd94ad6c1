// Package judge knows how much a counter may admit, and counts what was admitted beyond that. It shares no arithmetic
// with the core of the limiter, so that a mistake in the core cannot hide itself.
package judge

import (
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
)

// Judge counts the admissions of one counter. Times are microseconds since 1970. A time may be earlier than the one
// before it by less than a period, because a process reports a decision only when the store has answered. A question
// about an earlier time is then answered with everything that has been admitted so far.
type Judge interface {
	// Fits reports whether units fit at a time.
	Fits(at, units int64) bool

	// Spend counts units that were admitted, and returns how many of them were too many.
	Spend(at, units int64) (over int64)

	Clone() Judge
}

// Counter describes the counter to judge: it admits at most Most units in each Period. A token bucket refills Most
// units in a Period, and holds at most Burst units.
type Counter struct {
	Algorithm   limit.Algorithm
	Most, Burst int64
	Period      time.Duration // whole microseconds

	// Offset shifts the windows: a window begins Offset after each multiple of Period since 1970. Whole microseconds; 0
	// if the windows begin with the clock.
	Offset time.Duration
}

// judged lists the algorithms that have a judge.
var judged = map[limit.Algorithm]struct {
	make  func(c Counter, period int64) Judge // period is Counter.Period in microseconds
	twice bool                                // see CountsTwice
}{
	limit.FixedWindow: {make: func(c Counter, period int64) Judge {
		return &windowJudge{most: c.Most, period: period}
	}},
	limit.SlidingWindow: {make: func(c Counter, period int64) Judge {
		return &slidingJudge{most: c.Most, period: period}
	}, twice: true},
	limit.TokenBucket: {make: func(c Counter, period int64) Judge {
		return &bucketJudge{perUS: float64(c.Most) / float64(period), burst: float64(c.Burst), level: float64(c.Burst)}
	}},
}

// Algorithms returns the algorithms that have a judge, in the order of their names.
func Algorithms() []limit.Algorithm {
	return slices.SortedFunc(maps.Keys(judged), func(a, b limit.Algorithm) int {
		return strings.Compare(a.String(), b.String())
	})
}

// CountsTwice reports whether a unit of the algorithm counts in two windows: when it was admitted, and by its weight in
// the next window.
func CountsTwice(a limit.Algorithm) bool { return judged[a].twice }

// New returns a judge that has counted nothing yet, or nil if the algorithm has no judge.
func New(c Counter) Judge {
	j, ok := judged[c.Algorithm]
	if !ok {
		return nil
	}
	made := j.make(c, c.Period.Microseconds())
	if c.Offset == 0 {
		return made
	}
	return &shiftedJudge{made, c.Offset.Microseconds()}
}

// shiftedJudge judges windows that begin an offset after the multiples of the period.
type shiftedJudge struct {
	Judge
	offset int64
}

func (j *shiftedJudge) Fits(at, units int64) bool   { return j.Judge.Fits(at-j.offset, units) }
func (j *shiftedJudge) Spend(at, units int64) int64 { return j.Judge.Spend(at-j.offset, units) }
func (j *shiftedJudge) Clone() Judge                { return &shiftedJudge{j.Judge.Clone(), j.offset} }

// windowJudge counts in windows that are aligned to the clock. It keeps the counts of the latest window and of the one
// before.
type windowJudge struct{ most, period, window, spent, before int64 }

// spentIn returns the count of the window that contains a time, and moves on to that window if it is a new one.
func (j *windowJudge) spentIn(at int64) *int64 {
	switch w := at / j.period; {
	case w == j.window:
	case w < j.window:
		return &j.before
	case w == j.window+1:
		j.window, j.before, j.spent = w, j.spent, 0
	default:
		j.window, j.before, j.spent = w, 0, 0
	}
	return &j.spent
}

func (j *windowJudge) Fits(at, units int64) bool { return *j.spentIn(at)+units <= j.most }

func (j *windowJudge) Spend(at, units int64) int64 {
	spent := j.spentIn(at)
	before := max(*spent, j.most)
	*spent += units
	return max(*spent-before, 0)
}

func (j *windowJudge) Clone() Judge { c := *j; return &c }

// bucketJudge is a token bucket that is full at the beginning.
type bucketJudge struct {
	perUS, burst float64
	at           int64
	level        float64
}

// blur, in units, is how far a level may be below the cost because of rounding in floating point.
const blur = 1e-6

func (j *bucketJudge) refill(at int64) {
	if j.at > 0 && at > j.at {
		j.level = min(j.level+float64(at-j.at)*j.perUS, j.burst)
	}
	j.at = max(j.at, at)
}

func (j *bucketJudge) Fits(at, units int64) bool {
	j.refill(at)
	return j.level+blur >= float64(units)
}

// Spend takes only the units that fit off the level, so that each unit above the limit is counted once.
func (j *bucketJudge) Spend(at, units int64) int64 {
	j.refill(at)
	j.level -= float64(units)
	if j.level >= -blur {
		return 0
	}
	over := int64(math.Ceil(-j.level - blur))
	j.level += float64(over)
	return over
}

func (j *bucketJudge) Clone() Judge { c := *j; return &c }

// slidingJudge counts in windows that are aligned to the clock. The window before counts in proportion to how much of
// the present window is left. slidingJudge keeps the counts of the latest window and of the two before it.
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
	weight := (previous*(j.period-at%j.period) + j.period - 1) / j.period
	return j.most - weight - *spent, spent
}

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

func (j *slidingJudge) Clone() Judge { c := *j; return &c }
