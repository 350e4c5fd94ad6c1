// Package memory keeps counters in the process: the embedded default, and the model that other stores are compared with.
//
// Layout: owners are spread over shards by a hash of their name; a shard is one mutex and one map from hash to owner, and
// an owner holds all of its counters in one slice. So a decision over every limit of a tenant is one lock and one look-up.
//
// The size is bounded in bytes. Room is made only by forgetting counters that are no different from unused ones (see
// [limit.Tier.FreshAt]); if there are none, a decision that needs room is [limit.ErrFull] and charges nothing. A
// counter still in use is never forgotten.
//
// Callers without a credential choose the keys of two sorts of counters: those of addresses, and those of single values
// of anonymous calls. These counters have a budget of their own ([Config.UnidentifiedBytes]), so no number of addresses
// takes the room of tenants. If that budget is full, a value of an anonymous call shares the counter of the other
// values of its limit, and an address shares the counters that it lacks with some of the other addresses, see
// sharedCounters.
//
// An eighth of the bound is set aside to remember which receipts were refunded, until they expire. If that is full, a
// refund is [limit.ErrRefundsFull] and gives nothing back, and decisions go on.
package memory

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"log/slog"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluicelimits/sluice/internal/limit"
)

var _ limit.Store = (*Store)(nil)

const (
	shardCount = 256 // a power of two; far above the number of cores, so that two busy owners seldom meet

	// DefaultMaxBytes is the bound on a store's size when none is given.
	DefaultMaxBytes = 256 << 20

	sweepOnInsert = 2  // how many owners, and counters of the same owner, each insertion looks at for what can go
	sweepWhenFull = 64 // how many it looks at when there is no room

	fullFor = 10_000 // µs that a search for room in vain is remembered

	unidentifiedPart = 4 // of MaxBytes, by default
)

// Store is a [limit.Store] in memory. Make it with [New].
type Store struct {
	seed    maphash.Seed
	boot    uint64
	log     *slog.Logger
	budgets [2]budget     // of all owners, and of those that are also in the budget of unidentified callers
	next    atomic.Uint32 // the shard that gives room next
	refunds refunds
	shared  sharedCounters
	shards  [shardCount]shard
}

// budget is a bound on what counters take.
type budget struct {
	maxBytes int64
	used     atomic.Int64
	fullTill atomic.Int64 // until then nobody looks for room again, µs; a flood of new owners must not pay for the search
}

// take counts bytes, if there is room for them.
func (b *budget) take(bytes int64) bool {
	for {
		used := b.used.Load()
		if used+bytes > b.maxBytes {
			return false
		}
		if b.used.CompareAndSwap(used, used+bytes) {
			return true
		}
	}
}

// The budgets of a store. What an owner of the second one takes counts in both.
const (
	everybody = iota
	unidentified
)

// budgetOf returns the narrowest budget in which the counters of an owner count.
func budgetOf(k limit.OwnerKind) int {
	if k == limit.Address || k == limit.Anonymous {
		return unidentified
	}
	return everybody
}

type shard struct {
	mu     sync.Mutex
	serial uint64
	table  table
	_      [64]byte // keeps the mutexes of two shards off one cache line
}

// Config sets up a store. The zero Config is fine.
type Config struct {
	// MaxBytes bounds the store's size, bytes; at least 4096; 0 means DefaultMaxBytes. Seven eighths are for counters, one
	// eighth is for what the store remembers of refunds.
	MaxBytes int64

	// UnidentifiedBytes bounds what counters take whose keys a caller without a credential can choose: those of addresses,
	// and those of single values of anonymous calls. It is a part of MaxBytes, in bytes; 0 means a quarter of MaxBytes. An
	// eighth of it is set aside for counters that addresses share. What is left of MaxBytes is free for tenants, whatever
	// comes; tenants may also take what these callers leave.
	UnidentifiedBytes int64

	// OneBudget lets everybody take all of MaxBytes, and has nobody share counters: whoever finds no room is
	// [limit.ErrFull]. It is for replays, whose outcome must not depend on how much memory there is.
	OneBudget bool

	// Log gets a line, at most one in a minute, while addresses share counters. Default slog.Default().
	Log *slog.Logger
}

// New makes an empty store.
func New(c Config) (*Store, error) {
	if c.MaxBytes == 0 {
		c.MaxBytes = DefaultMaxBytes
	}
	if c.MaxBytes < 4096 {
		return nil, fmt.Errorf("memory store: %d bytes is below the minimum of 4096", c.MaxBytes)
	}
	if c.UnidentifiedBytes < 0 || c.UnidentifiedBytes > c.MaxBytes {
		return nil, fmt.Errorf("memory store: %d bytes for unidentified callers are outside 0..%d", c.UnidentifiedBytes,
			c.MaxBytes)
	}
	if c.UnidentifiedBytes == 0 {
		c.UnidentifiedBytes = c.MaxBytes / unidentifiedPart
	}
	if c.Log == nil {
		c.Log = slog.Default()
	}
	forRefunds, forSharing := c.MaxBytes/refundsPart, c.UnidentifiedBytes/sharedPart
	s := &Store{seed: maphash.MakeSeed(), boot: rand.Uint64(), log: c.Log, refunds: newRefunds(forRefunds)}
	if c.OneBudget {
		s.budgets[everybody].maxBytes = c.MaxBytes - forRefunds
		s.budgets[unidentified].maxBytes = c.MaxBytes
		return s, nil
	}
	s.shared.init(forSharing)
	s.budgets[everybody].maxBytes = c.MaxBytes - forRefunds - forSharing
	s.budgets[unidentified].maxBytes = min(c.UnidentifiedBytes-forSharing, s.budgets[everybody].maxBytes)
	return s, nil
}

// Accepts every limit.
func (s *Store) Accepts(*limit.Limit) error { return nil }

// Bytes is an estimate of what the counters, and what the store remembers of refunds, take now.
func (s *Store) Bytes() int64 {
	return s.budgets[everybody].used.Load() + s.shared.budget.used.Load() + s.refunds.takes()
}

// Decide charges all limits of the request or none. See [limit.Store].
func (s *Store) Decide(ctx context.Context, req *limit.Request, now time.Time, d *limit.Decision) error {
	return s.decide(ctx, req, now, d, true)
}

// Peek is Decide without the charge. See [limit.Store].
func (s *Store) Peek(ctx context.Context, req *limit.Request, now time.Time, d *limit.Decision) error {
	return s.decide(ctx, req, now, d, false)
}

func (s *Store) decide(ctx context.Context, req *limit.Request, now time.Time, d *limit.Decision, charge bool) error {
	us := now.UnixMicro()
	err := ctx.Err()
	if err != nil {
		d.Clear(us)
		return err
	}
	h := s.hash(req.Owner)
	sh := &s.shards[h%shardCount]
	if req.Quick() {
		sh.mu.Lock()
		o := sh.table.find(h, req.Owner)
		done := o != nil && s.usual(sh, h, o, req, us, d, charge)
		sh.mu.Unlock()
		if done {
			return nil
		}
	}
	if err = s.unusual(sh, h, req, us, d, charge); err != nil {
		d.Clear(us)
	}
	return err
}

// usual decides a request that is [limit.Request.Quick], if the counters lie in the request's order, as they do where one
// plan made them. It reports false, having changed nothing, if that is not so. The caller holds the shard's lock.
func (s *Store) usual(sh *shard, h uint64, o *owner, req *limit.Request, now int64, d *limit.Decision, charge bool) bool {
	n := len(req.Charges)
	if n > len(o.counters) {
		return false
	}
	counters := o.counters[:n]
	d.Open(req, now)
	for i := range counters {
		if !d.Weigh(counters[i].tier, &counters[i].state) {
			return false
		}
	}
	if !d.Allowed || !charge {
		return true
	}
	for i := range counters {
		d.CommitWeighed(i, &counters[i].state)
	}
	d.ID = s.nextID(sh, h)
	return true
}

func (s *Store) nextID(sh *shard, h uint64) limit.ReceiptID {
	sh.serial++
	return limit.ReceiptID{Hi: s.boot, Lo: sh.serial*shardCount + h%shardCount}
}

// unusual decides any request. It begins the decision before it takes the shard's lock, since that computes the calendar
// periods of quotas.
func (s *Store) unusual(sh *shard, h uint64, req *limit.Request, now int64, d *limit.Decision, charge bool) error {
	if err := req.Check(); err != nil {
		return err
	}
	d.Begin(req, now)
	sh.mu.Lock()
	err := s.attempt(sh, h, d, charge, false)
	sh.mu.Unlock()
	if !errors.Is(err, limit.ErrFull) {
		return err
	}
	// Nothing else could go: what can go may be the owner's own, and then its counters have moved.
	d.Begin(req, now)
	sh.mu.Lock()
	o := sh.table.find(h, req.Owner)
	if o != nil && s.release(req.Owner.Kind, o.sweep(now, sweepWhenFull)) {
		err = s.attempt(sh, h, d, charge, false)
	}
	sh.mu.Unlock()
	if !errors.Is(err, limit.ErrFull) || budgetOf(req.Owner.Kind) != unidentified || len(s.shared.groups) == 0 {
		return err
	}
	d.Begin(req, now)
	sh.mu.Lock()
	err = s.attempt(sh, h, d, charge, true)
	sh.mu.Unlock()
	s.logSharing(now)
	return err
}

// attempt decides under the shard's lock. If share is set, there is no room for more counters of an unidentified
// caller, and the decision is made on shared ones in place of those that the caller lacks.
func (s *Store) attempt(sh *shard, h uint64, d *limit.Decision, charge, share bool) error {
	var few [16]int32
	at := few[:]
	if len(d.Results) > len(few) {
		at = make([]int32, len(d.Results))
	}
	o := sh.table.find(h, d.Owner)
	var g *group
	if d.Owner.Kind == limit.Address {
		g = s.lockGroup(h, d.Now, share)
	}
	lacks, grows, err := s.evaluate(o, g, d, at, charge, share)
	if err == nil && d.Settle() && charge {
		err = s.write(sh, h, o, g, d, at, lacks, grows, share)
	}
	if g != nil {
		g.mu.Unlock()
	}
	return err
}

// evaluate fills the results of d from the counters of o, which is nil for a new owner, and notes in at where they are.
// In place of a counter that an address lacks it reads the shared one: what that has admitted may have been this
// address. It reports whether o lacks counters, and whether one that it has may grow.
func (s *Store) evaluate(o *owner, g *group, d *limit.Decision, at []int32, charge, share bool) (lacks, grows bool, err error) {
	var unused limit.State
	if o == nil {
		o = &nobody
	}
	for i := range d.Results {
		pos := o.locate(s, d, i, share && d.Owner.Kind == limit.Anonymous)
		if d.Results[i].Other && sharesOther(d, i) {
			return false, false, fmt.Errorf("%w: values beyond the bound of limit %s", limit.ErrDuplicateCounter, d.Results[i].Limit().ID)
		}
		more := false
		switch {
		case pos >= 0:
			more = d.Evaluate(i, &o.counters[pos].state, charge)
		case g != nil:
			pos = s.evaluateShared(g, d, i, charge, share)
		default:
			d.Evaluate(i, &unused, charge)
		}
		at[i] = pos
		lacks, grows = lacks || pos < 0, grows || more
	}
	return lacks, grows, nil
}

// write charges what evaluate has read.
func (s *Store) write(sh *shard, h uint64, o *owner, g *group, d *limit.Decision, at []int32, lacks, grows, share bool) error {
	if lacks || grows {
		if err := s.makeRoom(sh, o, g, d, at, grows, share); err != nil {
			return err
		}
		if o == nil && (g == nil || !share) {
			o = sh.table.add(h, d.Owner, len(d.Results))
		}
	}
	d.ID = s.nextID(sh, h)
	for i := range d.Results {
		switch {
		case !d.Commits(i):
		case at[i] >= 0:
			if bytes := o.counters[at[i]].charge(d, i); bytes != 0 {
				s.grow(d.Owner.Kind, bytes)
			}
		case g != nil && share:
			s.commitShared(g, d, i, at[i])
		default:
			s.commitNew(o, g, d, i, at[i])
		}
	}
	if (lacks || grows) && o != nil { // only now: the positions are used up
		s.release(d.Owner.Kind, o.sweep(d.Now, sweepOnInsert))
	}
	return nil
}

// sharesOther reports whether an earlier result was redirected to the same shared counter as result i.
func sharesOther(d *limit.Decision, i int) bool {
	for j := range i {
		if d.Results[j].Other && d.Results[j].Tier == d.Results[i].Tier {
			return true
		}
	}
	return false
}

// commitNew charges result i to a new counter of o. Where an address has shared one until now, which is at at, the new
// counter begins as a copy of that, so that an address never gets more for having shared.
func (s *Store) commitNew(o *owner, g *group, d *limit.Decision, i int, at int32) {
	own := &o.counters[o.add(s, d.Results[i].Tier, d.Value(i))]
	if at == absent {
		s.grow(d.Owner.Kind, own.charge(d, i))
		return
	}
	own.state = *g.owner.counters[ofShared(at)].state.Clone()
	s.grow(d.Owner.Kind, g.charge(own, d, i))
}

// makeRoom reserves the bytes of what the decision is about to write. Stamps grow after the fact: a decision that may add
// some is let in only below the bound.
func (s *Store) makeRoom(sh *shard, o *owner, g *group, d *limit.Decision, at []int32, grows, share bool) error {
	need, shared := int64(0), int64(0)
	for i := range d.Results {
		if at[i] >= 0 || !d.Commits(i) {
			continue
		}
		bytes := sizeOfCounter(d.Value(i))
		switch {
		case share && g != nil:
			if at[i] == absent {
				shared += bytes
			}
			continue
		case at[i] != absent:
			bytes += int64(len(g.owner.counters[ofShared(at[i])].state.Stamps)) * stampBytes
		}
		need += bytes
	}
	if share && g != nil {
		if !s.shared.budget.take(shared) || grows && !s.reserve(sh, 0, d, o, false) {
			return s.full(unidentified)
		}
		return nil
	}
	if o == nil {
		need += sizeOfOwner(d.Owner)
		s.sweep(sh, d.Now, sweepOnInsert, nil)
	}
	if !s.reserve(sh, need, d, o, share) {
		return s.full(budgetOf(d.Owner.Kind))
	}
	return nil
}

// full is the error where a budget has no room.
func (s *Store) full(of int) error {
	b := &s.budgets[of]
	if used := b.used.Load(); used < b.maxBytes {
		b = &s.budgets[everybody]
	}
	return fmt.Errorf("memory store, %d of %d bytes: %w", b.used.Load(), b.maxBytes, limit.ErrFull)
}

// grow counts bytes that an owner of the kind takes, beyond what was reserved.
func (s *Store) grow(k limit.OwnerKind, bytes int64) {
	if bytes == 0 {
		return
	}
	for i := range budgetOf(k) + 1 {
		s.budgets[i].used.Add(bytes)
	}
}

func (s *Store) release(k limit.OwnerKind, bytes int64) bool {
	if bytes > 0 {
		s.grow(k, -bytes)
	}
	return bytes > 0
}

// take counts bytes that an owner of the kind is about to take, if there is room for them. If uncapped is set, the
// budget of unidentified callers does not bind.
func (s *Store) take(k limit.OwnerKind, need int64, uncapped bool) bool {
	if budgetOf(k) == everybody {
		return s.budgets[everybody].take(need)
	}
	if !s.budgets[everybody].take(need) {
		return false
	}
	if uncapped {
		s.budgets[unidentified].used.Add(need)
		return true
	}
	if !s.budgets[unidentified].take(need) {
		s.budgets[everybody].used.Add(-need)
		return false
	}
	return true
}

// reserve takes need bytes of the owner's budget, forgetting what can go where they are not free.
func (s *Store) reserve(sh *shard, need int64, d *limit.Decision, keep *owner, uncapped bool) bool {
	b := &s.budgets[budgetOf(d.Owner.Kind)]
	if uncapped {
		b = &s.budgets[everybody]
	}
	now := d.Now
	for try := 0; ; try++ {
		if s.take(d.Owner.Kind, need, uncapped) {
			return true
		}
		if full := b.fullTill.Load(); try == 0 && now < full && now >= full-fullFor {
			return false
		}
		if try >= 8 {
			b.fullTill.Store(now + fullFor)
			return false
		}
		s.sweep(sh, now, sweepWhenFull, keep)
		// The room may lie in other shards. Try-locking cannot deadlock with one that does the same to this one.
		other := &s.shards[s.next.Add(1)%shardCount]
		if other != sh && other.mu.TryLock() {
			s.sweep(other, now, sweepWhenFull, nil)
			other.mu.Unlock()
		}
	}
}

// Refund gives back what a receipt names. See [limit.Store].
func (s *Store) Refund(ctx context.Context, r *limit.Receipt, units int64, now time.Time) (limit.Refund, error) {
	if err := ctx.Err(); err != nil {
		return limit.Refund{}, err
	}
	if err := limit.CheckRefund(r, units); err != nil {
		return limit.Refund{}, err
	}
	us := now.UnixMicro()
	entries := r.Entries()
	out := limit.Refund{Units: make([]int64, len(entries))}
	if len(entries) == 0 {
		return out, nil
	}
	h := s.hash(r.Owner())
	sh := &s.shards[h%shardCount]
	sh.mu.Lock()
	defer sh.mu.Unlock()
	// The memory of the refund is what makes it once, so without room for it nothing is given back.
	if made, err := s.refunds.remember(r, us, &out); !made {
		if err != nil {
			return limit.Refund{}, err
		}
		return out, nil
	}
	o := sh.table.find(h, r.Owner())
	if o == nil {
		return out, nil
	}
	for i := range entries {
		e := &entries[i]
		if pos := o.position(s, e.Tier, e.Value); pos >= 0 {
			st := &o.counters[pos].state
			before := cap(st.Stamps)
			out.Units[i] = e.Apply(st, units, us)
			s.grow(r.Owner().Kind, int64(cap(st.Stamps)-before)*stampBytes)
		}
	}
	return out, nil
}

func (s *Store) hash(o limit.Owner) uint64 {
	return maphash.String(s.seed, o.Name) ^ uint64(o.Kind)*0x9e3779b97f4a7c15
}
