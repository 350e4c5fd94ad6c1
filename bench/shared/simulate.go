package shared

import (
	"context"
	"fmt"
	"hash/fnv"
	"io"
	"time"

	"github.com/sluicelimits/sluice/internal/limiter/clock"
	"github.com/sluicelimits/sluice/internal/limiter/lease"
	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/limiter/resilience"
	"github.com/sluicelimits/sluice/internal/limiter/store/memory"
)

// epoch is the virtual time at which simulations begin. It is the beginning of a window.
var epoch = time.Unix(1_800_000_000, 0)

// counted counts the calls of an instance to its store. All instances share one count.
type counted struct {
	limit.Store
	calls *int64
}

func (c counted) Decide(ctx context.Context, req *limit.Request, now time.Time, d *limit.Decision) error {
	*c.calls++
	return c.Store.Decide(ctx, req, now, d)
}

// crowd holds the instances of a simulation, which all run in one goroutine.
type crowd struct {
	scenario *Scenario
	open     func() (limit.Store, error)
	by       Limiter
	calls    int64
	now      time.Time
	members  []limit.Store
	leases   []*lease.Store
	asked    []time.Time // when each instance got its last request
	beats    []time.Time // when each instance announced itself last
}

// Simulate runs the scenario in virtual time, on the memory store. Every call is answered at once. The same arguments
// give the same score.
func Simulate(ctx context.Context, s *Scenario, by Limiter, seed uint64, length Length) (Score, error) {
	store, err := memory.New(memory.Config{})
	if err != nil {
		return Score{}, err
	}
	return SimulateOn(ctx, s, by, seed, length, func() (limit.Store, error) { return store, nil })
}

// SimulateOn does what Simulate does, on other stores. open makes the store of an instance. The stores must use the
// time that the caller gives.
func SimulateOn(
	ctx context.Context, s *Scenario, by Limiter, seed uint64, length Length, open func() (limit.Store, error),
) (Score, error) {
	f := &crowd{scenario: s, open: open, by: by, now: epoch}
	f.members, f.asked, f.beats = make([]limit.Store, s.Instances), make([]time.Time, s.Instances), make([]time.Time,
		s.Instances)
	g, err := f.run(ctx, seed, length)
	if err != nil {
		return g, fmt.Errorf("%s, %s: %w", s.Name, by, err)
	}
	return g, nil
}

func (f *crowd) run(ctx context.Context, seed uint64, length Length) (g Score, err error) {
	s := f.scenario
	first, err := f.open()
	if err != nil {
		return g, err
	}
	events, err := s.drain(ctx, first, f.clock)
	if err != nil {
		return g, err
	}
	requests, err := s.requests()
	if err != nil {
		return g, err
	}
	measured := span{epoch.Add(time.Duration(length.Warm) * Period).UnixMicro(), epoch.Add(length.total()).UnixMicro()}
	var before int64 // calls before the measured time
	var d limit.Decision
	nextLook := epoch
	for a := range s.Arrivals(seed, length.total()) {
		for at := epoch.Add(a.At); !nextLook.After(at); nextLook = nextLook.Add(lease.DefaultGiveBackEvery) {
			f.giveBackSpare(ctx, nextLook)
		}
		f.now = epoch.Add(a.At)
		if f.now.UnixMicro() < measured.from {
			before = f.calls
		}
		member, err := f.member(a.Instance)
		if err != nil {
			return g, err
		}
		req := requests[a.Tenant]
		if err := member.Decide(ctx, &req, f.now, &d); err != nil {
			return g, err
		}
		events = append(events, Event{At: f.now.UnixMicro(), Tenant: int32(a.Tenant), Units: 1, Allowed: d.Allowed})
	}
	calls := f.calls - before
	for _, l := range f.leases {
		if err := l.Close(ctx); err != nil {
			return g, err
		}
	}
	g = grade(s, events, measured)
	g.StoreOps = float64(calls) / (time.Duration(length.Measured) * Period).Seconds()
	return g, g.plausible(s, measured)
}

func (f *crowd) clock() time.Time { return f.now }

// runtime returns the runtime of the instances. All calls are made one after the other, so there are no goroutines and
// no waits. The hash must be the same in each run, because it decides which owners give back leases together.
func (f *crowd) runtime() *clock.Runtime {
	return &clock.Runtime{Now: f.clock, Wake: func(<-chan struct{}) {}, Hash: func(name string) uint64 {
		h := fnv.New64a()
		_, _ = io.WriteString(h, name)
		return h.Sum64()
	}}
}

// member returns the store of an instance that gets a request. The instance starts with its first request.
func (f *crowd) member(i int) (limit.Store, error) {
	f.asked[i] = f.now
	if f.by != Naive && f.now.Sub(f.beats[i]) >= resilience.DefaultAnnounceEvery {
		f.beats[i] = f.now
		f.calls++
	}
	if f.members[i] != nil {
		return f.members[i], nil
	}
	store, err := f.open()
	if err != nil {
		return nil, err
	}
	store = counted{store, &f.calls}
	if f.by == Naive {
		f.members[i] = store
		return store, nil
	}
	l, err := lease.New(lease.Config{Store: store, Instances: f.alive, Rule: f.by.rule(f.scenario.Frozen),
		GiveBackEvery: -1, Runtime: f.runtime()})
	if err != nil {
		return nil, err
	}
	f.members[i], f.leases = l, append(f.leases, l)
	return l, nil
}

// giveBackSpare lets all instances give back leased units that they do not need. Frozen instances do not run between
// requests, and give back nothing here.
func (f *crowd) giveBackSpare(ctx context.Context, now time.Time) {
	f.now = now
	if f.scenario.Frozen {
		return
	}
	for _, l := range f.leases {
		l.GiveBackSpare(ctx, now)
	}
}

// aliveFor is how long after its last request an instance is counted, as in package resilience. The simulation counts
// instances itself, because the announcements of package resilience come at random times. Each announcement is counted
// as a call.
const aliveFor = resilience.InstancesPeriod + time.Second

// alive returns the instance count.
func (f *crowd) alive() int {
	n := 0
	for _, at := range f.asked {
		if !at.IsZero() && f.now.Sub(at) < aliveFor {
			n++
		}
	}
	return n
}
