package limit

import "slices"

// LogState is the state of a sliding log, and of sliding buckets.
type LogState struct {
	Sum     int64   // the sum of the units of all entries, also of those that no longer count
	Entries []Entry // ascending by time. A State and its LogState share the memory of this slice
}

// Log returns s as the state of a sliding log or of sliding buckets.
func (s *State) Log() LogState { return LogState{Sum: s.b, Entries: s.entries()} }

// State is the inverse of [State.Log].
func (st LogState) State() State {
	s := State{b: st.Sum}
	if st.Entries != nil {
		s.extra = &extra{entries: st.Entries}
	}
	return s
}

// setSum sets the sum of the entries' units.
func (s *State) setSum(units int64) { s.b = units }

// logSeen is what a decision has seen of a log or of buckets, as of its time. Together with Result.Charged and freedAt
// it holds all that a Result is asked for. The State may have changed by then.
type logSeen struct {
	now           int64
	used          int64 // how many units count; charge does not change it
	emptyAt       int64 // when none of the entries will count; now if none does
	emptyAtBefore int64 // emptyAt before the charge
}

func (r *Result) logSeen() logSeen {
	n := &r.seen
	return logSeen{now: n.a, used: n.amount, emptyAt: n.c, emptyAtBefore: n.d}
}

func (v logSeen) write(r *Result) { r.seen = numbers{v.now, v.used, v.emptyAt, v.emptyAtBefore} }

// freedAt is the first time at which more is left than before the charge, if nothing is charged. 0 if no entry counts.
func (r *Result) freedAt() int64 { return r.alsoSeen }

func (r *Result) setFreedAt(at int64) { r.alsoSeen = at }

// log is what a sliding log and sliding buckets have in common: entries of the units that were charged, each of which
// counts for a time. Leased units are entered at the time at which their lease ends, as if all of them were spent at
// the last moment.
type log struct {
	threshold int64
	period    int64 // µs
	width     int64 // µs; entries lie at multiples of it: 1 for a log, the width of a bucket for buckets
	lasts     int64 // µs; how long an entry counts from its time on
}

// oldest returns the earliest time that an entry which still counts at now can have. An entry counts at now if expires
// is after now, and all entries lie at multiples of width.
func (l *log) oldest(now int64) int64 { return floorTo(now, l.width) - l.lasts + l.width }

// expires returns the first time at which an entry of the time given by the parameter at no longer counts.
func (l *log) expires(at int64) int64 { return at + l.lasts }

// expiredBy returns the first time at which at least the given units of the entries no longer count. If all entries
// together have fewer units, it is the time at which none of them counts any more; 0 if there are no entries.
func (l *log) expiredBy(entries []Entry, units int64) (at int64) {
	for i := 0; units > 0 && i < len(entries); i++ {
		units -= entries[i].Units
		at = l.expires(entries[i].At)
	}
	return at
}

func (l *log) evaluate(s *State, now int64, r *Result) bool {
	entries := s.entries()
	n := len(entries)
	if n > 0 && l.misdated(entries[n-1].At, now) {
		return false
	}
	oldest, used, stale := l.oldest(now), s.Log().Sum, 0
	for stale < n && entries[stale].At < oldest {
		used -= entries[stale].Units
		stale++
	}
	seen := logSeen{now: now, used: used, emptyAt: now}
	if n > stale {
		seen.emptyAt = l.expires(entries[n-1].At)
	}
	live := entries[stale:]
	seen.write(r)
	r.setFreedAt(l.expiredBy(live, max(used-l.threshold, 0)+1))
	r.stale = int32(stale)
	if r.Never = r.Cost > l.threshold; r.Never {
		return true
	}
	if r.Admits = used+r.need <= l.threshold; !r.Admits {
		r.RetryAt = l.expiredBy(live, used+r.need-l.threshold)
	}
	return true
}

// misdated reports whether only a clock that was far ahead can have written an entry of the time given by the parameter
// at. A correct clock may write an entry up to one period ahead: that of a lease.
func (l *log) misdated(at, now int64) bool { return at-l.period-maxSkew > now }

// repair moves the units of misdated entries to an entry of the present time.
func (l *log) repair(s *State, now int64, _ *Result) {
	x := s.extra
	first, units := len(x.entries), int64(0)
	for first > 0 && l.misdated(x.entries[first-1].At, now) {
		first--
		units += x.entries[first].Units
	}
	x.entries = x.entries[:first]
	x.add(Entry{floorTo(now, l.width), units})
}

func (l *log) charge(s *State, _ int64, r *Result) {
	if r.stale > 0 {
		s.extra.drop(int(r.stale))
	}
	seen := r.logSeen()
	s.setSum(seen.used + r.need)
	if r.need == 0 {
		return
	}
	at := l.chargedAt(r)
	s.ensureExtra().add(Entry{at, r.need})
	seen.emptyAtBefore, seen.emptyAt = seen.emptyAt, max(seen.emptyAt, l.expires(at))
	seen.write(r)
}

// chargedAt returns the time of the entry to which the decision charges what the request needs.
func (l *log) chargedAt(r *Result) int64 {
	if r.leaseAt != 0 {
		return r.leaseAt
	}
	return floorTo(r.logSeen().now, l.width)
}

// drop removes the first n entries. In general it only moves the start of the slice, so a charge of a busy log does not
// take time in proportion to the log's length. The removed entries stay allocated, and [State.Bytes] includes their
// memory. Once there are more of them than live entries, or once three quarters of the capacity after the start are
// free, the live entries are copied to a new array, and the old one is released. A copy thus moves no more entries than
// were dropped since the last copy.
func (x *extra) drop(n int) {
	const few = 16 // the memory of so few entries is not worth a copy
	live := x.entries[n:]
	x.dropped += n
	if x.dropped > len(live)+few || cap(live) >= 4*few && 4*len(live) < cap(live) {
		live, x.dropped = append(make([]Entry, 0, 2*len(live)+4), live...), 0
	}
	x.entries = live
}

// add adds the units of e to the entry of the time e.At. If there is none, it inserts e in the order of time.
func (x *extra) add(e Entry) {
	i, before := len(x.entries), cap(x.entries)
	for i > 0 && x.entries[i-1].At > e.At {
		i--
	}
	if i > 0 && x.entries[i-1].At == e.At {
		x.entries[i-1].Units += e.Units
		return
	}
	if x.entries = slices.Insert(x.entries, i, e); cap(x.entries) != before {
		x.dropped = 0 // Insert has moved all entries to a new array
	}
}

// takeOff takes at most the given units off the entry of the time given by the parameter at, and returns how many it
// took. It removes an entry that is then empty, so that charges and refunds in turn do not add entries without bound.
func (s *State) takeOff(at, units int64) int64 {
	entries := s.entries()
	for i := range entries {
		if entries[i].At != at {
			continue
		}
		back := uncount(&entries[i].Units, units)
		s.setSum(s.Log().Sum - back)
		if entries[i].Units == 0 {
			s.extra.entries = slices.Delete(entries, i, i+1)
		}
		return back
	}
	return 0
}

func (l *log) freshAt(s *State) int64 {
	entries := s.entries()
	if len(entries) == 0 {
		return longAgo
	}
	return l.expires(entries[len(entries)-1].At)
}

func (l *log) used(r *Result) int64 { return r.logSeen().used + r.Charged }

func (l *log) resetAt(r *Result) int64 { return r.logSeen().emptyAt }

func (l *log) moreAt(r *Result) int64 {
	at := r.freedAt()
	if charged := l.expires(l.chargedAt(r)); at == 0 || r.Charged > 0 && charged < at {
		at = charged
	}
	return at
}

func (l *log) perUnit() int64 { return 1 }

// undoCharge restores the time that charge has changed in the result.
func (l *log) undoCharge(r *Result) {
	seen := r.logSeen()
	seen.emptyAt = seen.emptyAtBefore
	seen.write(r)
}

func (l *log) receipt(r *Result, e *ReceiptEntry) {
	e.at = l.chargedAt(r)
	e.end = l.expires(e.at)
}

func (l *log) refund(s *State, e *ReceiptEntry, units, _ int64) int64 { return s.takeOff(e.at, units) }

func (l *log) offer(_ *State, _ string, now int64, ask *LeaseRequest, r *Result) Lease {
	until := now + ask.Life
	granted := Lease{At: floorTo(until, l.width), Until: until}
	if ask.wantsLease() {
		r.leaseAt = granted.At
	}
	granted.Units = ask.units(l.threshold - r.logSeen().used - r.need)
	granted.Upfront = granted.Units
	return granted
}

func (l *log) chargeLease(s *State, r *Result, granted *Lease) {
	if granted.Units == 0 {
		return
	}
	s.setSum(s.Log().Sum + granted.Units)
	s.ensureExtra().add(Entry{granted.At, granted.Units})
	seen := r.logSeen()
	seen.used, seen.emptyAt = seen.used+granted.Units, max(seen.emptyAt, l.expires(granted.At))
	seen.write(r)
}

// returnUnspent takes the units off the entry of the lease, whose time is the parameter at.
func (l *log) returnUnspent(s *State, units, at, now int64, _ span) {
	if at = floorTo(at, l.width); l.mayHold(at, now) {
		s.takeOff(at, units)
	}
}

// replay adds an entry of the time at which the units were admitted, which is the parameter at.
func (l *log) replay(s *State, units, at, now int64, _ span) int64 {
	if at == AtDecision {
		at = now
	}
	if at = floorTo(at, l.width); !l.mayHold(at, now) {
		return 0
	}
	sum := s.Log().Sum
	if units = min(units, max(mostCounted-sum, 0)); units == 0 {
		return 0
	}
	s.setSum(sum + units)
	s.ensureExtra().add(Entry{at, units})
	return units
}

// mayHold reports whether an entry of the time given by the parameter at can be there: whether it still counts, and
// does not lie after the end of any lease.
func (l *log) mayHold(at, now int64) bool { return at >= l.oldest(now) && at <= now+l.period }

func (l *log) leasing() Leasing { return Leasing{Apart: true} }

func (l *log) leaseEnd(string, int64) (lease, ramp int64) { return 0, 0 }

// forgottenAt: a charge without a lease lies in the entry of its own time. If grow has counted it together with a
// lease's entry, which is later, it counts for longer, as [Tier.ForgottenAt] says.
func (l *log) forgottenAt(_ string, at int64) int64 { return l.expires(at) }

// leaseEntries is the most entries that a request with a lease may add: one for its need, one for the units that it
// leases, and one for its correction.
const leaseEntries = 3

func (l *log) room(s *State, r *Result) (entries int) {
	all := s.entries()
	n, more := len(all), 1
	if r.asksLease {
		more = leaseEntries
	} else if n > 0 && all[n-1].At == l.chargedAt(r) {
		more = 0
	}
	if n+more <= cap(all) {
		return 0
	}
	n += more - l.droppable(r)
	return max(cap(all), n+n/2) // half as many again as are needed, so that few charges move all entries
}

// droppable returns how many of the first entries may be dropped before the charge: those that no longer count. For a
// request with leases it is 0: their number was counted after the correction, which Charge has not made in s yet.
func (l *log) droppable(r *Result) int {
	if r.asksLease {
		return 0
	}
	return int(r.stale)
}

// grow gives the log memory for the given number of entries. If there is still no room for one more, the charge will
// share the last entry, whose time becomes the later one of its own time and the charge's. One of the two then counts
// for longer than it would alone. That makes the limit stricter, and never looser.
func (l *log) grow(s *State, r *Result, entries int) {
	x, stale := s.ensureExtra(), l.droppable(r)
	if entries = max(entries, 1); entries > cap(x.entries) {
		x.entries, x.dropped = append(make([]Entry, 0, entries), x.entries[stale:]...), 0
	} else {
		x.entries = slices.Delete(x.entries, 0, stale)
	}
	r.stale -= int32(stale)
	n := len(x.entries)
	if n == 0 || n < cap(x.entries) || r.asksLease {
		return
	}
	last := &x.entries[n-1]
	r.leaseAt = max(last.At, l.chargedAt(r))
	last.At = r.leaseAt
	r.setFreedAt(l.expiredBy(x.entries, max(r.logSeen().used-l.threshold, 0)+1))
}

func (l *log) leasedInSlot(*Result, int64) int64 { return 0 }
