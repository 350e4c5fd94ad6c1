package resilience

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/sluicelimits/sluice/internal/limit"
)

const (
	// InstancesPeriod is what the internal limit looks back over. Its buckets are a second wide, so it sees the last 10 to 11 s.
	InstancesPeriod = 10 * time.Second

	// DefaultAnnounceEvery is the longest time between two beats of an instance. It is below InstancesPeriod, so that a beat which is late by
	// less than the difference is never missing.
	DefaultAnnounceEvery = 9800 * time.Millisecond

	soonest  = InstancesPeriod / 2 // bounds Every: more often would count an instance more than twice
	again    = time.Second         // after a beat that failed
	jitterIn = 20                  // a beat comes up to a 20th of Every early, so that instances which started together drift apart
)

// names of the counters of instances. No tenant, address or key of a plan is an AnyKey.
const (
	ofInstances = "sluice/instances"
	ofQuotas    = "sluice/quotas" // those of all cells that lease quotas here
)

// InstancesConfig sets up a fleet.
type InstancesConfig struct {
	Store limit.Store   // that the instances share: the store itself, not leases from it. Required
	Max   int           // what Count says until something was learned: the most that may run (reserved concurrency); 0 means 1
	Every time.Duration // between two beats, 5 s..DefaultAnnounceEvery; 0 means DefaultAnnounceEvery

	// Quotas counts those that share the quotas in the store, which are instances of several cells; else those of its own cell,
	// which share everything in it.
	Quotas bool
}

// Instances counts the instances. It is safe for concurrent use. Make it with [NewInstances], and call either Run, or Announce with each
// request.
//
// With n instances running for a while Count is 1.0 to 1.2 n on the average (half as many again where beats happen to lie
// close together), and never less than n where every beat arrives: the counter looks back over more than an instance's
// longest pause, and sees some of them twice (10 to 11 s hold 1.02 to 1.18 beats that are 9.3 to 9.8 s apart). One that has just started may count twice at first, and one that has ended counts for some 20 s more.
// Too many makes a backstop smaller; too few would make it larger, so of the last two readings the larger one holds.
type Instances struct {
	c       InstancesConfig
	owner   limit.Owner
	charges []limit.Charge

	mu             sync.Mutex
	learned, older int64     // the last two readings; 0: none
	counted        int64     // when the store counted the last beat, µs by its clock; 0: none
	beat           time.Time // when the last one was sent; by the wall clock, as next: the other may stand still in a frozen process
	next           time.Time
	busy           bool
}

// NewInstances makes a fleet that has learned nothing yet. The error names the field.
func NewInstances(c InstancesConfig) (*Instances, error) {
	if c.Every == 0 {
		c.Every = DefaultAnnounceEvery
	}
	if c.Max == 0 {
		c.Max = 1
	}
	switch {
	case c.Store == nil:
		return nil, errors.New("instance count: Store is missing")
	case c.Max < 1:
		return nil, fmt.Errorf("instance count: Max %d is below 1", c.Max)
	case c.Every < soonest || c.Every > DefaultAnnounceEvery:
		return nil, fmt.Errorf("instance count: Every %s is outside %s..%s", c.Every, soonest, DefaultAnnounceEvery)
	}
	l, err := limit.New(limit.Limit{ID: "instances", Exact: true, Tiers: []limit.Tier{
		{Algorithm: limit.SlidingBuckets, Period: InstancesPeriod, Buckets: int(InstancesPeriod / time.Second), Threshold: limit.MaxUnits},
	}})
	if err != nil {
		return nil, fmt.Errorf("instance count: %w", err)
	}
	if err := c.Store.Accepts(l); err != nil {
		return nil, fmt.Errorf("instance count: the store cannot count instances: %w", err)
	}
	owner := limit.Owner{Kind: limit.AnyKey, Name: ofInstances}
	if c.Quotas {
		owner.Name = ofQuotas
	}
	return &Instances{c: c, owner: owner, charges: []limit.Charge{{Limit: l, Cost: 1}}}, nil
}

// Count is how many instances share the store, at least 1: what was learned last, however long ago, or InstancesConfig.Max.
func (i *Instances) Count() int {
	i.mu.Lock()
	defer i.mu.Unlock()
	if n := max(i.learned, i.older); n > 0 {
		return int(n)
	}
	return i.c.Max
}

// Announce says that this instance runs, if that is due, and learns how many do. It is for instances that cannot run in the
// background: call it with each request; at most one in a period asks the store. Whatever the error, Count stays.
func (i *Instances) Announce(ctx context.Context, now time.Time) error {
	wall := now.Round(0)
	i.mu.Lock()
	due := !i.busy && (!wall.Before(i.next) || wall.Before(i.beat)) // or the clock leapt back
	if due {
		i.busy, i.beat = true, wall
	}
	i.mu.Unlock()
	if !due {
		return nil
	}
	var d limit.Decision
	err := i.c.Store.Decide(ctx, &limit.Request{Owner: i.owner, Charges: i.charges}, now, &d)
	i.mu.Lock()
	defer i.mu.Unlock()
	i.busy = false
	if err != nil || len(d.Results) == 0 {
		i.next = wall.Add(again)
		return err
	}
	pause := i.c.Every - rand.N(i.c.Every/jitterIn)
	if i.learned == 0 { // anywhere in the period: instances are often started together
		pause = i.c.Every - rand.N(i.c.Every)
	}
	reading := d.Results[0].Used()
	if second := time.Second.Microseconds(); i.counted != 0 && i.counted >= d.Now-d.Now%second-InstancesPeriod.Microseconds() {
		reading-- // the beat before this one is still counted, too
	}
	i.learned, i.older, i.counted, i.next = max(reading, 1), i.learned, d.Now, wall.Add(pause)
	return nil
}

// Run beats until the context ends. It is for servers.
func (i *Instances) Run(ctx context.Context) {
	for {
		_ = i.Announce(ctx, time.Now()) // the store's failures are seen where requests are decided
		i.mu.Lock()
		wait := time.Until(i.next)
		i.mu.Unlock()
		select {
		case <-ctx.Done():
			return
		case <-time.After(max(wait, 10*time.Millisecond)):
		}
	}
}
