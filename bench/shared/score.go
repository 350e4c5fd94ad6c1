package shared

import (
	"cmp"
	"slices"
	"time"

	"github.com/sluicelimits/sluice/internal/dev/fleet/judge"
	"github.com/sluicelimits/sluice/internal/limiter/limit"
)

// Event is one decision, as the log of its instance has it.
type Event struct {
	At      int64 // µs since 1970, by the store's clock
	Took    time.Duration
	Tenant  int32
	Units   int32
	Allowed bool
}

// Score is what a run was worth. Counts are of the measured windows, but for Over, which counts from the first request
// on.
type Score struct {
	Requests, Admitted int64
	Over               int64 // units admitted beyond a limit

	// ShortPct is what was not admitted though it was asked for, of what could have been. In fixed windows: of the
	// limit, where more was asked for in the window. Else: of what one counter without leases would have admitted of
	// the same requests, where any were denied.
	ShortPct float64

	// EarlyPct are denials at a moment when all that had been admitted until then, at all instances, left room, of the
	// requests: one unit that is left over counts each denial until it is spent, or the window ends.
	EarlyPct float64

	// MissedPct are denials of what one counter without leases would have admitted of the same requests, of the
	// requests: what is short, and what was made up for by admitting a later request instead.
	MissedPct float64

	StoreOps float64 // calls per second; heartbeats are calls

	// Of processes only.
	P95, P99 time.Duration // of a decision
	Memory   int64         // bytes that an instance needs for its limiter, the largest
	Lost     int64         // requests that got an error instead of a decision
	Late     time.Duration // how late the latest hundredth of the requests was asked
}

// span is measured time, µs since 1970: from its first up to, and without, its last.
type span struct{ from, until int64 }

func (s span) contains(at int64) bool { return at >= s.from && at < s.until }

// grade returns the score of the recorded events, which it sorts.
func grade(s *Scenario, events []Event, measured span) Score {
	slices.SortFunc(events, func(a, b Event) int {
		if c := cmp.Compare(a.At, b.At); c != 0 {
			return c
		}
		if a.Allowed == b.Allowed {
			return 0
		}
		if a.Allowed { // within a µs a denial came after what it was denied for
			return -1
		}
		return 1
	})
	var g Score
	var took []time.Duration
	early, missed := int64(0), int64(0)
	judges := make([]judge.Judge, len(s.Rates))
	for i := range judges {
		judges[i] = newJudge(s, i)
	}
	short := newShortfall(s)
	for i := range events {
		e := &events[i]
		j, inside := judges[e.Tenant], measured.contains(e.At)
		if inside {
			g.Requests++
			if short.addRequest(e, j) {
				missed++
			}
			took = append(took, e.Took)
		}
		switch {
		case e.Allowed:
			g.Over += j.Spend(e.At, int64(e.Units))
			if inside {
				g.Admitted++
			}
		case inside && j.Fits(e.At, int64(e.Units)):
			early++
		}
	}
	if g.Requests > 0 {
		g.EarlyPct = 100 * float64(early) / float64(g.Requests)
		g.MissedPct = 100 * float64(missed) / float64(g.Requests)
	}
	g.ShortPct = short.percent()
	slices.Sort(took)
	if n := len(took); n > 0 {
		g.P95, g.P99 = took[n*95/100], took[n*99/100]
	}
	return g
}

// periodUS is Period in µs.
const periodUS = int64(Period / 1000)

// newJudge returns the judge of one tenant. A token bucket holds the units of one period.
func newJudge(s *Scenario, tenant int) judge.Judge {
	most := s.Limits[tenant]
	return judge.New(judge.Counter{Algorithm: s.Algorithm, Most: most, Burst: most, Period: Period})
}

// shortfall adds up what was possible and what was admitted, of counters whose limit bound.
type shortfall struct {
	fixed    bool
	ideal    []judge.Judge // as the counter was when the measuring began; from there on it admits all that fits
	counters map[counter]*tally
}

// counter is a tenant's, in fixed windows that of one window.
type counter struct {
	tenant int32
	window int64
}

type tally struct{ asked, possible, admitted int64 }

func newShortfall(s *Scenario) *shortfall {
	return &shortfall{
		fixed: s.Algorithm == limit.FixedWindow, ideal: make([]judge.Judge, len(s.Limits)),
		counters: make(map[counter]*tally),
	}
}

// addRequest counts a request. The judge j has seen everything that was admitted before the request. addRequest
// reports whether the request was denied although its units were available.
func (f *shortfall) addRequest(e *Event, j judge.Judge) (missed bool) {
	c := counter{tenant: e.Tenant}
	if f.fixed {
		c.window = e.At / periodUS
	}
	t := f.counters[c]
	if t == nil {
		t = new(tally)
		f.counters[c] = t
	}
	if f.ideal[e.Tenant] == nil {
		f.ideal[e.Tenant] = j.Clone()
	}
	units := int64(e.Units)
	t.asked += units
	if e.Allowed {
		t.admitted += units
	}
	one := f.ideal[e.Tenant]
	if !one.Fits(e.At, units) {
		return false
	}
	one.Spend(e.At, units)
	t.possible += units
	return !e.Allowed
}

func (f *shortfall) percent() float64 {
	possible, missing := int64(0), int64(0)
	for _, t := range f.counters {
		if t.asked > t.possible || !f.fixed && t.asked > t.admitted {
			possible += t.possible
			missing += t.possible - t.admitted
		}
	}
	if possible == 0 {
		return 0
	}
	return 100 * float64(missing) / float64(possible)
}
