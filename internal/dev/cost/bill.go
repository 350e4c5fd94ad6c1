package cost

import (
	"fmt"

	"github.com/sluicelimits/sluice/internal/aws/grants"
)

// Line is a line of the bill: one thing that AWS charges for.
type Line struct {
	Service   string `json:"service"`
	What      string `json:"what"`
	Quantity  string `json:"quantity"` // the quantity of a month, rounded
	Unit      string `json:"unit"`
	Price     string `json:"price"`
	Amount    Micros `json:"usd"`
	How       string `json:"how"`       // how the quantity is calculated
	Published string `json:"priceFrom"` // where AWS has the price
	AsOf      string `json:"priceAsOf"` // the day on which that was the price

	exact float64
	id    string // id of the price
}

// mostDollars bounds a line, so that the sum of all lines fits into Micros.
const mostDollars = 100_000_000_000

// Bill is the cost of a month.
type Bill struct {
	Workload Workload
	Usage    *Usage
	Lines    []Line
	Total    Micros // sum of the lines
	Prices   *Prices
}

// New calculates the bill of a workload. The error is a *WorkloadError, or names a line that exceeds mostDollars.
func New(w *Workload, p *Prices) (*Bill, error) {
	if err := w.check(p); err != nil {
		return nil, err
	}
	b := &Bill{Workload: *w, Usage: usage(w), Prices: p}
	b.lambda()
	b.dynamo()
	if w.Profile == Full {
		b.fullCell()
	}
	b.changes()
	b.keys()
	b.cloudWatch()
	b.appConfig()
	if err := b.calculateAmounts(); err != nil {
		return nil, err
	}
	return b, nil
}

// add appends a line, unless its quantity is 0.
func (b *Bill) add(service, what, id string, quantity float64, how string, args ...any) {
	if quantity <= 0 {
		return
	}
	b.Lines = append(b.Lines, Line{Service: service, What: what, exact: quantity, id: id,
		How: fmt.Sprintf(how, args...)})
}

// calculateAmounts calculates the amounts of the lines. Lines with the same price are billed together, since price
// steps apply to their sum: each line costs what it adds to the lines before it.
func (b *Bill) calculateAmounts() error {
	before := map[string]float64{}
	for i := range b.Lines {
		l := &b.Lines[i]
		p := b.Prices.prices[l.id]
		had := before[l.id]
		all := had + l.exact
		before[l.id] = all
		region := b.Workload.Region
		dollars := p.amount(region, all) - p.amount(region, had)
		if dollars > mostDollars {
			return fmt.Errorf("%s, %s: costs more than %s dollars", l.Service, l.What, grouped(mostDollars))
		}
		l.Amount = micros(dollars)
		l.Quantity, l.Unit, l.Price = plainDecimal(l.exact, 6), p.Unit, p.shown(region)
		l.Published, l.AsOf = p.Published, p.AsOf
		b.Total += l.Amount
	}
	return nil
}

// month returns the monthly total over all cells of a rate per second and cell.
func (b *Bill) month(rate float64) float64 {
	return rate * float64(b.Workload.Cells) * seconds
}

// lambda adds the lines of the authorizer and of the functions of the control plane.
func (b *Bill) lambda() {
	w, u := &b.Workload, b.Usage
	requests := b.month(u.perCell)
	b.add("Lambda", "authorizer, requests", "lambda.requests", requests, "all requests: %s/s x %s s",
		decimal(w.RPS, 3), grouped(seconds))
	b.add("Lambda", "authorizer, duration", "lambda.duration",
		requests*u.MeanMs*float64(u.MemoryMB)/(1000*1024), "%s ms each, %d MB", decimal(u.MeanMs, 2), u.MemoryMB)
	calls, work := 0.0, 0.0
	for _, f := range grants.Functions() {
		n := b.callsOf(&f)
		calls += n
		work += n * float64(callMs(f.Name)*int64(f.MemoryMB)) / (1000 * 1024)
	}
	b.add("Lambda", "control plane, requests", "lambda.requests", calls,
		"by schedules (rules of EventBridge, which are free), and for each change of publisher and archiver, "+
			"and of applier in each cell")
	b.add("Lambda", "control plane, duration", "lambda.duration", work,
		"canary %d ms, reconcile %d ms, others %d ms each", callMs("canary"), callMs("reconcile"), callMs(""))
}

// callsOf returns how often a function of the control plane is called in a month.
func (b *Bill) callsOf(f *grants.Function) float64 {
	w, u := &b.Workload, b.Usage
	n := 0.0
	switch {
	case f.Name == "authorizer" || f.Name == "anchor" && !w.Anchors:
		return n
	case f.Name == "canary":
		return u.runs
	case f.Schedule > 0:
		n = every(f.Schedule)
	case f.Name == "publisher" || f.Name == "archiver" || f.Name == "applier":
		n = u.Changes
	}
	if f.PerCell {
		n *= float64(w.Cells)
	}
	return n
}

func (b *Bill) dynamo() {
	w, u := &b.Workload, b.Usage
	cells := float64(w.Cells)
	if w.Profile == Small {
		b.add("DynamoDB", "counters, writes", "dynamodb.writes", b.month(u.calls), "%s", b.explainCalls("write units"))
	} else {
		b.add("DynamoDB", "quotas, writes", "dynamodb.writes", b.month(u.quotas),
			"leases of a quota end after 10 s at most")
	}
	b.add("DynamoDB", "instances that tell that they run, writes", "dynamodb.writes", b.month(u.beats),
		"%d environments in each cell, every %s s", u.Environments, decimal(beatEvery, 2))
	b.add("DynamoDB", "config polls, reads", "dynamodb.reads", b.month(u.polls),
		"the log's head, once a second and environment")
	reads := float64(hours)/environmentAge + float64(hours*60)/renewEvery
	fresh := min(cells*float64(u.Environments*w.Tenants*documentsEach)*reads, b.month(u.perCell)*documentsEach)
	b.add("DynamoDB", "config documents, reads", "dynamodb.reads", fresh,
		"%d documents of each tenant, in each environment, which lives %d h, and again every %d minutes",
		documentsEach, environmentAge, renewEvery)
	b.add("DynamoDB", "changes, reads by environments", "dynamodb.reads",
		u.Changes*cells*float64(2*u.Environments), "entry and document, in each environment")
	b.add("DynamoDB", "changes, writes", "dynamodb.writes",
		u.Changes*(1+cells*applyWrites), "one in a control table, %d in each cell",
		applyWrites)
	b.add("DynamoDB", "changes, reads", "dynamodb.reads",
		u.Changes*(1+cells*applyReads), "one in a control table, %d in each cell",
		applyReads)
	b.add("DynamoDB", "canary, reads", "dynamodb.reads", u.runs*cells*canaryReads,
		"%d in each cell and run", canaryReads)
	items := w.Tenants*documentsEach + plans
	reconcile, _ := grants.Of("reconcile")
	b.add("DynamoDB", "reconcile, reads", "dynamodb.reads",
		every(reconcile.Schedule)*cells*float64(items*2*itemBytes)/4096,
		"%s items and as many documents, 4 KB a unit, every %s", grouped(items), reconcile.Schedule)
	balancer, _ := grants.Of("balancer")
	b.add("DynamoDB", "balancer, reads", "dynamodb.reads",
		every(balancer.Schedule)*(1+float64((plans+sharesItems+cellItems*w.Cells)*itemBytes)/4096),
		"the shares, and all plans, cells and acknowledgements, 4 KB a unit, every %s", balancer.Schedule)
}

// explainCalls describes how the calls to the store of rates are calculated.
func (b *Bill) explainCalls(what string) string {
	w, u := &b.Workload, b.Usage
	if !w.Leases {
		return what + " of exact decisions"
	}
	return fmt.Sprintf("with leases, %s %% of the requests need a call: each tenant sends %s requests/s to each of "+
		"%d environments", decimal(u.CallShare*100, 1), decimal(b.requestsPerEnvironment(), 3),
		u.Environments)
}

// requestsPerEnvironment returns the requests per second of one tenant in one environment.
func (b *Bill) requestsPerEnvironment() float64 {
	if b.Usage.Environments == 0 {
		return 0
	}
	return b.Usage.perCell / float64(b.Workload.Tenants*b.Usage.Environments)
}

func (b *Bill) fullCell() {
	w, u := &b.Workload, b.Usage
	b.add("ElastiCache", w.Node, nodePrice+w.Node, float64(u.Nodes*hours),
		"%d shards in each cell, each a primary and a replica: %s; %s calls/s a shard at peak", u.Shards,
		b.explainCalls("calls"), grouped(callsPerShard))
	b.add("Network", "between zones", "transfer.zones",
		b.month(u.calls)*callBytes*otherZone/(zones<<30),
		"%d bytes a call, %d of %d to another zone; billed at the function's side", callBytes, otherZone, zones)
	b.add("Network", "interface endpoints", "vpc.endpoint.hours", float64(endpoints*endpointZones*hours*w.Cells),
		"%d in each cell, in %d zones; DynamoDB by a gateway endpoint, which is free", endpoints, endpointZones)
	gateways := float64(w.NAT * hours * w.Cells)
	b.add("Network", "NAT gateways", "vpc.nat.hours", gateways, "%d in each cell, for issuers of JWTs outside", w.NAT)
	b.add("Network", "public IPv4 addresses", "vpc.ipv4.hours", gateways, "one for each NAT gateway")
}

// changes adds the lines of queues and of the audit trail.
func (b *Bill) changes() {
	w, u := &b.Workload, b.Usage
	polls := float64(longPolls * 60 * hours * w.Cells)
	b.add("SQS", "requests", "sqs.requests", polls+u.Changes*float64(w.Cells*queueCalls),
		"%d long polls a minute and cell by Lambda, %d for each message", longPolls, queueCalls)
	b.add("S3", "audit, objects", "s3.puts", u.Changes, "one for each change, %s of them the canary's",
		decimal(u.runs, 0))
	b.add("S3", "CloudTrail, log files", "s3.puts", trailPuts*hours, "%d an hour", trailPuts)
	b.add("CloudTrail", "data events", "cloudtrail.data", u.Changes*float64(2+w.Cells),
		"writes of control tables, config tables and audit records; not the authorizer's calls, nor counters")
}

func (b *Bill) keys() {
	w, u := &b.Workload, b.Usage
	b.add("Secrets Manager", "secrets", "secretsmanager.secrets", float64(w.Cells), "one in each cell")
	if w.CustomerKeys {
		b.add("KMS", "keys", "kms.keys", float64(w.Cells+1), "one beside the control tables, one in each cell")
	}
	if w.Anchors {
		b.add("KMS", "key of the anchors", "kms.keys", 1, "it signs once a day")
	}
	reconcile, _ := grants.Of("reconcile")
	asked := keyCalls*12*hours + every(reconcile.Schedule)*float64(w.Cells*reconcileTables) +
		float64(u.Environments*w.Cells*hours/environmentAge*environmentTables) +
		min(u.runs, 12*hours)*float64(1+canaryTables*w.Cells)
	b.add("KMS", "requests", "kms.requests", asked, "keys are kept for 5 minutes: %d calls for the topic in that "+
		"time, %d of each reconcile, %d of each environment, %d of a canary's run and %d more in each cell",
		keyCalls, reconcileTables, environmentTables, 1, canaryTables)
}

func (b *Bill) cloudWatch() {
	w, u := &b.Workload, b.Usage
	b.add("CloudWatch", "metrics", "cloudwatch.metrics", u.Metrics,
		"by the hours in which they are written; none has a tenant as its dimension")
	b.add("CloudWatch", "alarms", "cloudwatch.alarms", float64(u.AlarmMetrics), "metrics that they look at")
	if w.Dashboard {
		b.add("CloudWatch", "dashboard", "cloudwatch.dashboards", 1, "one in all")
	}
	lines := b.month(u.polls) * emfBytes
	how := fmt.Sprintf("a line of metrics of %s bytes a second and environment", grouped(emfBytes))
	if w.PlatformLogs {
		lines += b.month(u.perCell) * platformBytes
		how += fmt.Sprintf(", and %d bytes of Lambda's own for each call", platformBytes)
	} else {
		how += "; Lambda's own lines are not kept"
	}
	b.add("CloudWatch", "logs of the authorizer", "cloudwatch.logs", lines/(1<<30), "%s", how)
	calls := 0.0
	for _, f := range grants.Functions() {
		calls += b.callsOf(&f)
	}
	batches := calls * (batchBytes + platformBytes)
	b.add("CloudWatch", "logs of the control plane", "cloudwatch.logs", batches/(1<<30),
		"%s bytes a call, Lambda's own lines included", grouped(batchBytes+platformBytes))
}

// appConfig adds the polls of the kill switch. An environment runs only while it serves a request, so there are at most
// as many polls as requests.
func (b *Bill) appConfig() {
	w, u := &b.Workload, b.Usage
	b.add("AppConfig", "polls", "appconfig.requests", b.month(min(float64(u.Environments)/appConfigEvery, u.perCell)),
		"each environment, every %d s", appConfigEvery)
	b.add("AppConfig", "configurations", "appconfig.received", float64(u.Environments*w.Cells*hours/environmentAge),
		"one for each environment, which lives %d h", environmentAge)
}
