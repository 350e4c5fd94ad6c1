package sim

import (
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/sluicelimits/sluice/internal/limiter/clock"
	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/limiter/resilience"
)

// Scenario describes what a run simulates. A field that is 0 selects the default of [Scenario.setDefaults].
type Scenario struct {
	Name     string
	About    string        // one sentence
	WarmUp   time.Duration // the time before the measured time; only Over and the figures for Check are counted in it
	Measured time.Duration

	Instances int // processes at the beginning
	Affinity  int // how many instances get the requests of one tenant; 0: all of them
	Shards    int // nodes of Redis

	// Tenant number n sends 1/n^Zipf as many requests as the first.
	Tenants  int
	Requests float64       // per second, of all tenants together
	RampUp   time.Duration // how long the rate takes to rise to Requests
	Zipf     float64
	Limits   Limits
	More     []Limits `json:",omitempty"` // further limits of each tenant; for Explore
	Faults   []Fault

	plant defect // a defect that the lease layer is given; nil for a lease layer without one

	// plantFallback returns the chain with a defect in its fallback limiter. If nil, the limiter has no defect.
	plantFallback func(*resilience.Chain, *clock.Runtime) (limit.Store, error)

	failAt func(*run) // for tests: called after the first second of the run, to let the run fail; may be nil
}

// Limits are the limits of the tenants.
type Limits struct {
	Algorithm limit.Algorithm
	Period    time.Duration
	Low, High float64 // bounds of each tenant's limit, in units per second

	// The limit of most tenants is Ample times their demand. Every BindEvery-th tenant's limit is Scarce times its
	// demand.
	Ample, Scarce float64
	BindEvery     int

	SameLimit bool `json:",omitempty"` // only in Scenario.More: these are a further tier of the limit before them

	AlignTenant bool // windows begin at another time for each tenant, as with align: tenant in a plan
}

// madeUpAlgorithms returns the algorithms of the limits: those whose windows have the same length each.
func madeUpAlgorithms() []limit.Algorithm {
	return slices.DeleteFunc(limit.Algorithms(), limit.Algorithm.HasCalendar)
}

// mostProcesses returns the largest number of processes that run at one time.
func (s *Scenario) mostProcesses() int {
	n := s.Instances
	for i := range s.Faults {
		if f := &s.Faults[i]; f.Kind == InstancesJoin {
			n += len(f.Instances)
		}
	}
	return n
}

func (s *Scenario) setDefaults() {
	setDefault(&s.Measured, 30*time.Second)
	setDefault(&s.Shards, 1)
	s.Limits.setDefaults()
	s.More = slices.Clone(s.More)
	for i := range s.More {
		s.More[i].setDefaults()
	}
}

func (l *Limits) setDefaults() {
	setDefault(&l.Period, time.Minute)
	setDefault(&l.Low, 1)
	setDefault(&l.High, math.MaxInt32)
	setDefault(&l.Ample, 1.5)
	setDefault(&l.Scarce, 0.75)
	setDefault(&l.BindEvery, 10)
	setDefault(&l.Algorithm, limit.FixedWindow)
}

func setDefault[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

// loads returns the tenants.
func (s *Scenario) loads() ([]load, error) {
	loads := make([]load, s.Tenants)
	s.setRates(loads)
	known := map[string]*limit.Limit{}
	for i := range loads {
		l := &loads[i]
		l.name = fmt.Sprintf("tenant-%d", i+1)
		all := []limit.Limit{s.Limits.limitOf("requests", s.Limits.unitsOf(i, l.rate))}
		for j := range s.More {
			more := s.More[j].limitOf(fmt.Sprintf("requests-%d", j+2), s.More[j].unitsOf(i, l.rate))
			last := &all[len(all)-1]
			if s.More[j].SameLimit {
				last.Tiers = append(last.Tiers, more.Tiers...)
			} else {
				all = append(all, more)
			}
		}
		for j := range all {
			name := all[j].ID // tenants whose limits have the same units share one limit.Limit
			for _, t := range all[j].Tiers {
				name += fmt.Sprintf(" %d", t.Threshold)
			}
			if known[name] == nil {
				one, err := limit.New(all[j])
				if err != nil {
					return nil, err
				}
				known[name] = one
			}
			l.charges = append(l.charges, limit.Charge{Limit: known[name], Cost: 1})
		}
	}
	return loads, nil
}

// unitsOf returns the units of the limit of a tenant, by its number and its rate.
func (l *Limits) unitsOf(tenant int, rate float64) int64 {
	share := l.Ample
	if tenant%l.BindEvery == l.BindEvery/2 {
		share = l.Scarce
	}
	perSecond := min(max(rate*share, l.Low), l.High)
	return max(int64(math.Round(perSecond*l.Period.Seconds())), 1)
}

func (l *Limits) limitOf(id string, units int64) limit.Limit {
	return limit.Limit{ID: id, OnStoreFailure: limit.Backstop, AlignOwner: l.AlignTenant,
		Tiers: []limit.Tier{{Algorithm: l.Algorithm, Period: l.Period, Threshold: units}}}
}

// setRates divides the requests among the tenants.
func (s *Scenario) setRates(loads []load) {
	sum := 0.0
	for i := range loads {
		loads[i].rate = math.Pow(float64(i+1), -s.Zipf)
		sum += loads[i].rate
	}
	for i := range loads {
		loads[i].rate *= s.Requests / sum
	}
}

// Fault is something that goes wrong, from At on. Its Kind says which of the other fields it has.
type Fault struct {
	Kind      FaultKind
	At        time.Duration // since the beginning of the run
	For       time.Duration // how long it lasts
	Instances []int         // the instances that the fault concerns, by number from 0
	Factor    float64       // by which service times, or the rate of requests, are multiplied
	By        time.Duration // by how much a clock is ahead of the true time; below 0: behind
	PerSecond int64         // how many calls each node accepts
	Loses     bool          // the counters are lost
}

// FaultKind names what goes wrong.
type FaultKind string

// The kinds of faults.
const (
	RedisFailover  FaultKind = "redisFailover"  // the primary does not answer until a replica takes over
	StoreAway      FaultKind = "storeAway"      // the store answers no call
	StoreSlow      FaultKind = "storeSlow"      // the service of a call takes longer
	StoreThrottles FaultKind = "storeThrottles" // nodes refuse calls above a rate

	// ClockSkew sets the clocks of instances ahead of, or behind, the true time. A simulated process has one clock,
	// both for the time of day and for waits. Therefore a clock cannot be set back during a run: a real operating
	// system would not change the monotonic clock, by which waits are measured.
	ClockSkew     FaultKind = "clockSkew"
	InstancesDie  FaultKind = "instancesDie" // the instances do not return their leases
	InstancesJoin FaultKind = "instancesJoin"
	RetryStorm    FaultKind = "retryStorm" // clients ask more often
)
