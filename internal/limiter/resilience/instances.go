package resilience

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/sluicelimits/sluice/internal/limit"
	"github.com/sluicelimits/sluice/internal/limiter/clock"
)

const (
	// InstancesPeriod is what the internal limit looks back over. Its buckets are a second wide, so it sees the last 10
	// to 11 s.
	InstancesPeriod = 10 * time.Second

	// DefaultAnnounceEvery is the longest time between two announcements of an instance. It is 200 ms below
	// InstancesPeriod, so an announcement that is late by less than that is never missing from the count.
	DefaultAnnounceEvery = 9800 * time.Millisecond

	// An instance that announced itself more often would be counted more than twice.
	leastAnnounceEvery = InstancesPeriod / 2

	retryAnnouncement = time.Second // the pause after an announcement that failed

	// Each pause is shortened by up to a 20th, so that instances which started together drift apart.
	announceSpread = 20
)

// The names under which instances are counted. They are keys of the kind limit.AnyKey, and no tenant, address or key of
// a plan is one.
const (
	instancesKey      = "sluice/instances"
	quotaInstancesKey = "sluice/quotas" // counts the instances of all cells that lease quotas here
)

// InstancesConfig sets up [Instances].
type InstancesConfig struct {
	Store limit.Store   // the store that the instances share, and not leases from it. Required
	Every time.Duration // between two announcements, 5 s..DefaultAnnounceEvery; 0 means DefaultAnnounceEvery

	// Max is what Count returns until something was learned: the most that may run (reserved concurrency). 0 means 1.
	Max int

	// Quotas counts the instances of all cells that share the quotas in the store. If false, the instances of one cell
	// are counted, which share everything in the store.
	Quotas bool
}

// Instances counts how many processes share a store, by means of the store alone. Each instance charges one unit of an
// internal limit every [InstancesPeriod] at the latest. The count of the last period is therefore the number of live
// instances that reach the store. It is safe for concurrent use. Make it with [NewInstances], and either call Run, or
// call Announce with each request.
//
// Count never returns less than the number of instances that have been running for a while, provided that every
// announcement arrives: the counter looks back over more than an instance's longest pause. It sees some instances
// twice, because 10 to 11 s hold 1.02 to 1.18 announcements that are 9.3 to 9.8 s apart. With n instances the average
// of Count is therefore 1.0 to 1.2 n, and up to half an instance more (TestCount measures it). An instance that has
// just started may count twice at first, and one that has ended counts for some 20 s more.
//
// Too large a count makes the parts of the fallback limiter smaller, and too small a count makes them larger. So Count
// returns the larger one of the last two readings.
type Instances struct {
	c       InstancesConfig
	owner   limit.Owner
	charges []limit.Charge

	mu             sync.Mutex
	latest, before int64         // the last two readings; 0: none
	countedAt      int64         // when the store counted the last announcement, µs by its clock; 0: never
	announced      clock.Instant // when the last announcement was sent
	pause          time.Duration // after it
	announcing     bool
}

// NewInstances makes a count that has learned nothing yet. The error names the field.
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
	case c.Every < leastAnnounceEvery || c.Every > DefaultAnnounceEvery:
		return nil, fmt.Errorf("instance count: Every %s is outside %s..%s",
			c.Every, leastAnnounceEvery, DefaultAnnounceEvery)
	}
	l, err := limit.New(limit.Limit{ID: "instances", Exact: true, Tiers: []limit.Tier{{
		Algorithm: limit.SlidingBuckets, Period: InstancesPeriod, Buckets: int(InstancesPeriod / time.Second),
		Threshold: limit.MaxUnits,
	}}})
	if err != nil {
		return nil, fmt.Errorf("instance count: %w", err)
	}
	if err := c.Store.Accepts(l); err != nil {
		return nil, fmt.Errorf("instance count: the store cannot count instances: %w", err)
	}
	owner := limit.Owner{Kind: limit.AnyKey, Name: instancesKey}
	if c.Quotas {
		owner.Name = quotaInstancesKey
	}
	return &Instances{c: c, owner: owner, charges: []limit.Charge{{Limit: l, Cost: 1}}}, nil
}

// Count returns how many instances share the store, at least 1: what was learned last, however long ago, or
// InstancesConfig.Max if nothing was.
func (i *Instances) Count() int {
	i.mu.Lock()
	defer i.mu.Unlock()
	if n := max(i.latest, i.before); n > 0 {
		return int(n)
	}
	return i.c.Max
}

// Announce tells the store that this instance runs, if that is due, and learns how many instances do. It is for
// processes that cannot run in the background: call it with each request; at most one call in a period asks the store.
// Whatever the error, Count stays as it is.
func (i *Instances) Announce(ctx context.Context, now time.Time) error {
	at := clock.At(now)
	i.mu.Lock()
	due := !i.announcing && at.Due(i.announced, i.pause)
	if due {
		i.announcing, i.announced = true, at
	}
	i.mu.Unlock()
	if !due {
		return nil
	}
	var d limit.Decision
	err := i.c.Store.Decide(ctx, &limit.Request{Owner: i.owner, Charges: i.charges}, now, &d)
	i.mu.Lock()
	defer i.mu.Unlock()
	i.announcing = false
	if err != nil || len(d.Results) == 0 {
		i.pause = retryAnnouncement
		return err
	}
	i.pause = i.c.Every - rand.N(i.c.Every/announceSpread)
	if i.latest == 0 { // anywhere in the period: instances are often started together
		i.pause = i.c.Every - rand.N(i.c.Every)
	}
	reading := d.Results[0].Used()
	bucket := d.Now - d.Now%time.Second.Microseconds() // the beginning of the counter's current bucket
	if i.countedAt != 0 && i.countedAt >= bucket-InstancesPeriod.Microseconds() {
		reading-- // the announcement before this one is still counted, too
	}
	i.latest, i.before, i.countedAt = max(reading, 1), i.latest, d.Now
	return nil
}

// Run announces this instance whenever it is due, until the context ends. It is for servers.
func (i *Instances) Run(ctx context.Context) {
	for {
		_ = i.Announce(ctx, time.Now()) // the store's failures are seen where requests are decided
		i.mu.Lock()
		wait := i.pause - clock.Read().Since(i.announced)
		i.mu.Unlock()
		select {
		case <-ctx.Done():
			return
		case <-time.After(max(wait, leastWait)):
		}
	}
}

// leastWait keeps Run from spinning if another goroutine's announcement is under way.
const leastWait = 10 * time.Millisecond
