package memory

import (
	"fmt"
	"net/url"
	"sync"
	"time"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
)

const (
	sharedPart = 8    // shared counters get 1/sharedPart of UnidentifiedBytes
	mostGroups = 256  // the largest number of groups
	groupBytes = 4096 // there is one group for so many bytes of the shared counters' part, up to mostGroups
)

// sharedCounters count the requests of addresses, and of owners in a scope, for which there is no memory for
// counters of their own.
//
// A hash with a random key of this process assigns each address to a group. An attacker therefore cannot choose the
// group of an address. The addresses of one group share one counter for each tier, so together they may use as much as
// one address may use alone. An address keeps each counter that it already has, and uses shared ones for the rest.
//
// Once memory is free, an address gets its own counter, which starts as a copy of the shared one. Requests that were
// admitted by the shared counter therefore still count: sharing makes a limit stricter, and not looser.
type sharedCounters struct {
	budget budget
	groups []group
}

// group is the addresses that share counters.
type group struct {
	mu       sync.Mutex // locked after the record of an address, never before
	name     string     // takes the place of the owner's name where windows are aligned to the owner
	counters further
}

func (c *sharedCounters) init(maxBytes int64) {
	c.budget.maxBytes = maxBytes
	c.groups = make([]group, min(max(maxBytes/groupBytes, 1), mostGroups))
	for i := range c.groups {
		c.groups[i].name = fmt.Sprintf("shared %d", i)
	}
}

// lockGroup locks and returns the group of the address with this hash, and removes the counters of the group that are
// no different from unused ones. It returns nil if no shared counter exists and share is false; share says that the
// address cannot get a counter of its own. The caller holds the lock of the address's stripe, and unlocks the group.
func (s *Store) lockGroup(hash uint64, now int64, share bool) *group {
	c := &s.shared
	if !share && c.budget.used.Load() == 0 {
		return nil
	}
	g := &c.groups[hash/stripeCount%uint64(len(c.groups))] // the low bits chose the stripe
	g.mu.Lock()
	if freed := g.counters.sweep(now, len(g.counters.counters)); freed > 0 {
		c.budget.used.Add(-freed)
	}
	return g
}

// sharedAt encodes the index of a counter in its group as a position below absent, and ofShared decodes it. The
// positions of an owner's own counters are 0 or greater, so the two ranges do not overlap.
func sharedAt(index int) position { return absent - 1 - position(index) }
func ofShared(at position) int    { return int(absent - 1 - at) }

// sharedValue returns the value that tells apart the shared counters of result i: the scope, if the limit has one, as
// the limits of all descriptors have the same ids.
func sharedValue(e *limit.Evaluation, i int) limit.Value {
	if name := e.Results[i].Limit().Scope; name != "" {
		return limit.ValueOf(name)
	}
	return e.Value(i)
}

// scopeOfRequest returns the scope in which the request's owner counts, or nil.
func (s *Store) scopeOfRequest(e *limit.Evaluation) *scope {
	if len(e.Results) == 0 {
		return nil
	}
	return s.scopeOf(e.Owner.Kind, e.Results[0].Tier)
}

// evaluateShared evaluates result i for an address that has no counter of its own for it. If the group has a counter
// for this tier and value, that counter's state is used, else an empty one. evaluateShared returns the position of
// the group's counter as sharedAt encodes it, or absent if the group has none. share is as for lockGroup.
func (s *Store) evaluateShared(g *group, e *limit.Evaluation, i int, charge, share bool) position {
	var unused limit.State
	st, at := &unused, absent
	if index := g.counters.find(s, e.Results[i].Tier, sharedValue(e, i)); index >= 0 {
		st, at = &g.counters.counters[index].state, sharedAt(index)
	}
	if share || at != absent {
		e.AlignTo(i, g.name) // else the windows would move with whoever asks
	}
	e.Evaluate(i, st, charge)
	return at
}

// chargeShared charges result i to the group's counter at the position that evaluateShared returned. If that is absent,
// chargeShared adds the counter to the group first. It does so even if the budget is used up: the plans say how many
// shared counters there are, not the callers. Entries grow within the budget.
func (s *Store) chargeShared(g *group, e *limit.Evaluation, i int, at position) {
	f, b := &g.counters, &s.shared.budget
	index, before := ofShared(at), f.bytes
	if at == absent {
		index = f.add(s, e.Results[i].Tier, sharedValue(e, i))
	}
	more, _ := e.Room(i, &f.counters[index].state)
	f.counters[index].tier = e.Results[i].Tier
	f.bytes += chargeGrowing(e, i, &f.counters[index].state, more <= b.free())
	b.used.Add(f.bytes - before)
}

// logSharing logs that there is no room for the counters of the request's owner, at most once in a minute for each
// budget, and for each scope.
func (s *Store) logSharing(req *limit.Request, now int64) {
	o := req.Owner
	of := budgetOf(o.Kind)
	logged, in := &s.lastLogged[of], s.scopeOf(o.Kind, &req.Charges[0].Limit.Tiers[0])
	if in != nil {
		logged = &in.lastLogged
	}
	last := logged.Load()
	since := now - last
	recent := last != 0 && since >= 0 && since < time.Minute.Microseconds()
	if recent || !logged.CompareAndSwap(last, now) {
		return
	}
	b := &s.budgets[of]
	if in != nil {
		s.log.Warn("the counters of one descriptor take as much memory as is left for others: new values of it "+
			"share counters, which makes its limits stricter; shorten its periods, have clients choose fewer values, "+
			"or give counters more memory",
			"descriptor", in.name, "bytes", in.used.Load(), "used by all", b.used.Load(), "most", b.maxBytes)
		return
	}
	if of == allOwners {
		s.log.Warn("the counters of a tenant take as much memory as is left for others: new values of its limits "+
			"share one counter, which makes these limits stricter; lower maxValues, shorten periods, or give "+
			"counters more memory",
			"tenant", url.PathEscape(o.Name), "bytes", b.used.Load(), "most", b.maxBytes)
		return
	}
	s.log.Warn("the counters of addresses and of anonymous calls have used up their memory: new ones share "+
		"counters, which makes their limits stricter; shorten the periods of these limits, or give counters more "+
		"memory",
		"bytes", b.used.Load(), "most", b.maxBytes, "groups", len(s.shared.groups))
}
