package resilience

import (
	"math/bits"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/sluicelimits/sluice/internal/limit"
)

// debts is what was admitted without the store, and is to be counted there when it answers again: units for each tier of each
// limit and value of each owner. It is bounded: what has no room is dropped, and counted as dropped.
//
// A window's units are kept by an eighth of the period, or by the quota's period, under the latest time they were admitted at.
// Where a time counts by itself (sliding_log, sliding_buckets) units so count for up to an eighth of the period longer, not
// shorter. Of a token or leaky bucket, what counts is what the instance's part of it has not refilled since.
type debts struct {
	mu      sync.Mutex
	of      map[limit.Owner]*ownerDebt
	queue   []limit.Owner // in the order in which they are paid
	bytes   int64
	most    int64
	paying  int   // owners taken out by next, and not done with
	swept   int64 // when old ones were last looked for, µs
	waiting atomic.Int64
	dropped atomic.Int64
}

type ownerDebt struct{ of []debt }

// debt is that of one limit and value.
type debt struct {
	limit *limit.Limit
	value limit.Value
	tiers []tierDebt
}

// tierDebt is a list of slots, ascending; of a bucket, it is one.
type tierDebt struct {
	slots []slot
	share share
}

// slot is units admitted from a time on and before another, the last of them at a third. Of a bucket, from and at are when
// the units were what is left. µs, by the store's clock.
type slot struct{ from, until, at, units int64 }

// What things take, in bytes, with their share of maps and slices.
const (
	ownerBytes = 192
	debtBytes  = 128
	tierBytes  = 64
	slotBytes  = 2 * 32 // slices grow by doubling

	slotsPerPeriod = 8
	sweepEvery     = 1_000_000 // µs
)

func sizeOf(l *limit.Limit, v limit.Value) int64 {
	return debtBytes + int64(len(v.Text)) + int64(len(l.Tiers))*tierBytes
}

func isBucket(t *limit.Tier) bool {
	return t.Algorithm == limit.TokenBucket || t.Algorithm == limit.LeakyBucket
}

func isQuota(l *limit.Limit) bool { return l.Tiers[0].Algorithm == limit.Quota }

// span is the slot of a time. It may have to compute a calendar period, so it must not be called under a lock.
func span(t *limit.Tier, owner limit.Owner, at int64) (from, until int64) {
	if t.Algorithm == limit.Quota {
		return t.CalendarPeriod(at)
	}
	p := t.Params(owner)
	width := p.Period / slotsPerPeriod // periods are whole milliseconds, so windows begin where slots do
	from = at - mod(at-p.Offset, width)
	return from, from + width
}

func mod(a, b int64) int64 {
	if r := a % b; r >= 0 {
		return r
	}
	return a%b + b
}

// counts reports whether units of a slot still count at now.
func (s *slot) counts(t *limit.Tier, owner limit.Owner, now int64) bool {
	p := t.Params(owner)
	switch t.Algorithm {
	case limit.Quota:
		return now < s.until
	case limit.FixedWindow:
		return now < s.from-mod(s.from-p.Offset, p.Period)+p.Period
	case limit.SlidingWindow:
		return now < s.from-mod(s.from-p.Offset, p.Period)+2*p.Period
	case limit.SlidingBuckets:
		return now < s.at+(p.Buckets+1)*p.Width
	case limit.SlidingLog:
		return now < s.at+p.Period
	default:
		return s.units > 0
	}
}

// refill takes off the units that the instance's part of a bucket has refilled by now; only whole ones, so at moves by what
// they take.
func (s *slot) refill(of share, now int64) {
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

// owe remembers that a charge was admitted at a time.
func (w *debts) owe(owner limit.Owner, c *limit.Charge, shares []share, at int64) {
	var slots [limit.MaxTiers]slot
	for i := range c.Limit.Tiers {
		from, until := span(&c.Limit.Tiers[i], owner, at)
		slots[i] = slot{from, until, at, c.Cost}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	o := w.of[owner]
	var d *debt
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
	if !w.room(need, w.mostOf(owner), at) {
		w.dropped.Add(c.Cost * int64(len(c.Limit.Tiers)))
		return
	}
	if o = w.of[owner]; o == nil { // also where room has forgotten it
		o = new(ownerDebt)
		w.of[owner] = o
		w.queue = append(w.queue, owner)
		w.recount()
		w.bytes += ownerBytes + int64(len(owner.Name))
	}
	if d = o.find(c.Limit, c.Value); d == nil {
		o.of = append(o.of, debt{limit: c.Limit, value: c.Value, tiers: make([]tierDebt, len(c.Limit.Tiers))})
		d = &o.of[len(o.of)-1]
		w.bytes += sizeOf(c.Limit, c.Value)
	}
	for i := range d.tiers {
		td := &d.tiers[i]
		before := len(td.slots)
		td.share = shares[i]
		td.add(&c.Limit.Tiers[i], owner, slots[i])
		w.bytes += int64(len(td.slots)-before) * slotBytes
	}
}

// mostOf is how much may be remembered, bytes, where an owner comes to owe more. Only tenants may fill the second half:
// who has many addresses must not have what tenants owe be dropped.
func (w *debts) mostOf(owner limit.Owner) int64 {
	if owner.Kind == limit.Address || owner.Kind == limit.Anonymous {
		return w.most / 2
	}
	return w.most
}

// room makes room where there is none, at most once in a while, by forgetting what no longer counts.
func (w *debts) room(need, most, now int64) bool {
	if w.bytes+need <= most {
		return true
	}
	if d := now - w.swept; d >= 0 && d < sweepEvery {
		return false
	}
	w.swept = now
	w.queue = slices.DeleteFunc(w.queue, func(owner limit.Owner) bool {
		o := w.of[owner]
		o.settle(owner, now)
		if len(o.of) == 0 {
			delete(w.of, owner)
		}
		return len(o.of) == 0
	})
	w.bytes = 0
	for owner, o := range w.of {
		w.bytes += o.size(owner)
	}
	w.recount()
	return w.bytes+need <= most
}

// size is what all of it takes, bytes.
func (w *debts) size() int64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.bytes
}

func (o *ownerDebt) size(owner limit.Owner) int64 {
	n := ownerBytes + int64(len(owner.Name))
	for i := range o.of {
		n += sizeOf(o.of[i].limit, o.of[i].value)
		for j := range o.of[i].tiers {
			n += int64(len(o.of[i].tiers[j].slots)) * slotBytes
		}
	}
	return n
}

func (o *ownerDebt) find(l *limit.Limit, v limit.Value) *debt {
	for i := range o.of {
		if o.of[i].limit == l && o.of[i].value == v {
			return &o.of[i]
		}
	}
	return nil
}

// add counts the units of one more slot, which has the span of its time, and forgets what no longer counts then.
func (td *tierDebt) add(t *limit.Tier, owner limit.Owner, more slot) {
	at := more.at
	if isBucket(t) {
		if len(td.slots) == 0 {
			td.slots = append(td.slots, slot{from: at, at: at})
		}
		s := &td.slots[0]
		s.refill(td.share, at)
		s.units = min(s.units+more.units, limit.MaxUnits)
		return
	}
	for i := len(td.slots) - 1; i >= 0; i-- {
		if s := &td.slots[i]; at >= s.from && at < s.until {
			s.at, s.units = max(s.at, at), min(s.units+more.units, limit.MaxUnits)
			return
		}
	}
	td.prune(t, owner, at)
	more.units = min(more.units, limit.MaxUnits)
	td.slots = append(td.slots, more)
}

// prune forgets what no longer counts.
func (td *tierDebt) prune(t *limit.Tier, owner limit.Owner, now int64) {
	if isBucket(t) && len(td.slots) > 0 {
		td.slots[0].refill(td.share, now)
	}
	td.slots = slices.DeleteFunc(td.slots, func(s slot) bool { return !s.counts(t, owner, now) })
}

// settle forgets what no longer counts.
func (o *ownerDebt) settle(owner limit.Owner, now int64) {
	o.of = slices.DeleteFunc(o.of, func(d debt) bool {
		left := false
		for i := range d.tiers {
			d.tiers[i].prune(&d.limit.Tiers[i], owner, now)
			left = left || len(d.tiers[i].slots) > 0
		}
		return !left
	})
}

// forgive takes off units that were given back, of what was admitted at a time under a limit's id.
func (w *debts) forgive(owner limit.Owner, id string, tier int, v limit.Value, at, units int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	o := w.of[owner]
	if o == nil {
		return
	}
	for i := range o.of {
		d := &o.of[i]
		if d.limit.ID != id || d.value != v || tier >= len(d.tiers) {
			continue
		}
		bucket := isBucket(&d.limit.Tiers[tier])
		for j := range d.tiers[tier].slots {
			if s := &d.tiers[tier].slots[j]; bucket || at >= s.from && at < s.until {
				back := min(units, s.units)
				s.units -= back
				units -= back
			}
		}
	}
}

// next takes the owner out that has waited longest.
func (w *debts) next() (limit.Owner, *ownerDebt) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.queue) == 0 {
		w.queue = nil
		return limit.Owner{}, nil
	}
	owner := w.queue[0]
	w.queue = w.queue[1:]
	o := w.of[owner]
	delete(w.of, owner)
	w.bytes -= o.size(owner)
	w.paying++
	return owner, o
}

// paid is called when nothing is left of what next took out.
func (w *debts) paid() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.paying--
	w.recount()
}

func (w *debts) recount() { w.waiting.Store(int64(len(w.of) + w.paying)) }

// putBack keeps what could not be sent, behind all others. What the owner owes by now anew is added to it.
func (w *debts) putBack(owner limit.Owner, o *ownerDebt) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if newer := w.of[owner]; newer != nil {
		w.bytes -= newer.size(owner)
		newer.take(o)
		o = newer
	} else {
		w.queue = append(w.queue, owner)
	}
	w.of[owner] = o
	w.bytes += o.size(owner)
	w.paying--
	w.recount()
}

// take adds what another owes.
func (o *ownerDebt) take(other *ownerDebt) {
	for i := range other.of {
		from := &other.of[i]
		to := o.find(from.limit, from.value)
		if to == nil {
			o.of = append(o.of, *from)
			continue
		}
		for j := range from.tiers {
			for _, s := range from.tiers[j].slots {
				to.tiers[j].merge(&from.limit.Tiers[j], s)
			}
		}
	}
}

func (td *tierDebt) merge(t *limit.Tier, s slot) {
	if isBucket(t) && len(td.slots) > 0 {
		s.refill(td.share, td.slots[0].at)
		td.slots[0].units = min(td.slots[0].units+s.units, limit.MaxUnits)
		return
	}
	for i := range td.slots {
		if td.slots[i].from == s.from {
			td.slots[i].at, td.slots[i].units = max(td.slots[i].at, s.at), min(td.slots[i].units+s.units, limit.MaxUnits)
			return
		}
	}
	td.slots = append(td.slots, s)
}

// bill is one request that counts some of what an owner owes, and which slots of it.
type bill struct {
	in      place
	request limit.Request
	units   int64
}

// place is where limits may be counted in a store of their own: the quotas or the rates of a cell.
type place struct {
	home   string
	quotas bool
}

func placeOf(l *limit.Limit) place { return place{l.Home, isQuota(l)} }

// bill takes a part of the debt, one slot of each tier, off it: of limits with different ids, for a request must not name one
// counter twice, and of one place, for others may lie in other stores. It is empty where nothing is owed any more but in silent places.
func (o *ownerDebt) bill(owner limit.Owner, now int64, silent map[place]bool) (b bill, part *ownerDebt) {
	o.settle(owner, now)
	b.request.Owner = owner
	part = new(ownerDebt)
	var ids []string
	for i := range o.of {
		d := &o.of[i]
		in := placeOf(d.limit)
		if slices.Contains(ids, d.limit.ID) || len(ids) == 64 || silent[in] || len(ids) > 0 && in != b.in {
			continue
		}
		b.in = in
		ids = append(ids, d.limit.ID)
		b.request.Charges = append(b.request.Charges, limit.Charge{Limit: d.limit, Value: d.value, Cost: 1})
		taken := debt{limit: d.limit, value: d.value, tiers: make([]tierDebt, len(d.tiers))}
		for j := range d.tiers {
			td := &d.tiers[j]
			var a limit.Ahead
			if len(td.slots) > 0 {
				s := td.slots[0]
				a.Adjust, a.AdjustAt = s.units, s.at
				b.units += s.units
				taken.tiers[j] = tierDebt{slots: []slot{s}, share: td.share}
				td.slots = td.slots[1:]
			}
			b.request.Ahead = append(b.request.Ahead, a)
		}
		part.of = append(part.of, taken)
	}
	return b, part
}
