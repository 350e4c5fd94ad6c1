// Package grants says how each function is deployed: what its role may do, what calls it, its memory and timeout, and
// which of its metrics have alarms. It is data. docs/functions.md and the templates are made from it, so that they
// cannot differ.
//
// Tests check it from two sides. The functions' own tests run each binary behind a stand-in for IAM that refuses what
// is not granted here. A grant that no client of ours needs is an error.
//
// Permissions that depend on encryption are not included. With keys of AWS nothing more is needed. With a customer
// managed key, the functions need kms:Decrypt and kms:GenerateDataKey on it.
package grants

import (
	"slices"
	"strings"
	"time"

	"github.com/sluicelimits/sluice/events"
	"github.com/sluicelimits/sluice/internal/plan/shares"
)

// Function is a Lambda function: provided.al2023, arm64, handler bootstrap.
type Function struct {
	Name    string // of its folder below functions, and of its zip
	PerCell bool   // each cell has one, with its tables; the other functions run where the control tables are

	MemoryMB int           // Lambda gives processor time in proportion
	Timeout  time.Duration // of one call
	// reserved concurrency; 0 means the number that the cell is made for, which is also SLUICE_MAX_INSTANCES
	Reserved int

	// What calls the function.
	API     bool     // API Gateway: the authorizer as an authorizer, the others as a proxy with AWS_IAM authorization
	Streams *Streams // DynamoDB Streams
	Queue   *Queue   // SQS
	// EventBridge, at this rate and without retries, because the next run replaces a failed one; 0: none
	Schedule time.Duration

	Grants []Grant // in the order of the documentation, including those for the event sources
	Alarms []Alarm // on metrics that the function itself writes, in the namespace of SLUICE_METRICS_NAMESPACE
}

// Grant allows actions on one resource.
type Grant struct {
	On      Resource
	Actions []string // of IAM
	With    string   // condition: this variable is set, or has this value (NAME or NAME=VALUE); "": always

	// Keys restrict a grant on a table to partition keys, as dynamodb:LeadingKeys with ForAllValues:StringLike does. A
	// * at the end of a key stands for any end. Without Keys, the grant is on the whole table. [Grant.LeadingKeys]
	// returns the keys for a cell. Assumption: leading-keys.
	Keys []string
}

// AckKey in [Grant.Keys] stands for the key of the cell's own acknowledgement.
const AckKey = "{ack}"

// LeadingKeys returns Keys for a cell's function. It returns nil if the grant is on the whole table.
func (g *Grant) LeadingKeys(cell string) []string {
	keys := slices.Clone(g.Keys)
	for i, k := range keys {
		keys[i] = strings.ReplaceAll(k, AckKey, shares.AckKey(cell))
	}
	return keys
}

// Resource is a kind of resource that grants name. The comment of each kind is its ARN.
type Resource string

// The kinds of resources.
const (
	Plans      Resource = "the plans table"      // of the control table
	Tenants    Resource = "the tenants table"    // the same
	Keys       Resource = "the keys table"       // the same
	Cells      Resource = "the cells table"      // the same
	Operations Resource = "the operations table" // the same

	PlansStream      Resource = "the stream of plans"      // of the table, and /stream/*
	TenantsStream    Resource = "the stream of tenants"    // the same
	KeysStream       Resource = "the stream of keys"       // the same
	CellsStream      Resource = "the stream of cells"      // the same
	OperationsStream Resource = "the stream of operations" // the same

	Config    Resource = "the config table"         // that of the function's cell
	AllConfig Resource = "each cell's config table" // one for each cell that the variable names
	// of the table of the function's cell, and of each cell that the variable names
	Counters Resource = "the counters table, and those of `SLUICE_HOMES`"

	Topic Resource = "the topic" // the topic of changes
	// the queue that is subscribed to the topic, with raw message delivery
	Changes Resource = "the cell's queue"
	Kept    Resource = "the queue of dead letters" // of SLUICE_KEPT_QUEUE
	// a queue for records and messages that failed too often; see Streams
	Failed  Resource = "the destination of failed records"
	Objects Resource = "the objects of the audit bucket" // of the bucket with /audit/*, and with /rejected/*
	Anchors Resource = "the anchors in the audit bucket" // of the bucket with /anchors/*
	Names   Resource = "the audit bucket"                // of the bucket itself
	// of SLUICE_ANCHOR_KEY, whose own policy allows the action and denies it to others
	Signing Resource = "the anchors' key"
	Secret  Resource = "the secret"         // of SLUICE_SECRET, with the random end of its ARN
	Login   Resource = "the cache's secret" // of SLUICE_REDIS_SECRET, with the random end of its ARN
	// of the replication group, and of the user
	Cache Resource = "the cache and its user"
	// of the configuration in SLUICE_KILL_SWITCH: application/APPLICATION/environment/ENVIRONMENT/configuration/PROFILE
	Switch Resource = "the kill switch"
	// of the group, and of the group with :*; the group is created with the function
	Jobs    Resource = "the queue of messages" // of SLUICE_QUEUE
	Target  Resource = "the target"            // of SLUICE_TARGET
	Logs    Resource = "its log group"
	Network Resource = "network interfaces (any: `*`)" // *, because Lambda creates them
)

// CacheAccess is what the user of a cache may do, in the words of Redis: what our scripts do with our counters, and
// what a client asks a server or a cluster about itself.
const CacheAccess = "on ~{rl:* -@all +eval +evalsha +exists +get +pexpire +set +time +type" +
	" +zadd +zcount +zrangebyscore +zrem +zremrangebyscore +zrevrangebyscore" +
	" +ping +role +hello +asking +command +cluster|slots"

// Streams are event source mappings, one for each stream, with the same settings: NEW_AND_OLD_IMAGES, from TRIM_HORIZON
// on, ReportBatchItemFailures, bisecting on errors, and a queue for records that failed too often. One call at a time
// reads a shard.
type Streams struct {
	Of      []events.Table
	Batch   int           // the most records in a batch
	Window  time.Duration // how long Lambda waits for a batch to fill
	Retries int
	MaxAge  time.Duration // of a record; older records go to the queue

	// Silence says that missing data raises an alarm, and so does an iterator older than 30 s. The canary's changes
	// arrive regularly: see [SilentAfter].
	Silence bool
}

// Shards is how many shards the stream of a new on-demand table has: one for each of the four partitions that DynamoDB
// makes. Lambda reads each shard with a call of its own, so a function needs this much concurrency for each of its
// streams. Otherwise its calls are throttled, and a change waits for the next free one.
const Shards = 4

// Queue is the event source mapping of a standard queue, with ReportBatchItemFailures, and the queue's own settings.
type Queue struct {
	Batch         int
	Window        time.Duration // SQS requires a second or more if Batch is above 10
	MaxConcurrent int           // calls
	Visibility    time.Duration // six times the timeout, plus the window, as AWS recommends
	Retention     time.Duration
	MaxReceives   int // after that many deliveries, a message goes to the dead-letter queue
}

// Alarm is an alarm on a metric that the function writes. Queues of dead letters are not in this list: each has an
// alarm on CloudWatch's own metric, which stays on until the queue is empty.
type Alarm struct {
	Metric string
	// statistic of CloudWatch: Sum, Maximum, p99; "" if only Silence raises the alarm (SampleCount below 1)
	Stat  string
	Above float64 // a higher value raises the alarm; seconds if the metric's name ends in _seconds

	// Silence says that missing data raises the alarm, too, over a period of [SilentAfter]. The function writes the
	// metric in each run of its schedule. Without Silence, missing data is normal: the metric is written only if it is
	// not 0.
	Silence bool

	Means string // what has happened if the alarm is on
}

// SilentAfter returns how long data may be missing before an alarm, for a function with this schedule: three periods,
// so that two runs may fail, and at least 15 minutes. For [Streams], the schedule is the canary's.
func SilentAfter(schedule time.Duration) time.Duration { return max(3*schedule, 15*time.Minute) }

// Functions returns all functions of a deployment, in the order of the documentation. The caller may change the result.
func Functions() []Function {
	return []Function{authorizer(), publisher(), balancer(), applier(), reconcile(), canary(), archiver(), anchor(),
		admin(), ops()}
}

// Of returns the function with this name, also the worker, and whether it exists.
func Of(name string) (Function, bool) {
	all := append(Functions(), Worker())
	i := slices.IndexFunc(all, func(f Function) bool { return f.Name == name })
	if i < 0 {
		return Function{}, false
	}
	return all[i], true
}
