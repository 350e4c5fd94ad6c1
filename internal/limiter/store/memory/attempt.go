package memory

import (
	"errors"
	"fmt"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
)

// attempt is one try at a decision for which there may be too little memory: the owner is new, or a counter is missing,
// or a log needs more entries. It holds the lock of the stripe, so that nobody else adds or removes records there, and
// then that of the record, if there is one.
type attempt struct {
	s      *Store
	stripe *stripe
	hash   uint64
	e      *limit.Evaluation
	charge bool // false: Peek

	// share means that the attempt needs no memory: values without a counter are counted in the counter of other
	// values, addresses without one in shared counters, and sliding logs do not grow.
	share bool

	owner *record    // nil if the owner has no record
	scope *scope     // in which the owner counts, or nil
	group *group     // whose counters an address, or an owner in a scope, shares; or nil, see lockGroup
	at    []position // of the results' counters
	lacks bool       // a counter is missing
	grows bool       // the entries of a counter need to grow
}

// decideWithMemory decides a request for which a counter, or memory of a counter, is missing.
func (s *Store) decideWithMemory(hash uint64, req *limit.Request, now int64, d *limit.Decision, charge bool) error {
	st := s.stripe(hash)
	begin := func(share bool) *attempt { // not under a lock, because it computes calendars
		return &attempt{s: s, stripe: st, hash: hash, e: d.BeginChecked(req, now), charge: charge, share: share}
	}
	err := begin(false).decide()
	if errors.Is(err, limit.ErrFull) {
		// An attempt holds positions of its owner's counters, so it does not sweep them for room. They are swept here,
		// and the decision begins anew.
		if s.sweepOwner(st, hash, req.Owner, now) {
			err = begin(false).decide()
		}
	}
	if errors.Is(err, limit.ErrFull) && !s.oneBudget && len(req.Leases) == 0 {
		err = begin(true).decide()
		if err == nil && charge {
			s.logSharing(req, now)
		}
	}
	if errors.Is(err, limit.ErrFull) {
		return s.fullError(budgetOf(req.Owner.Kind))
	}
	return err
}

// sweepOwner looks at many counters of the owner, and forgets those that are no different from unused ones. It reports
// whether memory came free.
func (s *Store) sweepOwner(st *stripe, hash uint64, owner limit.Owner, now int64) bool {
	r := st.lockRecord(hash, owner)
	if r == nil {
		return false
	}
	freed, _ := r.sweep(now, sweepWhenFull)
	of := r.scopeOf(s)
	r.mu.Unlock()
	s.count(owner.Kind, -freed)
	of.add(-freed)
	return freed > 0
}

// decide makes the attempt. The error is the bare [limit.ErrFull] if there is no room for what the decision would
// write.
func (a *attempt) decide() error {
	a.stripe.mu.Lock()
	defer a.stripe.mu.Unlock()
	e := a.e
	if r := a.stripe.find(a.hash, e.Owner); r != nil {
		r.mu.Lock()
		defer r.mu.Unlock()
		a.owner = r
	}
	if a.scope = a.s.scopeOfRequest(e); a.scope != nil || e.Owner.Kind == limit.Address {
		if a.group = a.s.lockGroup(a.hash, e.Now, a.share); a.group != nil {
			defer a.group.mu.Unlock()
		}
	}
	if err := a.evaluate(); err != nil || !e.Settle() {
		return err
	}
	if a.charge {
		return a.write()
	}
	if (a.lacks || a.grows) && !a.share { // Peek returns ErrFull wherever Decide would
		reserved, err := a.reserve()
		a.s.count(e.Owner.Kind, -reserved)
		return err
	}
	return nil
}

// evaluate fills the results, and notes the positions of their counters. If a counter of an address is missing, it
// reads the shared one, because units that the shared one admitted may have been for this address.
func (a *attempt) evaluate() error {
	var unused limit.State
	e, owner := a.e, a.owner
	if owner == nil {
		owner = nobody
	}
	a.at = make([]position, len(e.Results))
	for i := range e.Results {
		a.at[i] = owner.locate(a.s, e, i, a.share && e.Owner.Kind != limit.Address && a.scope == nil)
		if sharesOther(e, i) {
			return fmt.Errorf("%w: values beyond the bound of limit %s", limit.ErrDuplicateCounter,
				e.Results[i].Limit().ID)
		}
		switch {
		case a.at[i] != absent:
			st := owner.state(a.at[i])
			e.Evaluate(i, st, a.charge)
			bytes, entries := e.Room(i, st)
			a.grows = a.grows || bytes > 0 || entries > 0
		case a.group != nil:
			a.at[i] = a.s.evaluateShared(a.group, e, i, a.charge, a.share)
			a.lacks = true
		default:
			e.Evaluate(i, &unused, a.charge)
			a.lacks = true
		}
	}
	return nil
}

// sharesOther reports whether result i is of a counter that values beyond the bound share, and an earlier result is of
// the same counter.
func sharesOther(e *limit.Evaluation, i int) bool {
	v := e.Value(i)
	if v.Kind != limit.ValueOther {
		return false
	}
	for j := range i {
		if e.Results[j].Tier == e.Results[i].Tier && e.Value(j) == v {
			return true
		}
	}
	return false
}

// write charges what evaluate has read. It makes the missing counters, unless an address shares counters instead.
func (a *attempt) write() error {
	s, e, r := a.s, a.e, a.owner
	var reserved, before int64
	var of *scope // of the record before
	if a.lacks || a.grows {
		var err error
		if reserved, err = a.reserve(); err != nil {
			return err
		}
	}
	if r != nil {
		before, of = r.bytes(), r.scopeOf(s)
	}
	shares := a.share && a.group != nil
	if a.lacks && !shares {
		r = a.makeRecord()
	}
	e.ID = s.nextID(r)
	for i, at := range a.at {
		switch {
		case !e.Charges(i):
		case at >= 0:
			a.chargeOwn(r, i)
		case shares:
			s.chargeShared(a.group, e, i, at)
		default:
			a.chargeNew(r, i)
		}
	}
	if r == nil {
		return nil
	}
	s.count(r.kind, r.bytes()-before-reserved)
	of.add(-before)
	r.scopeOf(s).add(r.bytes())
	if a.lacks || a.grows { // a sweep moves counters, so it comes after the last use of their positions
		freed, _ := r.sweep(e.Now, sweepOnInsert)
		s.countOf(r, -freed)
	}
	a.publish(r)
	return nil
}

// makeRecord returns a record with memory for the states that the owner lacks: the owner's own, or one that nobody else
// knows before publish.
func (a *attempt) makeRecord() *record {
	states, _ := a.newCounters()
	if a.owner == nil {
		return newRecord(a.e.Owner, states)
	}
	return a.owner.withMemoryFor(states)
}

// newCounters returns how many of the counters that the decision makes get a state behind the record, and how many
// bytes the others take.
func (a *attempt) newCounters() (states int, bytes int64) {
	has, hasFurther := 0, false
	if a.owner != nil {
		has, hasFurther = len(a.owner.layout.tiers), a.owner.layout.further != nil
	}
	for i, at := range a.at {
		if at >= 0 || !a.e.Charges(i) {
			continue
		}
		if v := a.e.Value(i); addsState(has+states, v) {
			states++
		} else {
			bytes += sizeOfCounter(v)
		}
	}
	if bytes > 0 && !hasFurther {
		bytes += furtherBytes
	}
	return states, bytes
}

// publish makes r the record of the owner.
func (a *attempt) publish(r *record) {
	switch a.owner {
	case r:
	case nil:
		a.stripe.add(a.hash, r, a.s.hash)
	default:
		a.stripe.replace(a.hash, a.owner, r)
		a.owner.layout = unusedLayout
	}
}

// chargeOwn charges result i to a counter of the owner.
func (a *attempt) chargeOwn(r *record, i int) {
	at, t := a.at[i], a.e.Results[i].Tier
	if r.tier(at) != t {
		r.adopt(a.s, at, t)
	}
	r.grew(at, chargeGrowing(a.e, i, r.state(at), !a.share))
}

// chargeNew charges result i to a new counter. If an address has used a shared counter until now, the new counter
// begins as a copy of that one, so that an address never gets more for having shared.
func (a *attempt) chargeNew(r *record, i int) {
	at := r.add(a.s, a.e.Results[i].Tier, a.e.Value(i))
	st := r.state(at)
	if a.at[i] != absent {
		*st = *a.group.counters.counters[ofShared(a.at[i])].state.Clone()
		r.grew(at, st.Bytes())
	}
	r.grew(at, chargeGrowing(a.e, i, st, true))
}

// chargeGrowing charges result i to a state that may lack memory for the charge; it then grows if grow is set. It
// returns by how many bytes the state has grown.
func chargeGrowing(e *limit.Evaluation, i int, st *limit.State, grow bool) (bytes int64) {
	before := st.Bytes()
	if _, entries := e.Room(i, st); entries > 0 {
		if !grow {
			entries = 0
		}
		e.Grow(i, st, entries)
	}
	e.Charge(i, st)
	return st.Bytes() - before
}

// reserve reserves the bytes of what the decision is about to write, in the owner's budget, and returns their number.
// The error is the bare [limit.ErrFull]. What addresses write to shared counters is not reserved, see chargeShared.
func (a *attempt) reserve() (int64, error) {
	s, e := a.s, a.e
	if a.share && a.group != nil {
		return 0, nil
	}
	states, bytes := a.newCounters()
	has := int64(0)
	if a.owner == nil {
		s.sweep(a.stripe, e.Now, sweepOnInsert)
		bytes += sizeOfRecord(e.Owner, states)
	} else {
		n := len(a.owner.layout.tiers)
		has = a.owner.bytes()
		bytes += sizeOfRecord(e.Owner, n+states) - sizeOfRecord(e.Owner, n)
	}
	// Whether callers choose how many counters or entries like these there are.
	chosen := a.scope != nil && a.owner == nil
	if a.scope != nil {
		has = a.scope.used.Load()
	}
	for i, at := range a.at {
		if !e.Charges(i) || a.share && at >= 0 {
			continue
		}
		more, choose := a.bytesOf(i)
		bytes, chosen = bytes+more, chosen || choose
	}
	switch {
	case a.share && budgetOf(e.Owner.Kind) == unidentified:
		// The plans say how many counters anonymous calls need beside those of single values. They are few and always
		// made.
		s.count(e.Owner.Kind, bytes)
	case bytes > 0 && !s.reserve(a.stripe, e.Owner.Kind, e.Now, has, bytes, chosen && !e.Leases()):
		return 0, limit.ErrFull
	}
	return bytes, nil
}

// bytesOf returns how many bytes a charge of result i adds to the state of its counter, and whether callers choose
// how many such counters or entries there are.
func (a *attempt) bytesOf(i int) (bytes int64, chosen bool) {
	e, at := a.e, a.at[i]
	if at >= 0 {
		bytes, _ = e.Room(i, a.owner.state(at))
		return bytes, bytes > 0
	}
	st := new(limit.State)
	if at != absent { // see chargeNew
		st = a.group.counters.counters[ofShared(at)].state.Clone()
	}
	copied, kind := st.Bytes(), e.Value(i).Kind
	bytes, _ = e.Room(i, st)
	return copied + bytes, copied > 0 || kind == limit.ValueIs || kind == limit.ValueAbsent
}
