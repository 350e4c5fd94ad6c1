// Package lease is the lease layer: a [limit.Store] that wraps another store and decides most requests without calling
// it, from units that the store has charged in advance. A busy counter costs the store about one call per second and
// process; a token bucket that fills in less than two seconds costs two calls in the time in which it fills, because
// its leases end that often. The limits stay exact, because leased units are charged before they are spent.
//
// # What is held
//
// For each owner the layer holds the owner's counters, and for each counter a lease: how many units are leased and not
// spent, and when the lease ends. It also holds what the store said last, such as a denial. The store keeps the bounds
// of the algorithms, see [limit.LeaseRequest]; this package only has to spend the units in time. A lease therefore ends
// by the wall clock or by the monotonic clock, whichever advances further, counted from before the call was sent. So a
// process that was frozen, and whose monotonic clock stood still, does not spend the units of a window that has ended.
// The units of a ramp come free from the arrival of the reply on.
//
// # When the store is asked
//
// A request is decided from leases alone if each of its counters has the units leased, or if one of its limits is known
// to deny it. Otherwise one call asks the store for the units that the request lacks, all of them or none, and for a
// lease of each counter. At most one call that leases a counter is under way (single flight): requests that lack units
// of the counter wait for that call, once, and share the lease that it brings.
//
// A denial by the store is remembered: the same cost, and every larger one, is denied without a call for as long as the
// rule says, and never longer than the store said.
//
// # How much is leased
//
// A [Rule] says how many units to lease; [Adaptive] is the one in use. If there is plenty, a lease lasts until the
// window ends, but no longer than [Config.Life]. If units are scarce, each process leases a part of what is left. If a
// token bucket or a sliding window is used up, each process leases a part of what comes free, as a ramp.
//
// # When units are given back
//
// Every [Config.GiveBackEvery] the layer gives back what it will probably not spend in the next seconds, or before the
// store runs out of units, if units are scarce (giveback.go). When a lease ends, nothing happens at once: the units of
// a lease that has ended, or whose limit has changed, are returned with the next call for the counter (returnLease in
// call.go). If there is no call for a minute, they are lost: they count in the store until its window or period ends.
// [Store.Close] gives back all the rest.
//
// # What happens when the store fails
//
// An error of the store is returned to the caller, and the units that were reserved for the request return to the
// leases. Until a call succeeds, calls ask for no lease, because a grant whose reply is lost would waste more units.
// The cell's own store and each home cell are considered apart. The failed call may have been carried out. If the store
// can tell ([limit.LostReply]), what the call has charged is given back when the store answers again (lostreply.go).
// Otherwise it is lost.
//
// # What is never leased
//
// Limits with [limit.Limit.Exact] and leaky buckets are never leased, so a request for such a limit always calls the
// store. The units that the request needs of its other limits are still reserved from leases, and return to them if
// the store denies. The first request of an owner of which callers choose how many there are, such as an address, is
// passed on, and nothing is held for it (shard.seenBefore). The counter that all values beyond a limit's bound share
// is not leased once the store has named it as such. Shadow limits are leased like others.
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

	"github.com/sluicelimits/sluice/internal/limiter/clock"
	"github.com/sluicelimits/sluice/internal/limiter/limit"
)

var _ limit.Store = (*Store)(nil)

// Defaults of a [Config].
const (
	DefaultLife          = 10 * time.Second       // a process leases what it expects to spend meanwhile
	HomeLife             = 60 * time.Second       // of a lease of a home quota: calls to a home cell cost more
	DefaultGiveBackEvery = 200 * time.Millisecond // measured, see docs/benchmarks.md#leases
	DefaultMaxCounters   = 200_000                // about 100 MB
)

// Config sets up a [Store].
type Config struct {
	Store limit.Store // required; the store to lease from, whose errors are returned unchanged

	// Instances returns how many processes share the counters of one limit: those of this cell, or, of a limit that
	// several cells lease from its home cell, those of all cells. If nil, there is one.
	Instances func(*limit.Limit) int

	// HomeQuotasOnly leases nothing but home quotas. A home quota is a quota that another cell keeps, its home cell
	// ([limit.Limit.Home]).
	HomeQuotasOnly bool
	Rule           Rule             // how much to lease; if nil, Adaptive
	Life           time.Duration    // the longest life of a lease; 0 selects DefaultLife
	GiveBackEvery  time.Duration    // how often spare units are given back; 0 selects the default; below 0: never
	MaxCounters    int              // how many counters are held at most; others are not leased; 0 selects the default
	Clock          func() time.Time // the time of what no request asks for, and how long calls take; if nil, Runtime's

	Runtime *clock.Runtime // if nil, the machine's

	tuning *tuning // if nil, defaultTuning
}

// Store is the lease layer. It is safe for concurrent use. Make it with [New], and close it to give back what is
// leased.
type Store struct {
	config       Config
	seed         maphash.Seed
	boot         uint64 // random; the first half of the receipts' ids
	life         int64  // µs
	counterCount atomic.Int64

	lastCallFailed atomic.Bool // suspends leasing until a call succeeds: a grant whose reply is lost lies idle
	homeCallFailed sync.Map    // the same per home cell: cell name → *atomic.Bool

	lost   lostCalls
	shards [shardCount]shard
	calls  sync.Pool // of *call

	stopGivingBack context.CancelFunc
	background     sync.WaitGroup // the goroutine that gives back
}

// New makes a store and, unless GiveBackEvery is below 0, starts the goroutine that gives back spare units. The error
// names the field that is wrong.
func New(c Config) (*Store, error) {
	switch {
	case c.Store == nil:
		return nil, errors.New("lease store: Store is missing")
	case c.Life < 0 || c.MaxCounters < 0:
		return nil, fmt.Errorf("lease store: Life %s or MaxCounters %d is below zero", c.Life, c.MaxCounters)
	}
	c.setDefaults()
	s := &Store{config: c, seed: maphash.MakeSeed(), boot: rand.Uint64(), life: c.Life.Microseconds()}
	for i := range s.shards {
		s.shards[i].store, s.shards[i].owners = s, make(map[limit.Owner]*ownerLeases)
	}
	s.calls.New = func() any { return new(call) }
	givingBack, stop := context.WithCancel(context.Background())
	s.stopGivingBack = stop
	if c.GiveBackEvery > 0 {
		s.background.Go(func() { s.giveBackRegularly(givingBack) })
	}
	return s, nil
}

func (c *Config) setDefaults() {
	if c.Life == 0 {
		c.Life = DefaultLife
	}
	if c.GiveBackEvery == 0 {
		c.GiveBackEvery = DefaultGiveBackEvery
	}
	if c.MaxCounters == 0 {
		c.MaxCounters = DefaultMaxCounters
	}
	if c.tuning == nil {
		c.tuning = &defaultTuning
	}
	if c.Rule == nil {
		c.Rule = Adaptive{c.tuning}
	}
	if c.Instances == nil {
		c.Instances = func(*limit.Limit) int { return 1 }
	}
	if c.Clock == nil {
		c.Clock = c.Runtime.Time
	}
}

// Accepts returns what the wrapped store says of the limit.
func (s *Store) Accepts(l *limit.Limit) error { return s.config.Store.Accepts(l) }

// AcceptsPlan returns what the wrapped store says of the plan. See [limit.PlanAccepter].
func (s *Store) AcceptsPlan(all []*limit.Limit, together ...[]*limit.Limit) error {
	return limit.AcceptsPlan(s.config.Store, all, together...)
}

// Decide charges all limits of the request or none, from leases if they suffice. See [limit.Store]. If the wrapped
// store returns an error, later calls ask for no lease until one succeeds. An error by which the store answered
// ([limit.Answered]) counts as success there.
//
// A request that has a LeaseRequest for each of its tiers is passed on to the wrapped store as it is.
func (s *Store) Decide(ctx context.Context, req *limit.Request, now time.Time, d *limit.Decision) error {
	if err := ctx.Err(); err != nil {
		d.Clear(now.UnixMicro())
		return err
	}
	hash, instant := s.hashOwner(req.Owner), clock.At(now)
	sh := &s.shards[hash%shardCount]
	sh.mu.Lock()
	if o := sh.owners[req.Owner]; o != nil && len(req.Leases) == 0 && o.decideLocally(req, instant, d) {
		sh.mu.Unlock()
		return nil
	}
	sh.mu.Unlock()
	if err := s.decideByStore(ctx, sh, hash, req, now, d); err != nil {
		d.Clear(now.UnixMicro())
		return err
	}
	return nil
}

// Peek writes to d what the wrapped store says, plus the units that are leased here and not spent. The leases of other
// processes count as used. Peek does not know of denials that are remembered here, so Decide may deny for a while what
// Peek admits. See [limit.Store].
func (s *Store) Peek(ctx context.Context, req *limit.Request, now time.Time, d *limit.Decision) error {
	if err := s.config.Store.Peek(ctx, req, now, d); err != nil {
		return err
	}
	hash := s.hashOwner(req.Owner)
	sh := &s.shards[hash%shardCount]
	sh.mu.Lock()
	if o := sh.owners[req.Owner]; o != nil {
		o.creditLeases(req, now, d)
	}
	sh.mu.Unlock()
	d.Revise().Settle()
	return nil
}

// creditLeases adds to the results of a peek what is leased and can be spent.
func (o *ownerLeases) creditLeases(req *limit.Request, now time.Time, d *limit.Decision) {
	t := o.shard.clock.At(clock.At(now))
	i := 0
	for j := range req.Charges {
		charge := &req.Charges[j]
		for k := range charge.Limit.Tiers {
			if c := o.findCounter(&charge.Limit.Tiers[k], charge.Value, i); c != nil {
				d.Revise().Credit(i, c.spendable(t))
			}
			i++
		}
	}
}

// Settle corrects what was charged in the wrapped store, also what was spent from a lease. Units of a token bucket are
// only given back until the slot of the lease ends. See [limit.Store].
func (s *Store) Settle(ctx context.Context, r *limit.Receipt, used []int64, now time.Time) (limit.Settlement, error) {
	return s.config.Store.Settle(ctx, r, used, now)
}

// Close gives back what is left of every lease. No decision may be under way. Units that could not be given back are
// lost, and the error says how many.
func (s *Store) Close(ctx context.Context) error {
	s.stopGivingBack()
	s.background.Wait()
	return s.giveBackAll(ctx)
}

// mayLease reports whether the configuration and the limit permit leases of the limit's counters.
func (s *Store) mayLease(l *limit.Limit) bool {
	return !l.Exact && (!s.config.HomeQuotasOnly || isHomeQuota(&l.Tiers[0]))
}

// Stats counts what the store has done so far, and what it holds.
type Stats struct {
	Local    int64 // decisions without a call, admitted or denied
	Denied   int64 // of Local, those that were denied
	Early    int64 // of Denied, those whose limit admitted again before the time that the denial named
	Calls    int64 // calls of the wrapped store for requests; not those that only give back
	Waited   int64 // decisions that waited for the call of another request
	Returns  int64 // calls that only gave units back
	Returned int64 // units given back, also those returned with the call for a request
	Lost     int64 // units that were neither spent nor given back; of a call without a reply the most that it can be
	Counters int64 // counters held at present
	Units    int64 // units leased and not spent at present
}

// Stats returns the sums over all shards, whose locks it takes in turn.
func (s *Store) Stats() Stats {
	var sum Stats
	now := clock.At(s.config.Clock())
	for i := range s.shards {
		sh := &s.shards[i]
		sh.mu.Lock()
		sum.add(&sh.stats)
		for _, o := range sh.list {
			t := o.shard.clock.At(now)
			for _, c := range o.counters {
				sum.Counters++
				if t < c.until {
					sum.Units += c.lease.Units
				}
			}
		}
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

// Held describes one lease.
type Held struct {
	Owner limit.Owner
	Tier  *limit.Tier
	Value limit.Value
	Units int64         // leased and not spent
	For   time.Duration // until the lease ends
}

// Each calls f for each lease that has units left, until f returns false. f may call the store: no lock is held
// meanwhile.
func (s *Store) Each(f func(Held) bool) {
	now := clock.At(s.config.Clock())
	for i := range s.shards {
		for _, held := range s.shards[i].heldLeases(now) {
			if !f(held) {
				return
			}
		}
	}
}

func (sh *shard) heldLeases(now clock.Instant) []Held {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	var held []Held
	for _, o := range sh.list {
		t := o.shard.clock.At(now)
		for _, c := range o.counters {
			if c.lease.Units > 0 && t < c.until {
				left := time.Duration(c.until-t) * time.Microsecond
				held = append(held, Held{o.owner, c.tier, c.value, c.lease.Units, left})
			}
		}
	}
	return held
}
