package resilience

import (
	"math/bits"
	"slices"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
)

// pendingTier holds the pending units of one tier, added up in slots of time.
//
// A slot of a window is an eighth of the period long, and a slot of a quota is a calendar period. Each slot keeps the
// latest time at which a unit in it was admitted, and all its units are replayed as of that time. If an algorithm
// counts each unit from its own time (sliding_log, sliding_buckets), units therefore count for up to an eighth of the
// period longer than they should, and never shorter.
//
// A token or leaky bucket has one slot, with the units that the instance's part of the bucket has not refilled yet.
type pendingTier struct {
	slots []slot
	part  tierPart // by which a bucket's units refill
}

// slot holds the pending units that were admitted in one span of time. Times are µs by the store's clock.
type slot struct {
	from, until int64 // the span: from one time until before another
	at          int64 // of a window, when the last unit was admitted; of a bucket, as of when units are pending
	units       int64
}

// slotsPerPeriod is how many slots a window's period has. With more slots, units would count less too long; with fewer,
// they take less memory and fewer replay requests.
const slotsPerPeriod = 8

// slotSpan returns the span of the slot that a time lies in. It may have to compute a calendar period, which is slow,
// so it must not be called under a lock.
func slotSpan(t *limit.Tier, owner limit.Owner, at int64) (from, until int64) {
	if t.Calendar != nil {
		return t.CalendarPeriod(at)
	}
	p := t.Params(owner)
	width := p.Period / slotsPerPeriod // no rest: a period is whole milliseconds, and 8 divides 1,000
	from = at - mod(at-p.Offset, width)
	return from, from + width
}

// mod returns a modulo b, which is never below zero.
func mod(a, b int64) int64 {
	if r := a % b; r >= 0 {
		return r
	}
	return a%b + b
}

// isCounted reports whether the store still counts the slot's units at now.
func (s *slot) isCounted(t *limit.Tier, owner limit.Owner, now int64) bool {
	switch counting := t.Counting(); {
	case t.Algorithm.HasRate():
		return s.units > 0
	case t.Calendar != nil:
		return now < s.until
	case counting.Entries:
		return now < s.at+counting.Lasts
	default: // all units lie in the window that contains from; ForgottenAt asks for a time after that of the units
		return now < t.ForgottenAt(owner.Name, s.from+1)
	}
}

// refill subtracts the units that the instance's part of a bucket has refilled by now. It subtracts whole units only,
// and moves at by the time that these units take, so no fraction is lost.
func (s *slot) refill(of tierPart, now int64) {
	elapsed := now - s.at
	if elapsed <= 0 {
		return
	}
	hi, lo := bits.Mul64(uint64(elapsed), uint64(of.units))
	if hi >= uint64(of.period) {
		s.units, s.at = 0, now
		return
	}
	q, rest := bits.Div64(hi, lo, uint64(of.period))
	if units := int64(min(q, 1<<62)); units < s.units {
		s.units -= units
		s.at = now - int64(rest)/of.units
		return
	}
	s.units, s.at = 0, now
}

// add adds newly admitted units, which are in more. If that takes another slot, it drops units that no longer count.
func (pt *pendingTier) add(t *limit.Tier, owner limit.Owner, more slot) {
	at := more.at
	if t.Algorithm.HasRate() {
		if len(pt.slots) == 0 {
			pt.slots = append(pt.slots, slot{from: at, at: at})
		}
		s := &pt.slots[0]
		s.refill(pt.part, at)
		s.units = min(s.units+more.units, limit.MaxUnits)
		return
	}
	for i := len(pt.slots) - 1; i >= 0; i-- {
		if s := &pt.slots[i]; at >= s.from && at < s.until {
			s.at, s.units = max(s.at, at), min(s.units+more.units, limit.MaxUnits)
			return
		}
	}
	pt.dropExpired(t, owner, at)
	more.units = min(more.units, limit.MaxUnits)
	pt.slots = append(pt.slots, more)
}

// dropExpired drops the units that no longer count at now.
func (pt *pendingTier) dropExpired(t *limit.Tier, owner limit.Owner, now int64) {
	if t.Algorithm.HasRate() && len(pt.slots) > 0 {
		pt.slots[0].refill(pt.part, now)
	}
	pt.slots = slices.DeleteFunc(pt.slots, func(s slot) bool { return !s.isCounted(t, owner, now) })
}

// mergeSlot adds the units of a slot that nextRequest had taken out.
func (pt *pendingTier) mergeSlot(t *limit.Tier, s slot) {
	if t.Algorithm.HasRate() && len(pt.slots) > 0 {
		s.refill(pt.part, pt.slots[0].at)
		pt.slots[0].units = min(pt.slots[0].units+s.units, limit.MaxUnits)
		return
	}
	for i := range pt.slots {
		if pt.slots[i].from == s.from {
			pt.slots[i].at, pt.slots[i].units = max(pt.slots[i].at, s.at), min(pt.slots[i].units+s.units,
				limit.MaxUnits)
			return
		}
	}
	pt.slots = append(pt.slots, s)
}
