package fleet

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"time"

	"github.com/sluicelimits/sluice/internal/limiter/clock"
	"github.com/sluicelimits/sluice/internal/limiter/lease"
	"github.com/sluicelimits/sluice/internal/limiter/resilience"
)

// process is one simulated process: the real store chain, with a clock of its own.
type process struct {
	run     *run
	number  int
	chain   *resilience.Chain
	random  *rand.Rand
	skew    time.Duration // its clock minus the true time
	dead    bool
	ticking bool                          // background tasks are under way
	waiting map[<-chan struct{}][]*worker // by what they wait for

	// Of an environment.
	busyTo   int64 // when it answers the request that it serves, or answered the last, ns
	deciding bool  // a decision is under way
	overdue  bool  // it is still under way after busyTo
}

// tickEvery is how often the background tasks of a server look for work: as often as it gives back spare leases.
const tickEvery = lease.DefaultGiveBackEvery

// startProcess adds a process. It begins to announce itself at once; the background tasks of several processes are
// spread over a period.
func (r *run) startProcess(number int) error {
	p := &process{run: r, number: number, random: rand.New(rand.NewPCG(r.seed, uint64(number)+1)),
		waiting: make(map[<-chan struct{}][]*worker)}
	runtime := &clock.Runtime{
		Now:   p.time,
		Go:    func(f func()) { r.after(0, f) },
		Sleep: func(_ context.Context, d time.Duration) { r.parkUntil(r.now + d.Nanoseconds()) },
		Wait:  p.wait,
		Wake:  p.wake,
		Rand:  p.random.Int64N,
		Hash:  hashName,
	}
	chain, err := resilience.NewChain(resilience.ChainConfig{
		Rates:  resilience.NamedStore{Name: "redis", Store: port{p}},
		Frozen: true, MaxInstances: r.scenario.Instances, Runtime: runtime, Log: slog.New(slog.DiscardHandler),
		Lease:    lease.Config{MaxCounters: r.maxCounters, Life: r.scenario.LeaseLife},
		Fallback: resilience.FallbackConfig{Bytes: r.fallbackBytes},
	})
	if err != nil {
		return err
	}
	p.chain = chain
	for len(r.processes) <= number {
		r.processes = append(r.processes, nil)
	}
	r.processes[number] = p
	r.live = append(r.live, p)
	if r.scenario.Shape == Serve {
		r.after(time.Duration(p.random.Int64N(int64(tickEvery))), p.tick)
	}
	return nil
}

// time returns the time by the clock of the process.
func (p *process) time() time.Time { return p.run.timeAt(p.run.now + p.skew.Nanoseconds()) }

// tick does what a server does in the background, and adds the next tick.
func (p *process) tick() {
	if p.dead || p.run.draining {
		return
	}
	p.run.after(tickEvery, p.tick)
	if p.ticking { // a call of the last one still waits
		return
	}
	p.ticking = true
	p.chain.RunBackgroundTasks(context.Background(), p.time())
	p.ticking = false
}

// die ends a process. The requests that it decides get no answer, and its leases are lost.
func (r *run) die(number int) {
	p := r.processes[number]
	p.dead = true
	for i, other := range r.live {
		if other == p {
			r.live = append(r.live[:i], r.live[i+1:]...)
			break
		}
	}
	for i, other := range r.free {
		if other == p {
			r.free = append(r.free[:i], r.free[i+1:]...)
			break
		}
	}
	r.processes[number] = nil
	r.ended.add(p.chain)
}
