package pacer

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Bounds of what a pacer accepts.
const (
	MaxUnits  = 1 << 40 // largest limit and cost, in units
	MaxWeight = 1 << 20 // largest weight of a key

	MinPeriod = time.Millisecond
	MaxPeriod = 366 * 24 * time.Hour

	// DefaultMaxWaiting is the number of requests that may wait if Config.MaxWaiting is 0. They take 256 MiB.
	DefaultMaxWaiting = 1 << 22
)

// Limit is a number of units that a provider allows in each window.
type Limit struct {
	Units  int64         // units in each window, 1..MaxUnits
	Period time.Duration // length of a window, MinPeriod..MaxPeriod
}

// PerSecond returns a limit with windows of one second.
func PerSecond(units int64) Limit { return Limit{Units: units, Period: time.Second} }

// ParseLimit reads a limit such as "100/s", "5000/m", "1/h", "2/d" or "10/500ms": units, a slash and a period. The
// period is s, m or min, h, d, a duration of package time, or a whole number of seconds, as in plans files. The error
// wraps ErrConfig.
func ParseLimit(text string) (Limit, error) {
	number, period, ok := strings.Cut(text, "/")
	units, err := strconv.ParseInt(number, 10, 64)
	if !ok || err != nil {
		return Limit{}, fmt.Errorf("%w: %q is not a limit such as 100/s: write a whole number, a slash and a period, "+
			"which is %s", ErrConfig, text, periodForms)
	}
	l := Limit{Units: units}
	if l.Period, ok = parsePeriod(period); !ok {
		return Limit{}, fmt.Errorf("%w: the period %q of %q is not %s", ErrConfig, period, text, periodForms)
	}
	return l, l.check()
}

// periodForms says what parsePeriod accepts.
const periodForms = "s, m or min, h, d, a duration such as 500ms or 1m30s, or a number of seconds"

func parsePeriod(text string) (time.Duration, bool) {
	switch text {
	case "s":
		return time.Second, true
	case "m", "min":
		return time.Minute, true
	case "h":
		return time.Hour, true
	case "d":
		return 24 * time.Hour, true
	}
	if seconds, err := strconv.ParseUint(text, 10, 32); err == nil { // 32 bits of seconds fit a Duration
		return time.Duration(seconds) * time.Second, true
	}
	period, err := time.ParseDuration(text)
	return period, err == nil
}

// String returns the limit in a form such as "100 per 1s".
func (l Limit) String() string { return fmt.Sprintf("%d per %s", l.Units, l.Period) }

// Guard says which times of a window are not used, so that every request arrives at the provider in the window that it
// was granted for. Units of a window are granted, and requests may be sent, from its beginning plus ClockError to its
// end minus ClockError and MaxDelay. The zero Guard uses the whole window, and promises nothing about the provider's
// count.
type Guard struct {
	ClockError time.Duration // the largest difference of this machine's clock and the provider's, in either direction
	MaxDelay   time.Duration // the longest time from sending a request until the provider counts it
}

// Errors of a pacer.
var (
	// ErrConfig means that a limit, a guard or a bound is out of its range. The error's text says which.
	ErrConfig = errors.New("pacer: bad configuration")

	// ErrCost means that a cost is not within 1..MaxUnits.
	ErrCost = errors.New("pacer: bad cost")

	// ErrNever means that a cost is larger than the limit, so that no window has room for it. A waiting request fails
	// with ErrNever when its turn comes and the limit has been lowered below its cost.
	ErrNever = errors.New("pacer: cost above the limit")

	// ErrNoPlan is for the function that FollowPlan reads a plan with: it means that there is no plan (any more), so
	// that nobody may use the limit.
	ErrNoPlan = errors.New("pacer: there is no plan")

	// ErrWeight means that a weight is not within 1..MaxWeight.
	ErrWeight = errors.New("pacer: bad weight")

	// ErrFull means that Config.MaxWaiting requests are waiting.
	ErrFull = errors.New("pacer: too many requests wait")

	// ErrExpired means that the longest wait of a ticket has passed before its turn came.
	ErrExpired error = timeoutError("pacer: the longest wait has passed")

	// ErrClosed means that the pacer was closed.
	ErrClosed = errors.New("pacer: closed")
)

// timeoutError is an error that is also [context.DeadlineExceeded].
type timeoutError string

func (e timeoutError) Error() string { return string(e) }

// Is reports whether target is context.DeadlineExceeded.
func (timeoutError) Is(target error) bool { return target == context.DeadlineExceeded }

// LateError means that a request would have to wait longer than it may. It is returned at once, and the request takes
// no place in the queue. errors.Is says that it is [context.DeadlineExceeded].
type LateError struct {
	Key  string
	Cost int64

	// Earliest is the earliest possible time of the grant: the time at which the request would be served if no other
	// requests took units than those that wait for the same key.
	Earliest time.Time

	// Late is how far Earliest lies beyond the time until which the request may wait.
	Late time.Duration
}

// Error returns a text with the earliest time of the grant.
func (e *LateError) Error() string {
	return fmt.Sprintf("pacer: %d units for key %q are free at %s at the earliest, %s too late", e.Cost, e.Key,
		e.Earliest.Format(time.RFC3339Nano), e.Late)
}

// Is reports whether target is context.DeadlineExceeded.
func (*LateError) Is(target error) bool { return target == context.DeadlineExceeded }

func (l Limit) check() error {
	if l.Units < 1 || l.Units > MaxUnits {
		return fmt.Errorf("%w: the limit of %d units is not within 1..%d", ErrConfig, l.Units, int64(MaxUnits))
	}
	if l.Period < MinPeriod || l.Period > MaxPeriod {
		return fmt.Errorf("%w: the period of %s is not within %s..%s", ErrConfig, l.Period, MinPeriod, MaxPeriod)
	}
	return nil
}

func (g Guard) check(period time.Duration) error {
	if g.ClockError < 0 || g.MaxDelay < 0 {
		return fmt.Errorf("%w: the guard %+v has a negative time", ErrConfig, g)
	}
	if g.ClockError >= period || g.MaxDelay >= period || g.unused() >= period {
		return fmt.Errorf("%w: the guard leaves out %s of each window, which is %s long", ErrConfig, g.unused(), period)
	}
	return nil
}

// unused returns the length of the time in each window that is not used.
func (g Guard) unused() time.Duration { return 2*g.ClockError + g.MaxDelay }
