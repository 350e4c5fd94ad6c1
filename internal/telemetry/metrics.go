package telemetry

import (
	"slices"
	"strings"

	"github.com/sluicelimits/sluice/internal/request/answer"
)

// Form says what the values of a metric are, and therefore which statistic of CloudWatch is useful.
type Form string

// The forms.
const (
	Counted  Form = "count"  // how often something happened; use Sum
	Level    Form = "level"  // a current value, each time it is looked at; use Maximum or Minimum, never Sum
	Spread   Form = "spread" // a value for each event; use percentiles
	Averaged Form = "rate"   // 0 or 100 for each event; use Average
)

// Metric is a number that functions of Sluice write.
type Metric struct {
	Name       string
	Unit       string // as CloudWatch names it
	Form       Form
	Dimensions []string // all of its dimensions: "cell" and "function", or "function"
	Functions  []string // the functions that write it, by their folders below functions/, sorted
	// Always says that the metric is in each line, batch or run, even if it is 0, so that an alarm can tell 0 from
	// missing data. Other metrics are written only if they are not 0.
	Always bool

	// LineOnly says that the number is not a metric of CloudWatch, which charges for each hour in which a metric is
	// written. It is a member of the log line, which Logs Insights can search and sum. No alarm or dashboard can use
	// it. Of a spread, it is the maximum.
	LineOnly bool

	Meaning string // one or more sentences in Markdown
}

// The functions that write metrics, by their folders. The functions admin and ops write none.
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

// streaming are the functions that publish: the balancer publishes changes of the table of cells.
const streaming = inPublisher + " " + inBalancer

// ofCell are the functions that each cell has, and the canary, which distinguishes cells.
var ofCell = []string{inApplier, inAuthorizer, inCanary, inReconcile}

// telling says when a number is written, and how.
type telling int

const (
	always   telling = iota // Metric.Always
	not0                    // a metric, if it is not 0
	lineOnly                // Metric.LineOnly
)

// Metrics lists all metrics, by name and then by function. Alarms, dashboards and docs/metrics.md are made from the
// list. Tests check that each metric is written with exactly this name, unit and dimensions, and that no other metric
// is written.
//
// Functions on a schedule run even if nobody uses Sluice, so each metric that they write costs money. Only a metric
// with an alarm for missing data is always written. Faults are metrics if there are any. Normal numbers are in the line
// only.
//
// The age of a stream's iterator is not in the list. CloudWatch has it as IteratorAge in the namespace AWS/Lambda, with
// the dimension FunctionName.
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
	add(inAuthorizer, "propagation_seconds", unitSeconds, Spread, not0, propagation+"each change that it reads.")
	add(inCanary, "propagation_seconds", unitSeconds, Spread, always,
		propagation+"its own change. A missed change counts with the whole time that the canary waited.")

	add(streaming+" "+inArchiver, "records_read", unitCount, Counted, lineOnly,
		"Records of the streams, including those that were delivered again.")
	add(streaming+" "+inArchiver, "records_again", unitCount, Counted, not0,
		"Records that failed, and are delivered again.")
	add(streaming, "events_published", unitCount, Counted, lineOnly, "Events that the topic accepted.")
	add(streaming, "publish_calls", unitCount, Counted, lineOnly, "Calls to SNS, with at most ten events each.")
	add(streaming, "publish_retries", unitCount, Counted, not0,
		"Events that a call did not publish, and that were sent again.")
	add(streaming, "records_kept", unitCount, Counted, not0,
		"Records that cannot be used and became dead letters: an operator must look at them.")
	add(streaming, "publish_seconds", unitSeconds, Spread, lineOnly,
		"From the write of a change to when the topic accepted it.")

	add(inBalancer, "active_cell_count", unitCount, Level, always,
		"Cells that have a share. The number "+
			"falls only if a cell is drained or removed: a cell that is down keeps its share.")
	add(inBalancer, "shares_awaited", unitCount, Level, not0, "Cells that have not acknowledged the current "+
		"change of shares. If it stays above 0, a cell is down, and no change proceeds until the cell is back or "+
		"removed by force.")
	add(inBalancer, "shares_unread", unitCount, Level, not0,
		"Items of the table of cells that cannot be read or are not valid. If such an item is a placement, "+
			"nothing changes for its tenant.")
	add(inBalancer, "shares_changes", unitCount, Counted, not0, "Changes of the shares that were written.")
	add(inBalancer, "shares_refused", unitCount, Counted, not0, "Requests of operators that the balancer refused.")

	add(inApplier, "messages_read", unitCount, Counted, lineOnly,
		"Messages of the cell's queue, including those that were delivered again.")
	add(inApplier, "messages_again", unitCount, Counted, not0, "Messages that failed, and are delivered again.")
	add(inApplier, "messages_old", unitCount, Counted, lineOnly,
		"Messages with nothing newer than what the cell has: repeated or overtaken messages, which are harmless.")
	add(inApplier, "messages_other", unitCount, Counted, lineOnly,
		"Events that concern no document of a cell. They are ignored.")
	add(inApplier, "messages_kept", unitCount, Counted, not0, "Messages that cannot be used, including those of an "+
		"unknown version, and became dead letters: an operator must look at them.")
	add(inApplier, "events_forged", unitCount, Counted, not0,
		"Events that contradict the control tables: there is no such item, the item has a lower version, or it has "+
			"another content. They become dead letters.")
	add(inApplier, "events_unknown", unitCount, Counted, not0, "Events of a type or version that this applier does "+
		"not know: publisher and applier have different versions.")
	add(inApplier, "documents_applied", unitCount, Counted, lineOnly,
		"Documents that were newer than the cell's, and were written.")
	add(inApplier, "apply_seconds", unitSeconds, Spread, lineOnly,
		"From the write of a change in the control tables to when it was in the cell's table.")

	add(inArchiver, "objects_made", unitCount, Counted, lineOnly, "Versions that were put into the archive.")
	add(inArchiver, "objects_equal", unitCount, Counted, lineOnly,
		"Versions that were in the archive already, with the same content.")
	add(inArchiver, "records_unequal", unitCount, Counted, not0,
		"Versions whose object in the archive has another content, or cannot be read: an operator must look at them.")
	add(inArchiver, "records_unreadable", unitCount, Counted, not0,
		"Records of changes that Sluice did not make: an operator must look at them.")
	add(inArchiver, "archive_seconds", unitSeconds, Spread, lineOnly,
		"From the write of a change to when it was in the archive.")

	add(inAnchor, "anchor_missing", unitCount, Level, always,
		"1 if the audit trail has no anchor of the day after a run, otherwise 0.")
	add(inAnchor, "anchor_taken", unitCount, Level, not0,
		"1 if a run found an object that has the name of an anchor but is not an anchor: an operator must look at it.")

	add(inReconcile, "drift", unitCount, Level, always,
		"Differences between the control tables and the cell's copy, except changes that are still on their way: "+
			"the sum of the seven metrics `drift_…`, and at least 1 if the run failed.")
	for _, d := range [...][2]string{
		{"missing", "the cell has never had the item; repaired"}, {"older", "the cell has an older version; repaired"},
		{"ahead", "the cell has a newer version, which was forged, or which the control tables have lost; repaired"},
		{"unknown", "a document without an item, or " +
			"a row that is not a document: it was forged; removed, unless the whole control table is empty"},
		{"altered", "the same version with another content, or " +
			"with a number above that of the last log entry: it was forged; repaired"},
		{"unreadable", "an item that was altered after it was written, or shares or a placement that this version " +
			"cannot read; it reaches no cell"}, {"refused", "an item that the cell's table does not accept"},
	} {
		add(inReconcile, "drift_"+d[0], unitCount, Level, not0, "Of `drift`: "+d[1]+".")
	}
	add(inReconcile, "reconcile_items", unitCount, Level, lineOnly, "Items of the control tables that a run read.")
	add(inReconcile, "reconcile_reads", unitCount, Level, lineOnly, "Reads of items and documents that a run made.")
	add(inReconcile, "reconcile_repaired", unitCount, Level, not0, "Documents that a run wrote.")
	add(inReconcile, "reconcile_under_way", unitCount, Level, lineOnly,
		"Differences that may be changes on their way, because they are new.")
	add(inReconcile, "reconcile_unfinished", unitCount, Level, not0,
		"1 if a run failed, or ran out of time before it had compared everything. The next run starts again.")

	add(inCanary, "canary_missed", unitCount, Counted, not0,
		"1 if the canary's change was not enforced in the cell within its time.")
	add(inCanary, "canary_applied_seconds", unitSeconds, Spread, lineOnly,
		"From the write of the canary's change to when it was in the cell's table.")

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

const namesLost = "Metrics that were not written, because their names are not valid or there are too many: a " +
	"mistake in the program."

// addAuthorizer adds the metrics that a Recorder writes.
func addAuthorizer(add func(name, unit string, form Form, always bool, meaning string)) {
	add("decisions", unitCount, Counted, true,
		"Requests that were answered. A line is written for each second in which there was one.")
	for _, k := range answer.Kinds() {
		add("decisions_"+k.String(), unitCount, Counted, false, "Of `decisions`: those answered `"+k.String()+"`.")
	}
	add("enforce_denied", unitCount, Counted, true,
		"Requests that were denied by a limit, or because a store did not answer.")
	add("shadow_denied", unitCount, Counted, true, "Admitted requests that a limit in mode shadow would have denied.")
	add("requests_served_by_backstop", unitCount, Counted, true,
		"Decisions that the instance made by itself because a store did not answer.")
	add("requests_undecidable", unitCount, Counted, false, "Requests that a store answered but could not decide, "+
		"because a stored counter cannot be read, or there are too many for one operation. Each limit's "+
		"`onStoreFailure` "+
		"applied; the log names the key.")
	add("config_stale", unitNone, Level, true,
		"1 in each second in which a decision used a configuration older than 30 s, otherwise 0.")
	add("kill_switch", unitNone, Level, false,
		"The mode of the cell's limits if they are not enforced: 1 in shadow, 2 off.")
	add("kill_switch_spared", unitCount, Counted, false,
		"Requests that passed although a limit denied them, because the kill switch has put the cell in mode shadow. "+
			"They do not count in `enforce_denied`.")
	add("kill_switch_unheard", unitCount, Counted, false, "Polls of the kill switch that failed, because "+
		"AppConfig did not answer or its document is not valid. The mode stays as it is.")
	add("per_cell_limit_effective", unitPercent, Level, false,
		"The cell's share of the limits, in percent. It is the mean over the tiers that are divided among cells, of "+
			"the first 100 plans that an instance has read. Quotas, and limits that one cell counts for all, are "+
			"not included. Each instance writes it once a minute. The values of all cells normally add up to 100. "+
			"If their sum stays above 100 for longer than a change of shares takes, the cells together grant more "+
			"than the limits. If the sum is below 100, a part of the limits is unused. A cell that is alone has "+
			"100. Boosts and overrides of tenants do not change the value.")
	add("over_admission_ratio", unitNone, Level, false,
		"How full the fullest counter is that was charged in a second: the units that the store has counted in it, "+
			"divided by the units that its limit allows. If several cells share the limit, the cell's share is "+
			"meant. A value of at most 1 is normal. A value above 1 says that more units than the limit were "+
			"admitted. The metric covers each request that a store, or a lease from it, admitted. It also covers "+
			"the units that the fallback limiter admitted while the store did not answer, once they are replayed. "+
			"It does not cover what a store has lost (a failover), units that are not replayed yet, what several "+
			"cells admit together (see `per_cell_limit_effective`), and `ipLimits`. If a limit is lowered, the "+
			"units that were charged before do not raise the metric.")
	add("limiter_latency", unitMicros, Spread, false,
		"How long the decision over the limits of a request took, including waits for stores.")
	for s, name := range [storeCount]string{Redis: "Redis or Valkey", DynamoDB: "the cell's counters table",
		Memory: "the memory of the instance", Home: "the counters table of another cell",
		OtherStore: "a store of another kind"} {
		add("store_latency_"+Store(s).String(), unitMicros, Spread, false,
			"How long a call to "+name+" took, including calls that failed.")
		add("store_errors_"+Store(s).String(), unitCount, Counted, false,
			"Calls to "+name+" that had no answer, or none in time.")
	}
	add("lease_hit_rate", unitPercent, Averaged, false,
		"Decisions from leases, in percent of decisions from leases and calls of the lease layer to its store: "+
			"each such decision counts as 100, each such call as 0.")
	add("early_denials", unitCount, Counted, false,
		"Denials that an instance made without a call, and that were not necessary: the store admitted again "+
			"before the time that the denial had named, because another instance had given back leased units.")
	add("cold_starts", unitCount, Counted, false, "Instances that started.")
	add("events_refused", unitCount, Counted, false,
		"Events that are not requests of API Gateway to an authorizer: the function is attached to the wrong source.")
	add("panics", unitCount, Counted, false, "Requests that ended in a panic. Each was denied.")
	add("telemetry_lines_lost", unitCount, Counted, false, "Lines of metrics that could not be written.")
}
