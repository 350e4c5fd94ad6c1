package fleet

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/sluicelimits/sluice/internal/limiter/clock"
	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/limiter/resilience"
	"github.com/sluicelimits/sluice/internal/plan"
	"github.com/sluicelimits/sluice/internal/plan/route"
	"github.com/sluicelimits/sluice/internal/plan/shares"
)

// Scenario describes what a run simulates. A field that is 0 selects the default of [Scenario.setDefaults].
type Scenario struct {
	Name     string
	About    string        // one sentence
	WarmUp   time.Duration // the time before the measured time; only Over and the figures for Check are counted in it
	Measured time.Duration
	Shape    Shape

	// BehindAuthorizer is the round trip between a Lambda authorizer, whose requests take Busy, and the instances of
	// serve that decide for it. 0: clients call the instances themselves.
	BehindAuthorizer time.Duration

	// Cells is how many cells there are at the beginning; each has Instances and Shards of its own. Every PinEvery-th
	// tenant is pinned, in turn, to one cell or to two; if it is 0, every cell serves every tenant. The requests of a
	// tenant come to all cells that serve it, equally often.
	Cells, PinEvery int

	Instances   int           // processes at the beginning; for Lambda, the most environments at once
	Affinity    int           // how many instances of a cell get the requests of one tenant; 0: all of them
	Shards      int           // nodes of Redis, or partitions of the table of DynamoDB
	LeaseLife   time.Duration // the longest life of a lease; 0 selects the product's default
	Store       Store         `json:",omitempty"`
	Placement   Placement     // for Lambda
	Busy        time.Duration // how long an environment serves a request
	ColdStart   time.Duration // how long a new environment takes before it can decide
	IdleDeath   time.Duration // how long an environment lives without a request
	Functions   int           // for Lambda: functions that share the tenants, each with its own environments
	SampleEvery int           // one in this many tenants has its requests decided; others only occupy environments

	// The tenants are made up, unless the plans file has some. Tenant number n sends 1/n^Zipf as many requests as the
	// first.
	Tenants  int
	Requests float64       // per second, of all tenants together
	RampUp   time.Duration // how long the rate takes to rise to Requests
	Zipf     float64
	Limits   Limits
	More     []Limits `json:",omitempty"` // further limits of each tenant that is made up; for Explore

	DailySwing float64       // how far the rate rises above and falls below Requests, as a part of it: 0..1
	Day        time.Duration // length of a day
	Faults     []Fault
	Bounds     Bounds `json:",omitzero"`

	plant defect // a defect of the lease layer; nil if there is none

	// plantFallback returns the chain with a defect in its fallback limiter. If nil, the limiter has no defect.
	plantFallback func(*resilience.Chain, *clock.Runtime) (limit.Store, error)

	failAt func(*run) // for tests: called after the first second of the run, to let the run fail; may be nil

	shares shares.Settings // settings of the balancer; if zero, those of the product
}

// hasPlane reports whether the scenario needs a control plane: there are several cells, or the configuration changes.
func (s *Scenario) hasPlane() bool {
	return s.Cells > 1 || slices.ContainsFunc(s.Faults, func(f Fault) bool { return f.Kind.ofPlane() })
}

// mostCells returns how many cells there are in the whole run.
func (s *Scenario) mostCells() int {
	n := s.Cells
	for i := range s.Faults {
		if s.Faults[i].Kind == CellJoins {
			n++
		}
	}
	return n
}

// Limits are the limits of the tenants that are made up.
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

// madeUpAlgorithms returns the algorithms of limits that are made up: those whose windows have the same length each.
func madeUpAlgorithms() []limit.Algorithm {
	return slices.DeleteFunc(limit.Algorithms(), limit.Algorithm.HasCalendar)
}

// Shape says what kind of processes decide.
type Shape uint8

// The shapes.
const (
	Serve  Shape = iota // servers that run all the time
	Lambda              // environments that serve one request at a time, and are frozen in between
)

// Store is what keeps the counters.
type Store uint8

// The stores.
const (
	Redis    Store = iota // Shards nodes, each with a queue
	DynamoDB              // a table with Shards partitions, each with a rate
)

// Placement says which free environment gets a request.
type Placement uint8

// The placements.
const (
	MostRecent Placement = iota // the environment that answered last
	RoundRobin                  // the environment that has been free for the longest time
)

// Bounds of a scenario.
const (
	maxInstances = 20_000 // of all cells
	maxCells     = shares.MaxCells
	maxTenants   = 1_000_000
	maxShards    = 1_000
	maxRequests  = 1e8 // per second
	maxLength    = 48 * time.Hour
)

const (
	defaultDay      = 24 * time.Hour
	defaultMeasured = 30 * time.Second
)

// length returns how long a run is.
func (s *Scenario) length() time.Duration { return s.WarmUp + cmp.Or(s.Measured, defaultMeasured) }

func (s *Scenario) setDefaults() {
	setDefault(&s.Measured, defaultMeasured)
	setDefault(&s.Cells, 1)
	if s.Store == DynamoDB {
		setDefault(&s.Shards, newTablePartitions)
	}
	setDefault(&s.Shards, 1)
	setDefault(&s.Day, defaultDay)
	setDefault(&s.Busy, 5*time.Millisecond)
	setDefault(&s.IdleDeath, 5*time.Minute)
	setDefault(&s.ColdStart, 100*time.Millisecond)
	setDefault(&s.SampleEvery, 1)
	setDefault(&s.Functions, 1)
	s.Limits.setDefaults()
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

// check sets the defaults, and returns an error that names the first field whose value is impossible.
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
		{"cells", float64(s.Cells), 1, maxCells, false},
		{"pinEvery", float64(s.PinEvery), 0, maxTenants, false},
		{"instances", float64(s.Instances), 1, float64(maxInstances / s.Cells), false},
		{"affinity", float64(s.Affinity), 0, float64(s.Instances), false},
		{"shards", float64(s.Shards), 1, maxShards, false},
		{"leaseLife", float64(s.LeaseLife), 0, float64(time.Hour), true},
		{"busy", float64(s.Busy), float64(time.Microsecond), float64(time.Hour), true},
		{"coldStart", float64(s.ColdStart), float64(time.Microsecond), float64(time.Minute), true},
		{"idleDeath", float64(s.IdleDeath), float64(time.Second), float64(maxLength), true},
		{"functions", float64(s.Functions), 1, maxInstances, false},
		{"behindAuthorizer", float64(s.BehindAuthorizer), 0, float64(time.Second), true},
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
	if run := s.WarmUp + s.Measured; s.RampUp > run {
		return fmt.Errorf("rampUp %s is longer than the run, which is warmUp and measured, %s", s.RampUp, run)
	}
	if s.hasPlane() && s.Shape != Serve {
		return errors.New("several cells, and changes of the configuration, are for instances of serve")
	}
	if s.PinEvery > 0 && !s.hasPlane() {
		return errors.New("pinEvery is for several cells")
	}
	if s.Functions > 1 && s.Shape != Lambda {
		return errors.New("functions is for Lambda environments")
	}
	if s.BehindAuthorizer > 0 && s.Shape != Serve {
		return errors.New("behindAuthorizer is for instances of serve")
	}
	if s.SampleEvery > 1 && s.Shape != Lambda {
		return errors.New("sampleEvery is for Lambda environments: requests that are not decided only occupy them")
	}
	return s.checkFaults()
}

// mostProcesses returns the largest number of processes that run at one time.
func (s *Scenario) mostProcesses() int {
	n := s.Instances * s.mostCells()
	for i := range s.Faults {
		if f := &s.Faults[i]; f.Kind == InstancesJoin {
			n += len(f.Instances)
		}
	}
	return n
}

// loads returns the tenants: those of the plans file, or ones that are made up.
func (s *Scenario) loads(o *Options) ([]load, error) {
	switch {
	case o.Log != nil:
		return o.Log.loads(s, o)
	case o.Config != nil:
		return s.configured(o)
	}
	loads := make([]load, s.Tenants)
	s.setRates(loads)
	known := map[string]*limit.Limit{}
	for i := range loads {
		l := &loads[i]
		l.name, l.sampled = fmt.Sprintf("tenant-%d", i+1), s.sampled(i)
		all := []limit.Limit{s.Limits.limitOf("requests", s.Limits.unitsOf(i/s.SampleEvery, l.rate))}
		for j := range s.More {
			more := s.More[j].limitOf(fmt.Sprintf("requests-%d", j+2), s.More[j].unitsOf(i/s.SampleEvery, l.rate))
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

// sampled reports whether the requests of a tenant are decided. Of each SampleEvery tenants, that is the one in the
// middle.
func (s *Scenario) sampled(tenant int) bool { return tenant%s.SampleEvery == s.SampleEvery/2 }

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

// configured returns the tenants of the plans file, in the order of the file.
func (s *Scenario) configured(o *Options) ([]load, error) {
	path := route.Clean(o.Path)
	all := o.Config.Tenants()
	if len(all) == 0 {
		return nil, errors.New("the plans have no tenants")
	}
	loads := make([]load, len(all))
	if s.hasPlane() {
		if err := readDocuments(loads, all, o.Documents); err != nil {
			return nil, err
		}
	}
	s.setRates(loads)
	limited := false
	for i, t := range all {
		loads[i].name, loads[i].sampled = t.ID, s.sampled(i)
		loads[i].charges = chargesOf(t, &path)
		limited = limited || len(loads[i].charges) > 0
	}
	if !limited {
		return nil, fmt.Errorf("no limit of any tenant applies to GET %s", path.String())
	}
	return loads, nil
}

// readDocuments sets the fields of the loads that come from the tenants' documents.
func readDocuments(loads []load, all []*plan.Tenant, documents []plan.Document) error {
	known := map[string]*plan.Document{}
	for i := range documents {
		if documents[i].Kind == plan.KindTenant {
			known[documents[i].ID] = &documents[i]
		}
	}
	for i, t := range all {
		d := known[t.ID]
		if d == nil {
			return fmt.Errorf("the document of tenant %s is missing", t.ID)
		}
		var own struct{ Overrides, Boosts json.RawMessage }
		if err := json.Unmarshal(d.Body, &own); err != nil {
			return fmt.Errorf("tenant %s: %w", t.ID, err)
		}
		loads[i].document, loads[i].planID = d.Body, t.Plan
		loads[i].own = own.Overrides != nil || own.Boosts != nil
	}
	return nil
}

// Fault is something that goes wrong.
type Fault struct {
	Kind      FaultKind
	At        time.Duration // since the beginning of the run
	For       time.Duration // how long it lasts
	Instances []int         // the instances that the fault concerns, by number from 0
	Factor    float64       // by which service times, or the rate of requests, are multiplied
	By        time.Duration // by how much a clock is ahead of the true time; below 0: behind
	PerSecond int64         // how many calls each node accepts, or how many write units each partition takes
	Loses     bool          // the counters are lost
	Tenant    int           // the tenant that the fault concerns, by number from 1; 0: all tenants

	// Cell is the cell that the fault concerns, by number from 1; 0: all cells.
	Cell int `json:",omitempty"`

	// TrafficAfter is how long after the beginning requests move away from a lost cell, or begin to come to a new one.
	// RemovedAfter is how long after the loss an operator removes the cell by force, and pins its tenants to others;
	// 0: never.
	TrafficAfter, RemovedAfter time.Duration `json:",omitempty"`
}

// FaultKind names what goes wrong.
type FaultKind string

// The kinds of faults.
const (
	RedisFailover  FaultKind = "redisFailover"  // the primary does not answer until a replica takes over
	StoreAway      FaultKind = "storeAway"      // the store answers no call
	StoreSlow      FaultKind = "storeSlow"      // the service of a call takes longer
	StoreThrottles FaultKind = "storeThrottles" // nodes or partitions refuse calls above a rate

	// ClockSkew sets the clocks of instances ahead of, or behind, the true time. A simulated process has one clock,
	// both for the time of day and for waits. Therefore a clock cannot be set back during a run: a real operating
	// system would not change the monotonic clock, by which waits are measured.
	ClockSkew     FaultKind = "clockSkew"
	InstancesDie  FaultKind = "instancesDie" // the instances do not return their leases
	InstancesJoin FaultKind = "instancesJoin"
	RetryStorm    FaultKind = "retryStorm" // clients ask more often

	CellLost  FaultKind = "cellLost"  // the instances and the store of a cell end
	CellJoins FaultKind = "cellJoins" // a cell is added, whose number is the next one

	// PoisonedConfiguration writes documents that do not compile in place of plans, and later the right ones again.
	PoisonedConfiguration FaultKind = "poisonedConfiguration"

	// ConfigurationAway lets the table of configuration of a cell answer neither instances nor the cell's applier.
	ConfigurationAway FaultKind = "configurationAway"
)

// FaultKinds returns all kinds of faults.
func FaultKinds() []FaultKind {
	return []FaultKind{RedisFailover, StoreAway, StoreSlow, StoreThrottles, ClockSkew, InstancesDie, InstancesJoin,
		RetryStorm, CellLost, CellJoins, PoisonedConfiguration, ConfigurationAway}
}

// ofPlane reports whether a fault needs a control plane.
func (k FaultKind) ofPlane() bool {
	return k == CellLost || k == CellJoins || k == PoisonedConfiguration || k == ConfigurationAway
}

// checkFaults returns an error that names the first fault that is impossible.
func (s *Scenario) checkFaults() error {
	running := newRunning(s)
	order := make([]int, len(s.Faults))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return int(s.Faults[a].At - s.Faults[b].At) })
	for _, i := range order {
		f := &s.Faults[i]
		err := f.check(s)
		if err == nil {
			err = running.checkCell(f)
		}
		if err == nil {
			err = running.checkInstances(f)
		}
		if err != nil {
			return fmt.Errorf("faults[%d], %s at %s: %w", i, f.Kind, f.At, err)
		}
	}
	return nil
}

func (f *Fault) check(s *Scenario) error {
	switch {
	case f.At < 0 || f.At > s.WarmUp+s.Measured:
		return fmt.Errorf("at is outside the run, 0s..%s", s.WarmUp+s.Measured)
	case f.For < 0 || f.For > maxLength:
		return fmt.Errorf("for %s is outside 0s..%s", f.For, maxLength)
	}
	if err := f.checkFields(); err != nil {
		return err
	}
	switch f.Kind {
	case ClockSkew, InstancesDie, InstancesJoin:
		return f.checkInstanceFault(s)
	case PoisonedConfiguration, RetryStorm:
		if s.Tenants > 0 {
			return f.checkTenant(s.Tenants)
		}
	case RedisFailover, StoreAway, StoreSlow, StoreThrottles, CellLost, CellJoins, ConfigurationAway:
		if s.Store == DynamoDB && (f.Kind == RedisFailover || f.Loses) {
			return errors.New("it is about nodes of Redis, and the store is dynamodb, which never loses counters: " +
				"use storeAway, storeSlow or storeThrottles")
		}
	}
	return nil
}

// checkTenant checks that the number of the tenant which a fault concerns is not above tenants.
func (f *Fault) checkTenant(tenants int) error {
	if f.Tenant > tenants {
		return fmt.Errorf("there is no tenant %d, but %d of them", f.Tenant, tenants)
	}
	return nil
}

// checkTenants does checkTenant for each fault of the scenario.
func (s *Scenario) checkTenants(tenants int) error {
	for i := range s.Faults {
		f := &s.Faults[i]
		if err := f.checkTenant(tenants); err != nil {
			return fmt.Errorf("faults[%d], %s at %s: %w", i, f.Kind, f.At, err)
		}
	}
	return nil
}

// faultFields names, for each kind of fault, the fields that it needs in addition to Kind and At, and those that it may
// have.
var faultFields = map[FaultKind]struct{ needs, may []string }{
	RedisFailover:         {[]string{"for"}, []string{"cell", "loses"}},
	StoreAway:             {[]string{"for"}, []string{"cell"}},
	StoreSlow:             {[]string{"for", "factor"}, []string{"cell"}},
	StoreThrottles:        {[]string{"for", "perSecond"}, []string{"cell"}},
	ClockSkew:             {[]string{"by", "instances"}, []string{"for"}},
	InstancesDie:          {[]string{"instances"}, nil},
	InstancesJoin:         {[]string{"instances"}, nil},
	RetryStorm:            {[]string{"for", "factor"}, []string{"tenant"}},
	CellLost:              {[]string{"cell", "trafficAfter"}, []string{"removedAfter"}},
	CellJoins:             {[]string{"cell", "trafficAfter"}, nil},
	PoisonedConfiguration: {[]string{"for"}, []string{"tenant"}},
	ConfigurationAway:     {[]string{"for"}, []string{"cell"}},
}

// checkFields returns an error that names a field which the fault needs and lacks, a field which has no effect on a
// fault of this kind, or a field whose value is out of range.
func (f *Fault) checkFields() error {
	fields, ok := faultFields[f.Kind]
	if !ok {
		return errors.New("there is no such kind of fault")
	}
	for _, field := range []struct {
		name  string
		isSet bool
		what  string
	}{
		{"for", f.For != 0, "how long it lasts"},
		{"instances", len(f.Instances) > 0, "whom it concerns"},
		{"factor", f.Factor != 0, "how many times as long a call takes, or as often clients ask"},
		{"by", f.By != 0, "how far the clocks are ahead, or with a minus behind"},
		{"perSecond", f.PerSecond != 0, "how many calls a node takes, or how many write units a partition"},
		{"loses", f.Loses, ""},
		{"tenant", f.Tenant != 0, ""},
		{"cell", f.Cell != 0, "which one"},
		{"trafficAfter", f.TrafficAfter != 0, "when requests move away from the cell, or come to it"},
		{"removedAfter", f.RemovedAfter != 0, ""},
	} {
		needed := slices.Contains(fields.needs, field.name)
		if needed && !field.isSet {
			return fmt.Errorf("%s is missing: %s", field.name, field.what)
		}
		if field.isSet && !needed && !slices.Contains(fields.may, field.name) {
			return fmt.Errorf("%s has no effect on it; it has %s", field.name,
				strings.Join(slices.Concat(fields.needs, fields.may), ", "))
		}
	}
	switch {
	case f.Factor < 0 || f.Factor > 1e6:
		return fmt.Errorf("factor %g is outside 0..1000000", f.Factor)
	case f.PerSecond < 0:
		return fmt.Errorf("perSecond %d is below 1", f.PerSecond)
	case f.Tenant < 0 || f.Tenant > maxTenants:
		return fmt.Errorf("there is no tenant %d", f.Tenant)
	case f.TrafficAfter < 0 || f.TrafficAfter > maxLength:
		return fmt.Errorf("trafficAfter %s is outside 0s..%s", f.TrafficAfter, maxLength)
	case f.RemovedAfter < 0 || f.RemovedAfter > maxLength:
		return fmt.Errorf("removedAfter %s is outside 0s..%s", f.RemovedAfter, maxLength)
	}
	return nil
}

// checkInstanceFault checks a fault that concerns single instances: a skewed clock, or instances that die or join.
func (f *Fault) checkInstanceFault(s *Scenario) error {
	switch {
	case f.By < -time.Hour || f.By > time.Hour:
		return fmt.Errorf("by %s is outside -1h0m0s..1h0m0s", f.By)
	case f.Kind == ClockSkew && (f.By < 0 && f.At > 0 || f.By > 0 && f.For > 0):
		return errors.New("a clock that is set back during the run cannot be simulated: a by below zero needs at: " +
			"0s, and a by above zero must have no for")
	case s.Shape != Serve:
		return errors.New("it needs instances of serve: the environments of Lambda start and end by themselves")
	}
	return nil
}

// running follows which cells and instances run while the faults of a scenario are checked in their order.
type running struct {
	instances []bool
	cells     []bool
	perCell   int  // instances of each cell
	several   bool // there is a control plane, so there may be several cells
}

func newRunning(s *Scenario) *running {
	r := &running{perCell: s.Instances, several: s.hasPlane()}
	for range s.Cells {
		r.addCell()
	}
	return r
}

func (r *running) addCell() {
	r.cells = append(r.cells, true)
	for range r.perCell {
		r.instances = append(r.instances, true)
	}
}

// checkCell checks the cell that a fault concerns, and whether it runs.
func (r *running) checkCell(f *Fault) error {
	switch f.Kind {
	case ClockSkew, InstancesDie, InstancesJoin, RetryStorm, PoisonedConfiguration:
		return nil
	case CellJoins:
		if f.Cell != len(r.cells)+1 {
			return fmt.Errorf("the number of the new cell is %d, want the next one, %d", f.Cell, len(r.cells)+1)
		}
		if len(r.cells) == maxCells {
			return fmt.Errorf("there are %d cells already", maxCells)
		}
		r.addCell()
		return nil
	case RedisFailover, StoreAway, StoreSlow, StoreThrottles, CellLost, ConfigurationAway:
	}
	switch {
	case f.Cell == 0:
		return nil
	case f.Cell < 0 || f.Cell > len(r.cells):
		return fmt.Errorf("there is no cell %d", f.Cell)
	case !r.cells[f.Cell-1]:
		return fmt.Errorf("cell %d was lost before", f.Cell)
	}
	if f.Kind != CellLost {
		return nil
	}
	r.cells[f.Cell-1] = false
	if !slices.Contains(r.cells, true) {
		return fmt.Errorf("cell %d is the last one", f.Cell)
	}
	for i := range r.perCell {
		r.instances[(f.Cell-1)*r.perCell+i] = false
	}
	return nil
}

// checkInstances checks the instances that a fault concerns, and whether they run.
func (r *running) checkInstances(f *Fault) error {
	switch f.Kind {
	case ClockSkew, InstancesDie, InstancesJoin:
	default:
		return nil
	}
	for _, n := range f.Instances {
		last := len(r.instances)
		switch {
		case n < 0 || n > last || n == last && (f.Kind != InstancesJoin || r.several):
			return fmt.Errorf("there is no instance %d", n)
		case n == last:
			r.instances = append(r.instances, true)
		case r.several && !r.cells[n/r.perCell]:
			return fmt.Errorf("instance %d is of cell %d, which was lost before", n, n/r.perCell+1)
		case f.Kind == InstancesJoin && r.instances[n]:
			return fmt.Errorf("instance %d runs already", n)
		case f.Kind != InstancesJoin && !r.instances[n]:
			return fmt.Errorf("instance %d does not run", n)
		default:
			r.instances[n] = f.Kind != InstancesDie
		}
	}
	return nil
}
