package limit

import "sync/atomic"

// Quota counts the units of a calendar period, and admits a cost if the count stays within the quota. It is exact
// inside a period. See [Calendar] for where periods begin.
//
// Leased units count in the period in which they are leased. Leases end with the period.
const Quota Algorithm = 7

var quotaKind = kind{
	name: "quota", letter: 'q', amountField: amountUnits, largest: MaxUnits, hasCalendar: true, new: newQuota,
}

type quota struct {
	units    int64
	calendar *Calendar
	last     *atomic.Pointer[span] // the period that window returned last; copies of the tier share it
}

// QuotaState is the state of a quota.
type QuotaState struct {
	Start, End int64 // of the period in which units were charged last, µs since 1970
	Count      int64 // units charged in it
}

// Quota returns s as the state of a quota.
func (s *State) Quota() QuotaState { return QuotaState{Start: s.a, End: s.c, Count: s.b} }

// State is the inverse of [State.Quota]. A State holds the numbers in the order Start, Count, End.
func (st QuotaState) State() State { return State{a: st.Start, b: st.Count, c: st.End} }

// quotaSeen is what a decision has seen of a quota, as of its time. charge does not change it.
func (r *Result) quotaSeen() QuotaState {
	return QuotaState{Start: r.seen.a, Count: r.seen.amount, End: r.seen.c}
}

// write is the inverse of quotaSeen.
func (st QuotaState) write(r *Result) { r.seen = numbers{a: st.Start, amount: st.Count, c: st.End} }

func newQuota(t *Tier, _ *Limit, bad report) algorithm {
	if t.Calendar == nil {
		bad("every", "a quota needs its calendar")
		return nil
	}
	if err := t.Calendar.check(); err != nil {
		bad("every", "%v", err)
	}
	return &quota{units: t.Threshold, calendar: t.Calendar, last: new(atomic.Pointer[span])}
}

// window returns the calendar period that contains now. To compute a period takes longer than a decision, so the last
// one is kept.
func (q *quota) window(_ string, now int64) span {
	if p := q.last.Load(); p != nil && p.start <= now && now < p.end {
		return *p
	}
	var p span
	p.start, p.end = q.calendar.Period(now)
	q.last.Store(&p)
	return p
}

// asOf returns the count as of now, and the period in which it is counted. The parameter window is the period that
// contains now. A stored period that has not ended stays the current one, even if it begins after now.
func (q *quota) asOf(s *State, now int64, window span) QuotaState {
	st := s.Quota()
	unused := st.End == 0 && st.Count == 0 // End alone does not tell: the last period before 1970 ends at 0
	if unused || now >= st.End {
		return QuotaState{Start: window.start, End: window.end}
	}
	return st
}

func (q *quota) evaluate(s *State, now int64, r *Result) bool {
	if s.Quota().Start-maxSkew > now {
		return false
	}
	st := q.asOf(s, now, r.window)
	st.write(r)
	if r.Never = r.Cost > q.units; r.Never {
		return true
	}
	if r.Admits = st.Count+r.need <= q.units; !r.Admits {
		r.RetryAt = st.End
	}
	return true
}

// repair counts what was charged in the present period.
func (q *quota) repair(s *State, _ int64, r *Result) {
	*s = QuotaState{Start: r.window.start, End: r.window.end, Count: s.Quota().Count}.State()
}

func (q *quota) charge(s *State, _ int64, r *Result) {
	st := r.quotaSeen()
	st.Count += r.need
	*s = st.State()
}

func (q *quota) freshAt(s *State) int64 { return s.Quota().End }

func (q *quota) used(r *Result) int64 { return r.quotaSeen().Count + r.Charged }

func (q *quota) resetAt(r *Result) int64 { return r.quotaSeen().End }

func (q *quota) moreAt(r *Result) int64 { return r.quotaSeen().End }

func (q *quota) perUnit() int64 { return 1 }

func (q *quota) receipt(r *Result, e *ReceiptEntry) {
	st := r.quotaSeen()
	e.at, e.end = st.Start, st.End
}

func (q *quota) refund(s *State, e *ReceiptEntry, units, _ int64) int64 {
	st := s.Quota()
	if st.Start != e.at {
		return 0
	}
	back := uncount(&st.Count, units)
	*s = st.State()
	return back
}

func (q *quota) offer(_ *State, _ string, _ int64, ask *LeaseRequest, r *Result) Lease {
	st := r.quotaSeen()
	units := ask.units(q.units - st.Count - r.need)
	return Lease{Units: units, Upfront: units, At: st.Start, Until: st.End}
}

func (q *quota) chargeLease(s *State, r *Result, granted *Lease) {
	st := s.Quota()
	st.Count += granted.Units
	*s = st.State()
	r.addUsed(granted.Units)
}

func (q *quota) returnUnspent(s *State, units, at, now int64, window span) {
	q.correct(s, -units, at, now, window)
}

func (q *quota) replay(s *State, units, at, now int64, window span) int64 {
	return q.correct(s, units, at, now, window)
}

// correct adds units, which may be negative, to the count of the present period, if the time given by the parameter at
// lies in it, or is AtDecision. The count is kept within 0..mostCounted. correct returns by how much it has changed.
func (q *quota) correct(s *State, units, at, now int64, window span) int64 {
	st := q.asOf(s, now, window)
	before := st.Count
	if at == AtDecision || at >= st.Start && at < st.End {
		st.Count = min(max(st.Count+units, 0), mostCounted)
	}
	*s = st.State()
	return st.Count - before
}

func (q *quota) leasing() Leasing { return Leasing{Ends: true} }

func (q *quota) leaseEnd(owner string, now int64) (lease, ramp int64) {
	end := q.window(owner, now).end
	return end, end
}

// counting: an interval that touches two calendar periods can admit the quota in each.
func (q *quota) counting() Counting { return Counting{Windows: 1} }

// forgottenAt is the end of the period that contains the last µs before the time at.
func (q *quota) forgottenAt(owner string, at int64) int64 { return q.window(owner, at-1).end }

func (q *quota) params(string) Params { return Params{} }

func (q *quota) leasedInSlot(*Result, int64) int64 { return 0 }
