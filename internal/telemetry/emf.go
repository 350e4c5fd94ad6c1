package telemetry

import (
	"math"
	"strconv"

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

// headOf returns what all lines have in common: the namespace and the names of the dimensions for the directive, and
// the dimensions as members. The configuration was checked, so no text needs escapes.
func headOf(c *Config) (head, members string) {
	names := ""
	for _, d := range []struct{ name, value string }{{"cell", c.Cell}, {"function", c.Function}} {
		if d.value == "" {
			continue
		}
		if names != "" {
			names += ","
		}
		names += `"` + d.name + `"`
		members += `"` + d.name + `":"` + d.value + `",`
	}
	return `"Namespace":"` + c.Namespace + `","Dimensions":[[` + names + `]]`, members
}

// lineBuilder builds the line of a bucket: an EMF document and a line end. It reuses its slices for the next line.
type lineBuilder struct {
	line        []byte
	definitions []byte // the definitions of the metrics
	numbers     []byte // members with a number
	// Members with values and counts. They come last, so that a reader of a truncated line still sees the numbers.
	arrays []byte
}

// build returns the line. It is valid until the next call. A metric that is in each line is there so that an alarm can
// tell 0 from missing data.
func (l *lineBuilder) build(r *Recorder, b *bucket, grown Totals, stand Gauges, lost int64) []byte {
	l.definitions, l.numbers, l.arrays = l.definitions[:0], l.numbers[:0], l.arrays[:0]
	l.decisions(b)
	l.number("requests_served_by_backstop", unitCount, grown.Backstop)
	stale := int64(0)
	if b.configStale {
		stale = 1
	}
	l.number("config_stale", unitNone, stale)
	if stand.LimitEffective >= 0 {
		l.decimal("per_cell_limit_effective", unitPercent, stand.LimitEffective, 2)
	}
	if over := max(b.fullest, stand.FullestReplayed); over > 0 {
		l.decimal("over_admission_ratio", unitNone, over, 3)
	}
	if b.mode != 0 {
		l.number("kill_switch", unitNone, int64(b.mode))
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
	l.latency("limiter_latency", &b.limiter)
	l.distribution("propagation_seconds", unitSeconds, stepSeconds[:], b.propagation[:])
	for s := range storeCount {
		l.some("store_errors_"+s.String(), b.stores[s].errors)
		l.latency("store_latency_"+s.String(), &b.stores[s].took)
	}
	l.limits(b)

	out := append(l.line[:0], `{"_aws":{"Timestamp":`...)
	out = strconv.AppendInt(out, b.second*1000, 10)
	l.line = l.finish(out, r.head, r.dims)
	return l.line
}

// finish appends everything that follows the time stamp.
func (l *lineBuilder) finish(out []byte, head, members string) []byte {
	return l.members(l.directive(out, head), members)
}

// directive appends the rest of the EMF directive, which names all metrics.
func (l *lineBuilder) directive(out []byte, head string) []byte {
	out = append(out, `,"CloudWatchMetrics":[{`...)
	out = append(out, head...)
	out = append(out, `,"Metrics":[`...)
	out = append(out, l.definitions[:len(l.definitions)-1]...)
	return append(out, `]}]},`...)
}

// members appends the dimensions and all numbers, and ends the line.
func (l *lineBuilder) members(out []byte, dimensions string) []byte {
	out = append(out, dimensions...)
	out = append(out, l.numbers...)
	out = append(out, l.arrays...)
	out[len(out)-1] = '}'
	return append(out, '\n')
}

func (l *lineBuilder) decisions(b *bucket) {
	all, denied := int64(0), int64(0)
	for k, n := range b.kinds {
		all += n
		switch answer.Kind(k) {
		case answer.Limited, answer.IPLimited, answer.NeverFits, answer.Unavailable, answer.NotHere:
			denied += n
		default: // not denied by a limit
		}
	}
	l.number("decisions", unitCount, all)
	for k, n := range b.kinds {
		l.some("decisions_"+answer.Kind(k).String(), n)
	}
	l.number("enforce_denied", unitCount, denied)
	l.number("shadow_denied", unitCount, b.shadowDenied)
}

// define appends the definition of a metric.
func (l *lineBuilder) define(name, unit string) {
	l.definitions = append(l.definitions, `{"Name":"`...)
	l.definitions = append(l.definitions, name...)
	l.definitions = append(l.definitions, `","Unit":"`...)
	l.definitions = append(l.definitions, unit...)
	l.definitions = append(l.definitions, `"},`...)
}

// member appends the name of a member of the document.
func member(to []byte, name string) []byte {
	to = append(to, '"')
	to = append(to, name...)
	return append(to, '"', ':')
}

// member appends a number that is not a metric.
func (l *lineBuilder) member(name string, n int64) {
	l.numbers = append(strconv.AppendInt(member(l.numbers, name), n, 10), ',')
}

// longest appends the longest of the times, in seconds, as a member that is not a metric. It appends nothing if there
// is no time.
func (l *lineBuilder) longest(name string, h *histogram) {
	for i := len(h) - 1; i >= 0; i-- {
		if h[i] > 0 {
			l.numbers = append(append(member(l.numbers, name), stepSeconds[i]...), ',')
			return
		}
	}
}

func (l *lineBuilder) number(name, unit string, n int64) {
	l.define(name, unit)
	l.numbers = append(strconv.AppendInt(member(l.numbers, name), n, 10), ',')
}

// decimal appends a metric whose value is n/10^digits. n is 0 or more.
func (l *lineBuilder) decimal(name, unit string, n int64, digits int) {
	l.define(name, unit)
	l.numbers = strconv.AppendFloat(member(l.numbers, name), float64(n)/math.Pow10(digits), 'f', -1, 64)
	l.numbers = append(l.numbers, ',')
}

// some appends a count if it is not 0.
func (l *lineBuilder) some(name string, n int64) {
	if n != 0 {
		l.number(name, unitCount, n)
	}
}

// hitRate writes 100 % for each decision from a lease and 0 % for each call. The average over any time and any number
// of instances is then the true rate, and not an average of rates.
func (l *lineBuilder) hitRate(local, calls int64) {
	values, counts := make([]string, 0, 2), make([]int64, 0, 2)
	if calls > 0 {
		values, counts = append(values, "0"), append(counts, calls)
	}
	if local > 0 {
		values, counts = append(values, "100"), append(counts, local)
	}
	l.distribution("lease_hit_rate", unitPercent, values, counts)
}

func (l *lineBuilder) latency(name string, h *histogram) {
	l.distribution(name, unitMicros, stepValues[:], h[:])
}

// distribution appends a metric with the number of times that each value occurred. It leaves out values that never
// occurred. It appends nothing if no value occurred.
func (l *lineBuilder) distribution(name, unit string, values []string, counts []int64) {
	begun := false
	for i, n := range counts {
		if n == 0 {
			continue
		}
		if !begun {
			begun = true
			l.arrays = append(member(l.arrays, name), `{"Values":[`...)
		}
		l.arrays = append(append(l.arrays, values[i]...), ',')
	}
	if !begun {
		return
	}
	l.define(name, unit)
	l.arrays[len(l.arrays)-1] = ']'
	l.arrays = append(l.arrays, `,"Counts":[`...)
	for _, n := range counts {
		if n != 0 {
			l.arrays = append(strconv.AppendInt(l.arrays, n, 10), ',')
		}
	}
	l.arrays[len(l.arrays)-1] = ']'
	l.arrays = append(l.arrays, '}', ',')
}

// limits appends which limits denied, as a member. It is not a metric, because the ids in plans would cause too many
// metrics.
func (l *lineBuilder) limits(b *bucket) {
	if b.limitCount == 0 && b.otherLimits == (limitBucket{}) {
		return
	}
	l.arrays = append(member(l.arrays, "limits"), '{')
	for i := range b.limitCount {
		l.limit(&b.limits[i], b.limits[i].id)
	}
	if b.otherLimits != (limitBucket{}) {
		l.limit(&b.otherLimits, otherLimits)
	}
	l.arrays[len(l.arrays)-1] = '}'
	l.arrays = append(l.arrays, ',')
}

// otherLimits cannot be the id of a limit, because ids have no brackets.
const otherLimits = "(other)"

func (l *lineBuilder) limit(counted *limitBucket, id string) {
	l.arrays = append(member(l.arrays, id), `{"denied":`...)
	l.arrays = strconv.AppendInt(l.arrays, counted.denied, 10)
	l.arrays = append(l.arrays, `,"shadow_denied":`...)
	l.arrays = strconv.AppendInt(l.arrays, counted.shadow, 10)
	l.arrays = append(l.arrays, '}', ',')
}
