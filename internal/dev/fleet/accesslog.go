package fleet

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/sluicelimits/sluice/internal/dev/simulate"
	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/plan"
	"github.com/sluicelimits/sluice/internal/plan/route"
)

// Bounds of an access log.
const (
	maxScale       = 1_000_000
	maxLogLines    = 50_000_000 // 800 MB, at 16 bytes each
	maxLogRequests = 20_000_000 // requests of one second of the log, which are in memory together
)

// Log is the lines of access logs whose tenants have limits. Each line makes Scale requests. Logs count time in
// seconds, so each of these requests comes at a random time within the second of its line.
type Log struct {
	scale  int
	asking []*simulate.Asker // in the order of their first lines
	lines  []logLine         // in the order of seconds
	first  int64             // the second of the first line, since 1970
	read   simulate.Lines
}

type logLine struct {
	second int64
	asker  int32 // index in Log.asking
}

// ReadLog reads access logs, and finds their tenants as sluice simulate does. Each line makes scale requests.
func ReadLog(ctx context.Context, o simulate.Options, scale int) (*Log, error) {
	if scale < 1 || scale > maxScale {
		return nil, fmt.Errorf("scale %d is outside 1..%d", scale, maxScale)
	}
	l := &Log{scale: scale}
	numbers := map[*simulate.Asker]int32{}
	var err error
	l.read, err = simulate.ReadTenants(ctx, o, func(at int64, who *simulate.Asker) error {
		if len(l.lines) == maxLogLines {
			return fmt.Errorf("the access log has more than %d lines: give a part of it", maxLogLines)
		}
		number, ok := numbers[who]
		if !ok {
			number = int32(len(l.asking))
			numbers[who] = number
			l.asking = append(l.asking, who)
		}
		l.lines = append(l.lines, logLine{at / 1e6, number})
		return nil
	})
	if err != nil {
		return nil, err
	}
	if len(l.lines) == 0 {
		return nil, fmt.Errorf("no line of the access log names a tenant that has limits: of %d lines %d cannot be "+
			"used, %d name no tenant, %d name one without a plan, and %d a suspended one. Say where the tenant is "+
			"found by --tenant-from, and which plan others have by --default-plan", l.read.Read, l.read.Unusable,
			l.read.WithoutTenant, l.read.UnknownTenant, l.read.Suspended)
	}
	slices.SortStableFunc(l.lines, func(a, b logLine) int { return cmp.Compare(a.second, b.second) })
	l.first = l.lines[0].second
	return l, nil
}

// length returns how long the log is, in whole seconds.
func (l *Log) length() time.Duration {
	return time.Duration(l.lines[len(l.lines)-1].second-l.first+1) * time.Second
}

// within returns how many lines lie in the first part of the log, of the given length.
func (l *Log) within(length time.Duration) int {
	n, _ := slices.BinarySearchFunc(l.lines, length, func(line logLine, length time.Duration) int {
		return cmp.Compare(line.second-l.first, int64(length/time.Second))
	})
	return n
}

// checkBusiest returns an error if the requests of one second do not fit into memory.
func (l *Log) checkBusiest() error {
	for from := 0; from < len(l.lines); {
		until := from
		for until < len(l.lines) && l.lines[until].second == l.lines[from].second {
			until++
		}
		if n := (until - from) * l.scale; n > maxLogRequests {
			return fmt.Errorf("second %d of the access log has %d requests, which is more than %d: give a smaller "+
				"scale", l.lines[from].second-l.first, n, maxLogRequests)
		}
		from = until
	}
	return nil
}

// loads returns the tenants of the log, each with its rate in the first part of the log, which a run simulates.
func (l *Log) loads(s *Scenario, o *Options) ([]load, error) {
	if err := l.checkBusiest(); err != nil {
		return nil, err
	}
	run := s.WarmUp + s.Measured
	path, lines := route.Clean(o.Path), l.within(run)
	loads := make([]load, len(l.asking))
	for _, line := range l.lines[:lines] {
		loads[line.asker].rate += float64(l.scale) / run.Seconds()
	}
	var named []*plan.Tenant
	var of []int
	for i, who := range l.asking {
		loads[i].name, loads[i].planID, loads[i].sampled = who.Name, who.Plan, s.sampled(i)
		if who.Tenant == nil {
			loads[i].charges = chargesIn(who.Limits, &path)
			loads[i].document = fmt.Appendf(nil, `{"id":%q,"plan":%q}`, who.Name, who.Plan)
			continue
		}
		loads[i].charges = chargesOf(who.Tenant, &path)
		named, of = append(named, who.Tenant), append(of, i)
	}
	if s.hasPlane() {
		documented := make([]load, len(named))
		if err := readDocuments(documented, named, o.Documents); err != nil {
			return nil, err
		}
		for i, d := range documented {
			loads[of[i]].document, loads[of[i]].own = d.document, d.own
		}
	}
	if !slices.ContainsFunc(loads, func(l load) bool { return len(l.charges) > 0 && l.rate > 0 }) {
		return nil, fmt.Errorf("in the first %s of the access log, no tenant asks that has a limit for GET %s", run,
			path.String())
	}
	return loads, nil
}

func chargesIn(set *plan.Set, path *route.Path) []limit.Charge {
	return set.AppendCharges(nil, &plan.Attributes{Method: "GET", Path: path})
}

// logReplay makes the requests of a log, one second of the log at a time.
type logReplay struct {
	log    *Log
	at     int // index of the next line
	random *rand.Rand
}

func (l *Log) replay(seed uint64) *logReplay {
	return &logReplay{log: l, random: rand.New(rand.NewPCG(seed, 0x109))}
}

// next returns the requests of the next second that has lines, in the order of their times. It returns none if the log
// has ended. It reuses the memory of the slice that it is given.
func (l *logReplay) next(requests []recorded) []recorded {
	requests = requests[:0]
	if l.at == len(l.log.lines) {
		return requests
	}
	second := l.log.lines[l.at].second
	for ; l.at < len(l.log.lines) && l.log.lines[l.at].second == second; l.at++ {
		for range l.log.scale {
			requests = append(requests, recorded{tenant: l.log.lines[l.at].asker,
				at: (second-l.log.first)*1e9 + l.random.Int64N(1e9)})
		}
	}
	slices.SortStableFunc(requests, func(a, b recorded) int { return cmp.Compare(a.at, b.at) })
	return requests
}

// LogUse says which lines of an access log a run simulated.
type LogUse struct {
	simulate.Lines

	Scale int   `json:"scale"` // how many requests each line makes
	Later int64 `json:"later"` // lines whose time is after the end of the run
}

func (l *Log) use(length time.Duration) *LogUse {
	return &LogUse{Lines: l.read, Scale: l.scale, Later: int64(len(l.lines) - l.within(length))}
}

// checkInputs returns an error that names the first field that has no effect with a plans file or an access log. It
// must be called before the defaults are set.
func (s *Scenario) checkInputs(plans, log bool) error {
	for _, f := range []struct {
		name       string
		isSet      bool
		notWithAny bool // the field has no effect with plans or with a log; false: with a log only
	}{
		{"tenants", s.Tenants != 0, true},
		{"limits", s.Limits != Limits{}, true},
		{"requestsPerSecond", s.Requests != 0, false},
		{"zipf", s.Zipf != 0, false},
		{"rampUp", s.RampUp != 0, false},
		{"dailySwing", s.DailySwing != 0, false},
	} {
		switch {
		case !f.isSet:
		case log:
			return fmt.Errorf("%s has no effect with an access log, which says who sends requests and when: remove it",
				f.name)
		case plans && f.notWithAny:
			return fmt.Errorf("%s has no effect with a plans file, whose tenants and limits are simulated: remove it",
				f.name)
		}
	}
	for i := range s.Faults {
		if f := &s.Faults[i]; log && f.Kind == RetryStorm {
			return fmt.Errorf("faults[%d], %s at %s: it has no effect with an access log, which says who sends "+
				"requests and when: remove it", i, f.Kind, f.At)
		}
	}
	switch {
	case log && !plans:
		return errors.New("an access log needs a plans file with the limits of its tenants")
	case !plans && s.Tenants < 1:
		return errors.New("tenants is missing: say how many tenants there are, or give a plans file")
	case s.Day > 0 && s.DailySwing == 0:
		return errors.New("day has no effect without dailySwing")
	case s.DailySwing > 0 && s.Day == 0 && s.length() < defaultDay:
		return fmt.Errorf("day is missing: dailySwing needs the length of a day, which is %s by default, and the run "+
			"is only %s long", defaultDay, s.length())
	}
	return nil
}

// ReplaceTraffic removes from a scenario what a plans file, or an access log, is going to replace.
func (s *Scenario) ReplaceTraffic(plans, log bool) {
	if plans || log {
		s.Tenants, s.Limits = 0, Limits{}
	}
	if log {
		s.Requests, s.Zipf, s.RampUp, s.DailySwing, s.Day = 0, 0, 0, 0, 0
	}
}

// useLog sets the fields of a scenario whose values come from an access log.
func (s *Scenario) useLog(l *Log) {
	if s.Measured == 0 {
		s.Measured = max(l.length()-s.WarmUp, time.Second)
	}
	s.Requests = float64(l.within(s.length())*l.scale) / s.length().Seconds()
	s.Requests = max(s.Requests, 0.001) // check bounds it from below; a log without requests has its own error
}
