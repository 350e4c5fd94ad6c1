// Package alarm says which alarms a deployment has, on which metrics, and what is made of missing data. It is data, of
// which templates, runbooks and tests are made.
//
// What internal/aws/grants finds alarming about a function is taken from there. Here is what is of no single function,
// or needs arithmetic: the request path, the streams, and the queues of what somebody has to look at.
package alarm

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	"github.com/sluicelimits/sluice/infra/config"
	"github.com/sluicelimits/sluice/internal/aws/grants"
)

// Alarm is one of CloudWatch.
type Alarm struct {
	Name string // of the alarm and of its runbook, docs/runbooks/NAME.md
	Of   string // which of several of that name: a function, or a cell; "" where there is one

	// Metrics are what it looks at, each of which is billed. More than one have an Expression over their IDs, and else
	// there is one.
	Metrics    []Metric
	Expression string

	Above   float64       // of the statistic or the expression is alarming
	Unheard bool          // instead of Above: fewer than one value in a period is alarming
	Period  time.Duration // of each datapoint: 10 s, 20 s, 30 s, or whole minutes
	Points  int           // so many of the last Within datapoints
	Within  int
	Missing Missing

	Means string // one sentence, for whoever is woken
}

// Metric is one of CloudWatch, with its statistic.
type Metric struct {
	ID         string // in an expression: m1 and so on; "" where there is none
	Namespace  string
	Name       string
	Stat       string // Sum, Maximum, SampleCount, p99
	Dimensions []Dimension
}

// Dimension is one of a metric.
type Dimension struct{ Name, Value string }

// Missing is what CloudWatch makes of a period without data.
type Missing string

// What there is. A metric of ours that is not told is 0 or nobody called; one that is always told is missing where
// nothing runs; and of a queue that nobody asks about, CloudWatch hears nothing after six hours, though something may
// be in it.
const (
	Good  Missing = "notBreaching"
	Bad   Missing = "breaching"
	Stays Missing = "ignore"
)

// Names of alarms that others are about.
const (
	LimiterErrors = "limiter_errors"
	LimiterP99    = "limiter_p99"
)

// What is alarming about the request path.
const (
	errorsInAMinute = 10     // calls that a store did not answer, in a cell
	slowSmall       = 50_000 // µs of the limits' part of a request, where a call of DynamoDB is a part of it
	slowFull        = 10_000 // µs, where Redis is asked, whose deadline is 8 ms by default
	backstopPercent = 1
	overAdmission   = 1.5
	busyPercent     = 80     // of the one processor that a cache's node uses for commands
	behindMs        = 30_000 // age of a stream's iterator
)

const minute = time.Minute

// Control are the alarms beside the control tables. The canary's are there too, one for each cell, since its metrics
// are.
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
			all = append(all, behind(d, &f, n.Control(f.Name)))
		}
		for _, a := range f.Alarms {
			if f.Name != config.Canary {
				all = append(all, own(d, &f, &a, "", dimensions("", n.Control(f.Name))))
				continue
			}
			for i := range d.Cells {
				cell := d.Cells[i].ID
				all = append(all, own(d, &f, &a, cell, dimensions(cell, n.Control(f.Name))))
			}
		}
	}
	for _, q := range [...][2]string{
		{config.Kept, "records of a stream cannot be used, and were put aside"},
		{config.Failed, "records of a stream failed until their time or their retries were over"},
		{config.Undelivered, "the topic could not deliver changes to a cell's queue"},
	} {
		all = append(all, queue(q[0], n.Control(q[0]), q[1]))
	}
	if d.Alarms.Set == config.AllAlarms {
		all = append(all, told(d, "shares_awaited", "Maximum", dimensions("", n.Control(config.Balancer)), 10*minute, 3,
			"a change of the shares has waited for a cell for half an hour: no other change goes on"))
	}
	return all
}

// Cell are the alarms of a cell.
func Cell(d *config.Deployment, cell *config.Cell) []Alarm {
	n := d.Names("", "", "")
	authorizer := dimensions(cell.ID, n.Cell(cell.ID, config.Authorizer))
	all := requests(d, cell, authorizer)
	for _, f := range grants.Functions() {
		for _, a := range f.Alarms {
			if f.PerCell {
				all = append(all, own(d, &f, &a, "", dimensions(cell.ID, n.Cell(cell.ID, f.Name))))
			}
		}
	}
	all = append(all,
		queue(config.Kept, n.Cell(cell.ID, config.Kept), "messages to the cell cannot be used, and were put aside"),
		queue(config.Refused, n.Cell(cell.ID, config.Refused),
			"the applier was given messages again and again, and could not apply them"))
	if d.Alarms.Set == config.AllAlarms {
		applier, reconcile := dimensions(cell.ID, n.Cell(cell.ID, config.Applier)), dimensions(cell.ID,
			n.Cell(cell.ID, config.Reconcile))
		all = append(all,
			told(d, "panics", "Sum", authorizer, minute, 1, "requests ended in a panic, and were refused: a mistake "+
				"in the program"),
			told(d, "events_refused", "Sum", authorizer, 5*minute, 1,
				"the authorizer is attached to what it cannot answer"),
			told(d, "events_forged", "Sum", applier, 5*minute, 1,
				"somebody else published changes, or the control tables were restored"),
			told(d, "events_unknown", "Sum", applier, 5*minute, 1, "publisher and applier are of different versions"),
			told(d, "reconcile_unfinished", "Maximum", reconcile, 15*minute, 4,
				"for an hour, no run of reconcile has come to its end"))
		if !cell.NoKillSwitch {
			all = append(all,
				told(d, "kill_switch", "Maximum", authorizer, 5*minute, 12,
					"for an hour, the cell's limits have not been enforced: they are in shadow, or off"),
				told(d, "kill_switch_unheard", "Sum", authorizer, 5*minute, 3,
					"the mode of the limits cannot be read: what AppConfig says now is not known"))
		}
	}
	return all
}

// requests are the alarms of what answers requests.
func requests(d *config.Deployment, cell *config.Cell, authorizer []Dimension) []Alarm {
	n := d.Names("", "", "")
	errors, slow := "store_errors_dynamodb", float64(slowSmall)
	if cell.Profile == config.Full {
		errors, slow = "store_errors_redis", slowFull
	}
	const few, of = 3, 5
	all := []Alarm{
		{Name: LimiterErrors, Metrics: ours(d, errors, "Sum", authorizer), Above: errorsInAMinute, Period: minute,
			Points: few, Within: of, Missing: Good,
			Means: "the store of the counters does not answer, or not in time"},
		{Name: LimiterP99, Metrics: ours(d, "limiter_latency", "p99", authorizer), Above: slow, Period: minute,
			Points: few, Within: of, Missing: Good,
			Means: "limits take long: 1 in 100 requests waits for them longer than " +
				(time.Duration(slow) * time.Microsecond).String()},
		{Name: "config_stale", Metrics: ours(d, "config_stale", "Maximum", authorizer), Period: minute, Points: 2,
			Within: few, Missing: Good,
			Means: "requests are decided on a configuration that is older than 30 s"},
		{Name: "backstop_share", Above: backstopPercent, Period: minute, Points: few, Within: of, Missing: Good,
			Expression: "IF(m1 > 0, 100 * m2 / m1, 0)",
			Metrics: []Metric{our(d, "m1", "decisions", "Sum", authorizer),
				our(d, "m2", "requests_served_by_backstop", "Sum", authorizer)},
			Means: "more than 1 % of the decisions were made without a store, by counting in each instance"},
		{Name: "over_admission", Metrics: ours(d, "over_admission_ratio", "Maximum", authorizer), Above: overAdmission,
			Period: minute, Points: 1, Within: 1, Missing: Good,
			Means: "half as much again as a limit holds was admitted, or more"},
		{Name: "throttles", Period: minute, Points: 1, Within: 1, Missing: Good,
			Metrics: []Metric{{Namespace: "AWS/Lambda", Name: "Throttles", Stat: "Sum",
				Dimensions: []Dimension{{"FunctionName", n.Cell(cell.ID, config.Authorizer)}}}},
			Means: "the authorizer has no environment left, and API Gateway answers 500"},
	}
	all = append(all, saturation(d, cell, errors, authorizer)...)
	if cell.Profile == config.Full {
		all = append(all, Alarm{Name: "failover", Metrics: ours(d, "requests_served_by_backstop", "Sum", authorizer),
			Period: minute, Points: few, Within: few, Missing: Good,
			Means: "for three minutes in a row decisions were made without the cache: a failover that takes longer " +
				"than one should, or none that comes"})
	}
	return all
}

// saturation is errors of a store that is at its limit: one alarm over its metrics, which costs less than a composite
// of two alarms. What is not told is 0. Of a cache there is one for each shard, since one may be busy alone; whichever
// of its nodes is the primary is the busy one.
func saturation(d *config.Deployment, cell *config.Cell, errors string, authorizer []Dimension) []Alarm {
	const points, within = 2, 5
	n := d.Names("", "", "")
	one := func(of, means, busy string, nodes ...Metric) Alarm {
		return Alarm{Name: "saturation", Of: of, Period: minute, Points: points, Within: within, Missing: Good,
			Means:      means,
			Expression: "IF(FILL(m1, 0) > 0 AND " + busy + ", 1, 0)",
			Metrics:    append([]Metric{our(d, "m1", errors, "Sum", authorizer)}, nodes...)}
	}
	if cell.Profile != config.Full {
		return []Alarm{one("", "the store of the counters does not answer, and it is DynamoDB that throttles it",
			"FILL(m2, 0) > 0",
			Metric{ID: "m2", Namespace: "AWS/DynamoDB", Name: "WriteThrottleEvents", Stat: "Sum",
				Dimensions: []Dimension{{"TableName", n.Cell(cell.ID, config.Counters)}}})}
	}
	if cell.Cache != nil && cell.Cache.Endpoint != "" {
		return nil // whoever made it knows its nodes
	}
	var all []Alarm
	for _, shard := range shards(cell) {
		var nodes []Metric
		var busy []string
		for i := range nodesOfShard {
			id := fmt.Sprintf("m%d", 2+i)
			nodes = append(nodes, Metric{ID: id, Namespace: "AWS/ElastiCache", Name: "EngineCPUUtilization",
				Stat: "Maximum",
				Dimensions: []Dimension{{"CacheClusterId", fmt.Sprintf("%s%s-%03d", n.Cell(cell.ID, config.Cache),
					shard, 1+i)}}})
			busy = append(busy, fmt.Sprintf("FILL(%s, 0) > %d", id, busyPercent))
		}
		all = append(all, one(strings.TrimPrefix(shard, "-"),
			"the store of the counters does not answer, and the processor of a node is busy", "("+strings.Join(busy,
				" OR ")+")", nodes...))
	}
	return all
}

const nodesOfShard = 2 // a primary and a replica

// shards are what is in the names of a cache's nodes, of each shard: nothing where it is no cluster.
func shards(cell *config.Cell) []string {
	if cell.Cache == nil || !cell.Cache.Cluster {
		return []string{""}
	}
	var all []string
	for i := range cell.Cache.Shards {
		all = append(all, fmt.Sprintf("-%04d", 1+i))
	}
	return all
}

// behind is a function that does not keep up with a stream: the age is CloudWatch's own metric. Where the canary's
// changes come by, no word of it is alarming, too. Assumption: stream-age.
func behind(d *config.Deployment, f *grants.Function, function string) Alarm {
	const points, within = 2, 3
	a := Alarm{Name: "iterator_age", Of: f.Name, Above: behindMs, Period: minute, Points: points, Within: within,
		Missing: Good,
		Metrics: []Metric{{Namespace: "AWS/Lambda", Name: "IteratorAge", Stat: "Maximum",
			Dimensions: []Dimension{{"FunctionName", function}}}},
		Means: "the " + f.Name + " is more than 30 s behind a stream"}
	if f.Streams.Silence {
		a.Period, a.Points, a.Within, a.Missing = grants.SilentAfter(canarySchedule(d)), 1, 1, Bad
		a.Means += ", or nothing comes to it any more"
	}
	return a
}

// canarySchedule is how often the canary runs.
func canarySchedule(d *config.Deployment) time.Duration {
	return time.Duration(d.Control.CanaryMinutes) * minute
}

// own is what internal/aws/grants finds alarming about a function.
func own(d *config.Deployment, f *grants.Function, of *grants.Alarm, which string, at []Dimension) Alarm {
	a := Alarm{Name: of.Metric, Of: which, Metrics: ours(d, of.Metric, cmp.Or(of.Stat, "SampleCount"), at),
		Above: of.Above, Unheard: of.Stat == "",
		Period: 5 * minute, Points: 1, Within: 1, Missing: Good, Means: strings.ReplaceAll(of.Means, "`", "")}
	if of.Silence {
		a.Period, a.Missing = grants.SilentAfter(f.Schedule), Bad
	}
	return a
}

// told is a metric that is told only where it is not 0.
func told(d *config.Deployment, name, stat string, at []Dimension, period time.Duration, points int, means string) Alarm {
	return Alarm{Name: name, Metrics: ours(d, name, stat, at), Period: period, Points: points, Within: points, Missing: Good, Means: means}
}

// queue is one in which something is only where somebody has to look.
func queue(name, physical, means string) Alarm {
	return Alarm{Name: name, Period: minute, Points: 1, Within: 1, Missing: Stays, Means: means,
		Metrics: []Metric{{Namespace: "AWS/SQS", Name: "ApproximateNumberOfMessagesVisible", Stat: "Maximum", Dimensions: []Dimension{{"QueueName", physical}}}}}
}

func ours(d *config.Deployment, name, stat string, at []Dimension) []Metric {
	return []Metric{our(d, "", name, stat, at)}
}

func our(d *config.Deployment, id, name, stat string, at []Dimension) Metric {
	return Metric{ID: id, Namespace: d.Control.MetricsNamespace, Name: name, Stat: stat, Dimensions: at}
}

// dimensions are those of a function's metrics, by its name in AWS.
func dimensions(cell, function string) []Dimension {
	if cell == "" {
		return []Dimension{{"function", function}}
	}
	return []Dimension{{"cell", cell}, {"function", function}}
}
