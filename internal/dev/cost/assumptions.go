package cost

import (
	"math/big"
	"time"

	"github.com/sluicelimits/sluice/internal/aws/grants"
	"github.com/sluicelimits/sluice/internal/telemetry"
)

// A month is 730 hours, as AWS counts in its examples.
const (
	hours   = 730
	seconds = hours * 3600
)

// What was measured here, with the figure of `make figures` that it is from. A tenant's store calls are limited by
// leases: however often it asks in one environment, there are so many calls in a second.
var (
	exactUnits = frac(1038, 1000) // write units of an exact decision: dynamodb_wcu_exact, the larger of its runs
	// write units of a tenant in an environment and second: dynamodb_wcu_hot, 46.5 for 1,000 of 50/s in each of 20
	leasedUnits  = frac(2325, 1000)
	bindingUnits = frac(3575, 1000)  // so where a limit binds: dynamodb_wcu_hot_binding, 71.5
	deniedUnits  = frac(24, 100_000) // write units of a denial: dynamodb_wcu_denied, 0.24 for 1,000
	// s between two beats of an environment, at the least: package resilience, 9.8 s less a 20th
	beatEvery = frac(931, 100)
	// calls of a quota's lease for a tenant in an environment and second: a lease ends after 10 s at most
	quotaCalls = frac(1, 10)
	// a line of metrics with all there is (internal/telemetry/testdata) and CloudWatch's 26 for each event
	emfBytes   = int64(1864)
	batchBytes = int64(726) // a line of metrics of a function of the control plane, the same
)

// How often an environment of the authorizer asks beside requests, in seconds. A test compares these with the packages
// that ask.
const (
	appConfigEvery = 15  // package killswitch
	secretEvery    = 300 // package secrets
	keysEvery      = 900 // package token, for each issuer
)

// What is assumed. Nothing of it has been measured on AWS.
const (
	// billed for a decision without a call; processor time is far below, and Lambda bills whole milliseconds
	localMs  = 1
	dynamoMs = 7 // more with a call of DynamoDB: "single-digit milliseconds"
	redisMs  = 2 // more with a call of ElastiCache
	// standard deviations above the mean that environments are counted for: concurrency of random arrivals is a Poisson
	// number
	burst = 3

	// decisions of a cache shard in a second; the scripts alone take 9 µs each (redis_3_limits), network comes on top
	callsPerShard  = 50_000
	callBytes      = 1024 // over the network for a decision in the cache, both directions, TLS included
	otherZone      = 2    // in how many of 3 cases the cache's node is in another zone, with three zones
	zones          = 3
	documentsEach  = 3    // documents of the config table for a tenant: itself and two keys
	itemBytes      = 1024 // of an item or document, and so a write unit
	plans          = 20   // in all
	environmentAge = 2    // h that an environment lives; then a new one reads its documents
	// minutes, on average, after which an environment reads a document again that it uses: cellconfig reads after 10 to
	// 14
	renewEvery = 12
	// read units of a canary's run in each cell: it looks every 50 ms until it sees its change, for 2 s
	canaryReads       = 40
	applyReads        = 3  // read units of a change in each cell
	applyWrites       = 6  // write units: a transaction of document, log entry and head
	longPolls         = 15 // of a queue by Lambda in a minute: five pollers, 20 s each
	queueCalls        = 2  // more for each message: one to send, one to delete it
	keyCalls          = 2  // of KMS in 5 minutes, for a topic encrypted by AWS's key: one to encrypt, one to decrypt
	reconcileTables   = 6  // that a run reads or writes, each after more than 5 minutes, by AWS's key, too
	environmentTables = 2  // that an environment calls
	// the config table of each cell, which applier and canary ask for, beside the table of plans
	canaryTables  = 2
	sharesItems   = 1   // items of the table of cells in all
	cellItems     = 2   // and of each cell: itself, its acknowledgement
	trailPuts     = 12  // log files of CloudTrail in an hour
	retention     = 1   // months that logs are kept
	platformBytes = 400 // lines of Lambda's own for each call (START, END, REPORT)
	wafRules      = 1
	endpoints     = 2 // interface endpoints of a full cell: Secrets Manager, AppConfig
	endpointZones = 2
	endpointBytes = 8192  // of a call through an interface endpoint, both directions; TLS is some 5 KB of it
	issuers       = 1     // whose keys are read through NAT gateways
	issuerBytes   = 16384 // of a read of an issuer's keys, both directions, TLS included
	messagesEach  = 10    // messages of a WebSocket connection
	minutesEach   = 10    // that it is open
)

// compressed is the share of a log's bytes for whose storage CloudWatch bills: it stores logs compressed. AWS's
// Pricing Calculator takes this share ("0.15 Storage compression factor").
var compressed = frac(15, 100)

// Of a call of a function of the control plane, how long it takes.
func callMs(function string) int64 {
	switch function {
	case "canary":
		return 2000 // until its change is seen
	case "reconcile":
		return 1000
	default:
		return 100
	}
}

// AlarmMetrics is what the alarms of a deployment look at beside the alarms of package grants, as one metric for each:
// an alarm on a quotient counts twice.
type AlarmMetrics struct {
	Cell    int64 // of each small cell
	Full    int64 // more in a full cell
	Shard   int64 // more for each shard of its cache but the first
	Control int64 // beside the control tables
}

// Alarms are those that design and documentation ask for and package grants does not have: limiter errors, limiter p99,
// stale configuration, backstop share (2), over-admission, errors with backend saturation (2), throttles of the
// authorizer, what is kept and dead letters in each cell; failover time in a full one, and saturation of each shard (3:
// errors, and both nodes); the age of the iterators of three functions, what is kept, what failed and what was not
// delivered beside the control tables. An iterator's silence is the same metric's.
func Alarms() AlarmMetrics { return AlarmMetrics{Cell: 11, Full: 2, Shard: 3, Control: 6} }

// alarmMetrics counts the metrics that alarms look at, with so many shards in the cache of each full cell.
func alarmMetrics(w *Workload, shards int64) int64 {
	own := Alarms()
	perCell, once := own.Cell, own.Control
	if w.Profile == Full {
		perCell += own.Full + own.Shard*(shards-1)
	}
	for _, f := range grants.Functions() {
		switch n := int64(len(f.Alarms)); {
		case f.Name == "authorizer": // in Alarms
		case f.Name == "anchor" && !w.Anchors:
		case f.PerCell || f.Name == "canary": // whose metrics have the cell as a dimension
			perCell += n
		default:
			once += n
		}
	}
	return perCell*w.Cells + once
}

// metrics counts the metrics that are written, each by the share of a month's hours in which it is, as CloudWatch bills
// it: of functions that are called, those that are always told, and those that requests bring; errors and the like are
// taken to be rare. Changes are taken to come in hours of their own. What is in a line only is no metric.
func metrics(w *Workload, u *Usage) *big.Rat {
	n := new(big.Rat)
	for _, m := range telemetry.Metrics() {
		for _, f := range m.Functions {
			told, share := m.Always, num(1)
			switch f {
			case "authorizer":
				told = w.RPS.Sign() > 0 && (m.Always || usual(w, m.Name))
			case "anchor":
				told = m.Always && w.Anchors
			case "canary":
				share = least(num(1), over(u.runs, num(hours)))
			case "publisher", "archiver", "applier":
				share = least(num(1), over(u.Changes, num(hours)))
			}
			if !told || m.LineOnly {
				continue
			}
			if len(m.Dimensions) > 1 {
				share = product(share, num(w.Cells))
			}
			n = sum(n, share)
		}
	}
	return n
}

// usual are the metrics of an authorizer that has requests which are no faults.
func usual(w *Workload, name string) bool {
	switch name {
	case "decisions_allowed", "decisions_limited", "decisions_no_credential", "decisions_bad_credential",
		"limiter_latency", "lease_hit_rate", "store_latency_dynamodb", "propagation_seconds", "cold_starts",
		"early_denials",
		"over_admission_ratio", "per_cell_limit_effective":
		return true
	case "store_latency_redis":
		return w.Profile == Full
	}
	return false
}

// every is how often a schedule runs in a month.
func every(d time.Duration) *big.Rat { return over(num(seconds), frac(d.Milliseconds(), 1000)) }
