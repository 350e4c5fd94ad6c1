// Package judge counts the units that a limiter admitted beyond what a counter may admit. It shares no arithmetic with
// the core of the limiter, so that a mistake in the core cannot hide itself.
package judge

import (
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
)

// Judge counts the admissions of one counter. Times are microseconds since 1970. An admission can be late: its time is
// earlier than that of an admission which was reported before it, because a process reports a decision only when the
// store has answered. The comment of each judge's type says how it treats a late admission.
type Judge interface {
	// Fits reports whether a request for the given units at the time at would be within the limit. The judge may then
	// forget what matters only before that time.
	Fits(at, units int64) bool

	// Spend counts units that were admitted at the time at, and returns how many of them are above the limit.
	Spend(at, units int64) (over int64)

	// Window returns the number of the window that contains a time. If the limiter's counter does not know of an
	// admission, other requests can exceed the limit in the window of that admission and, if CountsTwice is true, in
	// the next window. If they can do so at any later time, as in a bucket, all times are in window 0.
	Window(at int64) int64

	// Clone returns an independent copy of the judge, with its counts.
	Clone() Judge
}

// Counter describes the counter to judge: it admits at most Most units in each Period. A token bucket refills Most
// units in a Period, and holds at most Burst units.
type Counter struct {
	Algorithm   limit.Algorithm
	Most, Burst int64
	Period      time.Duration   // whole microseconds; not of a quota
	Buckets     int             // of sliding buckets: how many there are in a Period
	Calendar    *limit.Calendar // of a quota: which periods it has

	// Offset shifts the windows: a window begins Offset after each multiple of Period since 1970. Whole microseconds; 0
	// if the windows begin with the clock.
	Offset time.Duration
}

// judged lists the algorithms that have a judge.
var judged = map[limit.Algorithm]struct {
	make  func(c Counter, period int64) Judge // period is Counter.Period in microseconds
	twice bool                                // see CountsTwice
	align bool                                // see Aligns
}{
	limit.FixedWindow: {make: func(c Counter, period int64) Judge {
		return &windowJudge{most: c.Most, period: period}
	}, align: true},
	limit.SlidingWindow: {make: func(c Counter, period int64) Judge {
		return &slidingJudge{most: c.Most, period: period}
	}, twice: true, align: true},
	limit.SlidingBuckets: {make: newBucketsJudge, twice: true},
	limit.SlidingLog: {make: func(c Counter, period int64) Judge {
		return &logJudge{most: c.Most, period: period}
	}, twice: true},
	limit.TokenBucket: {make: func(c Counter, period int64) Judge {
		return &bucketJudge{perUS: float64(c.Most) / float64(period), burst: float64(c.Burst), level: float64(c.Burst)}
	}},
	limit.LeakyBucket: {make: func(c Counter, period int64) Judge {
		return &leakyJudge{rate: c.Most, period: period}
	}, twice: true},
	limit.Quota: {make: func(c Counter, _ int64) Judge {
		return &windowJudge{most: c.Most, calendar: calendarWindows{c.Calendar}}
	}},
}

// Algorithms returns the algorithms that have a judge, in the order of their names.
func Algorithms() []limit.Algorithm {
	return slices.SortedFunc(maps.Keys(judged), func(a, b limit.Algorithm) int {
		return strings.Compare(a.String(), b.String())
	})
}

// CountsTwice reports whether one admitted unit can bring two other units above a limit of the algorithm. In a sliding
// window, a log or buckets, a unit counts in the window in which it was admitted and in the next one. In a leaky
// bucket, an admission can come too soon after the one before it, and the next one too soon after it.
func CountsTwice(a limit.Algorithm) bool { return judged[a].twice }

// Aligns reports whether the windows of the algorithm can begin at another time for each owner: see Counter.Offset.
func Aligns(a limit.Algorithm) bool { return judged[a].align }

// New returns a judge of a counter that has admitted nothing yet, or nil if the algorithm has no judge.
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
func (j *shiftedJudge) Window(at int64) int64       { return j.Judge.Window(at - j.offset) }
func (j *shiftedJudge) Clone() Judge                { return &shiftedJudge{j.Judge.Clone(), j.offset} }

// bucketJudge is a token bucket that is full at the beginning. A late admission is counted at the latest time so far.
// This can only find fewer units above the limit: if the bucket was full in between, it could not take up the units
// that were refilled between the two times.
type bucketJudge struct {
	perUS float64 // units that are refilled per microsecond
	burst float64 // the most that the bucket holds
	at    int64   // the latest time
	level float64 // units in the bucket at that time
}

// tolerance is how many units a level may be below the cost because of rounding in floating point. It is far below one
// unit, which is the least that can be admitted above a limit, and above the rounding error of one step, which is 10^-7
// units at a level of 10^9.
const tolerance = 1e-6

func (j *bucketJudge) refill(at int64) {
	if j.at > 0 && at > j.at {
		j.level = min(j.level+float64(at-j.at)*j.perUS, j.burst)
	}
	j.at = max(j.at, at)
}

// Fits implements [Judge].
func (j *bucketJudge) Fits(at, units int64) bool {
	j.refill(at)
	return j.level+tolerance >= float64(units)
}

// Spend takes only the units that fit off the level, so that each unit above the limit is counted once.
func (j *bucketJudge) Spend(at, units int64) int64 {
	j.refill(at)
	j.level -= float64(units)
	if j.level >= -tolerance {
		return 0
	}
	over := int64(math.Ceil(-j.level - tolerance))
	j.level += float64(over)
	return over
}

// Window implements [Judge].
func (j *bucketJudge) Window(int64) int64 { return 0 }

// Clone implements [Judge].
func (j *bucketJudge) Clone() Judge { c := *j; return &c }
