package fleet

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/sluicelimits/sluice/internal/cell/cellconfig"
	"github.com/sluicelimits/sluice/internal/limiter/clock"
	"github.com/sluicelimits/sluice/internal/limiter/lease"
	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/limiter/resilience"
)

// process is one simulated process: the real store chain, with a clock of its own.
type process struct {
	run     *run
	number  int
	cell    *cell
	chain   *resilience.Chain
	decides limit.Store        // the chain, unless a test has planted a defect in its fallback limiter
	reader  *cellconfig.Reader // its copy of the configuration; nil if there is no control plane
	random  *rand.Rand
	runtime *clock.Runtime
	skew    time.Duration // its clock minus the true time
	dead    bool
	ticking bool                          // a run of the background tasks has begun and not ended
	waiting map[<-chan struct{}][]*worker // workers by the channel that they wait for

	parts parts // what its fallback limiter admitted, see bounds

	// The fields below are used by Lambda environments only.
	function *function
	busyTo   int64 // when the present request ends, or the last one ended, ns
	deciding bool  // a decision is under way
	overdue  bool  // the decision is still under way after busyTo
}

// tickEvery is how often a server runs its background tasks: as often as the lease layer returns spare leases.
const tickEvery = lease.DefaultGiveBackEvery

// startProcess adds a process. The process announces itself to the instance count at once. Its background tasks begin
// at a random time within tickEvery, so that those of all processes do not run at once.
func (r *run) startProcess(number int) error {
	p := &process{run: r, number: number, cell: r.cellOf(number),
		random:  rand.New(rand.NewPCG(r.seed, uint64(number)+1)),
		waiting: make(map[<-chan struct{}][]*worker)}
	p.runtime = &clock.Runtime{
		Now:   p.time,
		Go:    func(f func()) { r.after(0, f) },
		Sleep: p.sleep,
		Wait:  p.wait,
		Wake:  p.wake,
		Rand:  p.random.Int64N,
		Hash:  r.hashOf,
	}
	counters, err := r.countersOf(p)
	if err != nil {
		return err
	}
	chain, err := resilience.NewChain(resilience.ChainConfig{
		Rates:  counters,
		Frozen: true, MaxInstances: r.scenario.Instances, Runtime: p.runtime, Log: slog.New(slog.DiscardHandler),
		Lease:    lease.Config{MaxCounters: r.maxCounters, Life: r.scenario.LeaseLife},
		Fallback: resilience.FallbackConfig{Bytes: r.fallbackBytes},
		Cell:     r.cellName(p.cell),
	})
	if err != nil {
		return err
	}
	p.chain, p.decides = chain, chain
	if r.scenario.plantFallback != nil {
		if p.decides, err = r.scenario.plantFallback(chain, p.runtime); err != nil {
			return err
		}
	}
	for len(r.processes) <= number {
		r.processes = append(r.processes, nil)
	}
	r.processes[number] = p
	if r.plane != nil {
		return p.readConfiguration()
	}
	p.serve()
	return nil
}

// countersOf returns the store of a process, which keeps its counters.
func (r *run) countersOf(p *process) (resilience.NamedStore, error) {
	if r.scenario.Store == DynamoDB {
		return r.tableStore(p)
	}
	return resilience.NamedStore{Name: "redis", Store: port{p}}, nil
}

// sleep implements clock.Runtime.Sleep for a process.
func (p *process) sleep(ctx context.Context, d time.Duration) {
	if at, ok := ctx.Deadline(); ok {
		d = max(min(d, at.Sub(p.time())), 0)
	}
	p.run.parkUntil(p.run.now + d.Nanoseconds())
}

// serve lets requests come to the process.
func (p *process) serve() {
	r := p.run
	r.live = append(r.live, p)
	p.cell.live = append(p.cell.live, p)
	if r.scenario.Shape == Serve {
		r.after(time.Duration(p.random.Int64N(int64(tickEvery))), p.tick)
	}
}

// time returns the time that the clock of the process shows.
func (p *process) time() time.Time { return p.run.timeAt(p.run.now + p.skew.Nanoseconds()) }

// tick runs the background tasks of a server, and adds the next tick.
func (p *process) tick() {
	if p.dead || p.run.draining {
		return
	}
	p.run.after(tickEvery, p.tick)
	if p.ticking { // a call of the last tick is still under way
		return
	}
	p.ticking = true
	p.chain.RunBackgroundTasks(context.Background(), p.time())
	p.ticking = false
}

// die ends a process. Its decisions that are under way get no answer, and its leases are lost.
func (r *run) die(number int) {
	p := r.processes[number]
	p.dead = true
	r.live, p.cell.live = without(r.live, p), without(p.cell.live, p)
	r.processes[number] = nil
	r.ended.add(p.chain)
}

func without(live []*process, p *process) []*process {
	if i := slices.Index(live, p); i >= 0 {
		return slices.Delete(live, i, i+1)
	}
	return live
}
