package pacer

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/sluicelimits/sluice/internal/limiter/ledger"
	"github.com/sluicelimits/sluice/internal/testkit/soak"
)

// learning is a simulation of instances that learn a limit together.
type learning struct {
	simulation
	rates []int64         // learned rates, in the order in which the ledger had them, in units
	most  map[int64]int64 // the largest learned rate while units of a window could be leased, by window
}

func learn(t *testing.T, size, seconds int, l Learning) *learning {
	m := &learning{most: map[int64]int64{}, simulation: simulation{limit: 5000, seconds: seconds, size: size,
		clocks: 10 * ms, guard: Guard{ClockError: 10 * ms, MaxDelay: 12 * ms}, learning: &l,
		demand: func(int, time.Duration) float64 { return 2000 / float64(size) },
		random: rand.New(rand.NewPCG(1, uint64(size)))}}
	m.check = func(now time.Duration) { m.watch(t, now) }
	return m
}

// watch checks that all instances know of the latest rate, and notes the rate.
func (m *learning) watch(t *testing.T, now time.Duration) {
	rate := m.entry.Learned.Rate / ledger.LearnedOne
	if rate > 0 && (len(m.rates) == 0 || m.rates[len(m.rates)-1] != rate) {
		m.rates = append(m.rates, rate)
	}
	window := int64((simulationBegin + now) / time.Second)
	for w := window - 1; w <= window+2; w++ { // the windows that a clock may show, and the one that it prefetches
		m.most[w] = max(m.most[w], rate)
	}
	if now%time.Second != 990*ms || len(m.rates) < 2 || now > m.awayFrom && now < m.awayUntil+2*time.Second {
		return
	}
	known := m.rates[max(len(m.rates)-3, 0):]
	for _, i := range m.all {
		if now-i.since > 2*time.Second && m.lossEvery == 0 && !slices.Contains(known, i.c.supply.learned) {
			t.Errorf("after %s instance %d knows a rate of %d, and the latest ones were %d", now, i.number,
				i.c.supply.learned, known)
		}
	}
}

// finish runs the simulation, and checks that no window had more requests than the learned rate allows.
func (m *learning) finish(t *testing.T) result {
	t.Helper()
	r := m.run()
	for window, n := range m.arrived {
		if n > m.most[window] {
			t.Errorf("%d units arrived in window %d, and the learned rate was %d", n, window, m.most[window])
		}
	}
	if r.calls > 5 {
		t.Errorf("%.2f calls per instance and second, want at most 5", r.calls)
	}
	return r
}

// between returns the accepted and the refused units of some seconds.
func (m *learning) between(from, to int) (accepted, refused int64) {
	for second := from; second < to; second++ {
		accepted += m.accepted[int64(simulationBegin/time.Second)+int64(second)]
		refused += m.refused[int64(simulationBegin/time.Second)+int64(second)]
	}
	return accepted, refused
}

// learnedAfter returns the number of seconds until 90 % of a limit are used, and at most 5 % in addition refused.
func (m *learning) learnedAfter(from int, limit int64) (seconds int) {
	for {
		accepted, refused := m.between(from+seconds, from+seconds+1)
		if seconds == m.seconds || accepted >= limit*9/10 && refused <= limit/20 {
			return seconds
		}
		seconds++
	}
}

// Instances learn a limit together that falls to 40 % and then rises to 375 % of that, without notice. All of them use
// one rate, also those that begin later. With clocks that differ by up to 200 ms, instances that die, lost replies of
// the ledger and a ledger that is away for a while, they learn it as well.
func TestLearnTogether(t *testing.T) {
	soak.SkipUnderRace(t)
	t.Parallel()
	const phase = 90 // seconds
	for _, tt := range []struct {
		size      int
		smoothing Smoothing
		harsh     bool
	}{
		{8, FrontLoaded, false}, {8, Spread, false}, {8, FrontLoaded, true},
		{96, FrontLoaded, false}, {96, Spread, true},
	} {
		if testing.Short() && !(tt.size == 8 && tt.harsh) {
			continue
		}
		t.Run(fmt.Sprintf("%d/%s/harsh %t", tt.size, tt.smoothing, tt.harsh), func(t *testing.T) {
			t.Parallel()
			limits := []int64{1000, 400, 1500}
			if !soak.Full() && (tt.size > 8 || testing.Short()) {
				limits = limits[:2] // 96 instances take a second of processor time for each 20 s
			}
			m := learn(t, tt.size, len(limits)*phase, Learning{})
			m.smoothing = tt.smoothing
			m.provider = func(_ int, at time.Duration) int64 {
				return limits[min(int(at/time.Second)/phase, len(limits)-1)]
			}
			least := 0.95
			if tt.harsh {
				m.clocks, m.guard.ClockError = 100*ms, 100*ms
				m.kills, m.lossEvery = 6, 50
				m.awayFrom, m.awayUntil = 9200*ms, 11900*ms
				least = 0.85
			}
			r := m.finish(t)
			for i, limit := range limits {
				_, learning := m.between(i*phase, i*phase+phase-30)
				accepted, refused := m.between(i*phase+phase-30, i*phase+phase)
				used := float64(accepted) / 30 / float64(limit)
				t.Logf("limit %d: learned after %d s, %d refused in a minute; then %.1f %% used, %d refused in 30 s; "+
					"%.2f calls", limit, m.learnedAfter(i*phase, limit), learning, 100*used, refused, r.calls)
				if used < least || refused > accepted/50 {
					t.Errorf("limit %d: %.1f %% used, %d refused in 30 s, want %.0f %% and %d", limit, 100*used,
						refused, 100*least, accepted/50)
				}
			}
		})
	}
}

// Replies that take nearly a window are counted, without many calls to the ledger.
func TestSlowRepliesTogether(t *testing.T) {
	for _, demand := range []float64{700, 2000} { // units per second, below and above the limit
		m := learn(t, 8, 60, Learning{Start: 500})
		m.delay = 800 * ms
		m.demand = func(int, time.Duration) float64 { return demand / 8 }
		m.provider = func(int, time.Duration) int64 { return 1000 }
		m.finish(t)
		if accepted, _ := m.between(30, 60); float64(accepted) < 0.9*30*min(demand, 1000) {
			t.Errorf("of a demand of %.0f per second, %d were accepted", demand, accepted/30)
		}
	}
}

// Refusals of one instance lower the rate of all. The rate does not rise while the instances use less than it allows.
func TestRefusalsOfOneLowerAll(t *testing.T) {
	const refusedAt, size = 20 * time.Second, 8
	m := learn(t, size, 40, Learning{Start: 1000})
	m.provider = func(instance int, at time.Duration) int64 {
		if instance == 3 && at >= refusedAt && at < refusedAt+time.Second {
			return 0
		}
		return 1 << 40
	}
	m.demand = func(_ int, at time.Duration) float64 {
		if at < 3*time.Second {
			return 0 // nothing is leased yet, and requests that wait would use the whole rate later
		}
		return 700.0 / size
	}
	before := func(now time.Duration) int64 { // the rate that all instances know at a time
		for _, i := range m.all {
			if n := i.c.supply.learned; n != m.all[0].c.supply.learned {
				t.Errorf("after %s the instances know rates of %d and %d", now, m.all[0].c.supply.learned, n)
			}
		}
		return m.all[0].c.supply.learned
	}
	watch := m.check
	m.check = func(now time.Duration) {
		watch(now)
		switch now {
		case refusedAt:
			if rate := before(now); rate != 1000 {
				t.Errorf("from 700 units a second the instances learned a rate of %d, want 1000", rate)
			}
		case refusedAt + 4*time.Second:
			if rate := before(now); rate < 830 || rate > 900 { // an eighth of the requests was refused
				t.Errorf("after the refusals the rate is %d, want some 866", rate)
			}
		}
	}
	m.finish(t)
}

// A provider that bans is not probed: the rate begins at the limit and never rises, whichever instance judges.
func TestBansTogether(t *testing.T) {
	m := learn(t, 8, 60, Learning{Bans: true})
	m.limit = 1000
	m.provider = func(int, time.Duration) int64 { return 600 }
	m.kills = 3
	m.finish(t)
	if m.rates[0] != 1000 || !slices.IsSortedFunc(m.rates, func(a, b int64) int { return cmp.Compare(b, a) }) {
		t.Errorf("the rates were %d, want 1000 and then lower ones", m.rates)
	}
	if last := m.rates[len(m.rates)-1]; last > 600 || last < 560 {
		t.Errorf("of 600 units per second, a rate of %d is learned", last)
	}
	if _, refused := m.between(15, 60); refused > 0 {
		t.Errorf("%d units were refused after a quarter of a minute", refused)
	}
}

// Accepted units of a call whose reply was lost are not told again, since they could raise the rate if the ledger had
// counted them. Refused units are told again.
func TestLostReports(t *testing.T) {
	g := newGroup(&Learning{Start: 10}, PerSecond(100))
	g.roll(50)
	g.observe(false, 7, 50)
	g.observe(true, 2, 50)
	g.observe(true, 1, 49)
	g.observe(false, 100, 48) // too late
	g.observe(false, 100, 51) // of a clock that was set back
	var c ledger.Claim
	g.addReport(&c)
	if want := [2]ledger.Replies{{Accepted: 7, Refused: 2}, {Refused: 1}}; c.Replies != want || c.Interval != 50 ||
		c.Learn != 10 {
		t.Fatalf("the ledger is told %+v, want %v", c, want)
	}
	g.roll(51)
	g.failed(&c)
	var again ledger.Claim
	g.addReport(&again)
	if want := [2]ledger.Replies{{}, {Refused: 2}}; again.Replies != want || again.Interval != 51 {
		t.Errorf("after a lost reply the ledger is told %+v, want %v", again, want)
	}
}

// Windows that are shorter than a second are judged together.
func TestIntervalsOfShortWindows(t *testing.T) {
	g := newGroup(&Learning{}, Limit{Units: 100, Period: 300 * ms})
	judged := int64(2)
	hear := func(window int64, stage ledger.Stage, accepted, refused int64) ledger.Learned {
		g.roll(window)
		g.judged = ledger.Learned{}
		c := ledger.Claim{Window: window, Stage: stage, Interval: g.interval}
		g.recordLease(&c, &ledger.Lease{Limit: 100,
			Learned: ledger.Learned{Rate: 10 * ledger.LearnedOne, Judged: judged, From: 3},
			Replies: [3]ledger.Replies{{}, {Accepted: accepted, Refused: refused}}})
		return g.judged
	}
	const one = ledger.LearnedOne
	if got := hear(15, ledger.Prefetch, 40, 0); got.Rate != 0 {
		t.Errorf("an interval with another rate is judged as %+v", got)
	}
	if got := hear(16, ledger.Share, 40, 0); got.Rate != 0 {
		t.Errorf("another stage than the prefetch judges: %+v", got)
	}
	if got := hear(16, ledger.Prefetch, 35, 0); got.Rate != 0 {
		t.Errorf("35 units of 10 in each of four windows raise the rate: %+v", got)
	}
	if got := hear(15, ledger.Prefetch, 0, 40); got.Rate != 0 {
		t.Errorf("refusals of requests from before a cut are judged as %+v", got)
	}
	want := ledger.Learned{Rate: 15 * one, Judged: 4, From: 5}
	if got := hear(19, ledger.Prefetch, 36, 0); got != want {
		t.Errorf("36 units of 10 in each of four windows: %+v, want %+v", got, want)
	}
	if judged = 4; hear(19, ledger.Prefetch, 36, 0).Rate != 0 {
		t.Error("an interval that somebody has judged is judged")
	}
}
