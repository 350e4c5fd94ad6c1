package sim

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/sluicelimits/sluice/bench/fleet/judge"
	"github.com/sluicelimits/sluice/internal/limiter/limit"
)

// epoch is the date and time at which a run begins: 2027-01-15 08:00 UTC, which is the start of a window for every
// period that divides 8 hours.
var epoch = time.Unix(1_800_000_000, 0)

// Options select what is simulated.
type Options struct {
	Scenario *Scenario
	Seed     uint64
	Costs    Costs

	// Progress, unless nil, is called every tenth of a simulated second with the fraction of the run that is done,
	// 0..1.
	Progress func(done float64)
}

// maxCounters bounds the counters that all processes hold together, each an equal part of them: some 600 bytes for a
// counter and its owner, 2.5 GB. A process calls the store for each request whose counters have no room.
const maxCounters = 4_000_000

// tenant is one tenant, and what is counted about it.
//
// judges, costs, limits and accounts have one element for each tier of each charge of req, in the order of the charges.
// The results of a decision have the same order.
type tenant struct {
	hash   uint64        // hashName of its name
	req    limit.Request // always the same
	judges []judge.Judge
	costs  []int64 // units that a request charges
	limits []int32 // the index in run.limits

	accounts  []account // see bounds
	firstTier int       // the number of the first of these tiers over all tenants
	ops       int64     // calls of the store about its counters in the measured time
	arrived   int64     // calls about its counters that arrived at the store since the beginning of the run
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

	tenants   []tenant
	byName    map[string]*tenant
	limits    []*limitCount
	shards    []*shard
	processes []*process // by number; nil: it is dead
	live      []*process
	traffic   traffic
	bounds    bounds

	decisions    int64 // since the beginning of the run
	measuring    bool  // the warm-up is over
	counts       counts
	secondBegan  int64 // when the present second began, ns; endSecond ends it
	overInWarmUp int64 // units above limits before the measured time began
	timeline     timeline
	effects      effects     // of faults
	ended        chainCounts // sums over the processes that are dead
}

// Run simulates a scenario. If ctx ends, the report is about the time until then, and its Partial is true.
func Run(ctx context.Context, o Options) (*Report, error) {
	scenario := *o.Scenario
	scenario.setDefaults()
	r := &run{scenario: &scenario, seed: o.Seed, costs: o.Costs.withDefaults(), ctx: ctx,
		random: rand.New(rand.NewPCG(o.Seed, 0)), byName: make(map[string]*tenant),
		workers: make(map[*worker]bool)}
	r.end = (scenario.WarmUp + scenario.Measured).Nanoseconds()
	err := r.prepare(&o)
	if err == nil {
		r.runAll()
		err = r.failed
	}
	if err != nil {
		return nil, fmt.Errorf("scenario %s: %w", scenario.Name, err)
	}
	return r.report(), nil
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
