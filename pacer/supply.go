package pacer

import (
	"math"
	"math/bits"
	"slices"
	"time"

	"github.com/sluicelimits/sluice/internal/limiter/clock"
	"github.com/sluicelimits/sluice/internal/limiter/ledger"
)

// clockStep is the largest step of the wall clock that is followed. A larger one is a jump.
const clockStep = time.Millisecond

// lineMargin is the time between the end of the line of Spread and the end of the window. It is at most 2 % of the
// window. Two milliseconds are four times the shortest sleep of the timer.
const lineMargin = 2 * time.Millisecond

// supply holds the units of the provider's open window. It does no locking, and reads no clock.
type supply struct {
	limit     Limit
	guard     Guard
	smoothing Smoothing

	read   clock.Instant // the latest reading of both clocks; zero before the first
	number int64         // number of the open window
	serial uint64        // number of windows that were opened; unlike number, it differs for any two windows
	begin  time.Duration // beginning of the window, by the monotonic clock
	opens  time.Duration // units of the window are granted in [opens, closes)
	closes time.Duration
	units  int64    // units that may be granted in the window
	used   int64    // units that were granted, and not given back
	lost   bool     // nothing is granted in the window, because nobody knows what the provider has counted in it
	smooth smoother // used by Spread alone

	part   *parts // nil: the limit is not divided among instances
	shared bool   // units are leased from a ledger
	next   lease  // lease of a window that has not opened yet

	pausedUntil     time.Duration // nothing is granted before this time
	askedUntil      time.Duration // the latest end of a pause that the provider asked this pacer for
	stated          int64         // limit that the provider states, in 1/ledger.StatedOne per window; 0: no bound
	statedSinceCall bool          // the provider has stated a limit since the latest call to the ledger
	budgets         []budget      // units that the provider says are left, at most maxAdvised
}

// lease holds the leased units of a window, and the limit of the window, which is 0 if it is unknown.
type lease struct{ window, units, limit int64 }

// nextUnits returns the leased units of a window that has not opened yet.
func (s *supply) nextUnits(window int64) int64 {
	if s.next.window == window {
		return s.next.units
	}
	return 0
}

// budget holds the units that a provider says are left of one of its limits.
type budget struct {
	name  string // Left.Name
	left  int64
	until time.Duration // when the provider refills the limit
	total int64         // Permit.total of the reply's request
}

// advance opens a window if one has begun by a reading of the clocks, and updates the window's times.
func (s *supply) advance(now clock.Instant) {
	period := s.limit.Period
	number := floorDiv(now.Wall, period)
	last := s.read
	s.read = now
	opened := true
	switch {
	case last == clock.Instant{}:
		s.open(number, s.ready(number))
	case s.jumped(last, now):
		s.open(number, 0)
		s.lost = true
	case number > s.number:
		s.open(number, s.ready(number))
	default:
		opened = false
	}
	s.begin = now.Mono + time.Duration(s.number)*period - now.Wall
	s.opens = s.begin + s.guard.ClockError
	s.closes = s.begin + period - s.guard.ClockError - s.guard.MaxDelay
	if opened {
		s.smooth.begin(s.opens)
	}
}

// jumped reports whether the wall clock was set, or the monotonic clock stood still, between two readings.
func (s *supply) jumped(last, now clock.Instant) bool {
	return step(last, now) > max(clockStep, s.guard.ClockError)
}

// step returns the time by which the wall clock and the monotonic clock have moved apart between two readings.
func step(last, now clock.Instant) time.Duration {
	step := (now.Wall - last.Wall) - (now.Mono - last.Mono)
	return max(step, -step)
}

// open begins a window with so many units.
func (s *supply) open(number, units int64) {
	s.number, s.units, s.used, s.lost = number, units, 0, false
	s.serial++
}

// setLimit changes the limit. Units that were granted in the open window count towards the new limit. If the period
// changes, windows have other numbers, so nothing is granted until one of the new windows begins.
func (s *supply) setLimit(l Limit) {
	old := s.limit
	s.limit = l
	switch {
	case s.read == clock.Instant{}:
	case old.Period != l.Period:
		s.open(floorDiv(s.read.Wall, l.Period), 0)
		s.lost = true
		s.advance(s.read)
	default:
		s.resize()
	}
}

// ready returns the number of units that a window has when it opens.
func (s *supply) ready(number int64) int64 {
	if s.part != nil {
		s.part.begin(number)
		s.limit.Units = s.part.largest()
	}
	if !s.shared {
		return s.bounded(number)
	}
	if s.next.window != number {
		return 0
	}
	if s.next.limit > 0 {
		s.limit.Units = s.next.limit
	}
	return s.next.units
}

// most returns the number of units that the limit allows in a window.
func (s *supply) most(number int64) int64 {
	if s.part != nil {
		return s.part.of(number)
	}
	return s.limit.Units
}

// bounded returns the number of units that the limit, and what was stated, allow in a window.
func (s *supply) bounded(number int64) int64 {
	units := s.most(number)
	if s.stated > 0 {
		units = min(units, ledger.UnitsOf(s.stated, number))
	}
	return units
}

// each returns the largest number of units that a window has, at least one, if the limit is not shared.
func (s *supply) each() int64 {
	units := s.limit.Units
	if s.stated > 0 {
		units = min(units, (s.stated+ledger.StatedOne-1)/ledger.StatedOne)
	}
	return units
}

// resize applies changed bounds to the open window, unless the window is lost.
func (s *supply) resize() {
	if !s.lost && !s.shared {
		s.units = s.bounded(s.number)
	}
}

// advise applies the advice of a reply that was received at the given time. When the request of the reply was granted,
// the pacer had granted total units in its lifetime. At present it has granted granted units.
func (s *supply) advise(a *Advice, received time.Duration, total, granted int64) {
	if a.RetryAfter > 0 {
		s.askedUntil = max(s.askedUntil, received+min(a.RetryAfter, LongestPause))
		s.pausedUntil = max(s.pausedUntil, s.askedUntil)
	}
	if len(a.Limits) > 0 {
		s.stated = MaxUnits * ledger.StatedOne
		for _, l := range a.Limits {
			s.stated = min(s.stated, perWindow(l, s.limit.Period))
		}
		s.stated = max(s.stated, perWindow(Limit{1, LongestPause}, s.limit.Period)+1)
		s.statedSinceCall = true
		s.resize()
	}
	s.budgets = slices.DeleteFunc(s.budgets, func(b budget) bool { return b.until < received })
	for _, l := range a.Left {
		i := slices.IndexFunc(s.budgets, func(b budget) bool { return b.name == l.Name })
		if i < 0 && len(s.budgets) < maxAdvised {
			i = len(s.budgets)
			s.budgets = append(s.budgets, budget{name: l.Name})
		}
		if i >= 0 && total >= s.budgets[i].total {
			s.budgets[i] = budget{l.Name, max(l.Units-(granted-total), 0), received + min(l.Until, LongestPause), total}
		}
	}
}

// returnToBudgets counts units of a permit that were not spent, or, below 0, that were spent in addition. If the permit
// was granted before the request of a budget's reply, the reply has counted what was spent.
func (s *supply) returnToBudgets(units, total int64) {
	for i := range s.budgets {
		if b := &s.budgets[i]; total > b.total {
			b.left += units
		}
	}
}

// perWindow converts a limit to windows of another length, in 1/ledger.StatedOne of a unit, rounded down. It returns
// whole units if a window has so many of them that a part of one does not matter.
func perWindow(l Limit, window time.Duration) int64 {
	high, low := bits.Mul64(uint64(l.Units), uint64(window))
	if high >= uint64(l.Period) {
		return MaxUnits * ledger.StatedOne
	}
	whole, rest := bits.Div64(high, low, uint64(l.Period))
	if whole >= MaxUnits {
		return MaxUnits * ledger.StatedOne
	}
	if whole >= ledger.StatedOne {
		return int64(whole) * ledger.StatedOne
	}
	high, low = bits.Mul64(rest, ledger.StatedOne)
	part, _ := bits.Div64(high, low, uint64(l.Period))
	return int64(whole*ledger.StatedOne + part)
}

// budgeted returns the time from which on the provider's pause and budgets allow a number of units. It may be in the
// past.
func (s *supply) budgeted(units int64, now time.Duration) time.Duration {
	until := s.pausedUntil
	for i := range s.budgets {
		if b := &s.budgets[i]; b.until > now && units > b.left {
			until = max(until, b.until)
		}
	}
	return until
}

// take grants units if they are free now. With Spread, pass must have been called with the same time.
func (s *supply) take(cost int64, now time.Duration) bool {
	if !s.isFree(cost, now) {
		return false
	}
	if s.smoothing == Spread {
		s.smooth.credit -= float64(cost)
	}
	s.used += cost
	for i := range s.budgets {
		s.budgets[i].left -= cost
	}
	return true
}

// isFree reports whether take would take the units.
func (s *supply) isFree(cost int64, now time.Duration) bool {
	if now < s.opens || now >= s.closes || !s.fits(cost) {
		return false
	}
	if (s.pausedUntil > now || len(s.budgets) > 0) && s.budgeted(cost, now) > now {
		return false
	}
	return s.smoothing != Spread || s.smooth.due(s.line(), s.used, now)
}

// fits reports whether the open window has room for a cost. A cost above the stated limit, and not above the
// limit itself, needs a window of its own. A shared limit has only the units that the ledger has leased.
func (s *supply) fits(cost int64) bool {
	return cost <= s.units-s.used ||
		!s.shared && s.used == 0 && s.units > 0 && cost > s.units && cost <= s.most(s.number)
}

// pass accounts for the time until now. Waiting says whether requests waited in that time.
func (s *supply) pass(now time.Duration, waiting bool) {
	if s.smoothing == Spread {
		s.smooth.update(s.line(), s.used, now, waiting)
	}
}

func (s *supply) line() line { return s.lineFrom(s.opens, s.units) }

// lineFrom returns the line of a window that opens at the given time. The line ends a little before the window closes.
// Otherwise the units that are due after the last tick of the timer would be lost.
func (s *supply) lineFrom(opens time.Duration, units int64) line {
	usable := s.closes - s.opens
	return line{opens, opens + usable - min(lineMargin, usable/50), units}
}

// giveBack returns units of the window with the given serial. It reports whether they can still be granted to others.
func (s *supply) giveBack(units int64, serial uint64, now time.Duration) bool {
	if serial != s.serial || now >= s.closes {
		return false
	}
	s.used = max(s.used-units, 0)
	s.smooth.credit += float64(units)
	return true
}

// overspend counts units that were spent without a grant in the open window.
func (s *supply) overspend(units int64) {
	if s.used < 1<<61 { // beyond that the sum could overflow, and no limit is as large
		s.used += units
	}
}

// freeAt returns the earliest time at which a cost can be granted if only before units are granted ahead of it.
func (s *supply) freeAt(before, cost int64, now time.Duration) time.Duration {
	from := max(now, s.budgeted(before+cost, now))
	each := s.each()
	cost = min(cost, each)
	opens, closes, units, used := s.opens, s.closes, s.units, s.used
	if from >= closes { // move on to the window that contains from, or else the next one
		ahead := times(int64((from-closes)/s.limit.Period)+1, s.limit.Period)
		opens, units, used = after(opens, ahead), each, 0
	}
	if missing := before + cost - max(units-used, 0); missing > 0 {
		windows := (missing + each - 1) / each
		opens, units = after(opens, times(windows, s.limit.Period)), each
		used = max(missing-(windows-1)*each-cost, 0) // units of before that are granted in the last window
		before = 0
	}
	at := max(from, opens)
	if s.smoothing == Spread && opens != never {
		at = max(at, s.lineFrom(opens, units).reached(used+before))
	}
	return at
}

// readyAt returns the time at which to try next to grant the cost that is first in the queue.
func (s *supply) readyAt(cost int64, now time.Duration) time.Duration {
	if s.smoothing == Spread && now >= s.opens && now < s.closes && s.fits(cost) && s.budgeted(cost, now) <= now {
		if at := s.smooth.dueAt(s.line(), s.used, now); at < s.closes {
			return at
		}
		return after(s.opens, s.limit.Period)
	}
	return s.freeAt(0, cost, now)
}

// after returns t + d, or never if that is too large.
func after(t, d time.Duration) time.Duration {
	if t > 0 && d > never-t {
		return never
	}
	return t + d
}

// times returns n·d, or never if that is too large. Neither may be negative.
func times(n int64, d time.Duration) time.Duration {
	high, low := bits.Mul64(uint64(n), uint64(d))
	if high != 0 || low > math.MaxInt64 {
		return never
	}
	return time.Duration(low)
}

// floorDiv returns wall/period, rounded down.
func floorDiv(wall, period time.Duration) int64 {
	number := int64(wall / period)
	if wall%period < 0 {
		number--
	}
	return number
}
