package lease

import (
	"slices"
	"sync"

	"github.com/sluicelimits/sluice/internal/limit"
	"github.com/sluicelimits/sluice/internal/limiter/clock"
)

type shard struct {
	mu     sync.Mutex
	serial uint64
	owners map[uint64]*holder // by hash; those of one hash are linked
	stats  Stats
	hand   []*holder // all of them, for the sweep
	next   int
	_      [64]byte // keeps the mutexes of two shards off one cache line
}

func (sh *shard) find(hash uint64, o limit.Owner) *holder {
	for h := sh.owners[hash]; h != nil; h = h.next {
		if h.owner == o {
			return h
		}
	}
	return nil
}

func (sh *shard) each(f func(*holder)) {
	for _, h := range sh.hand {
		f(h)
	}
}

// holder is all that this process holds of one owner's counters.
type holder struct {
	owner    limit.Owner
	hash     uint64
	next     *holder
	clock    clock.Timeline
	lag      int64 // the store's clock less this one, µs
	counters []*counter
	swept    int                     // up to here the sweep has looked
	index    map[counterKey]*counter // once there are many
}

type counterKey struct {
	identity string
	value    limit.Value
}

const scanned = 8 // counters; up to here a scan beats a map

// counter is one tier's counter for one value, as this process knows it. Times are of the holder's clock.
type counter struct {
	tier  *limit.Tier
	value limit.Value
	far   bool // another cell keeps it

	lease limit.Leftover
	until int64 // the lease ends
	// A ramp: of the lease's units, locked were not free at from, and all are at to.
	locked, from, to int64

	denial denial
	flight *flight // the call that is under way
	demand demand
	supply supply
	lookAt int64 // before which it is not asked whether units are to be leased ahead
}

// denial is what the store did not admit: costs from cost on, until the time until; then it is worth asking again. The
// store itself said at.
type denial struct {
	cost, until int64
	at          int64 // µs since 1970 by the store's clock: when the cost fits, if nobody else charges
	times       int   // in a row
	count       int64 // denied here since
}

func (n *denial) covers(cost, t int64) bool { return n.cost > 0 && cost >= n.cost && t < n.until }

// flight is a call that is under way.
type flight struct {
	done chan struct{}
	err  error // set before done is closed, as is
	left bool  // that the request that made the call was given up: others need not be
}

// counter finds the counter, or nil. Most owners' counters lie in the order of their plan: guess is its place there.
func (h *holder) counter(t *limit.Tier, v limit.Value, guess int) *counter {
	if guess < len(h.counters) {
		if k := h.counters[guess]; k.tier == t && k.value == v {
			return k
		}
	}
	if h.index != nil {
		return h.index[counterKey{t.Identity(), v}]
	}
	for _, k := range h.counters {
		if k.value == v && (k.tier == t || k.tier.Identity() == t.Identity()) {
			return k
		}
	}
	return nil
}

func (h *holder) add(t *limit.Tier, v limit.Value) *counter {
	k := &counter{tier: t, value: v, far: isFar(t)}
	h.counters = append(h.counters, k)
	if h.index != nil {
		h.index[counterKey{t.Identity(), v}] = k
	} else if len(h.counters) > scanned {
		h.index = make(map[counterKey]*counter, 2*len(h.counters))
		for _, k := range h.counters {
			h.index[counterKey{k.tier.Identity(), k.value}] = k
		}
	}
	return k
}

// free is how many units can be spent at t.
func (k *counter) free(t int64) int64 {
	if t >= k.until {
		return 0
	}
	return max(k.lease.Units-k.lockedAt(t), 0)
}

// lockedAt is how many units of the ramp have not come free at t, rounded up.
func (k *counter) lockedAt(t int64) int64 {
	switch {
	case k.locked == 0 || t >= k.to:
		return 0
	case t <= k.from:
		return k.locked
	}
	return (k.locked*(k.to-t) + (k.to - k.from) - 1) / (k.to - k.from)
}

// fitsAt is the first time at which cost is free, if nothing else is spent; 0 if not within the lease.
func (k *counter) fitsAt(t, cost int64) int64 {
	if k.locked == 0 || k.lease.Units < cost || t >= k.until {
		return 0
	}
	mayLock := k.lease.Units - cost // units may be locked still: locked·(to−t) ≤ mayLock·(to−from)
	at := max(k.to-mayLock*(k.to-k.from)/k.locked, t)
	if at >= k.until {
		return 0
	}
	return at
}

// local decides the request if that takes no call. It reports false, having changed nothing, where it does.
func (h *holder) local(s *Store, sh *shard, req *limit.Request, now clock.Instant, d *limit.Decision) bool {
	t := h.clock.At(now)
	e := d.BeginLeased(req, t+h.lag, limit.ReceiptID{})
	n, unknown := 0, false
	for i := range req.Charges {
		charge := &req.Charges[i]
		l := charge.Limit
		if l == nil || !s.leases(l) || l.Mode == limit.Off || charge.Cost < 1 || charge.Cost > limit.MaxUnits || len(l.Tiers) == 0 {
			return false
		}
		for j := range l.Tiers {
			if n >= len(h.counters) {
				return false
			}
			k := h.counters[n]
			if k.tier != &l.Tiers[j] || k.value != charge.Value {
				return h.scattered(s, sh, req, t, d)
			}
			if !k.lease.Known() {
				return false
			}
			retryAt, known := k.outcome(charge.Cost, t, h.lag)
			unknown = unknown || !known
			e.FromLeftover(i, &k.lease, retryAt)
			n++
		}
	}
	if unknown && d.Allowed {
		return false
	}
	h.finish(s, sh, t, d, nil)
	return true
}

// scattered is local for counters in another order.
func (h *holder) scattered(s *Store, sh *shard, req *limit.Request, t int64, d *limit.Decision) bool {
	if req.Check() != nil {
		return false
	}
	e := d.BeginLeased(req, t+h.lag, limit.ReceiptID{})
	var few [16]*counter
	at, unknown := few[:0], false
	for i := range req.Charges {
		charge := &req.Charges[i]
		for j := range charge.Limit.Tiers {
			k := h.counter(&charge.Limit.Tiers[j], charge.Value, len(at))
			if k == nil || k.tier != &charge.Limit.Tiers[j] || !s.leases(charge.Limit) || !k.lease.Known() {
				return false
			}
			retryAt, known := k.outcome(charge.Cost, t, h.lag)
			unknown = unknown || !known
			e.FromLeftover(i, &k.lease, retryAt)
			at = append(at, k)
		}
	}
	if unknown && d.Allowed {
		return false
	}
	h.finish(s, sh, t, d, at)
	return true
}

// outcome is whether the cost is admitted here (0), or denied until when by the store's clock; it is not known where the
// store has to be asked.
func (k *counter) outcome(cost, t, lag int64) (retryAt int64, known bool) {
	if k.free(t) >= cost {
		return 0, true
	}
	if at := k.fitsAt(t, cost); at > t {
		return at + lag, true
	}
	if k.denial.covers(cost, t) {
		return max(k.denial.at, t+lag+1), true
	}
	return 0, false
}

// finish charges what was decided locally. at is nil where the counters lie in the order of the results.
func (h *holder) finish(s *Store, sh *shard, t int64, d *limit.Decision, at []*counter) {
	sh.stats.Local++
	if d.Allowed {
		d.ID = s.nextID(sh, h.hash)
	} else {
		sh.stats.Denied++
	}
	for i := range d.Results {
		var k *counter
		if at != nil {
			k = at[i]
		} else {
			k = h.counters[i]
		}
		cost := d.Results[i].Cost
		k.demand.add(t, cost)
		if d.Charges(i) {
			k.lease.Units -= d.Revise().ChargeLeftover(i)
		} else if r := &d.Results[i]; !r.Admits && !r.Shadow() && k.denial.covers(cost, t) {
			k.denial.count++
		}
	}
}

// take finds the owner's holder or makes one, with room for the request's counters; nil where there is none.
func (s *Store) take(sh *shard, hash uint64, req *limit.Request, now clock.Instant) *holder {
	h, missing := sh.lacks(hash, req)
	for _, look := range [...]int{2*missing + 2, 64} {
		if missing == 0 {
			return h
		}
		s.sweep(sh, now, look)
		if h, missing = sh.lacks(hash, req); missing > 0 && s.reserve(missing) {
			if h == nil {
				h = s.hold(sh, hash, req.Owner, now)
			}
			return h
		}
	}
	return nil
}

// lacks finds the owner's holder, and how many of the request's counters it has not met.
func (sh *shard) lacks(hash uint64, req *limit.Request) (h *holder, missing int) {
	h = sh.find(hash, req.Owner)
	n := 0
	for i := range req.Charges {
		charge := &req.Charges[i]
		for j := range charge.Limit.Tiers {
			if h == nil || h.counter(&charge.Limit.Tiers[j], charge.Value, n) == nil {
				missing++
			}
			n++
		}
	}
	return h, missing
}

// reserve counts so many counters more, if there is room for all of them.
func (s *Store) reserve(counters int) bool {
	if s.counters.Add(int64(counters)) <= int64(s.c.MaxCounters) {
		return true
	}
	s.counters.Add(-int64(counters))
	return false
}

func (s *Store) hold(sh *shard, hash uint64, o limit.Owner, now clock.Instant) *holder {
	if sh.owners == nil {
		sh.owners = make(map[uint64]*holder)
	}
	h := &holder{owner: o, hash: hash, next: sh.owners[hash]}
	h.lag = now.Wall.Microseconds() - h.clock.At(now) // until the store says what time it is there
	sh.owners[hash] = h
	sh.hand = append(sh.hand, h)
	return h
}

const idleFor = 60_000_000 // µs after which a counter's demand is nothing to remember

// idle reports whether nothing is held of the counter, and nothing known that is of use.
func (k *counter) idle(t int64) bool {
	return k.flight == nil && (t >= k.until || k.lease.Units == 0) && t >= k.denial.until && t-k.demand.last >= idleFor
}

// sweep looks at n counters, in turn, and forgets those that are idle.
func (s *Store) sweep(sh *shard, now clock.Instant, n int) {
	for n > 0 && len(sh.hand) > 0 {
		if sh.next >= len(sh.hand) {
			sh.next = 0
		}
		h := sh.hand[sh.next]
		t := h.clock.At(now)
		for ; n > 0 && h.swept < len(h.counters); n-- {
			k := h.counters[h.swept]
			if !k.idle(t) {
				h.swept++
				continue
			}
			sh.stats.Lost += k.lease.Units
			delete(h.index, counterKey{k.tier.Identity(), k.value})
			h.counters = slices.Delete(h.counters, h.swept, h.swept+1)
			s.counters.Add(-1)
		}
		if h.swept < len(h.counters) {
			return
		}
		n--
		if h.swept = 0; len(h.counters) > 0 {
			sh.next++
			continue
		}
		sh.drop(h)
	}
}

// drop removes the holder at sh.next.
func (sh *shard) drop(h *holder) {
	last := len(sh.hand) - 1
	sh.hand[sh.next], sh.hand[last] = sh.hand[last], nil
	sh.hand = sh.hand[:last]
	if sh.owners[h.hash] == h {
		if h.next == nil {
			delete(sh.owners, h.hash)
		} else {
			sh.owners[h.hash] = h.next
		}
		return
	}
	for p := sh.owners[h.hash]; p != nil; p = p.next {
		if p.next == h {
			p.next = h.next
			return
		}
	}
}
