// Package grants says what each function is deployed with: what its role may do, what calls it, its memory and time,
// and what is alarming in its metrics. It is data, from which docs/functions.md is made and templates take theirs, so
// that they cannot differ.
//
// Tests hold it from two sides: the functions' own tests run each binary behind a stand-in for IAM that refuses what is
// not granted here, and a grant that no client of ours has a call for is an error.
//
// Left out is what depends on how resources are encrypted: with keys of AWS nothing is needed, with a key of one's own
// the functions need kms:Decrypt and kms:GenerateDataKey on it.
package grants

import (
	"slices"
	"strings"
	"time"

	"github.com/sluicelimits/sluice/events"
	"github.com/sluicelimits/sluice/internal/plan/shares"
)

// Function is one Lambda: provided.al2023, arm64, handler bootstrap.
type Function struct {
	Name    string // of its folder in functions, and of its zip
	PerCell bool   // one in each cell, beside its tables; the others are beside the control tables

	MemoryMB int           // Lambda's processor time goes with it
	Timeout  time.Duration // of one call
	Reserved int           // reserved concurrency; 0: what the cell is made for, which is SLUICE_MAX_INSTANCES, too

	// What calls it.
	API      bool          // API Gateway: of the authorizer as such, of the others a proxy with AWS_IAM authorization
	Streams  *Streams      // DynamoDB Streams
	Queue    *Queue        // SQS
	Schedule time.Duration // EventBridge, at this rate and without retries: the next run makes up for one; 0: none

	Grants []Grant // in the order of the documentation; those of sources included
	Alarms []Alarm // on metrics of its own, in the namespace of SLUICE_METRICS_NAMESPACE
}

// Grant allows actions on one resource.
type Grant struct {
	On      Resource
	Actions []string // of IAM
	With    string   // only where this variable is set, or has this value: NAME or NAME=VALUE; empty: always

	// Keys bound what is reached of a table, as dynamodb:LeadingKeys does by ForAllValues:StringLike: partition keys,
	// of which a last * is any end; none: the whole table. [Grant.LeadingKeys] has them for a cell. Assumption:
	// leading-keys.
	Keys []string
}

// AckKey in [Grant.Keys] stands for the key of the cell's own acknowledgement.
const AckKey = "{ack}"

// LeadingKeys are Keys for a cell's function; nil where the grant is on the whole table.
func (g *Grant) LeadingKeys(cell string) []string {
	keys := slices.Clone(g.Keys)
	for i, k := range keys {
		keys[i] = strings.ReplaceAll(k, AckKey, shares.AckKey(cell))
	}
	return keys
}

// Resource is a kind of what grants are on. Each comment is its ARN.
type Resource string

// The kinds of resources.
const (
	Plans      Resource = "the plans table"      // the control table's
	Tenants    Resource = "the tenants table"    // the same
	Keys       Resource = "the keys table"       // the same
	Cells      Resource = "the cells table"      // the same
	Operations Resource = "the operations table" // the same

	PlansStream      Resource = "the stream of plans"      // that of the table, and /stream/*
	TenantsStream    Resource = "the stream of tenants"    // the same
	KeysStream       Resource = "the stream of keys"       // the same
	CellsStream      Resource = "the stream of cells"      // the same
	OperationsStream Resource = "the stream of operations" // the same

	Config    Resource = "the config table"         // that of the function's cell
	AllConfig Resource = "each cell's config table" // one for each cell that the variable names
	// that of the function's cell, and of each cell that the variable names
	Counters Resource = "the counters table, and those of `SLUICE_HOMES`"

	Topic   Resource = "the topic"                       // of changes
	Changes Resource = "the cell's queue"                // which is subscribed to the topic, with raw message delivery
	Kept    Resource = "the queue of what is kept"       // of SLUICE_KEPT_QUEUE
	Failed  Resource = "the destination of what fails"   // a queue; see Streams
	Objects Resource = "the objects of the audit bucket" // the bucket's and /audit/*, and the same with /rejected/*
	Anchors Resource = "the anchors in the audit bucket" // the bucket's and /anchors/*
	Names   Resource = "the audit bucket"                // the bucket's own
	// of SLUICE_ANCHOR_KEY, whose own policy allows it and denies it to others
	Signing Resource = "the anchors' key"
	Secret  Resource = "the secret"         // of SLUICE_SECRET, with the random end of its ARN
	Login   Resource = "the cache's secret" // of SLUICE_REDIS_SECRET, the same
	// the replication group's (or the serverless cache's) and the user's
	Cache Resource = "the cache and its user"
	// the configuration of SLUICE_KILL_SWITCH: application/APPLICATION/environment/ENVIRONMENT/configuration/PROFILE
	Switch  Resource = "the kill switch"
	Logs    Resource = "its log group"                 // the group's and :*; the group is made with the function
	Network Resource = "network interfaces (any: `*`)" // *, since Lambda makes them
)

// CacheAccess is what the user of a cache may do, in the words of Redis: what our scripts do on our counters, and what
// a client asks a server or a cluster about itself.
const CacheAccess = "on ~{rl:* -@all +eval +evalsha +exists +get +pexpire +set +time +type" +
	" +zadd +zcount +zrangebyscore +zrem +zremrangebyscore +zrevrangebyscore" +
	" +ping +role +hello +asking +command +cluster|slots"

// Streams are event source mappings, one for each stream, all alike: NEW_AND_OLD_IMAGES, from TRIM_HORIZON on, with
// ReportBatchItemFailures, bisecting on errors, and a queue for what fails all the same. One shard is read by one call
// at a time.
type Streams struct {
	Of      []events.Table
	Batch   int           // records, at most
	Window  time.Duration // for which a batch is waited for
	Retries int
	MaxAge  time.Duration // of a record; older ones go to the queue

	// Silence is alarming, and so is an iterator that is older than 30 s: the canary's changes come by, see
	// [SilentAfter].
	Silence bool
}

// Shards is how many shards the stream of a new on-demand table has: one for each of the four partitions that DynamoDB
// makes. Lambda reads each shard with a call of its own, so a function needs this much concurrency for each of its
// streams. With less its calls are throttled, and a change waits for the next free one.
const Shards = 4

// Queue is the event source mapping of a standard queue, with ReportBatchItemFailures, and the queue's own settings.
type Queue struct {
	Batch         int
	Window        time.Duration // SQS wants a second or more where Batch is above 10
	MaxConcurrent int           // calls
	Visibility    time.Duration // six times the timeout and the window, as Lambda wants it
	Retention     time.Duration
	MaxReceives   int // then a message goes to the dead-letter queue
}

// Alarm is on a metric of ours. What is kept in queues has none: each queue has one, on CloudWatch's own metric, which
// rings until somebody has looked.
type Alarm struct {
	Metric string
	Stat   string  // of CloudWatch: Sum, Maximum, p99; "" where Silence alone is alarming (SampleCount below 1)
	Above  float64 // of it is alarming; seconds where the metric ends in _seconds

	// Silence is alarming, too: missing data is breaching, over a period of [SilentAfter]. The function tells the
	// metric in each run of its schedule. Without it missing data is as it should be: the metric is told only where it
	// is not 0.
	Silence bool

	Means string // what has happened
}

// SilentAfter is how long nothing is heard of what runs on this schedule until that is alarming: two runs may be
// missed, and less than a quarter of an hour is no silence. Of [Streams] the schedule is the canary's.
func SilentAfter(schedule time.Duration) time.Duration { return max(3*schedule, 15*time.Minute) }

// Functions are all of them, in the order of the documentation; the caller may change its copy.
func Functions() []Function {
	return []Function{authorizer(), publisher(), balancer(), applier(), reconcile(), canary(), archiver(), anchor(),
		admin(), ops()}
}

// Of is the function of that name. The second result is whether there is one.
func Of(name string) (Function, bool) {
	all := Functions()
	i := slices.IndexFunc(all, func(f Function) bool { return f.Name == name })
	if i < 0 {
		return Function{}, false
	}
	return all[i], true
}
