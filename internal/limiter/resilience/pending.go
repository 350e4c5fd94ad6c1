package resilience

import (
	"slices"
	"sync"
	"sync/atomic"

	"github.com/sluicelimits/sluice/internal/limit"
)

// pendingCharges are the units that the fallback limiter admitted and the store has yet to count: for each tier of each
// limit and value of each owner. Their memory is bounded. Units that have no room are dropped, and counted as dropped.
type pendingCharges struct {
	mu      sync.Mutex
	byOwner map[limit.Owner]*ownerPending
	queue   []limit.Owner // in the order in which they are replayed
	bytes   int64         // that they take
	bound   int64         // on bytes
	taken   int           // owners that takeNext has taken out and that are not done
	swept   int64         // when expired units were last looked for, µs
	waiting atomic.Int64  // owners, those that are taken out included
	dropped atomic.Int64  // units
}

// ownerPending are the pending units of one owner.
type ownerPending struct{ limits []pendingLimit }

// pendingLimit are the pending units of one limit and value.
type pendingLimit struct {
	limit *limit.Limit
	value limit.Value
	tiers []pendingTier
}

// What an owner, a limit, a tier and a slot take, in bytes: their own size and their share of maps and slices, rounded
// up.
const (
	ownerBytes = 192
	limitBytes = 128
	tierBytes  = 64
	slotBytes  = 2 * 32 // a slot has 32 bytes, and slices grow by doubling
)

// sweepEvery is how often expired units are looked for at most, in µs. Each time looks at all owners.
const sweepEvery = 1_000_000

// mostReplayed is how many limits one replay request charges: more than nearly every owner has pending, and well below
// the 1,024 charges that a request may have.
const mostReplayed = 64

// sizeOf returns how many bytes a limit and value take, without their slots.
func sizeOf(l *limit.Limit, v limit.Value) int64 {
	return limitBytes + int64(len(v.Text)) + int64(len(l.Tiers))*tierBytes
}

// add remembers that a charge was admitted at a time, µs by the store's clock. parts are the instance's parts of the
// limit's tiers.
func (p *pendingCharges) add(owner limit.Owner, c *limit.Charge, parts []tierPart, at int64) {
	var slots [limit.MaxTiers]slot
	for i := range c.Limit.Tiers {
		from, until := span(&c.Limit.Tiers[i], owner, at)
		slots[i] = slot{from, until, at, c.Cost}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	o := p.byOwner[owner]
	var d *pendingLimit
	need := int64(0)
	if o == nil {
		need = ownerBytes + int64(len(owner.Name))
	} else {
		d = o.find(c.Limit, c.Value)
	}
	if d == nil {
		need += sizeOf(c.Limit, c.Value)
	}
	need += int64(len(c.Limit.Tiers)) * slotBytes
	if !p.makeRoom(need, p.boundFor(owner), at) {
		p.dropped.Add(c.Cost * int64(len(c.Limit.Tiers)))
		return
	}
	if o = p.byOwner[owner]; o == nil { // or makeRoom has removed it
		o = new(ownerPending)
		p.byOwner[owner] = o
		p.queue = append(p.queue, owner)
		p.recount()
		p.bytes += ownerBytes + int64(len(owner.Name))
	}
	if d = o.find(c.Limit, c.Value); d == nil {
		o.limits = append(o.limits, pendingLimit{c.Limit, c.Value, make([]pendingTier, len(c.Limit.Tiers))})
		d = &o.limits[len(o.limits)-1]
		p.bytes += sizeOf(c.Limit, c.Value)
	}
	for i := range d.tiers {
		pt := &d.tiers[i]
		before := len(pt.slots)
		pt.part = parts[i]
		pt.add(&c.Limit.Tiers[i], owner, slots[i])
		p.bytes += int64(len(pt.slots)-before) * slotBytes
	}
}

// boundFor returns how many bytes all pending units may take if units of the owner are added. Only tenants may fill the
// second half: a caller with many addresses must not cause the units of tenants to be dropped.
func (p *pendingCharges) boundFor(owner limit.Owner) int64 {
	if owner.Kind == limit.Address || owner.Kind == limit.Anonymous {
		return p.bound / 2
	}
	return p.bound
}

// makeRoom reports whether there is room for more bytes. If there is none, it drops expired units first, at most once
// in a while.
func (p *pendingCharges) makeRoom(need, most, now int64) bool {
	if p.bytes+need <= most {
		return true
	}
	if d := now - p.swept; d >= 0 && d < sweepEvery {
		return false
	}
	p.swept = now
	p.queue = slices.DeleteFunc(p.queue, func(owner limit.Owner) bool {
		o := p.byOwner[owner]
		o.dropExpired(owner, now)
		if len(o.limits) == 0 {
			delete(p.byOwner, owner)
		}
		return len(o.limits) == 0
	})
	p.bytes = 0
	for owner, o := range p.byOwner {
		p.bytes += o.size(owner)
	}
	p.recount()
	return p.bytes+need <= most
}

// size returns how many bytes the pending units take.
func (p *pendingCharges) size() int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.bytes
}

func (o *ownerPending) size(owner limit.Owner) int64 {
	n := ownerBytes + int64(len(owner.Name))
	for i := range o.limits {
		n += sizeOf(o.limits[i].limit, o.limits[i].value)
		for j := range o.limits[i].tiers {
			n += int64(len(o.limits[i].tiers[j].slots)) * slotBytes
		}
	}
	return n
}

func (o *ownerPending) find(l *limit.Limit, v limit.Value) *pendingLimit {
	for i := range o.limits {
		if o.limits[i].limit == l && o.limits[i].value == v {
			return &o.limits[i]
		}
	}
	return nil
}

// dropExpired drops units that no longer count.
func (o *ownerPending) dropExpired(owner limit.Owner, now int64) {
	o.limits = slices.DeleteFunc(o.limits, func(d pendingLimit) bool {
		left := false
		for i := range d.tiers {
			d.tiers[i].dropExpired(&d.limit.Tiers[i], owner, now)
			left = left || len(d.tiers[i].slots) > 0
		}
		return !left
	})
}

// cancel takes off units that were refunded, of those that were admitted at a time under a limit's id.
func (p *pendingCharges) cancel(owner limit.Owner, id string, tier int, v limit.Value, at, units int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	o := p.byOwner[owner]
	if o == nil {
		return
	}
	for i := range o.limits {
		d := &o.limits[i]
		if d.limit.ID != id || d.value != v || tier >= len(d.tiers) {
			continue
		}
		bucket := d.limit.Tiers[tier].Algorithm.HasRate()
		for j := range d.tiers[tier].slots {
			if s := &d.tiers[tier].slots[j]; bucket || at >= s.from && at < s.until {
				back := min(units, s.units)
				s.units -= back
				units -= back
			}
		}
	}
}

// takeNext takes out the owner that has waited longest; nil if none waits. Call done or putBack for it.
func (p *pendingCharges) takeNext() (limit.Owner, *ownerPending) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.queue) == 0 {
		p.queue = nil
		return limit.Owner{}, nil
	}
	owner := p.queue[0]
	p.queue = p.queue[1:]
	o := p.byOwner[owner]
	delete(p.byOwner, owner)
	p.bytes -= o.size(owner)
	p.taken++
	return owner, o
}

// done says that nothing is pending any more for an owner that was taken out.
func (p *pendingCharges) done() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.taken--
	p.recount()
}

func (p *pendingCharges) recount() { p.waiting.Store(int64(len(p.byOwner) + p.taken)) }

// putBack keeps the units of an owner that was taken out and that could not be sent, behind all other owners. Units
// that became pending for the owner meanwhile are added to them.
func (p *pendingCharges) putBack(owner limit.Owner, o *ownerPending) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if newer := p.byOwner[owner]; newer != nil {
		p.bytes -= newer.size(owner)
		newer.merge(o)
		o = newer
	} else {
		p.queue = append(p.queue, owner)
	}
	p.byOwner[owner] = o
	p.bytes += o.size(owner)
	p.taken--
	p.recount()
}

// merge adds the units of other.
func (o *ownerPending) merge(other *ownerPending) {
	for i := range other.limits {
		from := &other.limits[i]
		to := o.find(from.limit, from.value)
		if to == nil {
			o.limits = append(o.limits, *from)
			continue
		}
		for j := range from.tiers {
			for _, s := range from.tiers[j].slots {
				to.tiers[j].mergeSlot(&from.limit.Tiers[j], s)
			}
		}
	}
}

// replayRequest is one request that charges some of an owner's pending units.
type replayRequest struct {
	in      place // where all of its limits are counted
	request limit.Request
	units   int64 // over all tiers
}

func isQuota(l *limit.Limit) bool { return l.Tiers[0].Calendar != nil }

// place names limits that may be counted in a store of their own: the quotas or the rates of a cell.
type place struct {
	home   string
	quotas bool
}

func placeOf(l *limit.Limit) place { return place{l.Home, isQuota(l)} }

// nextRequest takes off one slot of each tier and returns a request that charges them, and the slots that it took off.
// The limits of the request have different ids, because a request must not name one counter twice, and lie in one
// place, because another place may be another store. The request is empty if nothing is pending, or only in silent
// places.
func (o *ownerPending) nextRequest(owner limit.Owner, now int64,
	silent map[place]bool) (r replayRequest, taken *ownerPending) {
	o.dropExpired(owner, now)
	r.request.Owner = owner
	taken = new(ownerPending)
	var ids []string
	for i := range o.limits {
		l := &o.limits[i]
		in := placeOf(l.limit)
		if slices.Contains(ids, l.limit.ID) || len(ids) == mostReplayed || silent[in] || len(ids) > 0 && in != r.in {
			continue
		}
		r.in = in
		ids = append(ids, l.limit.ID)
		r.request.Charges = append(r.request.Charges, limit.Charge{Limit: l.limit, Value: l.value, Cost: 1})
		off := pendingLimit{limit: l.limit, value: l.value, tiers: make([]pendingTier, len(l.tiers))}
		for j := range l.tiers {
			pt := &l.tiers[j]
			var a limit.LeaseRequest
			if len(pt.slots) > 0 {
				s := pt.slots[0]
				a.Correction, a.CorrectionAt = s.units, s.at
				r.units += s.units
				off.tiers[j] = pendingTier{slots: []slot{s}, part: pt.part}
				pt.slots = pt.slots[1:]
			}
			r.request.Leases = append(r.request.Leases, a)
		}
		taken.limits = append(taken.limits, off)
	}
	return r, taken
}
