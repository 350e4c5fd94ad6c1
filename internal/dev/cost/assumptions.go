package cost

import (
	"time"

	"github.com/sluicelimits/sluice/internal/aws/grants"
	"github.com/sluicelimits/sluice/internal/telemetry"
)

// A month has 730 hours, as in AWS's own examples.
const (
	hours   = 730
	seconds = hours * 3600
)

// Measurements, each with the figure of `make figures` that repeats it. Leases bound the store calls of a tenant in one
// environment: beyond some rate of requests, the calls per second no longer grow.
const (
	exactUnits = 1.038 // write units of an exact decision: dynamodb_wcu_exact, the larger of its runs
	// write units of a tenant in an environment and second: dynamodb_wcu_hot, 46.5 for 1,000 of 50/s in each of 20
	leasedUnits  = 2.325
	bindingUnits = 3.575   // the same if a limit binds: dynamodb_wcu_hot_binding, 71.5
	deniedUnits  = 0.00024 // write units of a denial: dynamodb_wcu_denied, 0.24 for 1,000
	// shortest time between two announcements of an environment to the instance count, in seconds: package resilience,
	// 9.8 s minus 5 %
	beatEvery = 9.31
	// calls per second for the leases of a quota, for one tenant in one environment: a lease ends after 10 s at most
	quotaCalls = 0.1
	// bytes of a line with all metrics of the authorizer (internal/telemetry/testdata), with CloudWatch's 26 per event
	emfBytes   = 1864
	batchBytes = 726 // the same for a function of the control plane
)

// appConfigEvery is how many seconds lie between two polls of AppConfig by an environment. A test compares it with
// package killswitch.
const appConfigEvery = 15

// Assumptions. None of them has been measured on AWS.
const (
	// billed ms of a decision without a call to a store: Lambda bills whole milliseconds, and processor time is far
	// below
	localMs  = 1
	dynamoMs = 7 // additional billed ms with a call to DynamoDB; AWS says "single-digit milliseconds"
	redisMs  = 2 // additional billed ms with a call to ElastiCache
	// Environments suffice for the mean number of concurrent requests plus this many standard deviations. The number of
	// concurrent requests has a Poisson distribution if requests arrive at random.
	burst = 3

	// decisions per second of a shard of the cache; a script takes 9 µs (figure redis_3_limits), plus the network's
	// work
	callsPerShard  = 50_000
	callBytes      = 1024 // sent and received for a decision in the cache, TLS included
	otherZone      = 2    // of 3 calls, how many go to a node in another zone, if there are three zones
	zones          = 3
	documentsEach  = 3    // documents per tenant in the config table: the tenant and two keys
	itemBytes      = 1024 // size of an item or document, which is one write unit
	plans          = 20   // number of plans
	environmentAge = 2    // lifetime of an environment, in hours; then a new one reads all documents
	// average minutes until an environment reads a document again that it uses: package cell/config reads it after 9 to
	// 15 minutes
	renewEvery = 12
	// read units of a run of the canary in each cell: it reads every 50 ms until it sees its change, for about 2 s
	canaryReads       = 40
	applyReads        = 3  // read units of a change in each cell
	applyWrites       = 6  // write units of a change in each cell: a transaction of document, log entry and head
	longPolls         = 15 // calls in which Lambda polls a queue, in a minute: five pollers, 20 s for each poll
	queueCalls        = 2  // further calls for each message: one sends it, one deletes it
	keyCalls          = 2  // calls to KMS in 5 minutes for the encrypted topic: one to encrypt, one to decrypt
	reconcileTables   = 6  // encrypted tables that a run of reconcile uses; KMS is called for each after 5 minutes
	environmentTables = 2  // encrypted tables that an environment of the authorizer uses
	// users of the config table of each cell in a run of the canary: the applier and the canary
	canaryTables  = 2
	sharesItems   = 1   // items of the table cells that do not belong to a cell
	cellItems     = 2   // items of the table cells per cell: the cell and its acknowledgement
	trailPuts     = 12  // log files of CloudTrail per hour
	platformBytes = 400 // bytes of Lambda's own lines for each call (START, END, REPORT)
	endpoints     = 2   // interface endpoints of a full cell: Secrets Manager, AppConfig
	endpointZones = 2
)

// callMs returns the billed milliseconds of a call of a function of the control plane.
func callMs(function string) int64 {
	switch function {
	case "canary":
		return 2000 // it waits until its change has arrived
	case "reconcile":
		return 1000
	default:
		return 100
	}
}

// AlarmMetrics counts the metrics that a deployment's alarms look at, without the alarms of package grants. An alarm on
// a quotient of two metrics counts twice.
type AlarmMetrics struct {
	Cell    int64 // for each small cell
	Full    int64 // additional ones for a full cell
	Shard   int64 // additional ones for each shard of a full cell's cache after the first
	Control int64 // for the control plane
}

// Alarms returns the metrics of the alarms that the deployment creates and package grants does not list. For each cell:
// limiter errors, limiter p99, stale configuration, backstop share (2), over-admission, errors with saturation of the
// backend (2), throttles of the authorizer, kept messages and dead letters. For a full cell: the failover time, and 3
// for the saturation of each shard (errors, and both nodes). For the control plane: the iterator age of three
// functions, kept, failed and undelivered messages. The alarm on a silent iterator looks at the metric of its age.
func Alarms() AlarmMetrics { return AlarmMetrics{Cell: 11, Full: 2, Shard: 3, Control: 6} }

// alarmMetrics counts the metrics that alarms look at. shards is the number of shards in the cache of each full cell.
func alarmMetrics(w *Workload, shards int64) int64 {
	own := Alarms()
	perCell, once := own.Cell, own.Control
	if w.Profile == Full {
		perCell += own.Full + own.Shard*(shards-1)
	}
	for _, f := range grants.Functions() {
		switch n := int64(len(f.Alarms)); {
		case f.Name == "authorizer": // counted in Alarms
		case f.Name == "anchor" && !w.Anchors:
		case f.PerCell || f.Name == "canary": // whose metrics have the cell as a dimension
			perCell += n
		default:
			once += n
		}
	}
	return perCell*w.Cells + once
}

// metrics counts the metrics that are written. CloudWatch bills a metric only for the hours in which it is written, so
// a metric counts by the share of those hours. Only functions that are called write metrics: the ones that they always
// write, and the ones of ordinary requests. Metrics of errors are assumed to be rare, and changes to come in different
// hours. A value that is only in a line of the log is not a metric.
func metrics(w *Workload, u *Usage) float64 {
	n := 0.0
	for _, m := range telemetry.Metrics() {
		for _, f := range m.Functions {
			told, share := m.Always, 1.0
			switch f {
			case "authorizer":
				told = w.RPS > 0 && (m.Always || usual(w, m.Name))
			case "anchor":
				told = m.Always && w.Anchors
			case "canary":
				share = min(1, u.runs/hours)
			case "publisher", "archiver", "applier":
				share = min(1, u.Changes/hours)
			}
			if !told || m.LineOnly {
				continue
			}
			if len(m.Dimensions) > 1 {
				share *= float64(w.Cells)
			}
			n += share
		}
	}
	return n
}

// usual reports whether an authorizer writes a metric for ordinary requests, without errors.
func usual(w *Workload, name string) bool {
	switch name {
	case "decisions_allowed", "decisions_limited", "decisions_no_credential", "decisions_bad_credential",
		"limiter_latency", "lease_hit_rate", "store_latency_dynamodb", "propagation_seconds", "cold_starts",
		"early_denials", "over_admission_ratio", "per_cell_limit_effective":
		return true
	case "store_latency_redis":
		return w.Profile == Full
	}
	return false
}

// every returns how often a schedule runs in a month.
func every(d time.Duration) float64 { return seconds / d.Seconds() }
