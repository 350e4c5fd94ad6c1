package resilience

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/sluicelimits/sluice/internal/limiter/clock"
	"github.com/sluicelimits/sluice/internal/limiter/limit"
)

const (
	// InstancesPeriod is the period of the internal limit that counts announcements. The limit has buckets of a second,
	// so it counts those of the last 10 to 11 s.
	InstancesPeriod = 10 * time.Second

	// announceEvery is the longest time between two announcements of an instance. It is 200 ms below InstancesPeriod,
	// so an announcement that is late by less than that is never missing from the count.
	announceEvery = 9800 * time.Millisecond

	retryAnnouncement = time.Second // pause after an announcement that failed

	// announceSpread: each pause is shortened at random by up to a 20th, so that instances which started together do
	// not all announce themselves at once.
	announceSpread = 20
)

// Names of the owners whose counters count the instances. An owner of the kind limit.AnyKey is never a tenant, an
// address or an anonymous caller.
const (
	instancesKey      = "sluice/instances"
	quotaInstancesKey = "sluice/quotas" // counts the instances of all cells that lease quotas from the store
)

// InstancesConfig sets up [Instances].
type InstancesConfig struct {
	Store limit.Store // the store that the instances share, without a lease layer; required

	// Max is what Count returns before the first announcement succeeds: how many instances may run at most (reserved
	// concurrency). 0 means 1.
	Max int

	// Quotas counts the instances of all cells that share the quotas in the store. If false, the instances of one cell
	// are counted, which share everything in the store.
	Quotas bool

	Runtime *clock.Runtime // if nil, the machine's
}

// Instances counts how many processes share a store, by means of the store alone. Each instance charges one unit of an
// internal limit every [InstancesPeriod] at the latest. The count of the last period is therefore the number of live
// instances that reach the store. It is safe for concurrent use. Make it with [NewInstances], and either call Run, or
// call Announce with each request.
//
// Count never returns less than the number of instances that have been running for a while, provided that every
// announcement arrives: the counter looks back over more than an instance's longest pause. It counts some instances
// twice, because 10 to 11 s hold 1.02 to 1.18 announcements that are 9.3 to 9.8 s apart. With n instances the average
// of Count is therefore 1.0 to 1.2 n, and up to half an instance more (TestCount measures it). An instance that has
// just started may count twice at first, and one that has ended counts for some 20 s more.
//
// Too small a count would let the fallback limiter admit too much, so Count returns the larger one of the last two
// readings.
type Instances struct {
	config  InstancesConfig
	owner   limit.Owner
	charges []limit.Charge

	mu               sync.Mutex
	latest, previous int64         // what the last two announcements learned; 0: none
	countedAt        int64         // when the store counted the last announcement, µs by its clock; 0: never
	announced        clock.Instant // when the last announcement was sent
	pause            time.Duration // from that announcement to the next
	announcing       bool          // an announcement is under way

	counted chan struct{} // closed after the first announcement that succeeded
}

// NewInstances makes a count that has learned nothing yet. The error names the field.
func NewInstances(config InstancesConfig) (*Instances, error) {
	if config.Max == 0 {
		config.Max = 1
	}
	switch {
	case config.Store == nil:
		return nil, errors.New("instance count: Store is missing")
	case config.Max < 1:
		return nil, fmt.Errorf("instance count: Max %d is below 1", config.Max)
	}
	l, err := limit.New(limit.Limit{ID: "instances", Exact: true, Tiers: []limit.Tier{{
		Algorithm: limit.SlidingBuckets, Period: InstancesPeriod, Buckets: int(InstancesPeriod / time.Second),
		Threshold: limit.MaxUnits,
	}}})
	if err != nil {
		return nil, fmt.Errorf("instance count: %w", err)
	}
	if err := config.Store.Accepts(l); err != nil {
		return nil, fmt.Errorf("instance count: the store cannot count instances: %w", err)
	}
	owner := limit.Owner{Kind: limit.AnyKey, Name: instancesKey}
	if config.Quotas {
		owner.Name = quotaInstancesKey
	}
	return &Instances{config: config, owner: owner, charges: []limit.Charge{{Limit: l, Cost: 1}},
		counted: make(chan struct{})}, nil
}

// Counted returns a channel that is closed once an announcement has succeeded. Before, Count is InstancesConfig.Max.
func (i *Instances) Counted() <-chan struct{} { return i.counted }

// Count returns how many instances share the store, at least 1. It does not forget: if the store stops answering, Count
// stays as it is. Before the first announcement succeeds, it is InstancesConfig.Max.
func (i *Instances) Count() int {
	i.mu.Lock()
	defer i.mu.Unlock()
	if n := max(i.latest, i.previous); n > 0 {
		return int(n)
	}
	return i.config.Max
}

// Announce charges this instance's unit if that is due, and reads the count. It is for processes that run only during
// requests: call it with each request. At most one call in a period asks the store. If the store fails, Announce
// returns the error, and Count stays as it is.
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
	err := i.config.Store.Decide(ctx, &limit.Request{Owner: i.owner, Charges: i.charges}, now, &d)
	i.mu.Lock()
	defer i.mu.Unlock()
	i.announcing = false
	if err != nil || len(d.Results) == 0 {
		i.pause = retryAnnouncement
		return err
	}
	i.pause = announceEvery - i.config.Runtime.RandomUpTo(announceEvery/announceSpread)
	if i.latest == 0 { // the first pause: instances that started together spread over the whole period
		i.pause = announceEvery - i.config.Runtime.RandomUpTo(announceEvery)
	}
	reading := d.Results[0].Used()
	bucket := d.Now - d.Now%time.Second.Microseconds() // the beginning of the counter's current bucket
	if i.countedAt != 0 && i.countedAt >= bucket-InstancesPeriod.Microseconds() {
		reading-- // it includes this instance's previous announcement
	}
	if i.latest == 0 {
		close(i.counted)
	}
	i.latest, i.previous, i.countedAt = max(reading, 1), i.latest, d.Now
	return nil
}

// Run announces this instance whenever it is due, until the context ends. It is for servers.
func (i *Instances) Run(ctx context.Context) {
	for {
		_ = i.Announce(ctx, time.Now()) // a store that fails is noticed by the next decision
		i.mu.Lock()
		wait := i.pause - clock.Read().Since(i.announced)
		i.mu.Unlock()
		select {
		case <-ctx.Done():
			return
		case <-time.After(max(wait, minRunWait)):
		}
	}
}

// minRunWait keeps Run from spinning if another goroutine's announcement is under way.
const minRunWait = 10 * time.Millisecond
