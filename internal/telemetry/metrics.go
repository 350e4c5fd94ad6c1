package telemetry

import (
	"slices"
	"strings"

	"github.com/sluicelimits/sluice/internal/request/answer"
)

// Form says what a metric's numbers are, and so which statistic of CloudWatch tells something.
type Form string

// The forms.
const (
	Counted  Form = "count"  // how often something happened: Sum
	Level    Form = "level"  // how something stands, each time it is looked at: Maximum or Minimum, never Sum
	Spread   Form = "spread" // a value for each thing that happened: percentiles
	Averaged Form = "rate"   // 0 or 100 for each thing that happened: Average
)

// Metric is a number that functions of Sluice write.
type Metric struct {
	Name       string
	Unit       string // of CloudWatch
	Form       Form
	Dimensions []string // its dimensions, all of them: "cell" and "function", or "function"
	Functions  []string // that write it, by their folders below functions/, sorted
	// told with each line, batch or run, 0 included, so that an alarm can tell none from not known; others where they
	// are not 0
	Always bool

	// LineOnly is a number that is no metric of CloudWatch, which bills one for each hour in which it is told: it is a
	// member of the log line, which Logs Insights searches and sums. No alarm and no dashboard can be on it. Of a
	// spread it is the longest.
	LineOnly bool

	Meaning string // one sentence or more, in Markdown
}

// The functions that write metrics, by their folders. Admin and ops write none.
const (
	inAuthorizer = "authorizer"
	inPublisher  = "publisher"
	inBalancer   = "balancer"
	inApplier    = "applier"
	inArchiver   = "archiver"
	inAnchor     = "anchor"
	inReconcile  = "reconcile"
	inCanary     = "canary"
)

// streaming is who publishes: the balancer does so of the table of cells.
const streaming = inPublisher + " " + inBalancer

// ofCell is the functions of which each cell has its own, or that tell cells apart.
var ofCell = []string{inApplier, inAuthorizer, inCanary, inReconcile}

// telling is when a number is told, and how.
type telling int

const (
	always   telling = iota // Metric.Always
	not0                    // a metric where it is not 0
	lineOnly                // Metric.LineOnly
)

// Metrics lists every metric that there is, by name and then by function. Alarms, dashboards and docs/metrics.md are
// made of it, and tests hold that each is written under exactly this name, unit and dimensions, and none beside.
//
// What runs on a schedule runs where nobody uses it, too, and so costs what it tells. Always told is there only what
// has an alarm for its silence; faults are metrics where there are any; and what is usual is in the line only.
//
// The age of a stream's iterator is none of ours: it is IteratorAge in the namespace AWS/Lambda, with the dimension
// FunctionName.
func Metrics() []Metric {
	var all []Metric
	add := func(functions, name, unit string, form Form, told telling, meaning string) {
		m := Metric{Name: name, Unit: unit, Form: form, Functions: strings.Fields(functions),
			Dimensions: []string{"function"}, Meaning: meaning}
		m.Always, m.LineOnly = told == always, told == lineOnly
		if slices.Contains(ofCell, m.Functions[0]) {
			m.Dimensions = []string{"cell", "function"}
		}
		slices.Sort(m.Functions)
		all = append(all, m)
	}
	addAuthorizer(func(name, unit string, form Form, inEach bool, meaning string) {
		told := not0
		if inEach {
			told = always
		}
		add(inAuthorizer, name, unit, form, told, meaning)
	})
	add(inAuthorizer, "propagation_seconds", unitSeconds, Spread, not0, propagation+"each change that it comes by.")
	add(inCanary, "propagation_seconds", unitSeconds, Spread, always,
		propagation+"its own change; one that was missed with the whole time that it waited.")

	add(streaming+" "+inArchiver, "records_read", unitCount, Counted, lineOnly,
		"Records of the streams, those that came again included.")
	add(streaming+" "+inArchiver, "records_again", unitCount, Counted, not0,
		"Records that failed, and are delivered again.")
	add(streaming, "events_published", unitCount, Counted, lineOnly, "Events that the topic took.")
	add(streaming, "publish_calls", unitCount, Counted, lineOnly, "Calls of SNS, of at most ten events each.")
	add(streaming, "publish_retries", unitCount, Counted, not0, "Events that a call did not take.")
	add(streaming, "records_kept", unitCount, Counted, not0,
		"Records that cannot be used, and were put into the queue of what is kept: somebody must look.")
	add(streaming, "publish_seconds", unitSeconds, Spread, lineOnly,
		"From the write of a change to when the topic had it.")

	add(inBalancer, "active_cell_count", unitCount, Level, always, "Cells that have a weight in the shares. It falls "+
		"where one is drained or removed, and by nothing else: a cell that is down keeps its share.")
	add(inBalancer, "shares_awaited", unitCount, Level, not0, "Cells that the change of shares under way waits to "+
		"hear from. Above 0 for long: a cell is down, and no change goes on until it is back or removed by force.")
	add(inBalancer, "shares_unread", unitCount, Level, not0,
		"Items of the table of cells that cannot be read or make no sense. Nothing changes for the tenant of a "+
			"placement among them.")
	add(inBalancer, "shares_changes", unitCount, Counted, not0, "Steps of the shares that were published.")
	add(inBalancer, "shares_refused", unitCount, Counted, not0, "Requests of operators that the balancer refused.")

	add(inApplier, "messages_read", unitCount, Counted, lineOnly,
		"Messages of the cell's queue, those that came again included.")
	add(inApplier, "messages_again", unitCount, Counted, not0, "Messages that failed, and are delivered again.")
	add(inApplier, "messages_old", unitCount, Counted, lineOnly,
		"Messages with nothing newer than what the cell has: repeated or overtaken, and harmless.")
	add(inApplier, "messages_other", unitCount, Counted, lineOnly,
		"Events that are no document's, and so not a cell's affair.")
	add(inApplier, "messages_kept", unitCount, Counted, not0, "Messages that cannot be used, those of an unknown "+
		"version included, and were put into the queue of what is kept: somebody must look.")
	add(inApplier, "events_forged", unitCount, Counted, not0,
		"Events that the control tables do not have: no such item, a version above the item's, or another content. "+
			"They are kept.")
	add(inApplier, "events_unknown", unitCount, Counted, not0, "Events of a type or version that this applier does "+
		"not know: publisher and applier are of different versions.")
	add(inApplier, "documents_applied", unitCount, Counted, lineOnly,
		"Documents that were newer than what the cell had.")
	add(inApplier, "apply_seconds", unitSeconds, Spread, lineOnly,
		"From the write of a change in the control tables to when the cell's table had it.")

	add(inArchiver, "objects_made", unitCount, Counted, lineOnly, "Versions that were put into the archive.")
	add(inArchiver, "objects_equal", unitCount, Counted, lineOnly, "Versions that were there already, and equal.")
	add(inArchiver, "records_unequal", unitCount, Counted, not0,
		"Versions whose place in the archive has something else, or what cannot be read: somebody must look.")
	add(inArchiver, "records_unreadable", unitCount, Counted, not0,
		"Records that are no change that Sluice made: somebody must look.")
	add(inArchiver, "archive_seconds", unitSeconds, Spread, lineOnly,
		"From the write of a change to when the archive had it.")

	add(inAnchor, "anchor_missing", unitCount, Level, always,
		"1 where the audit trail has no anchor of the day after a run.")
	add(inAnchor, "anchor_taken", unitCount, Level, not0,
		"1 where a run found an object that has the name of an anchor and is none: somebody must look.")

	add(inReconcile, "drift", unitCount, Level, always,
		"Differences between the control tables and the cell's copy that are old enough not to be under way: "+
			"the sum of the next seven, and at least 1 if the run failed.")
	for _, d := range [...][2]string{
		{"missing", "the cell has never had the item; repaired"}, {"older", "the cell has an older version; repaired"},
		{"ahead", "the cell has a newer version, which was forged, or which the control tables have lost; repaired"},
		{"unknown", "a document of no item, or " +
			"a row that is no document: it was forged; removed, unless the whole control table is empty"},
		{"altered", "the same version with another content, or " +
			"with a number above that of the last log entry: it was forged; repaired"},
		{"unreadable", "an item that is not as it was written, or shares or a placement that this version cannot " +
			"read; it reaches no cell"}, {"refused", "an item that the cell's table does not take"},
	} {
		add(inReconcile, "drift_"+d[0], unitCount, Level, not0, "Of `drift`: "+d[1]+".")
	}
	add(inReconcile, "reconcile_items", unitCount, Level, lineOnly, "Items of the control tables that a run read.")
	add(inReconcile, "reconcile_reads", unitCount, Level, lineOnly, "Reads of items and documents that a run made.")
	add(inReconcile, "reconcile_repaired", unitCount, Level, not0, "Documents that a run wrote.")
	add(inReconcile, "reconcile_under_way", unitCount, Level, lineOnly, "Differences that are too young to be drift.")
	add(inReconcile, "reconcile_unfinished", unitCount, Level, not0,
		"1 where a run's time was over before it had compared everything, or it failed; the next one goes on.")

	add(inCanary, "canary_missed", unitCount, Counted, not0,
		"1 where the canary's change was not enforced in the cell within its time.")
	add(inCanary, "canary_applied_seconds", unitSeconds, Spread, lineOnly,
		"From the write of the canary's change to when the cell's table had it.")

	add(strings.Join([]string{inApplier, inCanary, inReconcile}, " "), "telemetry_names_lost", unitCount, Counted, not0,
		namesLost)
	add(strings.Join([]string{inArchiver, inBalancer, inPublisher}, " "), "telemetry_names_lost", unitCount, Counted,
		not0, namesLost)
	slices.SortStableFunc(all, func(a, b Metric) int {
		return slices.Compare([]string{a.Name, a.Functions[0]}, []string{b.Name, b.Functions[0]})
	})
	return all
}

const propagation = "From the write of a change in the control tables to when it is enforced, of "

const namesLost = "Metrics that were not told, for their names are none or there are too many: a mistake in the " +
	"program."

// addAuthorizer adds what a Recorder writes.
func addAuthorizer(add func(name, unit string, form Form, always bool, meaning string)) {
	add("decisions", unitCount, Counted, true,
		"Requests that were answered. A line is written for each second in which there was one.")
	for _, k := range answer.Kinds() {
		add("decisions_"+k.String(), unitCount, Counted, false, "Of `decisions`: those answered `"+k.String()+"`.")
	}
	add("enforce_denied", unitCount, Counted, true,
		"Requests that a limit denied, or would have needed and could not be asked.")
	add("shadow_denied", unitCount, Counted, true, "What shadow limits would have denied of what was admitted.")
	add("requests_served_by_backstop", unitCount, Counted, true,
		"Decisions that were made by counting in the instance, for a store was away.")
	add("requests_undecidable", unitCount, Counted, false, "Requests that a store answered and could not decide: a "+
		"stored counter cannot be read, or there are too many for one operation. Each limit's `onStoreFailure` "+
		"applied; the log names the key.")
	add("config_stale", unitNone, Level, true,
		"1 in a second in which a request was decided on a configuration older than 30 s, otherwise 0.")
	add("kill_switch", unitNone, Level, false,
		"The mode of the cell's limits where they are not enforced: 1 in shadow, 2 off.")
	add("kill_switch_spared", unitCount, Counted, false,
		"Requests that passed in shadow, and that a limit would have denied. They are not in `enforce_denied`.")
	add("kill_switch_unheard", unitCount, Counted, false, "Polls of the kill switch that came to nothing, for "+
		"AppConfig did not answer or its document cannot be used. The mode stays.")
	add("per_cell_limit_effective", unitPercent, Level, false,
		"What the cell grants of the limits that it knows of, in percent of what all cells grant together: the mean "+
			"over the tiers of plans that are divided among cells (of the first 100 plans that an instance has read; "+
			"quotas and limits that are kept whole in one cell left out), once a minute and instance. "+
			"The sum of the cells' is 100: above it for longer than a change of shares takes, cells grant more "+
			"together than the limits; below it, a part of the limits lies unused. 100 where the cell is alone. A "+
			"boost or override of one tenant does not change it.")
	add("over_admission_ratio", unitNone, Level, false,
		"Of the counters that a second's requests were charged to, what the fullest had taken in, beside what its "+
			"limit holds: at most 1 where all is well, above 1 where more was admitted than the limit, by the "+
			"store's own count. Two things are looked at: each request that a store, or a lease from it, admitted; "+
			"and each counter after it was charged what a backstop or an open limit had admitted while the store was "+
			"away. "+
			"The limit is the cell's share of it. It does not see what the store has forgotten (a failover), what is "+
			"admitted while the store is still away, what several cells admit together (see "+
			"`per_cell_limit_effective`), and `ipLimits`. A limit that was lowered does not raise it by itself, for "+
			"what was consumed before is no admission.")
	add("limiter_latency", unitMicros, Spread, false,
		"What the limits' part of a request took, waiting for stores included.")
	for s := range storeCount {
		add("store_latency_"+s.String(), unitMicros, Spread, false,
			"What a call of the store took, failed ones included.")
		add("store_errors_"+s.String(), unitCount, Counted, false,
			"Calls that the store did not answer, or not in time.")
	}
	add("lease_hit_rate", unitPercent, Averaged, false,
		"100 for each decision from a lease, 0 for each call of the store beneath the leases.")
	add("early_denials", unitCount, Counted, false,
		"Denials from leases that turned out to be early: others held units that came back in time.")
	add("cold_starts", unitCount, Counted, false, "Instances that began.")
	add("events_refused", unitCount, Counted, false,
		"Events that are none of an authorizer: it is attached to the wrong thing.")
	add("panics", unitCount, Counted, false, "Requests that ended in a panic. Each was refused.")
	add("telemetry_lines_lost", unitCount, Counted, false, "Lines of metrics that could not be written.")
}
