package telemetry

import (
	"encoding/json"

	"github.com/sluicelimits/sluice/internal/request/answer"
)

// Units, as CloudWatch names them.
const (
	unitCount   = "Count"
	unitMicros  = "Microseconds"
	unitSeconds = "Seconds"
	unitPercent = "Percent"
	unitNone    = "None"
)

// dimensionsOf returns the dimensions of all lines of a configuration, and their names in the order of the directive.
func dimensionsOf(c *Config) (names []string, values map[string]string) {
	names, values = []string{}, map[string]string{}
	for _, d := range []struct{ name, value string }{{"cell", c.Cell}, {"function", c.Function}} {
		if d.value != "" {
			names = append(names, d.name)
			values[d.name] = d.value
		}
	}
	return names, values
}

// line is an EMF document: a directive that names its metrics, and their values and other members. encoding/json writes
// it, which is fast enough for one line a second.
type line struct {
	members     map[string]any
	definitions []definition // of the metrics
}

// definition names a metric in the directive.
type definition struct {
	Name string
	Unit string
}

// distribution is a metric with the number of times that each value occurred.
type distribution struct {
	Values []json.Number
	Counts []int64
}

func newLine() *line { return &line{members: map[string]any{}} }

// secondLine returns the line of a bucket. A metric that is in each line is there so that an alarm can tell 0 from
// missing data.
func secondLine(b *bucket, grown Totals, stand Gauges, lost int64) *line {
	l := newLine()
	l.decisions(b)
	l.metric("requests_served_by_backstop", unitCount, grown.Backstop)
	stale := 0
	if b.configStale {
		stale = 1
	}
	l.metric("config_stale", unitNone, stale)
	if stand.LimitEffective >= 0 {
		l.metric("per_cell_limit_effective", unitPercent, float64(stand.LimitEffective)/100)
	}
	if over := max(b.fullest, stand.FullestReplayed); over > 0 {
		l.metric("over_admission_ratio", unitNone, float64(over)/1000)
	}
	if b.mode != 0 {
		l.metric("kill_switch", unitNone, b.mode)
	}
	l.some("kill_switch_spared", b.spared)
	l.some("kill_switch_unheard", grown.KillSwitchFailures)
	l.some("requests_undecidable", grown.Undecidable)
	l.some("early_denials", grown.EarlyDenials)
	l.some("cold_starts", b.coldStarts)
	l.some("events_refused", b.refused)
	l.some("panics", b.panics)
	l.some("telemetry_lines_lost", lost)
	l.hitRate(grown.LeaseLocal, grown.LeaseCalls)
	l.distribution("limiter_latency", unitMicros, stepValues[:], b.limiter[:])
	l.distribution("propagation_seconds", unitSeconds, stepSeconds[:], b.propagation[:])
	for s := range storeCount {
		l.some("store_errors_"+s.String(), b.stores[s].errors)
		l.distribution("store_latency_"+s.String(), unitMicros, stepValues[:], b.stores[s].took[:])
	}
	l.limits(b)
	return l
}

// encode returns the document and a line end. A line without metrics is plain JSON, because an empty directive is not
// valid.
func (l *line) encode(c *Config, second int64) ([]byte, error) {
	names, values := dimensionsOf(c)
	for name, value := range values {
		l.members[name] = value
	}
	if len(l.definitions) > 0 {
		type directive struct {
			Namespace  string
			Dimensions [][]string
			Metrics    []definition
		}
		l.members["_aws"] = struct {
			Timestamp         int64
			CloudWatchMetrics []directive
		}{second * 1000, []directive{{c.Namespace, [][]string{names}, l.definitions}}}
	}
	out, err := json.Marshal(l.members)
	return append(out, '\n'), err
}

func (l *line) decisions(b *bucket) {
	all, denied := int64(0), int64(0)
	for k, n := range b.kinds {
		all += n
		switch answer.Kind(k) {
		case answer.Limited, answer.IPLimited, answer.NeverFits, answer.Unavailable, answer.NotHere:
			denied += n
		default: // not denied by a limit
		}
	}
	l.metric("decisions", unitCount, all)
	for k, n := range b.kinds {
		l.some("decisions_"+answer.Kind(k).String(), n)
	}
	l.metric("enforce_denied", unitCount, denied)
	l.metric("shadow_denied", unitCount, b.shadowDenied)
}

func (l *line) metric(name, unit string, value any) {
	l.definitions = append(l.definitions, definition{name, unit})
	l.members[name] = value
}

// some adds a count if it is not 0.
func (l *line) some(name string, n int64) {
	if n != 0 {
		l.metric(name, unitCount, n)
	}
}

// longest adds the longest of the times, in seconds, as a member that is not a metric. It adds nothing if there is no
// time.
func (l *line) longest(name string, h *histogram) {
	for i := len(h) - 1; i >= 0; i-- {
		if h[i] > 0 {
			l.members[name] = stepSeconds[i]
			return
		}
	}
}

// hitRate adds 100 % for each decision from a lease and 0 % for each call. The average over any time and any number of
// instances is then the true rate, and not an average of rates.
func (l *line) hitRate(local, calls int64) {
	l.distribution("lease_hit_rate", unitPercent, []json.Number{"0", "100"}, []int64{max(calls, 0), max(local, 0)})
}

// distribution adds a metric with the number of times that each value occurred. It leaves out values that never
// occurred. It adds nothing if no value occurred.
func (l *line) distribution(name, unit string, values []json.Number, counts []int64) {
	var d distribution
	for i, n := range counts {
		if n != 0 {
			d.Values, d.Counts = append(d.Values, values[i]), append(d.Counts, n)
		}
	}
	if d.Counts != nil {
		l.metric(name, unit, d)
	}
}

// limits adds which limits denied, as a member. It is not a metric, because the ids in plans would cause too many
// metrics.
func (l *line) limits(b *bucket) {
	all := map[string]limitBucket{}
	for _, limit := range b.limits[:b.limitCount] {
		all[limit.id] = limit
	}
	if b.otherLimits != (limitBucket{}) {
		all[otherLimits] = b.otherLimits
	}
	if len(all) > 0 {
		l.members["limits"] = all
	}
}

// otherLimits cannot be the id of a limit, because ids have no brackets.
const otherLimits = "(other)"
