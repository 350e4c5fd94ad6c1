package limit

import (
	"math"
	"math/bits"
	"slices"
)

// State is what one counter remembers. The zero State is a counter that was never used. Its meaning is the algorithm's:
//
//	                 At                      N                       M                     Stamps
//	fixed_window     start of the window     count                   count of the last     -
//	sliding_window   start of the window     count                   count of the last     -
//	sliding_buckets  -                       sum of Stamps           places before Stamps  units per bucket's start
//	sliding_log      -                       sum of Stamps           places before Stamps  units per time
//	token_bucket     time of the level       level, in 1/den units   rate; 0 is never used see below
//	leaky_bucket     next free slot          1/M µs beyond At        num; 0 is never used  -
//	quota            start of the period     count                   end of the period     -
//
// Times are µs since 1970. A token bucket's first stamp is all that was ever refunded, in 1/den units, and when last; its
// second one is what is leased, in units, and until when. Its level is below zero where a lease was granted ahead of the
// refill, or units were counted that had been admitted without the store; neither takes it below -burst.
type State struct {
	At, N, M int64
	Stamps   []Stamp // ascending by At
}

// Stamp is units that count from a time, or in a bucket that begins then.
type Stamp struct{ At, Units int64 }

// Result is the outcome of one tier of one limit within a [Decision].
type Result struct {
	Tier    *Tier
	Cost    int64 // asked for, units
	Charged int64 // taken, units: Cost, or 0 where the decision denied or a shadow would have
	RetryAt int64 // where Admits is false and Never is too: µs since 1970 at which the cost fits, if nobody else charges
	Admits  bool  // this tier has room for the cost
	Never   bool  // the cost is above what the tier can ever hold
	Other   bool  // set by a store: counted in the counter shared by all values beyond the limit's bound
	Unasked bool  // set by a store, of a request with leases: what is counted was not looked up, for nothing was asked of it or nobody answered

	shadow     bool  // only reports
	charge     int16 // index in the request
	stale      int32 // leading Stamps that no longer count
	need       int64 // of Cost, what the counter must have room for
	slot       int64 // of a lease, see ReceiptEntry; 0: none
	at, n, m   int64 // the state as of now, before the charge; n is what is used (a bucket: its level), m what a bucket holds for leases
	start, end int64 // quota: the period of the decision's time
	background int64 // fixed_window, sliding_window: what the last window weighs; leaky_bucket: now; token_bucket: all that was refunded; stamps: m before the charge
	later      int64 // token_bucket: until when m is held; stamps: when fewer units count than before the charge, 0 if none count
}

// alignOffset is where an owner's windows begin, µs after the wall clock's. It is stable over processes.
func (t *Tier) alignOffset(owner string) int64 {
	if !t.limit.AlignOwner || t.period == 0 { // a quota keeps to its calendar
		return 0
	}
	return int64(hashText(owner) % uint64(t.period))
}

// Clone returns a copy that shares no memory with s. The capacity of its Stamps is their number. See [Tier.Clone] for
// a copy whose memory is to be counted.
func (s *State) Clone() *State {
	c := *s
	if s.Stamps != nil {
		c.Stamps = append(make([]Stamp, 0, len(s.Stamps)), s.Stamps...)
	}
	return &c
}

// ahead reports a state that only a clock which leapt ahead can have stamped: more than MaxSkew ahead of now where only
// now is ever written, more than a period beyond that where a stamp may lie in the future (an arrival time, a lease's end).
func (t *Tier) ahead(s *State, now int64) bool {
	switch t.Algorithm {
	case LeakyBucket:
		return s.At > now+t.period+maxSkew
	case SlidingBuckets, SlidingLog:
		last := len(s.Stamps) - 1
		return last >= 0 && s.Stamps[last].At > now+t.period+maxSkew
	case TokenBucket:
		_, until := s.held()
		return s.At > now+maxSkew || until > now+maxSlot+maxSkew
	default:
		return s.At > now+maxSkew
	}
}

// repair brings a state that is ahead back to now, the time of r. What was counted stays counted, in the present.
func (t *Tier) repair(s *State, now int64, r *Result) {
	switch t.Algorithm {
	case TokenBucket:
		s.At = min(s.At, now)
		if held, until := s.held(); until > now+t.slot {
			s.hold(held, now+t.slot)
		}
		s.setLate(0, 0)
	case Quota:
		s.At, s.M = r.start, r.end
	case LeakyBucket:
		s.At, s.N = now+t.period, 0
	case SlidingBuckets, SlidingLog:
		t.restamp(s, now)
	default: // the window's start, moved on its own grid
		s.At -= ceilDiv(s.At-now, t.period) * t.period
	}
}

// restamp moves the stamps that are ahead to now.
func (t *Tier) restamp(s *State, now int64) {
	first, units := len(s.Stamps), int64(0)
	for first > 0 && s.Stamps[first-1].At > now+t.period+maxSkew {
		first--
		units += s.Stamps[first].Units
	}
	stamp := now
	if t.Algorithm == SlidingBuckets {
		stamp = floorTo(now, t.width)
	}
	s.Stamps = s.Stamps[:first]
	s.insert(Stamp{stamp, units})
}

// evaluate fills r with the outcome for cost at now. It changes nothing but r.
func (t *Tier) evaluate(s *State, owner string, now int64, r *Result) {
	switch t.Algorithm {
	case TokenBucket:
		t.evaluateTokenBucket(s, now, r)
	case FixedWindow:
		t.evaluateFixedWindow(s, owner, now, r)
	case SlidingWindow:
		t.evaluateSlidingWindow(s, owner, now, r)
	case SlidingBuckets, SlidingLog:
		t.evaluateStamps(s, now, r)
	case LeakyBucket:
		t.evaluateLeakyBucket(s, now, r)
	case Quota:
		t.evaluateQuota(s, now, r)
	}
}

// evaluateTokenBucket works in 1/den units, which makes refill and cost exact integers. Source of the form: the token
// bucket of RFC 2697 §3, with continuous refill.
func (t *Tier) evaluateTokenBucket(s *State, now int64, r *Result) {
	at, level := s.At, s.N
	if s.M == 0 {
		at, level = now, t.full
	} else {
		if s.M != t.Threshold { // the rate was changed: the same level in the new fraction of a unit, rounded down
			level = t.rescaled(level, s.M)
		}
		if len(s.Stamps) > 1 {
			t.evaluateHeld(s, at, level, now, r)
			return
		}
		at, level = t.refilled(at, level, now)
	}
	r.at, r.n, r.m, r.background, r.later = at, level, 0, 0, 0
	if len(s.Stamps) > 0 {
		r.background = s.Stamps[0].Units
	}
	if r.Never = r.Cost > t.capacity; r.Never {
		return
	}
	need := r.need * t.den
	if r.Admits = level >= need; !r.Admits {
		r.RetryAt = at + ceilDiv(need-level, t.num)
	}
}

// evaluateHeld is a bucket of which units are leased: until their slot ends, it refills up to burst less them.
func (t *Tier) evaluateHeld(s *State, at, level, now int64, r *Result) {
	held, until := s.held()
	held = min(held, t.capacity) // less than is held, where the burst has shrunk
	full := t.full - held*t.den
	if max(now, at) < until {
		at, level = refilledTo(full, t.num, at, level, now)
	} else {
		if at < until {
			at, level = refilledTo(full, t.num, at, level, until)
		}
		held = 0
		at, level = t.refilled(at, level, now)
	}
	r.at, r.n, r.m, r.background, r.later = at, level, held*t.den, s.Stamps[0].Units, until
	if r.Never = r.Cost > t.capacity; r.Never {
		return
	}
	need := r.need * t.den
	if r.Admits = level >= need; r.Admits {
		return
	}
	if need > full && held > 0 { // it does not get there before the slot ends
		at, level = refilledTo(full, t.num, at, level, max(at, until))
	}
	r.RetryAt = at + ceilDiv(need-level, t.num)
}

// refilled is a bucket's level of the time at, as of now: time only moves forward, and nothing is beyond full.
func (t *Tier) refilled(at, level, now int64) (int64, int64) {
	if level < 0 { // it may take longer than fullIn
		return refilledTo(t.full, t.num, at, level, now)
	}
	if elapsed := now - at; elapsed >= t.fullIn {
		return now, t.full
	} else if elapsed > 0 {
		return now, min(level+elapsed*t.num, t.full)
	}
	return at, min(level, t.full)
}

// refilledTo is refilled for a bucket that is full at another level than its burst, or is below zero.
func refilledTo(full, num, at, level, now int64) (int64, int64) {
	elapsed := now - at
	if elapsed <= 0 {
		return at, min(level, full)
	}
	if elapsed > (full-level)/num { // at full before that; the product might not fit
		return now, full
	}
	return now, min(level+elapsed*num, full)
}

// window returns the state of a fixed or sliding window as of now: the start of the current window, its count, and the
// count of the window before it. A window that a faster clock has begun stays the current one: windows only move forward.
//
// The windows of a limit move to another grid when its align changes. Stored windows of the old grid then overlap those of
// the new one, and nobody knows when within a window its units were charged. Three rules make sure that no window of either
// grid admits too much:
//   - An old window that has begun stays the current one until the first start of the new grid after its own start.
//   - A new window that overlaps the old current one starts with that one's whole count.
//   - While the old window is the current one, the whole count of the window before it counts too, see lastWeight.
//
// So after a change of align a limit may deny early for up to two periods, and never admits too much.
//
// own is the start of the window that contains now on the limit's grid, see windowStart.
func (t *Tier) window(s *State, own int64) (start, cur, prev int64) {
	switch {
	case s.At >= own:
		return s.At, s.N, s.M
	case s.At > own-t.period: // of another grid, and it overlaps this window
		return own, s.N, s.M
	case s.At > own-2*t.period: // the window before this one, or one of another grid that overlaps it
		return own, 0, s.N
	}
	return own, 0, 0
}

// windowStart is the start of the owner's window that contains now, on the grid of the limit.
func (t *Tier) windowStart(owner string, now int64) int64 {
	offset := t.alignOffset(owner)
	return floorTo(now-offset, t.period) + offset
}

// lastWeight is what the window before the one that starts at start counts at the time at, units. It is nothing for a
// fixed window and a weighted part for a sliding one, unless start lies on another grid: then the limit's own current
// window, which starts at own, began earlier and overlaps the window before start, so prev counts as a whole.
func (t *Tier) lastWeight(start, prev, own, at int64) int64 {
	switch {
	case t.offGrid(start, own):
		return prev
	case t.Algorithm == SlidingWindow:
		return t.weighted(start, prev, at)
	}
	return 0
}

// offGrid reports whether a window that starts at start is ahead of the limit's own one and lies on another grid.
func (t *Tier) offGrid(start, own int64) bool { return start > own && (start-own)%t.period != 0 }

func (t *Tier) evaluateFixedWindow(s *State, owner string, now int64, r *Result) {
	own := t.windowStart(owner, now)
	start, count, prev := t.window(s, own)
	r.at, r.n, r.m, r.background = start, count, prev, t.lastWeight(start, prev, own, now)
	if r.Never = r.Cost > t.capacity; r.Never {
		return
	}
	if r.Admits = r.background+count+r.need <= t.Threshold; r.Admits {
		return
	}
	switch {
	case !t.offGrid(start, own):
		r.RetryAt = start + t.period
	case count+r.need <= t.Threshold: // in the limit's own next window, which starts with this count
		r.RetryAt = own + t.period
	default:
		r.RetryAt = own + 2*t.period
	}
}

// evaluateSlidingWindow weighs the last window by what of it the sliding one still covers, rounded up.
func (t *Tier) evaluateSlidingWindow(s *State, owner string, now int64, r *Result) {
	own := t.windowStart(owner, now)
	start, cur, prev := t.window(s, own)
	r.at, r.n, r.m, r.background = start, cur, prev, t.lastWeight(start, prev, own, now)
	if r.Never = r.Cost > t.capacity; r.Never {
		return
	}
	if r.Admits = r.background+cur+r.need <= t.Threshold; r.Admits {
		return
	}
	if t.offGrid(start, own) { // the limit's own next window takes these counts over
		start = own + t.period
	}
	r.RetryAt = max(start, t.weighsAtMost(t.Threshold-r.need, start, cur, prev))
}

// weighsAtMost returns the first time at which no more than most units count, of a sliding window that begins at start and now
// counts more, if nothing is charged. It solves prev·ticksLeft ≤ room·ticks, in this window if possible, else in the next one.
func (t *Tier) weighsAtMost(most, start, cur, prev int64) int64 {
	if room := most - cur; room >= 0 {
		return start + t.period - t.tick*min(t.ticks, room*t.ticks/prev)
	}
	return start + 2*t.period - t.tick*min(t.ticks, most*t.ticks/cur)
}

// weighted is ⌈prev·(period−elapsed)/period⌉, in ticks.
func (t *Tier) weighted(start, prev, now int64) int64 {
	left := max(start+t.period-now, 0)
	return ceilDiv(prev*min(ceilDiv(left, t.tick), t.ticks), t.ticks)
}

// evaluateStamps serves the two algorithms that remember when units were spent: a log by the µs, buckets by their start.
func (t *Tier) evaluateStamps(s *State, now int64, r *Result) {
	oldest := t.oldest(now)
	used, stale := s.N, 0
	for stale < len(s.Stamps) && s.Stamps[stale].At < oldest {
		used -= s.Stamps[stale].Units
		stale++
	}
	r.at, r.n, r.m, r.stale = now, used, now, int32(stale)
	if n := len(s.Stamps); n > stale {
		r.m = t.leaves(s.Stamps[n-1].At)
	}
	r.later = t.leftBy(s.Stamps[stale:], max(used-t.Threshold, 0)+1)
	if r.Never = r.Cost > t.capacity; r.Never {
		return
	}
	if r.Admits = used+r.need <= t.Threshold; !r.Admits {
		r.RetryAt = t.leftBy(s.Stamps[stale:], used+r.need-t.Threshold)
	}
}

// leftBy returns the first time at which so many units of the stamps no longer count; 0 if there are no stamps.
func (t *Tier) leftBy(stamps []Stamp, units int64) (at int64) {
	for i := 0; units > 0 && i < len(stamps); i++ {
		units -= stamps[i].Units
		at = t.leaves(stamps[i].At)
	}
	return at
}

// oldest is the first stamp that still counts at now: one µs after now−period for a log, the n-th bucket before the
// current one for buckets.
func (t *Tier) oldest(now int64) int64 {
	if t.Algorithm == SlidingLog {
		return now - t.period + 1
	}
	return floorTo(now, t.width) - int64(t.Buckets)*t.width
}

// leaves is the first time at which a stamp no longer counts.
func (t *Tier) leaves(stamp int64) int64 {
	if t.Algorithm == SlidingLog {
		return stamp + t.period
	}
	return stamp + int64(t.Buckets+1)*t.width
}

func (t *Tier) evaluateLeakyBucket(s *State, now int64, r *Result) {
	slot, frac := s.At, s.N
	switch {
	case s.M == 0:
		slot, frac = math.MinInt64, 0
	case s.M != t.num && frac > 0: // the rate was changed: round the slot up
		slot, frac = slot+1, 0
	}
	r.at, r.n, r.background = slot, frac, now
	if r.Never = r.Cost > t.capacity; r.Never {
		return
	}
	if frac > 0 {
		slot++
	}
	if r.Admits = slot <= now; !r.Admits {
		r.RetryAt = slot
	}
}

func (t *Tier) evaluateQuota(s *State, now int64, r *Result) {
	start, end, used := s.At, s.M, s.N
	if (s.M == 0 && s.N == 0) || now >= end { // a period may end at 0
		start, end, used = r.start, r.end, 0
	}
	r.at, r.n, r.m = start, used, end
	if r.Never = r.Cost > t.capacity; r.Never {
		return
	}
	if r.Admits = used+r.need <= t.Threshold; !r.Admits {
		r.RetryAt = end
	}
}

// commit takes r's cost from s. r must come from evaluate on the same state.
func (t *Tier) commit(s *State, now int64, r *Result) {
	r.Charged = r.need
	switch t.Algorithm {
	case TokenBucket:
		if t.refundedElsewise(s) {
			r.background += maxExact
			s.Stamps[0] = Stamp{r.at, r.background}
		}
		if len(s.Stamps) > 1 {
			late, ended := t.lateAt(s, r)
			if s.Stamps[1].At <= r.at {
				s.hold(0, 0)
			}
			s.setLate(late, ended)
		}
		s.At, s.N, s.M = r.at, r.n-r.need*t.den, t.Threshold
	case FixedWindow, SlidingWindow, Quota:
		s.At, s.N, s.M = r.at, r.n+r.need, r.m
	case LeakyBucket: // admitted, so the slot is not after now: max(now, slot) is now
		if r.need == 0 {
			return
		}
		spent := r.need * t.den
		s.At, s.N, s.M = now+spent/t.num, spent%t.num, t.num
	case SlidingBuckets, SlidingLog:
		stamp := now
		if t.Algorithm == SlidingBuckets {
			stamp = floorTo(now, t.width)
		}
		if r.slot != 0 {
			stamp = r.slot
		}
		if r.stale > 0 {
			s.dropStale(int(r.stale))
		}
		if s.N = r.n + r.need; r.need == 0 {
			return
		}
		s.insert(Stamp{stamp, r.need})
		r.m, r.background = max(r.m, t.leaves(stamp)), r.m
	}
}

// refundedElsewise reports a bucket to which something was refunded while it was counted at another rate: receipts from
// before must give nothing.
func (t *Tier) refundedElsewise(s *State) bool {
	return len(s.Stamps) > 0 && s.Stamps[0].Units > 0 && s.M != t.Threshold
}

// dropStale forgets the first n stamps of a log or of buckets. It only moves the start of the slice, so a busy log
// does not pay its length on every charge. The places before the new start stay in memory, and M counts them. The
// live stamps are copied, which gives the memory back, once there are more such places than live stamps, or once
// three quarters of the places behind the start are free. A copy thus moves no more stamps than were dropped since
// the last one.
func (s *State) dropStale(n int) {
	const few = 16 // places that are not worth a copy
	live := s.Stamps[n:]
	s.M += int64(n)
	if s.M > int64(len(live))+few || cap(live) >= 4*few && 4*len(live) < cap(live) {
		live, s.M = append(make([]Stamp, 0, 2*len(live)+4), live...), 0
	}
	s.Stamps = live
}

// insert adds a stamp to a log or to buckets.
func (s *State) insert(add Stamp) {
	before := cap(s.Stamps)
	if s.Stamps = insertStamp(s.Stamps, add); cap(s.Stamps) != before {
		s.M = 0 // append made room by moving all stamps
	}
}

// remembersTimes reports whether the Stamps of the tier's states are what was charged, and when.
func (t *Tier) remembersTimes() bool {
	return t.Algorithm == SlidingLog || t.Algorithm == SlidingBuckets
}

// StampRoom returns for how many stamps the state has memory. That can be more than the capacity of its Stamps.
func (t *Tier) StampRoom(s *State) int {
	room := cap(s.Stamps)
	if t.remembersTimes() {
		room += int(s.M)
	}
	return room
}

// Clone is like [State.Clone], for a state of the tier. The copy has room for no more stamps than it holds.
func (t *Tier) Clone(s *State) *State {
	c := s.Clone()
	if t.remembersTimes() {
		c.M = 0
	}
	return c
}

// insertStamp keeps the order; a stamp for a time that is there already is added to it.
func insertStamp(stamps []Stamp, add Stamp) []Stamp {
	i := len(stamps)
	for i > 0 && stamps[i-1].At > add.At {
		i--
	}
	if i > 0 && stamps[i-1].At == add.At {
		stamps[i-1].Units += add.Units
		return stamps
	}
	return slices.Insert(stamps, i, add)
}

// FreshAt is the first time, µs since 1970, from which the state is no different from one that was never used, with
// MaxSkew to spare for clocks that differ. A store may forget the counter then, and never before.
func (t *Tier) FreshAt(s *State) int64 {
	at := s.At
	switch t.Algorithm {
	case FixedWindow: // one period more than while align stays as it is, see window
		at += 2 * t.period
	case SlidingWindow:
		at += 3 * t.period
	case TokenBucket:
		if s.M == 0 {
			return math.MinInt64
		}
		level := s.N
		if s.M != t.Threshold {
			level = t.rescaled(level, s.M)
		}
		if level < t.full {
			at += ceilDiv(t.full-level, t.num)
		}
		if len(s.Stamps) > 0 { // receipts from before the last refund must find it, see applyTokenBucket
			at = max(at, s.Stamps[0].At+t.fullIn)
		}
		if held, until := s.held(); held > 0 { // what is held has not made room for refill
			at = max(at, until+ceilDiv(min(held, t.capacity)*t.den, t.num))
		}
	case LeakyBucket:
		if s.M == 0 {
			return math.MinInt64
		}
		at++
	case Quota:
		at = s.M
	case SlidingBuckets, SlidingLog:
		if len(s.Stamps) == 0 {
			return math.MinInt64
		}
		at = t.leaves(s.Stamps[len(s.Stamps)-1].At)
	}
	return addSat(at, maxSkew)
}

// Uncharge makes the result say what it would had its charge not been made, for a store that takes it back.
func (r *Result) Uncharge() {
	if alg := r.Tier.Algorithm; r.Charged > 0 && (alg == SlidingBuckets || alg == SlidingLog) {
		r.m = r.background
	}
	r.Charged = 0
}

// Limit is the limit the result is about.
func (r *Result) Limit() *Limit { return r.Tier.limit }

// Shadow reports whether the result only reports.
func (r *Result) Shadow() bool { return r.shadow }

// Used is what of the capacity is taken after the decision, units, rounded up. It may exceed the capacity where a limit
// was lowered.
func (r *Result) Used() int64 {
	t := r.Tier
	switch t.Algorithm {
	case TokenBucket:
		return t.capacity - floorTo(r.n-r.Charged*t.den, t.den)/t.den
	case LeakyBucket:
		if r.Charged > 0 || !r.slotFree() {
			return t.capacity
		}
		return 0
	case FixedWindow, SlidingWindow:
		return r.background + r.n + r.Charged
	default:
		return r.n + r.Charged
	}
}

// Remaining is what is left after the decision, units: the largest cost that would be admitted at the same time. Never
// negative.
func (r *Result) Remaining() int64 { return max(0, r.Tier.capacity-r.Used()) }

// ResetAt is when the counter will be as if it had never been used, if nothing more is charged: the end of a window, a
// bucket full again. µs since 1970; the time of the decision where nothing is used.
func (r *Result) ResetAt() int64 {
	t := r.Tier
	switch t.Algorithm {
	case TokenBucket:
		return r.at + ceilDiv(t.full-r.n+r.Charged*t.den, t.num)
	case FixedWindow:
		return r.at + t.period
	case SlidingWindow:
		if r.n+r.Charged > 0 {
			return r.at + 2*t.period
		}
		return r.at + t.period
	case LeakyBucket:
		at := r.at
		if r.Charged > 0 {
			spent := r.Charged * t.den
			return r.background + ceilDiv(spent, t.num)
		}
		if r.n > 0 {
			at++
		}
		return max(at, r.background)
	default:
		return r.m
	}
}

// MoreAt is the first time, µs since 1970, at which more remains than after the decision, if nothing more is charged: a token
// bucket's next unit, the end of a window, the next slot of a leaky bucket. Where the capacity remains, so that there can never be
// more, it is when more than nothing would remain if all of it was charged now. It is never after RetryAt where the result has one.
//
// The time is that of the state which was evaluated. A store whose states hold fewer stamps than were made tells a later time, and the
// result of a lease tells what the store knew when it granted the lease.
func (r *Result) MoreAt() int64 {
	at := r.moreAt()
	if !r.Admits && !r.Never {
		at = min(at, r.RetryAt)
	}
	return at
}

func (r *Result) moreAt() int64 {
	t := r.Tier
	unused := r.Used() <= 0
	switch t.Algorithm {
	case TokenBucket:
		return r.nextToken()
	case FixedWindow:
		return r.at + t.period
	case SlidingWindow:
		if unused {
			return t.weighsAtMost(t.capacity-1, r.at, t.capacity, 0)
		}
		return t.weighsAtMost(min(r.Used(), t.capacity)-1, r.at, r.n+r.Charged, r.m)
	case SlidingLog, SlidingBuckets:
		at := r.later
		if charged := t.leaves(r.stamp()); at == 0 || r.Charged > 0 && charged < at {
			at = charged
		}
		return at
	case LeakyBucket:
		if unused {
			return r.background + t.period // as many units as the rate take a period
		}
		return r.ResetAt()
	default:
		return r.m
	}
}

// nextToken is when a token bucket holds a unit more. Until the time r.later it holds no more than full less what is leased.
func (r *Result) nextToken() int64 {
	t := r.Tier
	at, level := r.at, r.n-r.Charged*t.den
	need := (r.Remaining() + 1) * t.den
	if r.m > 0 && need > t.full-r.m && r.later > at {
		at, level = refilledTo(t.full-r.m, t.num, at, level, r.later)
	}
	return at + ceilDiv(need-level, t.num)
}

// stamp is the time under which a log or buckets count what the decision charges.
func (r *Result) stamp() int64 {
	switch {
	case r.slot != 0:
		return r.slot
	case r.Tier.Algorithm == SlidingBuckets:
		return floorTo(r.at, r.Tier.width)
	}
	return r.at
}

func (r *Result) slotFree() bool { return r.at < r.background || (r.at == r.background && r.n == 0) }

// rescaled is a level counted at another rate as one in 1/den units, rounded down and cut to the burst, also below zero.
// The products pass 64 bits, so they are taken in 128.
func (t *Tier) rescaled(level, rate int64) int64 {
	from := t.period / gcd(rate, t.period)
	units := uint64(max(level, -level))
	if int64(units)/from >= t.capacity {
		if level < 0 {
			return -t.full
		}
		return t.full
	}
	hi, lo := bits.Mul64(units, uint64(t.den))
	q, rest := bits.Div64(hi, lo, uint64(from)) // the quotient is below capacity·den, so hi < from
	if level >= 0 {
		return int64(q)
	}
	if rest > 0 {
		q++
	}
	return -int64(q)
}
