// Package judge knows what one counter may admit, and counts what was admitted beyond that. Its arithmetic is its own,
// on purpose: the core of the limiter does not judge itself.
package judge

import (
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
)

// Judge counts the admissions of one counter. Times are µs since 1970. They may go back by less than a period, as the
// reports of processes do that wait for a store, but what is asked about an earlier time is then judged with what was
// admitted later.
type Judge interface {
	// Fits reports whether units fit at a time.
	Fits(at, units int64) bool

	// Spend counts units that were admitted. It returns how many of them were too many.
	Spend(at, units int64) (over int64)

	Clone() Judge
}

// Counter is what a judge judges: most units in each Period. A token bucket gets Most units in a Period, and holds
// Burst.
type Counter struct {
	Algorithm   limit.Algorithm
	Most, Burst int64
	Period      time.Duration // whole µs
}

// judged holds the algorithms that have a judge.
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

// New returns a judge that has seen nothing, or nil for an algorithm that has no judge.
func New(c Counter) Judge {
	j, ok := judged[c.Algorithm]
	if !ok {
		return nil
	}
	return j.make(c, c.Period.Microseconds())
}

// windowJudge counts by windows that are aligned to the clock: the latest, and the one before.
type windowJudge struct{ most, period, window, spent, before int64 }

// turn returns what was spent in the window of a time.
func (j *windowJudge) turn(at int64) *int64 {
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

func (j *windowJudge) Fits(at, units int64) bool { return *j.turn(at)+units <= j.most }

func (j *windowJudge) Spend(at, units int64) int64 {
	spent := j.turn(at)
	before := max(*spent, j.most)
	*spent += units
	return max(*spent-before, 0)
}

func (j *windowJudge) Clone() Judge { c := *j; return &c }

// bucketJudge is a token bucket that begins full.
type bucketJudge struct {
	perUS, burst float64
	at           int64
	level        float64
}

// blur is what is forgiven in a level for floating point, units.
const blur = 1e-6

func (j *bucketJudge) turn(at int64) {
	if j.at > 0 && at > j.at {
		j.level = min(j.level+float64(at-j.at)*j.perUS, j.burst)
	}
	j.at = max(j.at, at)
}

func (j *bucketJudge) Fits(at, units int64) bool {
	j.turn(at)
	return j.level+blur >= float64(units)
}

// Spend takes no unit that is too many off the level, so that each counts once.
func (j *bucketJudge) Spend(at, units int64) int64 {
	j.turn(at)
	j.level -= float64(units)
	if j.level >= -blur {
		return 0
	}
	over := int64(math.Ceil(-j.level - blur))
	j.level += float64(over)
	return over
}

func (j *bucketJudge) Clone() Judge { c := *j; return &c }

// slidingJudge counts by windows that are aligned to the clock, and weighs each window's predecessor by what is left of
// the window. It keeps the latest window, the one before, and that one's predecessor.
type slidingJudge struct{ most, period, window, older, last, spent int64 }

// turn returns what was spent in the window of a time, and in its predecessor.
func (j *slidingJudge) turn(at int64) (spent *int64, previous int64) {
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

// left returns what fits at a time, and where to count it.
func (j *slidingJudge) left(at int64) (units int64, spent *int64) {
	spent, previous := j.turn(at)
	weight := (previous*(j.period-at%j.period) + j.period - 1) / j.period
	return j.most - weight - *spent, spent
}

func (j *slidingJudge) Fits(at, units int64) bool {
	left, _ := j.left(at)
	return units <= left
}

// Spend does not count units that are too many in what was spent, so that each is over the limit once, and not again as
// long as the weight of the window before falls.
func (j *slidingJudge) Spend(at, units int64) int64 {
	left, spent := j.left(at)
	over := max(units-max(left, 0), 0)
	*spent += units - over
	return over
}

func (j *slidingJudge) Clone() Judge { c := *j; return &c }
