package infra

import (
	"encoding/json"

	"github.com/aws/aws-cdk-go/awscdk/v2/awscloudwatch"
	"github.com/aws/constructs-go/constructs/v10"
	"github.com/aws/jsii-runtime-go"

	"github.com/sluicelimits/sluice/infra/alarm"
	"github.com/sluicelimits/sluice/infra/config"
	"github.com/sluicelimits/sluice/internal/aws/grants"
)

// A dashboard is of two columns; its body is CloudWatch's own form.
type board struct {
	Widgets []widget `json:"widgets"`
}

type widget struct {
	Type       string         `json:"type"`
	Width      int            `json:"width"`
	Height     int            `json:"height"`
	X          int            `json:"x"`
	Y          int            `json:"y"`
	Properties map[string]any `json:"properties"`
}

const (
	columns     = 2
	halfWidth   = 12 // of 24
	graphHeight = 6
)

// line is one line of a graph: namespace, name, dimensions in turn, and how it is drawn.
type line []any

// graph adds one with its lines, which are of the metric's region where they say none.
func (b *board) graph(title, region string, stacked bool, lines ...line) {
	b.add("metric", map[string]any{"title": title, "region": region, "view": "timeSeries", "stacked": stacked,
		"period": 60, "metrics": lines})
}

func (b *board) add(kind string, properties map[string]any) {
	n := len(b.Widgets)
	b.Widgets = append(b.Widgets, widget{kind, halfWidth, graphHeight, n % columns * halfWidth,
		n / columns * graphHeight, properties})
}

// newDashboard makes the place's, after its alarms.
func newDashboard(scope constructs.Construct, p *place) error {
	b := &board{}
	all := alarm.Control(p.deployment)
	if p.cell != nil {
		all = alarm.Cell(p.deployment, p.cell)
	}
	var arns []string
	for i := range all {
		arns = append(arns, p.names.ARN("cloudwatch", p.region(), "alarm:"+p.alarmName(all[i].Name, all[i].Of)))
	}
	b.add("alarm", map[string]any{"title": "Alarms", "alarms": arns})
	if p.cell != nil {
		p.cellBoard(b)
	} else {
		p.controlBoard(b)
	}
	body, err := json.Marshal(b)
	if err != nil {
		return err
	}
	name := p.names.Prefix
	if p.cell != nil {
		name = p.names.Prefix + "-" + p.cell.ID
	}
	awscloudwatch.NewCfnDashboard(scope, jsii.String("Dashboard"),
		&awscloudwatch.CfnDashboardProps{DashboardName: &name, DashboardBody: jsii.String(string(body))})
	return nil
}

// of is a line of a metric of ours, told by a cell's function.
func (p *place) of(cell *config.Cell, function, metric, stat string) line {
	return line{p.deployment.Control.MetricsNamespace, metric, "cell", cell.ID, "function",
		p.names.Cell(cell.ID, function),
		map[string]any{"stat": stat, "region": cell.Region, "label": metric + " " + stat}}
}

// here is one of the control plane's; cell is "" where it tells no cells apart.
func (p *place) here(cell, function, metric, stat string) line {
	l := line{p.deployment.Control.MetricsNamespace, metric}
	label := metric
	if cell != "" {
		l, label = append(l, "cell", cell), cell
	}
	return append(l, "function", p.names.Control(function), map[string]any{"stat": stat, "label": label})
}

// aws is a line of a metric of AWS's.
func aws(namespace, metric, dimension, value, stat string) line {
	return line{namespace, metric, dimension, value, map[string]any{"stat": stat, "label": value + " " + metric}}
}

func (p *place) cellBoard(b *board) {
	c, region := p.cell, p.cell.Region
	authorizer := func(metric, stat string) line { return p.of(c, config.Authorizer, metric, stat) }
	var decisions []line
	for _, kind := range []string{"allowed", "limited", "ip_limited", "never_fits", "not_here", "unavailable",
		"unidentified",
		"no_credential", "bad_credential", "unknown_tenant", "suspended_tenant", "no_plan", "internal"} {
		decisions = append(decisions, authorizer("decisions_"+kind, "Sum"))
	}
	b.graph("Decisions by outcome", region, true, decisions...)
	latency := []line{authorizer("limiter_latency", "p50"), authorizer("limiter_latency", "p99"),
		authorizer("store_latency_dynamodb", "p99")}
	errors := []line{authorizer("requests_served_by_backstop", "Sum"), authorizer("store_errors_dynamodb", "Sum"),
		authorizer("store_errors_home", "Sum")}
	if c.Profile == config.Full {
		latency, errors = append(latency, authorizer("store_latency_redis", "p99")),
			append(errors, authorizer("store_errors_redis", "Sum"))
	}
	b.graph("Latency of limits and stores (µs)", region, false, latency...)
	b.graph("Decisions by the backstop, and errors of stores", region, false, errors...)
	b.graph("Shadow limits, and the kill switch", region, false, authorizer("shadow_denied", "Sum"),
		authorizer("kill_switch", "Maximum"), authorizer("kill_switch_spared", "Sum"))
	b.graph("Decisions from leases (%)", region, false, authorizer("lease_hit_rate", "Average"),
		authorizer("early_denials", "Sum"))
	b.graph("What the cell grants of the limits (%)", region, false, authorizer("per_cell_limit_effective", "Maximum"))
	b.graph("Over-admission: above 1 is more than a limit", region, false, authorizer("over_admission_ratio",
		"Maximum"))
	b.graph("From the write of a change until it is enforced (s)", region, false, authorizer("propagation_seconds",
		"p99"), authorizer("config_stale", "Maximum"))
	function := p.name(config.Authorizer)
	b.graph("The authorizer", region, false, aws("AWS/Lambda", "ConcurrentExecutions", "FunctionName", function,
		"Maximum"),
		aws("AWS/Lambda", "Throttles", "FunctionName", function, "Sum"), authorizer("cold_starts", "Sum"))
	table := p.name(config.Counters)
	b.graph("The counters table", region, false, aws("AWS/DynamoDB", "ConsumedWriteCapacityUnits", "TableName", table,
		"Sum"),
		aws("AWS/DynamoDB", "WriteThrottleEvents", "TableName", table, "Sum"))
	b.graph("The way of changes", region, false, aws("AWS/SQS", "ApproximateAgeOfOldestMessage", "QueueName",
		p.name(config.Changes), "Maximum"),
		p.of(c, config.Reconcile, "drift", "Maximum"), p.of(c, config.Applier, "messages_again", "Sum"))
}

func (p *place) controlBoard(b *board) {
	region := p.deployment.Control.Region
	var canary, effective, decisions, drift []line
	for i := range p.deployment.Cells {
		c := &p.deployment.Cells[i]
		named := func(l line) line {
			l[len(l)-1].(map[string]any)["label"] = c.ID
			return l
		}
		canary = append(canary, p.here(c.ID, config.Canary, "propagation_seconds", "p99"))
		effective = append(effective, named(p.of(c, config.Authorizer, "per_cell_limit_effective", "Maximum")))
		decisions = append(decisions, named(p.of(c, config.Authorizer, "decisions", "Sum")))
		drift = append(drift, named(p.of(c, config.Reconcile, "drift", "Maximum")))
	}
	b.graph("The canary: from the write of a change until it is enforced, by cell (s)", region, false, canary...)
	b.graph("What each cell grants of the limits (%): together 100", region, true, effective...)
	b.graph("Decisions, by cell", region, true, decisions...)
	b.graph("Drift, by cell", region, false, drift...)
	var behind []line
	for _, f := range grants.Functions() {
		if f.Streams != nil {
			behind = append(behind, aws("AWS/Lambda", "IteratorAge", "FunctionName", p.names.Control(f.Name),
				"Maximum"))
		}
	}
	b.graph("How far readers of the streams are behind (ms)", region, false, behind...)
	var kept []line
	for _, name := range []string{config.Kept, config.Failed, config.Undelivered} {
		kept = append(kept, aws("AWS/SQS", "ApproximateNumberOfMessagesVisible", "QueueName", p.name(name), "Maximum"))
	}
	b.graph("What somebody has to look at", region, false, kept...)
	b.graph("Cells and shares", region, false, p.here("", config.Balancer, "active_cell_count", "Maximum"),
		p.here("", config.Balancer, "shares_awaited", "Maximum"), p.here("", config.Balancer, "shares_refused", "Sum"))
}
