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

// board is the body of a CloudWatch dashboard, in CloudWatch's own format.
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
	columns     = 2  // of widgets
	halfWidth   = 12 // CloudWatch divides the width of a dashboard into 24
	graphHeight = 6
)

// line is one line of a graph, in CloudWatch's format: namespace, metric, names and values of dimensions in turn, and
// how the line is drawn.
type line []any

// addGraph adds a graph. region is the region of those lines that name none.
func (b *board) addGraph(title, region string, stacked bool, lines ...line) {
	b.add("metric", map[string]any{"title": title, "region": region, "view": "timeSeries", "stacked": stacked,
		"period": 60, "metrics": lines})
}

func (b *board) add(kind string, properties map[string]any) {
	n := len(b.Widgets)
	b.Widgets = append(b.Widgets, widget{kind, halfWidth, graphHeight, n % columns * halfWidth,
		n / columns * graphHeight, properties})
}

// newDashboard makes the dashboard of a cell or of the control plane.
func newDashboard(scope constructs.Construct, p *place) error {
	b := &board{}
	all := alarm.Control(p.deployment)
	if p.cell != nil {
		all = alarm.Cell(p.deployment, p.cell)
	}
	var arns []string
	for i := range all {
		arns = append(arns, p.names.ARN("cloudwatch", p.region(), "alarm:"+p.alarmName(all[i].Name, all[i].Target)))
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

// cellMetric returns a line with a metric that a cell's function writes.
func (p *place) cellMetric(cell *config.Cell, function, metric, stat string) line {
	return line{p.deployment.Control.MetricsNamespace, metric, "cell", cell.ID, "function",
		p.names.Cell(cell.ID, function),
		map[string]any{"stat": stat, "region": cell.Region, "label": metric + " " + stat}}
}

// controlMetric returns a line with a metric that a function of the control plane writes. cell is "" for metrics
// without the dimension cell.
func (p *place) controlMetric(cell, function, metric, stat string) line {
	l := line{p.deployment.Control.MetricsNamespace, metric}
	label := metric
	if cell != "" {
		l, label = append(l, "cell", cell), cell
	}
	return append(l, "function", p.names.Control(function), map[string]any{"stat": stat, "label": label})
}

// awsMetric returns a line with a metric that AWS writes.
func awsMetric(namespace, metric, dimension, value, stat string) line {
	return line{namespace, metric, dimension, value, map[string]any{"stat": stat, "label": value + " " + metric}}
}

func (p *place) cellBoard(b *board) {
	c, region := p.cell, p.cell.Region
	authorizer := func(metric, stat string) line { return p.cellMetric(c, config.Authorizer, metric, stat) }
	var decisions []line
	for _, kind := range []string{"allowed", "limited", "ip_limited", "never_fits", "not_here", "unavailable",
		"unidentified",
		"no_credential", "bad_credential", "unknown_tenant", "suspended_tenant", "no_plan", "internal"} {
		decisions = append(decisions, authorizer("decisions_"+kind, "Sum"))
	}
	b.addGraph("Decisions by outcome", region, true, decisions...)
	latency := []line{authorizer("limiter_latency", "p50"), authorizer("limiter_latency", "p99"),
		authorizer("store_latency_dynamodb", "p99")}
	errors := []line{authorizer("requests_served_by_backstop", "Sum"), authorizer("store_errors_dynamodb", "Sum"),
		authorizer("store_errors_home", "Sum")}
	if c.Profile == config.Full {
		latency, errors = append(latency, authorizer("store_latency_redis", "p99")),
			append(errors, authorizer("store_errors_redis", "Sum"))
	}
	b.addGraph("Latency of limits and stores (µs)", region, false, latency...)
	b.addGraph("Decisions by the fallback limiter, and errors of stores", region, false, errors...)
	b.addGraph("Shadow denials, and the kill switch", region, false, authorizer("shadow_denied", "Sum"),
		authorizer("kill_switch", "Maximum"), authorizer("kill_switch_spared", "Sum"))
	b.addGraph("Decisions from leases (%)", region, false, authorizer("lease_hit_rate", "Average"),
		authorizer("early_denials", "Sum"))
	b.addGraph("The cell's share of the limits (%)", region, false, authorizer("per_cell_limit_effective", "Maximum"))
	b.addGraph("Admitted units divided by the limit: above 1 exceeds a limit", region, false,
		authorizer("over_admission_ratio",
			"Maximum"))
	b.addGraph("From the write of a change until it is enforced (s)", region, false, authorizer("propagation_seconds",
		"p99"), authorizer("config_stale", "Maximum"))
	function := p.name(config.Authorizer)
	b.addGraph("The authorizer", region, false, awsMetric("AWS/Lambda", "ConcurrentExecutions", "FunctionName",
		function,
		"Maximum"),
		awsMetric("AWS/Lambda", "Throttles", "FunctionName", function, "Sum"), authorizer("cold_starts", "Sum"))
	table := p.name(config.Counters)
	b.addGraph("The counters table", region, false, awsMetric("AWS/DynamoDB", "ConsumedWriteCapacityUnits",
		"TableName", table,
		"Sum"),
		awsMetric("AWS/DynamoDB", "WriteThrottleEvents", "TableName", table, "Sum"))
	b.addGraph("Changes on their way to the cell", region, false, awsMetric("AWS/SQS", "ApproximateAgeOfOldestMessage",
		"QueueName",
		p.name(config.Changes), "Maximum"),
		p.cellMetric(c, config.Reconcile, "drift", "Maximum"), p.cellMetric(c, config.Applier, "messages_again", "Sum"))
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
		canary = append(canary, p.controlMetric(c.ID, config.Canary, "propagation_seconds", "p99"))
		effective = append(effective, named(p.cellMetric(c, config.Authorizer, "per_cell_limit_effective", "Maximum")))
		decisions = append(decisions, named(p.cellMetric(c, config.Authorizer, "decisions", "Sum")))
		drift = append(drift, named(p.cellMetric(c, config.Reconcile, "drift", "Maximum")))
	}
	b.addGraph("The canary: from the write of a change until a cell enforces it (s)", region, false, canary...)
	b.addGraph("Each cell's share of the limits (%): together 100", region, true, effective...)
	b.addGraph("Decisions, by cell", region, true, decisions...)
	b.addGraph("Drift, by cell", region, false, drift...)
	var behind []line
	for _, f := range grants.Functions() {
		if f.Streams != nil {
			behind = append(behind, awsMetric("AWS/Lambda", "IteratorAge", "FunctionName", p.names.Control(f.Name),
				"Maximum"))
		}
	}
	b.addGraph("How late functions read the streams (ms)", region, false, behind...)
	var kept []line
	for _, name := range []string{config.Kept, config.Failed, config.Undelivered} {
		kept = append(kept, awsMetric("AWS/SQS", "ApproximateNumberOfMessagesVisible", "QueueName", p.name(name),
			"Maximum"))
	}
	b.addGraph("Dead letters: messages that need an operator", region, false, kept...)
	b.addGraph("Cells and shares", region, false, p.controlMetric("", config.Balancer, "active_cell_count", "Maximum"),
		p.controlMetric("", config.Balancer, "shares_awaited", "Maximum"), p.controlMetric("", config.Balancer,
			"shares_refused", "Sum"))
}
