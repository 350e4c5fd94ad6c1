package shared

import (
	"math"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
)

// judge knows what one tenant has been admitted, wherever, and what its limit says of that. It is arithmetic of its
// own, on purpose: the core does not judge itself.
type judge interface {
	// fits reports whether units fit at a time, µs, that is not before those it was asked about.
	fits(at, units int64) bool

	// spend counts units that were admitted. It returns how many of them were too many.
	spend(at, units int64) (over int64)

	clone() judge
}

// periodUS is Period in µs.
const periodUS = int64(Period / 1000)

func newJudge(alg limit.Algorithm, most int64) judge {
	switch alg {
	case limit.TokenBucket:
		return &bucketJudge{most: most, level: float64(most)}
	case limit.SlidingWindow:
		return &slidingJudge{most: most}
	default:
		return &windowJudge{most: most}
	}
}

// windowJudge counts by windows that are aligned to the clock.
type windowJudge struct{ most, window, spent int64 }

func (j *windowJudge) turn(at int64) {
	if w := at / periodUS; w != j.window {
		j.window, j.spent = w, 0
	}
}

func (j *windowJudge) fits(at, units int64) bool {
	j.turn(at)
	return j.spent+units <= j.most
}

func (j *windowJudge) spend(at, units int64) int64 {
	j.turn(at)
	before := max(j.spent, j.most)
	j.spent += units
	return max(j.spent-before, 0)
}

func (j *windowJudge) clone() judge { c := *j; return &c }

// bucketJudge is a token bucket that begins full.
type bucketJudge struct {
	most  int64
	at    int64
	level float64
}

// blur is what is forgiven in a level for floating point, units.
const blur = 1e-6

func (j *bucketJudge) turn(at int64) {
	if j.at > 0 && at > j.at {
		j.level = min(j.level+float64(at-j.at)*float64(j.most)/float64(periodUS), float64(j.most))
	}
	j.at = max(j.at, at)
}

func (j *bucketJudge) fits(at, units int64) bool {
	j.turn(at)
	return j.level+blur >= float64(units)
}

// spend leaves nothing in a bucket from which too much was taken: what is too much counts once.
func (j *bucketJudge) spend(at, units int64) int64 {
	j.turn(at)
	j.level -= float64(units)
	if j.level >= -blur {
		return 0
	}
	over := int64(math.Ceil(-j.level - blur))
	j.level = 0
	return over
}

func (j *bucketJudge) clone() judge { c := *j; return &c }

// slidingJudge counts by windows that are aligned to the clock, and weighs the last one by what is left of this one.
type slidingJudge struct{ most, window, last, spent int64 }

func (j *slidingJudge) turn(at int64) {
	switch w := at / periodUS; w - j.window {
	case 0:
	case 1:
		j.window, j.last, j.spent = w, j.spent, 0
	default:
		j.window, j.last, j.spent = w, 0, 0
	}
}

// left is what fits now.
func (j *slidingJudge) left(at int64) int64 {
	j.turn(at)
	weight := (j.last*(periodUS-at%periodUS) + periodUS - 1) / periodUS
	return j.most - weight - j.spent
}

func (j *slidingJudge) fits(at, units int64) bool { return units <= j.left(at) }

func (j *slidingJudge) spend(at, units int64) int64 {
	left := max(j.left(at), 0)
	j.spent += units
	return max(units-left, 0)
}

func (j *slidingJudge) clone() judge { c := *j; return &c }
