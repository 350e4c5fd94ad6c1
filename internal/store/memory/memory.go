// Package memory keeps counters in the process: the embedded default, and the model that other stores are compared with.
//
// Layout: owners are spread over shards by a hash of their name; a shard is one mutex and one map from hash to owner, and
// an owner holds all of its counters in one slice. So a decision over every limit of a tenant is one lock and one look-up.
//
// The size is bounded in bytes. Room is made only by forgetting counters that are no different from unused ones (see
// [limit.Tier.FreshAt]); if there are none, a decision that needs room is [limit.ErrFull] and charges nothing. A
// counter still in use is never forgotten.
//
// An eighth of the bound is set aside to remember which receipts were refunded, until they expire. If that is full, a
// refund is [limit.ErrRefundsFull] and gives nothing back, and decisions go on.
package memory

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
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
)

// Store is a [limit.Store] in memory. Make it with [New].
type Store struct {
	seed     maphash.Seed
	boot     uint64
	maxBytes int64 // of counters
	used     atomic.Int64
	next     atomic.Uint32 // the shard that gives room next
	fullTill atomic.Int64  // until then nobody looks for room again, µs; a flood of new owners must not pay for the search
	refunds  refunds
	shards   [shardCount]shard
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
}

// New makes an empty store.
func New(c Config) (*Store, error) {
	if c.MaxBytes == 0 {
		c.MaxBytes = DefaultMaxBytes
	}
	if c.MaxBytes < 4096 {
		return nil, fmt.Errorf("memory store: %d bytes is below the minimum of 4096", c.MaxBytes)
	}
	forRefunds := c.MaxBytes / refundsPart
	return &Store{seed: maphash.MakeSeed(), boot: rand.Uint64(), maxBytes: c.MaxBytes - forRefunds,
		refunds: newRefunds(forRefunds)}, nil
}

// Accepts every limit.
func (s *Store) Accepts(*limit.Limit) error { return nil }

// Bytes is an estimate of what the counters, and what the store remembers of refunds, take now.
func (s *Store) Bytes() int64 { return s.used.Load() + s.refunds.takes() }

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
	err := s.attempt(sh, h, d, charge)
	sh.mu.Unlock()
	if !errors.Is(err, limit.ErrFull) {
		return err
	}
	// Nothing else could go: what can go may be the owner's own, and then its counters have moved.
	d.Begin(req, now)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if o := sh.table.find(h, req.Owner); o != nil && s.release(o.sweep(now, sweepWhenFull)) {
		err = s.attempt(sh, h, d, charge)
	}
	return err
}

// attempt decides under the shard's lock.
func (s *Store) attempt(sh *shard, h uint64, d *limit.Decision, charge bool) error {
	var few [16]int32
	at := few[:]
	if len(d.Results) > len(few) {
		at = make([]int32, len(d.Results))
	}
	o := sh.table.find(h, d.Owner)
	var unused limit.State
	grows := o == nil
	for i := range d.Results {
		st, pos := &unused, int32(-1)
		if o != nil {
			if pos = o.locate(s, d, i); d.Results[i].Other && sharesOther(d, i) {
				return fmt.Errorf("%w: values beyond the bound of limit %s", limit.ErrDuplicateCounter, d.Results[i].Limit().ID)
			}
		}
		if pos >= 0 {
			st = &o.counters[pos].state
		} else {
			grows = true
		}
		at[i] = pos
		grows = d.Evaluate(i, st, charge) || grows
	}
	if !d.Settle() || !charge {
		return nil
	}
	if grows {
		if err := s.makeRoom(sh, o, d, at); err != nil {
			return err
		}
		if o == nil {
			o = sh.table.add(h, d.Owner, len(d.Results))
		}
	}
	d.ID = s.nextID(sh, h)
	for i := range d.Results {
		if d.Commits(i) {
			s.commit(o, d, i, at[i])
		}
	}
	if grows { // only now: the positions are used up
		s.release(o.sweep(d.Now, sweepOnInsert))
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

// commit charges result i, whose counter is at pos or does not exist yet.
func (s *Store) commit(o *owner, d *limit.Decision, i int, pos int32) {
	if pos < 0 {
		pos = o.add(s, d.Results[i].Tier, d.Value(i))
	}
	c := &o.counters[pos]
	if t := d.Results[i].Tier; c.tier != t {
		c.tier = t // a changed limit takes over its counter
	}
	before := cap(c.state.Stamps)
	d.Commit(i, &c.state)
	if after := cap(c.state.Stamps); after != before {
		s.used.Add(int64(after-before) * stampBytes)
	}
}

// makeRoom reserves the bytes of what the decision is about to write. Stamps grow after the fact: a decision that may add
// some is let in only below the bound.
func (s *Store) makeRoom(sh *shard, o *owner, d *limit.Decision, at []int32) error {
	need := int64(0)
	for i := range d.Results {
		if at[i] < 0 && d.Commits(i) {
			need += sizeOfCounter(d.Value(i))
		}
	}
	if o == nil {
		need += sizeOfOwner(d.Owner)
		s.sweep(sh, d.Now, sweepOnInsert, nil)
	}
	if !s.reserve(sh, need, d.Now, o) {
		return fmt.Errorf("memory store, %d of %d bytes: %w", s.used.Load(), s.maxBytes, limit.ErrFull)
	}
	return nil
}

func (s *Store) release(bytes int64) bool {
	if bytes > 0 {
		s.used.Add(-bytes)
	}
	return bytes > 0
}

// reserve takes need bytes of the bound, forgetting what can go where they are not free.
func (s *Store) reserve(sh *shard, need, now int64, keep *owner) bool {
	for try := 0; ; try++ {
		used := s.used.Load()
		if used+need <= s.maxBytes {
			if s.used.CompareAndSwap(used, used+need) {
				return true
			}
			continue
		}
		if full := s.fullTill.Load(); try == 0 && now < full && now >= full-fullFor {
			return false
		}
		if try >= 8 {
			s.fullTill.Store(now + fullFor)
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
			s.used.Add(int64(cap(st.Stamps)-before) * stampBytes)
		}
	}
	return out, nil
}

func (s *Store) hash(o limit.Owner) uint64 {
	return maphash.String(s.seed, o.Name) ^ uint64(o.Kind)*0x9e3779b97f4a7c15
}
