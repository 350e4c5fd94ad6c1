package pacer

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/sluicelimits/sluice/internal/limiter/clock"
	"github.com/sluicelimits/sluice/internal/limiter/ledger"
	"github.com/sluicelimits/sluice/internal/testkit/soak"
)

// simulation is many instances that share a limit, in virtual time, with a tick of a millisecond. A provider counts
// what arrives by its own clock, without any knowledge of the pacers.
type simulation struct {
	seconds int
	limit   int64
	guard   Guard
	clocks  time.Duration                                // largest difference to the provider's clock, either way
	demand  func(instance int, at time.Duration) float64 // units per second

	kills     int           // number of instances that die, with the units that they hold, and begin anew
	halveAt   time.Duration // when the limit is halved, with notice; 0: never
	awayFrom  time.Duration // when the store stops answering
	awayUntil time.Duration // when it answers again
	lossEvery int           // one of so many replies of the store is lost; 0: none
	cost      int64         // of each request; 0: an instance asks once in each tick, for all that it needs
	smoothing Smoothing
	warmUp    time.Duration    // shares are counted from its end on
	maxWait   time.Duration    // of a request; 0: two seconds
	granted   []int64          // units by millisecond; nil: they are not counted
	waits     *[]time.Duration // of the granted requests, from the end of warmUp on; nil: they are not counted
	size      int              // number of instances; 0: 96

	random  *rand.Rand
	entry   ledger.Entry
	all     []*instance
	calls   []call
	arrived map[int64]int64 // by the provider's window
	got     []int64         // units, by instance
	count   int             // number of calls to the store
}

type instance struct {
	c      core
	s      *sharer
	ahead  time.Duration // of the provider's clock
	number int
	since  time.Duration // when it began
}

// call is a call to the ledger that is under way.
type call struct {
	of      *instance
	claim   ledger.Claim
	lease   ledger.Lease
	carried bool
	at      time.Duration // when it is carried out, and then when the reply arrives
	err     error
}

const simulationBegin = 1_800_000_000 * time.Second

// begin makes an instance.
func (m *simulation) begin(number int, now time.Duration) *instance {
	i := &instance{number: number, since: now, s: newSharer(m.limit, m.random.Uint64())}
	i.ahead = time.Duration(m.random.Int64N(int64(2*m.clocks+1))) - m.clocks
	i.c = core{queue: newQueue(), supply: supply{limit: PerSecond(m.limit), guard: m.guard, shared: true,
		smoothing: m.smoothing}}
	return i
}

// result is the outcome of a simulation.
type result struct {
	over     int64   // units beyond the limit, in all windows together
	used     float64 // part of the usable units that were used, after the first seconds
	calls    float64 // per instance and second
	fairness float64 // largest share divided by the smallest one
}

func (m *simulation) run() result {
	m.arrived = map[int64]int64{}
	m.size = cmp.Or(m.size, instances)
	m.got = make([]int64, m.size)
	for i := range m.size {
		m.all = append(m.all, m.begin(i, 0))
	}
	halved := int64(math.MaxInt64)
	var wanted, usable float64
	for now := time.Duration(0); now < time.Duration(m.seconds)*time.Second; now += ms {
		m.reply(now)
		killEvery := time.Duration(m.seconds) * time.Second / time.Duration(m.kills+1)
		if m.kills > 0 && now%killEvery == 700*ms && now > time.Second {
			victim := m.random.IntN(m.size)
			m.all[victim] = m.begin(victim, now)
		}
		if m.halveAt != 0 && now == m.halveAt {
			halved = int64((simulationBegin+now)/time.Second) + 2
			if err := m.entry.SetLimit(m.limit/2, halved); err != nil {
				panic(err)
			}
		}
		for _, i := range m.all {
			wanted += m.tick(i, now)
		}
	}
	// The ledger leases nothing in the first seconds, and the last window is not complete.
	const skip = 5
	var over, used int64
	first := int64(simulationBegin / time.Second)
	for window, n := range m.arrived {
		limit := m.limit
		if window >= halved {
			limit /= 2
		}
		over += max(n-limit, 0)
		if window >= first+skip && window < first+int64(m.seconds)-1 {
			used += n
		}
	}
	for window := first + skip; window < first+int64(m.seconds)-1; window++ {
		limit := m.limit
		if window >= halved {
			limit /= 2
		}
		usable += float64(limit)
	}
	usable = min(usable, wanted)
	return result{over: over, used: float64(used) / usable,
		calls:    float64(m.count) / float64(m.size) / float64(m.seconds),
		fairness: float64(slices.Max(m.got)) / float64(max(slices.Min(m.got), 1))}
}

// reply carries out the calls to the ledger that have arrived there, and delivers the replies that have come back.
func (m *simulation) reply(now time.Duration) {
	kept := m.calls[:0]
	var due []call
	for _, c := range m.calls {
		if c.at <= now {
			due = append(due, c)
		} else {
			kept = append(kept, c)
		}
	}
	m.calls = kept
	slices.SortFunc(due, func(a, b call) int { return cmp.Compare(a.at, b.at) })
	for _, c := range due {
		if !c.carried {
			c.carried = true
			if now >= m.awayFrom && now < m.awayUntil {
				c.err = errors.New("the store is away")
			} else {
				c.lease = m.entry.Claim(&c.claim)
				if m.lossEvery > 0 && m.random.IntN(m.lossEvery) == 0 {
					c.err = errors.New("the reply is lost")
				}
			}
			c.at = now + ms + time.Duration(m.random.Int64N(int64(2*ms)))
			m.calls = append(m.calls, c)
			continue
		}
		if m.all[c.of.number] == c.of {
			c.of.s.done(&c.of.c, &c.claim, c.lease, c.err)
		}
	}
}

// tick makes an instance ask for units, spend the units that it has, and call the ledger. It returns the number of
// units that it asked for.
func (m *simulation) tick(i *instance, now time.Duration) float64 {
	c := &i.c
	c.supply.advance(clock.Instant{Mono: now, Wall: simulationBegin + now + i.ahead})
	wanted := poisson(m.random, m.demand(i.number, now)/1000)
	if wanted > 0 && c.queue.units < 3*m.limit {
		cost := m.cost
		if cost == 0 {
			cost = wanted
		}
		for left := wanted; left > 0; left -= cost {
			c.queue.push("a", cost, now+cmp.Or(m.maxWait, 2*time.Second), askedAt(now))
			c.counts.Asked += cost
		}
	}
	var out [wakeBatch]outcome
	for n := -1; n != 0; {
		n = c.serve(now, out[:])
		for _, o := range out[:n] {
			if o.err != nil {
				continue
			}
			// Some are sent at once, some as late as they may be.
			sent := now
			if m.random.IntN(8) == 0 {
				sent = max(o.permit.useBy-1, now)
			}
			at := sent + 2*ms + time.Duration(m.random.Int64N(int64(10*ms)))
			window := int64((simulationBegin + at) / time.Second)
			m.arrived[window] += o.permit.cost
			if now >= m.warmUp {
				m.got[i.number] += o.permit.cost
			}
			if asked, ok := o.waker.(askedAt); ok && m.waits != nil && now >= m.warmUp {
				*m.waits = append(*m.waits, now-time.Duration(asked))
			}
			if m.granted != nil {
				m.granted[now/ms] += o.permit.cost
			}
		}
	}
	if claim, ok := i.s.due(c, now); ok {
		if err := claim.Check(); err != nil {
			panic(err)
		}
		m.count++
		m.calls = append(m.calls, call{of: i, claim: claim, at: now + ms + time.Duration(m.random.Int64N(int64(2*ms)))})
	}
	return float64(wanted)
}

// askedAt is the waker of a simulated request: the time at which it came.
type askedAt time.Duration

// Wake is not called in a simulation.
func (askedAt) Wake(Permit, error) {}

func poisson(r *rand.Rand, mean float64) int64 {
	if mean > 50 {
		return int64(max(math.Round(mean+math.Sqrt(mean)*r.NormFloat64()), 0))
	}
	n := int64(0)
	for p, none := r.Float64(), math.Exp(-mean); p > none; n++ {
		p *= r.Float64()
	}
	return n
}

// demands are ways to spread a demand over 96 instances. The sum over all instances is total units per second.
var demands = map[string]func(total float64) func(instance int, at time.Duration) float64{
	"even": func(total float64) func(int, time.Duration) float64 {
		return func(int, time.Duration) float64 { return total / instances }
	},
	"Zipf": func(total float64) func(int, time.Duration) float64 {
		sum := 0.0
		for i := range instances {
			sum += 1 / float64(i+1)
		}
		return func(i int, _ time.Duration) float64 { return total / float64(i+1) / sum }
	},
	"80 % jump every 7 s": func(total float64) func(int, time.Duration) float64 {
		return func(i int, at time.Duration) float64 {
			if hot := int(at/(7*time.Second)) * 13 % (instances - 10); i >= hot && i < hot+10 {
				return 0.8 * total / 10
			}
			return 0.2 * total / (instances - 10)
		}
	},
	"on and off": func(total float64) func(int, time.Duration) float64 {
		return func(i int, at time.Duration) float64 {
			if (int(at/time.Second)+i)%4 == 0 {
				return 4 * total / instances
			}
			return 0
		}
	},
}

const instances = 96

// 96 instances that share a limit never exceed it in any window of the provider, by the provider's own count, and use
// nearly all of it. This holds for several limits and demands, with clocks that differ by up to 200 ms, instances that
// die with units in hand, lost replies, a store that is unavailable for a while, and a limit that is halved.
func TestManyInstances(t *testing.T) {
	soak.SkipUnderRace(t)
	t.Parallel()
	limits := []int64{10, 1000}
	switch {
	case testing.Short():
		limits = limits[:1]
	case soak.Full():
		limits = append(limits, 30_000, 300_000)
	}
	for _, limit := range limits {
		for name, demand := range demands {
			for _, harsh := range []bool{false, true} {
				t.Run(fmt.Sprintf("%d/%s/harsh %t", limit, name, harsh), func(t *testing.T) {
					t.Parallel()
					m := simulation{limit: limit, seconds: 20, demand: demand(1.2 * float64(limit)), clocks: 10 * ms,
						guard:  Guard{ClockError: 10 * ms, MaxDelay: 12 * ms},
						random: rand.New(rand.NewPCG(1, uint64(limit)))}
					least := 0.99
					if limit < instances {
						m.cost = 1
						if !harsh {
							m.seconds = 60 // in 20 s, two units would decide between 98 and 99 %
						}
					}
					if harsh {
						m.clocks, m.guard.ClockError = 100*ms, 100*ms
						m.kills, m.lossEvery, m.halveAt = 4, 50, 12500*ms
						m.awayFrom, m.awayUntil = 9200*ms, 9900*ms
						// a window is lost while the store is away, and 2 % of the replies with their units
						least = 0.85
					}
					r := m.run()
					t.Logf("over %d, used %.2f %%, %.2f calls per instance and second", r.over, 100*r.used, r.calls)
					if r.over != 0 {
						t.Errorf("%d units beyond the limit", r.over)
					}
					if r.used < least {
						t.Errorf("%.2f %% are used, want %.0f %%", 100*r.used, 100*least)
					}
					if r.calls > 5 {
						t.Errorf("%.2f calls per instance and second, want at most 5", r.calls)
					}
				})
			}
		}
	}
}

// Instances that all want more than their share get nearly the same number of units, whichever clock is ahead. At a
// limit of 10, an instance has a share of one unit in ten seconds. If its requests wait for two seconds at most, it
// often has none when its turn comes. A scheduler that knows all queues would then still have shares that differ by
// 1.03 to 1.07.
func TestSharesAreFair(t *testing.T) {
	if testing.Short() {
		t.Skip("simulates minutes of 96 instances")
	}
	t.Parallel()
	for _, tt := range []struct {
		limit           int64
		seconds, warmUp int
		maxWait         time.Duration
		most            float64 // largest share divided by the smallest
		onlySoak        bool    // takes long, and shows little that the others do not
	}{
		{10, 900, 60, time.Minute, 1.05, false},
		{10, 900, 60, 2 * time.Second, 1.1, true},
		{1000, 400, 10, 2 * time.Second, 1.02, false},
		{300_000, 120, 10, 2 * time.Second, 1.02, true},
	} {
		if tt.onlySoak && !soak.Full() {
			continue
		}
		t.Run(fmt.Sprintf("%d/%s", tt.limit, tt.maxWait), func(t *testing.T) {
			t.Parallel()
			m := contending(tt.limit, tt.seconds, tt.warmUp, tt.maxWait)
			r := m.run()
			t.Logf("limit %d over %d s, waits up to %s: the largest share is %.3f times the smallest; over %d, "+
				"used %.2f %%, %.2f calls", tt.limit, tt.seconds, tt.maxWait, r.fairness, r.over, 100*r.used, r.calls)
			if r.fairness > tt.most || r.over != 0 || r.used < 0.99 || r.calls > 5 {
				t.Errorf("limit %d: shares differ by %.3f, want at most %.2f; over %d, used %.2f %%, %.2f calls",
					tt.limit, r.fairness, tt.most, r.over, 100*r.used, r.calls)
			}
		})
	}
}

// With Spread, instances that share a limit use nearly all of it, too, although none of them has spent its units long
// before the end of a window.
func TestSpreadUsesTheLimit(t *testing.T) {
	for _, size := range []int{1, 2, 8} {
		for _, limit := range []int64{10, 75, 500} {
			m := simulation{limit: limit, seconds: 40, size: size, smoothing: Spread, cost: 1, clocks: 10 * ms,
				guard:  Guard{ClockError: 10 * ms, MaxDelay: 12 * ms},
				demand: func(int, time.Duration) float64 { return 2 * float64(limit) / float64(size) },
				random: rand.New(rand.NewPCG(1, uint64(limit)))}
			r := m.run()
			if r.over != 0 || r.used < 0.95 || r.calls > 5 {
				t.Errorf("%d instances, limit %d: over %d, %.1f %% used, %.2f calls; want 0, 95 %% and at most 5", size,
					limit, r.over, 100*r.used, r.calls)
			}
		}
	}
}

// Requests of 96 instances that together ask for 80 % of a shared limit wait for a short time, also if the limit is far
// below one unit per instance and window. docs/consumer.md has the figures.
func TestWaitsBelowTheLimit(t *testing.T) {
	soak.SkipUnderRace(t)
	t.Parallel()
	for _, tt := range []struct {
		limit    int64
		seconds  int
		p50, p99 time.Duration
	}{{10, 240, 250 * ms, 4 * time.Second}, {1000, 40, 50 * ms, time.Second}} {
		m := &simulation{seconds: max(soak.Times(tt.seconds), 30), limit: tt.limit, guard: Guard{10 * ms, 14 * ms},
			clocks: 10 * ms, demand: demands["even"](0.8 * float64(tt.limit)), cost: 1, maxWait: 30 * time.Second,
			warmUp: 20 * time.Second, // the backlog of the first three windows is served by then
			waits:  new([]time.Duration), random: rand.New(rand.NewPCG(uint64(tt.limit), 8))}
		r := m.run()
		waits := append(*m.waits, 0)
		slices.Sort(waits)
		p50, p99 := waits[len(waits)/2], waits[len(waits)*99/100]
		t.Logf("limit %d: p50 %s, p99 %s of %d waits; over %d, %.1f calls per instance and second", tt.limit, p50, p99,
			len(waits), r.over, r.calls)
		if r.over > 0 || len(waits) == 1 || p50 > tt.p50 || p99 > tt.p99 {
			t.Errorf("limit %d: waits of %s (p50) and %s (p99), want at most %s and %s; over %d", tt.limit, p50, p99,
				tt.p50, tt.p99, r.over)
		}
	}
}

// contending returns 96 instances that all want twice their share.
func contending(limit int64, seconds, warmUp int, maxWait time.Duration) simulation {
	m := simulation{limit: limit, seconds: warmUp + seconds, maxWait: maxWait,
		warmUp: time.Duration(warmUp) * time.Second, demand: demands["even"](2 * float64(limit)),
		clocks: 10 * ms, guard: Guard{ClockError: 10 * ms, MaxDelay: 12 * ms},
		random: rand.New(rand.NewPCG(1, uint64(limit)))}
	if limit < instances {
		m.cost = 1
	}
	return m
}
