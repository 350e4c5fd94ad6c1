// Package alarm defines the CloudWatch alarms of a deployment as plain data. The infra package makes templates from
// this data, and tests compare it with the runbooks and with the metrics that functions write.
//
// The alarms of a single function are listed in internal/aws/grants and copied from there. This package adds the alarms
// that concern several functions or need arithmetic: the request path, the streams, and the queues whose messages an
// operator has to look at.
package alarm

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	"github.com/sluicelimits/sluice/infra/config"
	"github.com/sluicelimits/sluice/internal/aws/grants"
)

// Alarm describes one CloudWatch alarm.
type Alarm struct {
	Name   string // of the alarm, and of its runbook docs/runbooks/NAME.md
	Target string // tells apart alarms of one name: a function, a cell or a shard; otherwise ""

	// Metrics are the metrics that the alarm evaluates. AWS bills each of them. If there are several, Expression
	// combines them by their IDs. If Expression is empty, there is exactly one metric.
	Metrics    []Metric
	Expression string

	Threshold         float64       // the alarm rings if the statistic, or the value of Expression, is above it
	OnSilence         bool          // the alarm rings if a period has no value; Threshold is then not used
	Period            time.Duration // the length of one datapoint: 10 s, 20 s, 30 s, or whole minutes
	DatapointsToAlarm int           // how many of the last EvaluationPeriods datapoints make the alarm ring
	EvaluationPeriods int
	TreatMissing      MissingData

	Description string // one sentence without a full stop, for the person whom the alarm wakes
}

// Metric is a CloudWatch metric, with the statistic that an alarm evaluates.
type Metric struct {
	ID         string // the name in Alarm.Expression, m1 and so on; "" without an expression
	Namespace  string
	Name       string
	Stat       string // Sum, Maximum, SampleCount, p99
	Dimensions []Dimension
}

// Dimension is a dimension of a CloudWatch metric.
type Dimension struct{ Name, Value string }

// MissingData says how CloudWatch treats a period without data.
type MissingData string

// How CloudWatch treats a period without data. The right choice depends on who writes the metric.
const (
	NotBreaching MissingData = "notBreaching" // for metrics that are written only if there is something to report
	Breaching    MissingData = "breaching"    // for metrics that a schedule writes: without data nothing runs
	// for queues: after six idle hours SQS reports nothing, though messages may be left
	Ignore MissingData = "ignore"
)

// Names of the alarms that also take back a mode of the kill switch.
const (
	LimiterErrors = "limiter_errors"
	LimiterP99    = "limiter_p99"
)

// Thresholds of the alarms about the request path and the streams.
const (
	maxErrorsPerMinute = 10     // failed calls to the store of counters, per cell
	maxLatencySmall    = 50_000 // µs that limits take in a small cell, where a decision may call DynamoDB
	maxLatencyFull     = 10_000 // µs in a full cell: above the default deadline of Redis, 8 ms
	maxBackstopPercent = 1      // of the decisions of a minute
	maxAdmissionRatio  = 1.5    // admitted units divided by the limit
	maxNodeCPUPercent  = 80     // of the one processor core on which a cache node runs commands
	maxIteratorAgeMs   = 30_000 // of the oldest stream record that a function has not read
)

const minute = time.Minute

// Control returns the alarms of the control plane. They include the canary's alarms, one for each cell, because the
// canary runs and writes its metrics beside the control tables.
func Control(d *config.Deployment) []Alarm {
	n := d.Names("", "", "")
	var all []Alarm
	for _, f := range grants.Functions() {
		if f.PerCell || f.Name == config.Anchor && !d.Control.Audit.Anchors {
			continue
		}
		if f.Name == config.Canary {
			f.Schedule = canarySchedule(d)
		}
		if f.Streams != nil {
			all = append(all, iteratorAgeAlarm(d, &f, n.Control(f.Name)))
		}
		for _, a := range f.Alarms {
			if f.Name != config.Canary {
				all = append(all, functionAlarm(d, &f, &a, "", functionDimensions("", n.Control(f.Name))))
				continue
			}
			for i := range d.Cells {
				cell := d.Cells[i].ID
				all = append(all, functionAlarm(d, &f, &a, cell, functionDimensions(cell, n.Control(f.Name))))
			}
		}
	}
	for _, q := range [...][2]string{
		{config.Kept, "a function could not use some records of a stream, and put them into a queue for an operator"},
		{config.Failed, "a function failed on some records of a stream until their age or their retries reached the " +
			"limit"},
		{config.Undelivered, "the topic could not deliver changes to a cell's queue"},
	} {
		all = append(all, queueAlarm(q[0], n.Control(q[0]), q[1]))
	}
	if d.Alarms.Set == config.AllAlarms {
		all = append(all, sparseMetricAlarm(d, "shares_awaited", "Maximum",
			functionDimensions("", n.Control(config.Balancer)), 10*minute, 3,
			"a change of the shares has waited for a cell for half an hour, and other changes wait for it"))
	}
	return all
}

// Cell returns the alarms of one cell.
func Cell(d *config.Deployment, cell *config.Cell) []Alarm {
	n := d.Names("", "", "")
	authorizer := functionDimensions(cell.ID, n.Cell(cell.ID, config.Authorizer))
	all := requestAlarms(d, cell, authorizer)
	for _, f := range grants.Functions() {
		for _, a := range f.Alarms {
			if f.PerCell {
				all = append(all, functionAlarm(d, &f, &a, "", functionDimensions(cell.ID, n.Cell(cell.ID, f.Name))))
			}
		}
	}
	all = append(all,
		queueAlarm(config.Kept, n.Cell(cell.ID, config.Kept),
			"the applier could not use some messages to the cell, and put them into a queue for an operator"),
		queueAlarm(config.Refused, n.Cell(cell.ID, config.Refused),
			"the applier failed on some messages each time that SQS delivered them"))
	if d.Alarms.Set == config.AllAlarms {
		applier, reconcile := functionDimensions(cell.ID, n.Cell(cell.ID, config.Applier)), functionDimensions(cell.ID,
			n.Cell(cell.ID, config.Reconcile))
		all = append(all,
			sparseMetricAlarm(d, "panics", "Sum", authorizer, minute, 1,
				"requests ended in a panic and were refused: a mistake in the program"),
			sparseMetricAlarm(d, "events_refused", "Sum", authorizer, 5*minute, 1,
				"something that is no supported API invokes the authorizer"),
			sparseMetricAlarm(d, "events_forged", "Sum", applier, 5*minute, 1,
				"a message contradicts the control tables: somebody else published it, or the tables were restored"),
			sparseMetricAlarm(d, "events_unknown", "Sum", applier, 5*minute, 1,
				"the applier does not know the kind of a message: publisher and applier are of different versions"),
			sparseMetricAlarm(d, "reconcile_unfinished", "Maximum", reconcile, 15*minute, 4,
				"no run of reconcile has finished for an hour"))
		if !cell.NoKillSwitch {
			all = append(all,
				sparseMetricAlarm(d, "kill_switch", "Maximum", authorizer, 5*minute, 12,
					"the kill switch has kept the cell's limits in shadow or off for an hour"),
				sparseMetricAlarm(d, "kill_switch_unheard", "Sum", authorizer, 5*minute, 3,
					"the authorizer cannot read the mode of the limits from AppConfig, and keeps the last one"))
		}
	}
	return all
}

// Worker returns the alarms of a worker, by the names of its queue, of that queue's dead letters and of its function.
// maxAge is the age of the oldest message above which an alarm rings.
func Worker(queue, deadLetters, function string, maxAge time.Duration) []Alarm {
	const points = 3
	// A call lasts for 15 minutes, and Lambda writes its metrics once per call.
	silence := grants.SilentAfter(grants.Worker().Timeout)
	refused := queueAlarm("worker_refused", deadLetters,
		"the target could not handle some messages, and the queue's redrive policy put them into the queue of dead "+
			"letters")
	return []Alarm{
		{Name: "worker_backlog", Threshold: maxAge.Seconds(), Period: minute, DatapointsToAlarm: points,
			EvaluationPeriods: points, TreatMissing: Ignore,
			Metrics: []Metric{{Namespace: "AWS/SQS", Name: "ApproximateAgeOfOldestMessage", Stat: "Maximum",
				Dimensions: []Dimension{{"QueueName", queue}}}},
			Description: "the oldest message of a worker's queue has waited for longer than " + maxAge.String()},
		refused,
		{Name: "worker_errors", Period: silence, DatapointsToAlarm: 1, EvaluationPeriods: 1, TreatMissing: Breaching,
			Metrics: []Metric{{Namespace: "AWS/Lambda", Name: "Errors", Stat: "Sum",
				Dimensions: []Dimension{{"FunctionName", function}}}},
			Description: "calls of a worker failed, or it was not called for " + silence.String()},
	}
}

// requestAlarms returns the alarms about the functions that answer requests.
func requestAlarms(d *config.Deployment, cell *config.Cell, authorizer []Dimension) []Alarm {
	n := d.Names("", "", "")
	errors, slow := "store_errors_dynamodb", float64(maxLatencySmall)
	if cell.Profile == config.Full {
		errors, slow = "store_errors_redis", maxLatencyFull
	}
	const few, of = 3, 5
	all := []Alarm{
		{Name: LimiterErrors, Metrics: ownMetrics(d, errors, "Sum", authorizer), Threshold: maxErrorsPerMinute,
			Period:            minute,
			DatapointsToAlarm: few, EvaluationPeriods: of, TreatMissing: NotBreaching,
			Description: "the store of the counters fails, or answers too late"},
		{Name: LimiterP99, Metrics: ownMetrics(d, "limiter_latency", "p99", authorizer), Threshold: slow,
			Period:            minute,
			DatapointsToAlarm: few, EvaluationPeriods: of, TreatMissing: NotBreaching,
			Description: "deciding is slow: 1 in 100 requests waits longer than " +
				(time.Duration(slow) * time.Microsecond).String()},
		{Name: "config_stale", Metrics: ownMetrics(d, "config_stale", "Maximum", authorizer), Period: minute,
			DatapointsToAlarm: 2,
			EvaluationPeriods: few, TreatMissing: NotBreaching,
			Description: "the authorizer decides by a configuration that is older than 30 s"},
		{Name: "backstop_share", Threshold: maxBackstopPercent, Period: minute, DatapointsToAlarm: few,
			EvaluationPeriods: of, TreatMissing: NotBreaching,
			Expression: "IF(m1 > 0, 100 * m2 / m1, 0)",
			Metrics: []Metric{ownMetric(d, "m1", "decisions", "Sum", authorizer),
				ownMetric(d, "m2", "requests_served_by_backstop", "Sum", authorizer)},
			Description: "the fallback limiter made more than 1 % of the decisions, because the store did not answer"},
		{Name: "over_admission", Metrics: ownMetrics(d, "over_admission_ratio", "Maximum", authorizer),
			Threshold: maxAdmissionRatio,
			Period:    minute, DatapointsToAlarm: 1, EvaluationPeriods: 1, TreatMissing: NotBreaching,
			Description: "more than one and a half times a limit was admitted"},
		{Name: "throttles", Period: minute, DatapointsToAlarm: 1, EvaluationPeriods: 1, TreatMissing: NotBreaching,
			Metrics: []Metric{{Namespace: "AWS/Lambda", Name: "Throttles", Stat: "Sum",
				Dimensions: []Dimension{{"FunctionName", n.Cell(cell.ID, config.Authorizer)}}}},
			Description: "Lambda throttles the authorizer, because all of its reserved concurrency is in use: API " +
				"Gateway answers 500"},
	}
	all = append(all, saturationAlarms(d, cell, errors, authorizer)...)
	if cell.Profile == config.Full {
		all = append(all, Alarm{Name: "failover", Metrics: ownMetrics(d, "requests_served_by_backstop", "Sum",
			authorizer),
			Period: minute, DatapointsToAlarm: few, EvaluationPeriods: few, TreatMissing: NotBreaching,
			Description: "for three minutes, the fallback limiter decided without the cache: a failover takes too " +
				"long, or does not happen"})
	}
	return all
}

// saturationAlarms returns the alarms that ring if a store fails and is overloaded at the same time. Each is one alarm
// over several metrics, which costs less than a composite alarm over two. FILL turns a missing value into 0. A cache
// has one alarm per shard, because one shard may be overloaded alone. The alarm looks at both nodes of a shard, because
// either can be the primary.
func saturationAlarms(d *config.Deployment, cell *config.Cell, errors string, authorizer []Dimension) []Alarm {
	const points, within = 2, 5
	n := d.Names("", "", "")
	newAlarm := func(target, description, overloaded string, nodes ...Metric) Alarm {
		return Alarm{Name: "saturation", Target: target, Period: minute, DatapointsToAlarm: points,
			EvaluationPeriods: within, TreatMissing: NotBreaching,
			Description: description, Expression: "IF(FILL(m1, 0) > 0 AND " + overloaded + ", 1, 0)",
			Metrics: append([]Metric{ownMetric(d, "m1", errors, "Sum", authorizer)}, nodes...)}
	}
	if cell.Profile != config.Full {
		return []Alarm{newAlarm("", "calls to the counters table fail because DynamoDB throttles them",
			"FILL(m2, 0) > 0",
			Metric{ID: "m2", Namespace: "AWS/DynamoDB", Name: "WriteThrottleEvents", Stat: "Sum",
				Dimensions: []Dimension{{"TableName", n.Cell(cell.ID, config.Counters)}}})}
	}
	if cell.Cache != nil && cell.Cache.Endpoint != "" {
		return nil // the cache existed before, and its nodes are not known here
	}
	var all []Alarm
	for _, shard := range shardSuffixes(cell) {
		var nodes []Metric
		var busy []string
		for i := range nodesOfShard {
			id := fmt.Sprintf("m%d", 2+i)
			nodes = append(nodes, Metric{ID: id, Namespace: "AWS/ElastiCache", Name: "EngineCPUUtilization",
				Stat: "Maximum",
				Dimensions: []Dimension{{"CacheClusterId", fmt.Sprintf("%s%s-%03d", n.Cell(cell.ID, config.Cache),
					shard, 1+i)}}})
			busy = append(busy, fmt.Sprintf("FILL(%s, 0) > %d", id, maxNodeCPUPercent))
		}
		all = append(all, newAlarm(strings.TrimPrefix(shard, "-"),
			"the cache fails, and the processor of one of its nodes is busy", "("+strings.Join(busy,
				" OR ")+")", nodes...))
	}
	return all
}

const nodesOfShard = 2 // a primary and a replica

// shardSuffixes returns what the names of a cache's nodes contain for each shard: "-0001" and so on in a cluster, and
// one empty string otherwise.
func shardSuffixes(cell *config.Cell) []string {
	if cell.Cache == nil || !cell.Cache.Cluster {
		return []string{""}
	}
	var all []string
	for i := range cell.Cache.Shards {
		all = append(all, fmt.Sprintf("-%04d", 1+i))
	}
	return all
}

// iteratorAgeAlarm returns the alarm of a function that does not keep up with a stream, by Lambda's own metric. The
// canary regularly changes a plan. A function that reads these changes therefore has data in every period, and missing
// data is alarming, too. Assumption: stream-age.
func iteratorAgeAlarm(d *config.Deployment, f *grants.Function, function string) Alarm {
	const points, within = 2, 3
	a := Alarm{Name: "iterator_age", Target: f.Name, Threshold: maxIteratorAgeMs, Period: minute,
		DatapointsToAlarm: points, EvaluationPeriods: within,
		TreatMissing: NotBreaching,
		Metrics: []Metric{{Namespace: "AWS/Lambda", Name: "IteratorAge", Stat: "Maximum",
			Dimensions: []Dimension{{"FunctionName", function}}}},
		Description: "the " + f.Name + " reads a stream more than 30 s late"}
	if f.Streams.Silence {
		a.Period, a.DatapointsToAlarm, a.EvaluationPeriods, a.TreatMissing = grants.SilentAfter(canarySchedule(d)), 1,
			1, Breaching
		a.Description += ", or receives nothing from it"
	}
	return a
}

// canarySchedule returns the time between two runs of the canary.
func canarySchedule(d *config.Deployment) time.Duration {
	return time.Duration(d.Control.CanaryMinutes) * minute
}

// functionAlarm returns an alarm that internal/aws/grants defines for a function. target is a cell if the function has
// the alarm once for each cell.
func functionAlarm(
	d *config.Deployment, f *grants.Function, from *grants.Alarm, target string, dimensions []Dimension,
) Alarm {
	a := Alarm{Name: from.Metric, Target: target, Metrics: ownMetrics(d, from.Metric, cmp.Or(from.Stat, "SampleCount"),
		dimensions),
		Threshold: from.Above, OnSilence: from.Stat == "",
		Period: 5 * minute, DatapointsToAlarm: 1, EvaluationPeriods: 1, TreatMissing: NotBreaching,
		Description: strings.ReplaceAll(from.Means, "`", "")}
	if from.Silence {
		a.Period, a.TreatMissing = grants.SilentAfter(f.Schedule), Breaching
	}
	return a
}

// sparseMetricAlarm returns an alarm on a metric that is written only if its value is not 0.
func sparseMetricAlarm(d *config.Deployment, name, stat string, at []Dimension, period time.Duration, points int,
	means string) Alarm {
	return Alarm{Name: name, Metrics: ownMetrics(d, name, stat, at), Period: period, DatapointsToAlarm: points,
		EvaluationPeriods: points, TreatMissing: NotBreaching, Description: means}
}

// queueAlarm returns the alarm of a queue that holds messages only if an operator has to look at them.
func queueAlarm(name, physical, means string) Alarm {
	return Alarm{Name: name, Period: minute, DatapointsToAlarm: 1, EvaluationPeriods: 1, TreatMissing: Ignore,
		Description: means,
		Metrics: []Metric{{Namespace: "AWS/SQS", Name: "ApproximateNumberOfMessagesVisible", Stat: "Maximum",
			Dimensions: []Dimension{{"QueueName", physical}}}}}
}

func ownMetrics(d *config.Deployment, name, stat string, at []Dimension) []Metric {
	return []Metric{ownMetric(d, "", name, stat, at)}
}

func ownMetric(d *config.Deployment, id, name, stat string, at []Dimension) Metric {
	return Metric{ID: id, Namespace: d.Control.MetricsNamespace, Name: name, Stat: stat, Dimensions: at}
}

// functionDimensions returns the dimensions of the metrics that a function writes; function is its name in AWS.
func functionDimensions(cell, function string) []Dimension {
	if cell == "" {
		return []Dimension{{"function", function}}
	}
	return []Dimension{{"cell", cell}, {"function", function}}
}
