package fleet

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/plan/route"
)

// Scenario is what a run simulates. The zero value of a field selects the default of [Scenario.setDefaults].
type Scenario struct {
	Name        string
	About       string        // one sentence
	WarmUp      time.Duration // nothing is counted in it but what was admitted too much
	Measured    time.Duration
	Shape       Shape
	Instances   int           // processes at the beginning; of Lambda the most environments at once
	Affinity    int           // the requests of a tenant come to so many instances; 0: to any
	Shards      int           // of the store
	LeaseLife   time.Duration // the longest life of a lease; 0 selects the product's default
	Placement   Placement     // of Lambda
	Busy        time.Duration // how long an environment serves a request
	IdleDeath   time.Duration // how long an environment lives without a request
	SampleEvery int           // every so-maniest tenant is decided; the others only occupy environments

	// The tenants, unless the plans file has some. The tenant in place n asks 1/n^Zipf as often as the first.
	Tenants  int
	Requests float64       // per second, of all tenants together
	RampUp   time.Duration // how long it takes until so many come
	Zipf     float64
	Limits   Limits

	DailySwing float64       // 0..1: how far the rate rises and falls around Requests
	Day        time.Duration // how long a day takes
	Faults     []Fault

	plant defect // if nil, none
}

// Limits are those of made-up tenants.
type Limits struct {
	Algorithm limit.Algorithm
	Period    time.Duration
	Low, High float64 // bounds of each tenant's limit, units per second

	// Most tenants may use Ample times what they ask for. Every BindEvery-th may use Scarce times that.
	Ample, Scarce float64
	BindEvery     int
}

// Shape is what the processes are.
type Shape uint8

// The shapes.
const (
	Serve  Shape = iota // servers that run all the time
	Lambda              // environments that serve one request at a time, and are frozen in between
)

// Placement is which free environment gets a request.
type Placement uint8

// The placements.
const (
	MostRecent Placement = iota // the one that answered last
	RoundRobin                  // the one that has waited longest
)

// Bounds of a scenario.
const (
	maxInstances = 20_000
	maxTenants   = 1_000_000
	maxShards    = 1_000
	maxRequests  = 1e8 // per second
	maxLength    = 48 * time.Hour
)

func (s *Scenario) setDefaults() {
	setDefault(&s.Measured, 30*time.Second)
	setDefault(&s.Shards, 1)
	setDefault(&s.Day, 24*time.Hour)
	setDefault(&s.Busy, 5*time.Millisecond)
	setDefault(&s.IdleDeath, 5*time.Minute)
	setDefault(&s.SampleEvery, 1)
	setDefault(&s.Limits.Period, time.Minute)
	setDefault(&s.Limits.Low, 1)
	setDefault(&s.Limits.High, math.MaxInt32)
	setDefault(&s.Limits.Ample, 1.5)
	setDefault(&s.Limits.Scarce, 0.75)
	setDefault(&s.Limits.BindEvery, 10)
	if s.Limits.Algorithm == 0 {
		s.Limits.Algorithm = limit.FixedWindow
	}
}

func setDefault[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

// check sets what is not set, and returns an error that names the first field that is impossible.
func (s *Scenario) check() error {
	s.setDefaults()
	for _, f := range []struct {
		name       string
		value      float64
		low, high  float64
		isDuration bool
	}{
		{"warmUp", float64(s.WarmUp), 0, float64(maxLength), true},
		{"rampUp", float64(s.RampUp), 0, float64(maxLength), true},
		{"measured", float64(s.Measured), float64(time.Second), float64(maxLength), true},
		{"instances", float64(s.Instances), 1, maxInstances, false},
		{"affinity", float64(s.Affinity), 0, float64(s.Instances), false},
		{"shards", float64(s.Shards), 1, maxShards, false},
		{"leaseLife", float64(s.LeaseLife), 0, float64(time.Hour), true},
		{"busy", float64(s.Busy), float64(time.Microsecond), float64(time.Hour), true},
		{"idleDeath", float64(s.IdleDeath), float64(time.Second), float64(maxLength), true},
		{"sampleEvery", float64(s.SampleEvery), 1, maxTenants, false},
		{"tenants", float64(s.Tenants), 0, maxTenants, false},
		{"requestsPerSecond", s.Requests, 0.001, maxRequests, false},
		{"zipf", s.Zipf, 0, 4, false},
		{"dailySwing", s.DailySwing, 0, 1, false},
		{"day", float64(s.Day), float64(time.Second), float64(maxLength), true},
	} {
		if f.value >= f.low && f.value <= f.high {
			continue
		}
		if f.isDuration {
			return fmt.Errorf("%s %s is outside %s..%s", f.name, time.Duration(f.value), time.Duration(f.low),
				time.Duration(f.high))
		}
		return fmt.Errorf("%s %g is outside %g..%g", f.name, f.value, f.low, f.high)
	}
	if s.SampleEvery > 1 && s.Shape != Lambda {
		return errors.New("sampleEvery is for Lambda environments: requests that are not decided only occupy them")
	}
	return s.checkFaults()
}

// mostProcesses returns how many processes there are at most at once.
func (s *Scenario) mostProcesses() int {
	n := s.Instances
	for i := range s.Faults {
		if f := &s.Faults[i]; f.Kind == InstancesJoin {
			n += len(f.Instances)
		}
	}
	return n
}

// loads returns the tenants: those of the plans file, or made-up ones.
func (s *Scenario) loads(o *Options) ([]load, error) {
	if o.Config != nil {
		return s.configured(o)
	}
	if s.Tenants < 1 {
		return nil, errors.New("tenants is missing: how many there are, or a plans file")
	}
	loads := make([]load, s.Tenants)
	s.setRates(loads)
	known := map[int64]*limit.Limit{}
	for i := range loads {
		l, rate := &loads[i], loads[i].rate
		l.name, l.decided = fmt.Sprintf("tenant-%d", i+1), s.sampled(i)
		share := s.Limits.Ample
		if i/s.SampleEvery%s.Limits.BindEvery == s.Limits.BindEvery/2 {
			share = s.Limits.Scarce
		}
		perSecond := min(max(rate*share, s.Limits.Low), s.Limits.High)
		units := max(int64(math.Round(perSecond*s.Limits.Period.Seconds())), 1)
		one := known[units]
		if one == nil {
			var err error
			one, err = limit.New(limit.Limit{ID: "requests", OnStoreFailure: limit.Backstop,
				Tiers: []limit.Tier{{Algorithm: s.Limits.Algorithm, Period: s.Limits.Period, Threshold: units}}})
			if err != nil {
				return nil, err
			}
			known[units] = one
		}
		l.charges = []limit.Charge{{Limit: one, Cost: 1}}
	}
	return loads, nil
}

// sampled reports whether the requests of a tenant are decided: those in the middle of each SampleEvery tenants.
func (s *Scenario) sampled(tenant int) bool { return tenant%s.SampleEvery == s.SampleEvery/2 }

// setRates gives each tenant its part of the requests.
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

// configured returns the tenants of the plans file, in the order of the file.
func (s *Scenario) configured(o *Options) ([]load, error) {
	path := route.Clean(o.Path)
	all := o.Config.Tenants()
	if len(all) == 0 {
		return nil, errors.New("the plans have no tenants")
	}
	loads := make([]load, len(all))
	s.setRates(loads)
	limited := false
	for i, t := range all {
		loads[i].name, loads[i].decided = t.ID, s.sampled(i)
		loads[i].charges = chargesOf(t, &path)
		limited = limited || len(loads[i].charges) > 0
	}
	if !limited {
		return nil, fmt.Errorf("no limit of any tenant applies to GET %s", path.String())
	}
	return loads, nil
}

// Fault is something that goes wrong.
type Fault struct {
	Kind      FaultKind
	At        time.Duration // since the beginning of the run
	For       time.Duration // how long it lasts
	Instances []int         // whom it concerns, by number from 0
	Factor    float64       // how many times as slow, or as many requests
	By        time.Duration // by how much a clock is ahead of the true time; below 0: behind
	PerSecond int64         // calls that each shard takes
	Loses     bool          // the counters are lost
	Tenant    int           // by number from 1; 0: all
}

// FaultKind is what goes wrong.
type FaultKind string

// The kinds of faults.
const (
	RedisFailover  FaultKind = "redisFailover"  // the primary does not answer until a replica takes over
	StoreAway      FaultKind = "storeAway"      // no call is answered
	StoreSlow      FaultKind = "storeSlow"      // service takes longer
	StoreThrottles FaultKind = "storeThrottles" // calls above a rate are refused

	// ClockSkew sets the clocks of instances. The simulation gives a process one clock for the time of day and for
	// pauses, so it cannot set a clock back as an operating system does, which leaves the monotonic clock alone.
	ClockSkew     FaultKind = "clockSkew"
	InstancesDie  FaultKind = "instancesDie" // without giving back what they lease
	InstancesJoin FaultKind = "instancesJoin"
	RetryStorm    FaultKind = "retryStorm" // clients ask more often
)

// checkFaults returns an error that names the first fault that is impossible.
func (s *Scenario) checkFaults() error {
	alive := make([]bool, s.Instances, s.mostProcesses())
	for i := range alive {
		alive[i] = true
	}
	order := make([]int, len(s.Faults))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return int(s.Faults[a].At - s.Faults[b].At) })
	for _, i := range order {
		f := &s.Faults[i]
		err := f.check(s)
		if err == nil {
			alive, err = f.checkInstances(alive)
		}
		if err != nil {
			return fmt.Errorf("faults[%d], %s at %s: %w", i, f.Kind, f.At, err)
		}
	}
	return nil
}

func (f *Fault) check(s *Scenario) error {
	lasts := f.For > 0
	switch {
	case f.At < 0 || f.At > s.WarmUp+s.Measured:
		return fmt.Errorf("at is outside the run, 0s..%s", s.WarmUp+s.Measured)
	case f.For < 0 || f.For > maxLength:
		return fmt.Errorf("for %s is outside 0s..%s", f.For, maxLength)
	}
	switch f.Kind {
	case RedisFailover, StoreAway:
	case StoreSlow, RetryStorm:
		if f.Factor <= 0 || f.Factor > 1e6 {
			return fmt.Errorf("factor %g is outside 0..1000000", f.Factor)
		}
		if f.Tenant < 0 || f.Tenant > maxTenants {
			return fmt.Errorf("tenant %d is below 1", f.Tenant)
		}
	case StoreThrottles:
		if f.PerSecond < 1 {
			return fmt.Errorf("perSecond %d is below 1", f.PerSecond)
		}
	case ClockSkew, InstancesDie, InstancesJoin:
		return f.checkKind(s)
	default:
		return fmt.Errorf("there is no such kind of fault")
	}
	if !lasts {
		return errors.New("for is missing: how long it lasts")
	}
	return nil
}

// checkKind checks what a fault of single instances has.
func (f *Fault) checkKind(s *Scenario) error {
	switch {
	case f.By < -time.Hour || f.By > time.Hour:
		return fmt.Errorf("by %s is outside -1h0m0s..1h0m0s", f.By)
	case f.Kind == ClockSkew && (f.By < 0 && f.At > 0 || f.By > 0 && f.For > 0):
		return errors.New("a clock that is set back cannot be simulated: let by be below zero from 0s on, or above " +
			"zero without an end")
	case s.Shape != Serve:
		return errors.New("it is about instances of serve: the environments of Lambda come and go by themselves")
	}
	return nil
}

// checkInstances follows who is alive.
func (f *Fault) checkInstances(alive []bool) ([]bool, error) {
	switch f.Kind {
	case ClockSkew, InstancesDie, InstancesJoin:
	default:
		if len(f.Instances) > 0 {
			return alive, errors.New("it does not concern single instances")
		}
		return alive, nil
	}
	if len(f.Instances) == 0 {
		return alive, errors.New("instances is missing: whom it concerns")
	}
	for _, n := range f.Instances {
		switch {
		case n < 0 || n > len(alive) || n == len(alive) && f.Kind != InstancesJoin:
			return alive, fmt.Errorf("there is no instance %d", n)
		case n == len(alive):
			alive = append(alive, true)
		case f.Kind == InstancesJoin && alive[n]:
			return alive, fmt.Errorf("instance %d runs already", n)
		case f.Kind != InstancesJoin && !alive[n]:
			return alive, fmt.Errorf("instance %d does not run", n)
		default:
			alive[n] = f.Kind != InstancesDie
		}
	}
	return alive, nil
}
