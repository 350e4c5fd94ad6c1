package resilience

import (
	"slices"
	"sync"
	"sync/atomic"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/limiter/store/router"
)

// pendingCharges holds the units that the fallback limiter admitted and the store has not counted yet, separately for
// each owner, limit, value and tier. Its memory is bounded. Units for which there is no room are lost, and counted as
// dropped. Units that have expired, so that the store would not count them any more, are removed without being counted.
type pendingCharges struct {
	mu      sync.Mutex
	byOwner map[limit.Owner]*ownerPending
	queue   []limit.Owner // the owners of byOwner in the order in which they are replayed
	bytes   int64         // memory that byOwner takes
	bound   int64         // add accepts nothing that would make bytes larger; putBack may
	taken   int           // owners for which takeNext was called, and not yet done or putBack
	swept   int64         // when makeRoom last looked for expired units, µs by the store's clock
	waiting atomic.Int64  // owners in byOwner, and those in taken
	dropped atomic.Int64  // units for which there was no room
}

// ownerPending holds the pending units of one owner.
type ownerPending struct{ limits []pendingLimit }

// pendingLimit holds the pending units of one limit and value.
type pendingLimit struct {
	limit *limit.Limit
	value limit.Value
	tiers []pendingTier
}

// Memory of an owner, a limit, a tier and a slot, in bytes: their own size and their share of maps and slices, rounded
// up.
const (
	ownerBytes = 192
	limitBytes = 128
	tierBytes  = 64
	slotBytes  = 2 * 32 // a slot has 32 bytes, and a slice may have room for twice as many as it holds
)

// sweepEvery is how long makeRoom waits before it looks for expired units again, in µs, because it looks at all owners.
const sweepEvery = 1_000_000

// maxReplayedLimits is how many limits one replay request charges at most. It is enough for nearly every owner, and
// well below the 1,024 charges that a request may have. Further limits are charged by further requests.
const maxReplayedLimits = 64

// limitSize returns the memory of a pendingLimit with its tiers, in bytes, without their slots.
func limitSize(l *limit.Limit, v limit.Value) int64 {
	return limitBytes + int64(len(v.Text)) + int64(len(l.Tiers))*tierBytes
}

// add adds the units of a charge that was admitted at a time, µs by the store's clock, or drops them if there is no
// room. parts are what this instance may admit of each tier while the store is away. A bucket of a part refills at the
// part's rate, and the units that it has refilled are pending no longer.
func (p *pendingCharges) add(owner limit.Owner, c *limit.Charge, parts []tierPart, at int64) {
	var slots [limit.MaxTiers]slot
	for i := range c.Limit.Tiers {
		from, until := slotSpan(&c.Limit.Tiers[i], owner, at)
		slots[i] = slot{from, until, at, c.Cost}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	need := int64(len(c.Limit.Tiers)) * slotBytes
	o := p.byOwner[owner]
	if o == nil {
		need += ownerBytes + int64(len(owner.Name))
	}
	if o == nil || o.find(c.Limit, c.Value) == nil {
		need += limitSize(c.Limit, c.Value)
	}
	if !p.makeRoom(need, p.boundFor(owner), at) {
		p.dropped.Add(c.Cost * int64(len(c.Limit.Tiers)))
		return
	}
	if o = p.byOwner[owner]; o == nil { // there was none, or makeRoom has removed it
		o = new(ownerPending)
		p.byOwner[owner] = o
		p.queue = append(p.queue, owner)
		p.recount()
		p.bytes += ownerBytes + int64(len(owner.Name))
	}
	l := o.find(c.Limit, c.Value)
	if l == nil {
		o.limits = append(o.limits, pendingLimit{c.Limit, c.Value, make([]pendingTier, len(c.Limit.Tiers))})
		l = &o.limits[len(o.limits)-1]
		p.bytes += limitSize(c.Limit, c.Value)
	}
	for i, part := range parts {
		t, pt := &c.Limit.Tiers[i], &l.tiers[i]
		before := len(pt.slots)
		pt.part = part
		pt.add(t, owner, slots[i])
		p.bytes += int64(len(pt.slots)-before) * slotBytes
	}
}

// boundFor returns how many bytes all pending units may take if units of the owner are added. Units of addresses and of
// anonymous callers are added only to the first half of the bound. Otherwise a client with many addresses could leave
// no room for the units of tenants.
func (p *pendingCharges) boundFor(owner limit.Owner) int64 {
	if owner.Kind == limit.Address || owner.Kind == limit.Anonymous {
		return p.bound / 2
	}
	return p.bound
}

// makeRoom reports whether need more bytes fit within the bound. If they do not, it first removes expired units, but at
// most once in sweepEvery.
func (p *pendingCharges) makeRoom(need, bound, now int64) bool {
	if p.bytes+need <= bound {
		return true
	}
	if since := now - p.swept; since >= 0 && since < sweepEvery {
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
	return p.bytes+need <= bound
}

// size returns the memory of all pending units, in bytes.
func (p *pendingCharges) size() int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.bytes
}

// size returns the memory of the owner's pending units, in bytes.
func (o *ownerPending) size(owner limit.Owner) int64 {
	n := ownerBytes + int64(len(owner.Name))
	for i := range o.limits {
		n += limitSize(o.limits[i].limit, o.limits[i].value)
		for j := range o.limits[i].tiers {
			n += int64(len(o.limits[i].tiers[j].slots)) * slotBytes
		}
	}
	return n
}

// find returns the pending units of a limit and value, or nil if there are none.
func (o *ownerPending) find(l *limit.Limit, v limit.Value) *pendingLimit {
	for i := range o.limits {
		if o.limits[i].limit == l && o.limits[i].value == v {
			return &o.limits[i]
		}
	}
	return nil
}

// dropExpired removes the units that have expired at now.
func (o *ownerPending) dropExpired(owner limit.Owner, now int64) {
	o.limits = slices.DeleteFunc(o.limits, func(l pendingLimit) bool {
		left := false
		for i := range l.tiers {
			l.tiers[i].dropExpired(&l.limit.Tiers[i], owner, now)
			left = left || len(l.tiers[i].slots) > 0
		}
		return !left
	})
}

// cancel removes refunded units from the pending units of a tier of the limit with the id. at is when they were
// admitted, µs by the store's clock. units is how many units are refunded, and back how many of them the instance's
// part has restored. Of a window, all of units are removed. Of a bucket, only back are: the part has refilled the
// others since, and they are pending no longer.
func (p *pendingCharges) cancel(owner limit.Owner, id string, tier int, v limit.Value, at, units, back int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	o := p.byOwner[owner]
	if o == nil {
		return
	}
	for i := range o.limits {
		l := &o.limits[i]
		if l.limit.ID != id || l.value != v || tier >= len(l.tiers) {
			continue
		}
		bucket := l.limit.Tiers[tier].Algorithm.HasRate()
		if bucket {
			units = back
		}
		for j := range l.tiers[tier].slots {
			if s := &l.tiers[tier].slots[j]; bucket || at >= s.from && at < s.until {
				cancelled := min(units, s.units)
				s.units -= cancelled
				units -= cancelled
			}
		}
	}
}

// takeNext takes the owner that has waited longest out of p. It returns nil if no owner waits. The caller must call
// done or putBack for the owner afterwards.
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

// done ends what takeNext began, for an owner whose units have all been sent or have expired.
func (p *pendingCharges) done() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.taken--
	p.recount()
}

// recount sets waiting. p.mu is held.
func (p *pendingCharges) recount() { p.waiting.Store(int64(len(p.byOwner) + p.taken)) }

// putBack ends what takeNext began, for an owner with units that could not be sent. It puts the owner at the end of the
// queue. If more units of the owner have become pending meanwhile, it adds the units to those.
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

// merge adds the units of other to o.
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
	to      destination // that counts all limits of the request
	request limit.Request
	units   int64 // over all tiers
}

// destination identifies the store that counts a limit, as far as it is known here: limits with the same destination
// are counted by the same store. The quotas and the rates of a cell have two destinations, because they may be in two
// stores.
type destination struct {
	home   string // name of the cell that counts the limit, see limit.Limit.Home; "" is this cell
	quotas bool
}

func destinationOf(l *limit.Limit) destination { return destination{l.Home, router.IsQuota(l)} }

// nextRequest removes expired units from o, and then takes the first slot of each tier of up to maxReplayedLimits
// limits. It returns a request that charges these slots, and the slots.
//
// All limits of the request have the same destination. They have different ids, because two limits with one id may
// share a counter, and a request must not name a counter twice. Limits whose destination is in unanswered are left out.
// The request is empty if no units of other limits are pending.
func (o *ownerPending) nextRequest(owner limit.Owner, now int64,
	unanswered map[destination]bool) (r replayRequest, taken *ownerPending) {
	o.dropExpired(owner, now)
	r.request.Owner = owner
	taken = new(ownerPending)
	var ids []string
	for i := range o.limits {
		l := &o.limits[i]
		to := destinationOf(l.limit)
		if slices.Contains(ids, l.limit.ID) || len(ids) == maxReplayedLimits || unanswered[to] ||
			(len(ids) > 0 && to != r.to) {
			continue
		}
		r.to = to
		ids = append(ids, l.limit.ID)
		// The Correction below charges the units. A Cost cannot be 0, and nothing of it is charged, because Need is 0.
		r.request.Charges = append(r.request.Charges, limit.Charge{Limit: l.limit, Value: l.value, Cost: 1})
		off := pendingLimit{limit: l.limit, value: l.value, tiers: make([]pendingTier, len(l.tiers))}
		for j := range l.tiers {
			pt := &l.tiers[j]
			var lease limit.LeaseRequest // stays empty if no units of the tier are pending
			if len(pt.slots) > 0 {
				s := pt.slots[0]
				lease.Correction, lease.CorrectionAt = s.units, s.at
				r.units += s.units
				off.tiers[j] = pendingTier{slots: []slot{s}, part: pt.part}
				pt.slots = pt.slots[1:]
			}
			r.request.Leases = append(r.request.Leases, lease)
		}
		taken.limits = append(taken.limits, off)
	}
	return r, taken
}
