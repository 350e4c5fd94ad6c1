package shared

import (
	"cmp"
	"slices"
	"time"

	"github.com/sluicelimits/sluice/bench/fleet/judge"
	"github.com/sluicelimits/sluice/internal/limiter/limit"
)

// Event is one decision in the log of an instance.
type Event struct {
	At      int64 // µs since 1970, by the store's clock
	Took    time.Duration
	Tenant  int32
	Units   int32
	Allowed bool
}

// Score is the result of a run. Counts cover the measured windows, except for Over, which counts from the first request
// on.
type Score struct {
	Requests, Admitted int64
	Over               int64 // units admitted above a limit

	// ShortPct compares the units that were admitted with those that one counter without leases would have admitted of
	// the same requests. It is the difference, in percent of the latter. Only counters are included whose limit
	// bound: in fixed windows, the windows in which more was asked for than the limit; otherwise tenants with a denial.
	ShortPct float64

	// EarlyPct is the number of early denials in percent of the requests. A denial is early if the admissions of all
	// instances until then leave room for the request. As long as one unit is left over, each denial is early.
	EarlyPct float64

	// MissedPct is the number of denials, in percent of the requests, that one counter without leases would have
	// admitted of the same requests. It counts the requests that are short, and those in whose place a later request
	// was admitted.
	MissedPct float64

	StoreOps float64 // calls to the store per second, including announcements of instances

	// Only of runs as processes.
	P95, P99 time.Duration // percentiles of the time of a decision
	Memory   int64         // bytes that the limiter of an instance needs: the largest of all instances
	Lost     int64         // requests that got an error instead of a decision
	Late     time.Duration // how late requests were sent: one in a hundred was as late or later
}

// span is a span of time, µs since 1970. It does not include until.
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
		if a.Allowed { // of events of the same µs, the admissions that caused a denial come before it
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

// shortfall compares what was admitted with what was possible: see Score.ShortPct.
type shortfall struct {
	fixed bool
	// ideal holds, for each tenant, the counter at the beginning of the measured time. From then on it admits all that
	// fits.
	ideal    []judge.Judge
	counters map[counter]*tally
}

// counter identifies the counter of a tenant and, with fixed windows, one of its windows.
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

// addRequest counts a request. The judge j has counted everything that was admitted before the request. addRequest
// returns true if the request was denied although a counter without leases would have admitted it.
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
