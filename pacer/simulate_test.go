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
	granted   []int64 // units by millisecond; nil: they are not counted

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
func (m *simulation) begin(number int) *instance {
	i := &instance{number: number, s: newSharer(m.limit, m.random.Uint64())}
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
	m.got = make([]int64, instances)
	for i := range instances {
		m.all = append(m.all, m.begin(i))
	}
	halved := int64(math.MaxInt64)
	var wanted, usable float64
	for now := time.Duration(0); now < time.Duration(m.seconds)*time.Second; now += ms {
		m.reply(now)
		killEvery := time.Duration(m.seconds) * time.Second / time.Duration(m.kills+1)
		if m.kills > 0 && now%killEvery == 700*ms && now > time.Second {
			victim := m.random.IntN(instances)
			m.all[victim] = m.begin(victim)
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
		calls:    float64(m.count) / float64(instances) / float64(m.seconds),
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
			c.queue.push("a", cost, now+2*time.Second, nil)
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
			m.got[i.number] += o.permit.cost
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
	limits := []int64{10, 1000, 300_000}
	if testing.Short() {
		limits = limits[:1]
	}
	for _, limit := range limits {
		for name, demand := range demands {
			for _, harsh := range []bool{false, true} {
				t.Run(fmt.Sprintf("%d/%s/harsh %t", limit, name, harsh), func(t *testing.T) {
					m := simulation{limit: limit, seconds: 20, demand: demand(1.2 * float64(limit)), clocks: 10 * ms,
						guard:  Guard{ClockError: 10 * ms, MaxDelay: 12 * ms},
						random: rand.New(rand.NewPCG(1, uint64(limit)))}
					least := 0.99
					if limit < instances {
						m.cost = 1
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

// Instances that all want more than their share get nearly the same number of units, whichever clock is ahead.
func TestSharesAreFair(t *testing.T) {
	if testing.Short() {
		t.Skip("simulates minutes of 96 instances")
	}
	for _, tt := range []struct {
		limit   int64
		seconds int
		most    float64 // largest share divided by the smallest
	}{{10, 900, 2.5}, {1000, 400, 1.08}, {300_000, 120, 1.03}} {
		m := simulation{limit: tt.limit, seconds: tt.seconds, demand: demands["even"](2 * float64(tt.limit)),
			clocks: 10 * ms, guard: Guard{ClockError: 10 * ms, MaxDelay: 12 * ms},
			random: rand.New(rand.NewPCG(1, uint64(tt.limit)))}
		if tt.limit < instances {
			m.cost = 1
		}
		r := m.run()
		t.Logf("limit %d over %d s: the largest share is %.3f times the smallest; over %d, used %.2f %%, %.2f calls",
			tt.limit, tt.seconds, r.fairness, r.over, 100*r.used, r.calls)
		if r.fairness > tt.most || r.over != 0 || r.used < 0.99 {
			t.Errorf("limit %d: shares differ by %.3f, want at most %.2f; over %d, used %.2f %%", tt.limit, r.fairness,
				tt.most, r.over, 100*r.used)
		}
	}
}
