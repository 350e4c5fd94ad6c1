package sim

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/sluicelimits/sluice/internal/limiter/clock"
	"github.com/sluicelimits/sluice/internal/limiter/lease"
	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/limiter/resilience"
)

// process is one simulated process: the real store chain, with a clock of its own.
type process struct {
	run     *run
	number  int
	chain   *resilience.Chain
	decides limit.Store // the chain, unless a test has planted a defect in its fallback limiter
	random  *rand.Rand
	runtime *clock.Runtime
	skew    time.Duration // its clock minus the true time
	dead    bool
	ticking bool                          // a run of the background tasks has begun and not ended
	waiting map[<-chan struct{}][]*worker // workers by the channel that they wait for

	parts parts // what its fallback limiter admitted, see bounds
}

// tickEvery is how often a server runs its background tasks: as often as the lease layer returns spare leases.
const tickEvery = lease.DefaultGiveBackEvery

// startProcess adds a process. The process announces itself to the instance count at once. Its background tasks begin
// at a random time within tickEvery, so that those of all processes do not run at once.
func (r *run) startProcess(number int) error {
	p := &process{run: r, number: number,
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
	chain, err := resilience.NewChain(resilience.ChainConfig{
		Rates:  resilience.NamedStore{Name: "redis", Store: port{p}},
		Frozen: true, MaxInstances: r.scenario.Instances, Runtime: p.runtime, Log: slog.New(slog.DiscardHandler),
		Lease: lease.Config{MaxCounters: max(maxCounters/r.scenario.mostProcesses(), 1)},
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
	r.live = append(r.live, p)
	r.after(time.Duration(p.random.Int64N(int64(tickEvery))), p.tick)
	return nil
}

// sleep implements clock.Runtime.Sleep for a process.
func (p *process) sleep(ctx context.Context, d time.Duration) {
	if at, ok := ctx.Deadline(); ok {
		d = max(min(d, at.Sub(p.time())), 0)
	}
	p.run.parkUntil(p.run.now + d.Nanoseconds())
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
	r.live = slices.DeleteFunc(r.live, func(other *process) bool { return other == p })
	r.processes[number] = nil
	r.ended.add(p.chain)
}
