// Package lease decides from units that were charged ahead, so that a busy key costs a store about one call per second and
// instance, and stays exact.
//
// A decision is local iff this process has a lease with units left of each counter that it needs. Otherwise one call asks
// the store for what the request lacks, all or nothing, and for more of each counter, as [Rule] says. One call is under way
// for a counter; requests that come meanwhile wait for that one, once, and share what it brings.
//
// The bounds of the algorithms are held by the store: see [limit.LeaseRequest]. This package's part is to spend what it was
// granted in time. A lease ends by the earlier of the wall and the monotonic clock, both counted from before its call was
// sent: a process that is frozen, and whose monotonic clock stands still, does not spend yesterday's units. What comes free
// along a straight line is counted from after the reply.
//
// Limits that are exact and leaky buckets are never leased: each decision over one asks the store, which is charged for
// these only; the others come from leases and are handed back for nothing where the store denies.
//
// A cost that the store denied is denied here until the store may say otherwise, that cost and larger ones only.
//
// Shadow limits are leased like others.
package lease

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
	"github.com/sluicelimits/sluice/internal/limiter/clock"
)

var _ limit.Store = (*Store)(nil)

// Defaults and bounds.
const (
	DefaultLife        = 10 * time.Second
	DefaultHomeLife    = 60 * time.Second
	DefaultLook        = 500 * time.Millisecond
	DefaultMaxCounters = 200_000

	shardCount = 256 // a power of two

	returnWithin = 2 * time.Second // deadline of a call that gives back, for which nobody waits
)

// Config sets up a store.
type Config struct {
	Store     limit.Store // required; its errors are returned as they are
	Instances func() int  // how many processes share the store, at least 1; nil is one

	// InstancesOf is so for one limit: other cells may share what keeps it. nil is Instances.
	InstancesOf func(*limit.Limit) int

	// Ahead has units of quotas that another cell keeps leased before they run out, beside the decisions, which else
	// wait for them. It is for processes that do not stand still between decisions.
	Ahead bool

	HomesOnly   bool             // lease only quotas that another cell keeps
	Rule        Rule             // how much to ask for; nil is [Adaptive]
	Life        time.Duration    // longest life of a lease; 0 is DefaultLife
	HomeLife    time.Duration    // so, of a quota that another cell keeps (limit.Limit.Home), to which it may be far; 0 is DefaultHomeLife
	Look        time.Duration    // how often to give back what is not going to be used; 0 is DefaultLook, below 0 never
	MaxCounters int              // counters that are held; those beyond are not leased; 0 is DefaultMaxCounters
	Clock       func() time.Time // how long a call took is measured by it; nil is time.Now
}

// Store is a [limit.Store] over another one. Make it with [New], and close it to give back what is left.
type Store struct {
	c        Config
	seed     maphash.Seed
	boot     uint64
	life     int64 // µs
	homeLife int64 // µs
	counters atomic.Int64
	silent   atomic.Bool // the last call got no answer: until one does none leases, for the store may grant what nobody hears of
	homeless sync.Map    // so, of calls that other cells have a part in: *atomic.Bool by home
	shards   [shardCount]shard
	asks     sync.Pool

	stop    context.CancelFunc
	ahead   context.Context // of calls that lease ahead, which cut ends
	cut     context.CancelFunc
	looking sync.WaitGroup
}

// New starts leasing. The error names the field that is wrong.
func New(c Config) (*Store, error) {
	switch {
	case c.Store == nil:
		return nil, errors.New("lease store: Store is missing")
	case c.Life < 0 || c.HomeLife < 0 || c.MaxCounters < 0:
		return nil, fmt.Errorf("lease store: Life %s, HomeLife %s or MaxCounters %d is below zero", c.Life, c.HomeLife, c.MaxCounters)
	}
	if c.Life == 0 {
		c.Life = DefaultLife
	}
	if c.HomeLife == 0 {
		c.HomeLife = DefaultHomeLife
	}
	if c.Look == 0 {
		c.Look = DefaultLook
	}
	if c.MaxCounters == 0 {
		c.MaxCounters = DefaultMaxCounters
	}
	if c.Rule == nil {
		c.Rule = Adaptive{}
	}
	if c.Instances == nil {
		c.Instances = func() int { return 1 }
	}
	if c.InstancesOf == nil {
		c.InstancesOf = func(*limit.Limit) int { return c.Instances() }
	}
	if c.Clock == nil {
		c.Clock = time.Now
	}
	s := &Store{c: c, seed: maphash.MakeSeed(), boot: rand.Uint64(), life: c.Life.Microseconds(),
		homeLife: c.HomeLife.Microseconds()}
	s.asks.New = func() any { return new(ask) }
	ctx, cancel := context.WithCancel(context.Background())
	s.stop = cancel
	ahead, cut := context.WithCancel(context.Background())
	s.ahead, s.cut = ahead, cut
	if c.Look > 0 {
		s.looking.Go(func() { s.lookOften(ctx) })
	}
	return s, nil
}

// Accepts asks the store beneath.
func (s *Store) Accepts(l *limit.Limit) error { return s.c.Store.Accepts(l) }

// AcceptsPlan asks the store beneath. See [limit.PlanAccepter].
func (s *Store) AcceptsPlan(all []*limit.Limit, together ...[]*limit.Limit) error {
	return limit.AcceptsPlan(s.c.Store, all, together...)
}

// Decide charges all limits of the request or none, from leases where they suffice. See [limit.Store]. After an error of
// the store beneath, what it may have granted is lost; calls after it ask for no lease until one has an answer. An error by
// which the store answered ([limit.Answered]) is one.
func (s *Store) Decide(ctx context.Context, req *limit.Request, now time.Time, d *limit.Decision) error {
	if err := ctx.Err(); err != nil {
		d.Clear(now.UnixMicro())
		return err
	}
	hash := s.hash(req.Owner)
	sh := &s.shards[hash%shardCount]
	sh.mu.Lock()
	if h := sh.find(hash, req.Owner); h != nil && h.local(s, sh, req, clock.At(now), d) {
		if s.c.Ahead {
			s.leaseAhead(h, sh, req, now)
		}
		sh.mu.Unlock()
		return nil
	}
	sh.mu.Unlock()
	if err := s.remote(ctx, hash, sh, req, now, d); err != nil {
		d.Clear(now.UnixMicro())
		return err
	}
	return nil
}

// Peek writes to d what Decide would answer: what the store says, and what is in hand here. What other processes hold
// counts as used. See [limit.Store].
func (s *Store) Peek(ctx context.Context, req *limit.Request, now time.Time, d *limit.Decision) error {
	if err := s.c.Store.Peek(ctx, req, now, d); err != nil {
		return err
	}
	hash := s.hash(req.Owner)
	sh := &s.shards[hash%shardCount]
	sh.mu.Lock()
	if h := sh.find(hash, req.Owner); h != nil {
		t := h.clock.At(clock.At(now))
		i := 0
		for c := range req.Charges {
			charge := &req.Charges[c]
			for j := range charge.Limit.Tiers {
				if k := h.counter(&charge.Limit.Tiers[j], charge.Value, i); k != nil {
					d.Revise().Credit(i, k.free(t))
				}
				i++
			}
		}
	}
	sh.mu.Unlock()
	d.Revise().Settle()
	return nil
}

// Refund gives back in the store, in which the units were charged: also those that were spent from a lease, of a token
// bucket only until the lease's slot ends. See [limit.Store].
func (s *Store) Refund(ctx context.Context, r *limit.Receipt, units int64, now time.Time) (limit.Refund, error) {
	return s.c.Store.Refund(ctx, r, units, now)
}

// Close gives back what is left of every lease. No decision may be under way. Units that could not be given back are
// lost, and the error says so.
func (s *Store) Close(ctx context.Context) error {
	s.stop()
	defer s.cut()
	defer context.AfterFunc(ctx, s.cut)()
	s.looking.Wait()
	return s.returnAll(ctx)
}

// leases reports whether the limit's counters may be leased.
func (s *Store) leases(l *limit.Limit) bool {
	return !l.Exact && (!s.c.HomesOnly || isFar(&l.Tiers[0]))
}

func (s *Store) hash(o limit.Owner) uint64 {
	return maphash.String(s.seed, o.Name) ^ uint64(o.Kind)*0x9e3779b97f4a7c15
}

func (s *Store) nextID(sh *shard, hash uint64) limit.ReceiptID {
	sh.serial++
	return limit.ReceiptID{Hi: s.boot, Lo: sh.serial*shardCount + hash%shardCount}
}

// Stats is what the store has done so far.
type Stats struct {
	Local    int64 // decisions without a call, admitted or denied
	Denied   int64 // of these, denied
	Early    int64 // of those, denied although units turned out to be there before the wait was over
	Calls    int64 // asked the store beneath
	Waited   int64 // decisions that waited for another's call
	Returns  int64 // calls that gave units back
	Returned int64 // units given back
	Lost     int64 // units that ended unspent, or whose return failed
	Counters int64 // held now
	Units    int64 // in hand now
}

// Stats sums up. It takes each shard's lock in turn.
func (s *Store) Stats() Stats {
	var sum Stats
	now := clock.At(s.c.Clock())
	for i := range s.shards {
		sh := &s.shards[i]
		sh.mu.Lock()
		sum.add(&sh.stats)
		sh.each(func(h *holder) {
			t := h.clock.At(now)
			for _, k := range h.counters {
				sum.Counters++
				if t < k.until {
					sum.Units += k.lease.Units
				}
			}
		})
		sh.mu.Unlock()
	}
	return sum
}

func (sum *Stats) add(s *Stats) {
	sum.Local += s.Local
	sum.Denied += s.Denied
	sum.Early += s.Early
	sum.Calls += s.Calls
	sum.Waited += s.Waited
	sum.Returns += s.Returns
	sum.Returned += s.Returned
	sum.Lost += s.Lost
}

// Held is one lease, for those who watch.
type Held struct {
	Owner limit.Owner
	Tier  *limit.Tier
	Value limit.Value
	Units int64         // in hand
	For   time.Duration // until it ends
}

// Each calls f for each lease that has units, until f returns false. f must not call the store.
func (s *Store) Each(f func(Held) bool) {
	now := clock.At(s.c.Clock())
	for i := range s.shards {
		var list []Held
		sh := &s.shards[i]
		sh.mu.Lock()
		sh.each(func(h *holder) {
			t := h.clock.At(now)
			for _, k := range h.counters {
				if k.lease.Units > 0 && t < k.until {
					list = append(list, Held{h.owner, k.tier, k.value, k.lease.Units, time.Duration(k.until-t) * time.Microsecond})
				}
			}
		})
		sh.mu.Unlock()
		for _, held := range list {
			if !f(held) {
				return
			}
		}
	}
}
