package fleet

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/sluicelimits/sluice/internal/dev/fleet/judge"
	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/plan"
	"github.com/sluicelimits/sluice/internal/plan/route"
)

// epoch is the date and time at which a run begins: 2027-01-15 08:00 UTC, which is the start of a window for every
// period that divides 8 hours.
var epoch = time.Unix(1_800_000_000, 0)

// Options select what is simulated.
type Options struct {
	Scenario *Scenario
	Seed     uint64
	Costs    Costs

	// Config has the plans and tenants; if nil, the scenario makes tenants and limits. Requests are GET Path. A
	// scenario with several cells needs the Documents of the same plans too.
	Config    *plan.Config
	Documents []plan.Document
	Path      string

	// Arrivals, unless nil, are the requests, in the order of their times, in place of those that the scenario
	// describes. A fault of kind RetryStorm then has no effect.
	Arrivals []Arrival

	// Log, unless nil, is an access log whose requests are simulated in place of those that the scenario describes.
	// Each of its tenants is a tenant of Config, or has a plan of Config. If the scenario's Measured is 0, the run ends
	// with the log.
	Log *Log

	// MaxCounters bounds the counters that all processes hold together; 0 selects DefaultMaxCounters. Each process may
	// hold an equal part of them. A process calls the store for each request whose counters have no room.
	MaxCounters int

	// FallbackBytes bounds the memory of the fallback limiters of all processes together; 0 selects 1 GiB. Each process
	// gets an equal part, but at least 32 KiB and at most 16 MiB.
	FallbackBytes int64

	// Progress, unless nil, is called every tenth of a simulated second with the fraction of the run that is done,
	// 0..1.
	Progress func(done float64)
}

// Arrival is a recorded request.
type Arrival struct {
	At     time.Duration // since the beginning of the run, which is the beginning of a window
	Tenant string        // name
	Busy   time.Duration // how long it occupies an environment of Lambda; 0: as long as the scenario says
}

// DefaultMaxCounters needs about 2.5 GB: some 600 bytes for a counter and its owner.
const DefaultMaxCounters = 4_000_000

const defaultFallbackBytes = 1 << 30

// The least and the most memory that a process gets of what all processes have together. With less than the least, a
// process could hold next to nothing; more than the most is more than a process of a real deployment has.
const (
	minFallbackBytes, maxFallbackBytes = 32 << 10, 16 << 20
	minConfigBytes, maxConfigBytes     = 1 << 20, 64 << 20
)

// tenant is one tenant, and what is counted about it.
//
// judges, costs, limits and accounts have one element for each tier of each charge of req, in the order of the charges.
// The results of a decision have the same order, also if the request is a copy that was read from a cell's
// configuration.
type tenant struct {
	hash    uint64        // hashName of its name
	decided bool          // its requests are decided; false: it has no limits or is not in the sample
	req     limit.Request // always the same
	judges  []judge.Judge // nil: the tier is not judged
	costs   []int64       // units that a request charges
	limits  []int32       // the index in run.limits

	accounts  []account // see bounds
	firstTier int       // the number of the first of these tiers over all tenants
	ops       int64     // calls of the store about its counters in the measured time
	units     unitCount // write units of DynamoDB that these calls took
	arrived   int64     // calls about its counters that arrived at the store since the beginning of the run

	cells []*cell // with a control plane: the cells to which its requests come
	pin   []int   // the cells that an operator pinned it to, by number from 0; nil: every cell serves it
}

// run is one simulation.
type run struct {
	scenario *Scenario
	seed     uint64
	costs    Costs
	random   *rand.Rand
	ctx      context.Context

	// The event loop, see loop.go.
	now      int64 // ns since the beginning of the run
	end      int64 // when the requests end, ns since the beginning of the run
	draining bool  // the end has come: decisions under way are completed, and nothing new begins
	partial  bool  // ctx ended before the run
	queue    queue
	current  *worker          // the worker that runs
	resume   *worker          // the worker that must run next; nil: any idle worker
	idle     []*worker        // workers that have nothing to do
	workers  map[*worker]bool // all workers: the current one, those that wait, and the idle ones
	failed   error            // ends the run

	tenants       []tenant
	byName        map[string]*tenant
	limits        []*limitCount
	cells         []*cell
	shards        []*shard   // of all cells
	processes     []*process // by number; nil: it is dead
	live          []*process // of all cells
	plane         *plane     // nil: there is one cell, and its configuration does not change
	documents     []plan.Document
	path          route.Path // of requests
	configBytes   int64      // bound of the copy of the configuration of each process
	maxCounters   int        // of each process
	fallbackBytes int64      // of each process
	traffic       traffic
	environments  environments
	bounds        bounds

	// sampleWeight is how many requests of all tenants there are for each request of a tenant that is decided: 1 if all
	// tenants are in the sample.
	sampleWeight float64

	decisions    int64 // since the beginning of the run
	measuring    bool  // the warm-up is over
	counts       counts
	secondBegan  int64 // when the present second began, ns; endSecond ends it
	overInWarmUp int64 // units above limits before the measured time began
	timeline     timeline
	effects      effects     // of faults
	ended        chainCounts // sums over the processes that are dead
}

// Run simulates a scenario. If ctx ends, the report is about the time until then, and its Partial is true. An error
// names what is wrong with the scenario or the plans.
func Run(ctx context.Context, o Options) (*Report, error) {
	scenario := *o.Scenario
	err := scenario.checkInputs(o.Config != nil, o.Log != nil)
	if err == nil {
		if o.Log != nil {
			scenario.useLog(o.Log)
		}
		err = scenario.check()
	}
	if err != nil {
		return nil, fmt.Errorf("scenario %s: %w", scenario.Name, err)
	}
	o.Scenario = &scenario
	r := &run{scenario: o.Scenario, seed: o.Seed, costs: o.Costs.withDefaults(o.Scenario.Store), ctx: ctx,
		random: rand.New(rand.NewPCG(o.Seed, 0)), byName: make(map[string]*tenant),
		workers: make(map[*worker]bool)}
	r.end = scenario.length().Nanoseconds()
	maxCounters := o.MaxCounters
	if maxCounters == 0 {
		maxCounters = DefaultMaxCounters
	}
	most := scenario.mostProcesses()
	r.maxCounters = max(maxCounters/most, 1)
	r.fallbackBytes = cmp.Or(o.FallbackBytes, defaultFallbackBytes) / int64(most)
	r.fallbackBytes = min(max(r.fallbackBytes, minFallbackBytes), maxFallbackBytes)
	r.configBytes = min(max(int64(configBytes/most), minConfigBytes), maxConfigBytes)
	var out *Report
	if err = r.prepare(&o); err == nil {
		r.runAll()
		err = r.failed
	}
	if err == nil {
		out, err = r.report(maxCounters)
	}
	if err == nil && o.Log != nil {
		out.Log = o.Log.use(time.Duration(r.end))
	}
	if r.plane != nil {
		err = errors.Join(err, r.plane.close())
	}
	if err != nil {
		return nil, err
	}
	return out, nil
}

// reportProgress tells how far the run is, and adds the event at which it does so the next time, a tenth of a second
// later. It ends the run early if the context of the run has ended. If tell is nil, it tells nothing.
func (r *run) reportProgress(tell func(done float64)) {
	switch {
	case r.draining:
		return
	case r.ctx.Err() != nil:
		r.partial, r.end = true, r.now
		return
	case tell != nil:
		tell(float64(r.now) / float64(r.end))
	}
	r.after(countEvery/10, func() { r.reportProgress(tell) })
}

// countEvery is the length of the steps in which calls and the timeline are counted.
const countEvery = time.Second
