// Package config reads the deployment file: which cells there are, where, how large, and in which modes.
//
// It knows nothing of CDK. Reading is strict, and all problems are told at once, each with file, line and column:
//
//	prefix: sluice                 # of every name in AWS; one letter and up to 15 of a-z 0-9
//	account: "123456789012"        # optional: deploying to another one is refused
//	control:
//	  region: eu-west-1
//	  audit: { mode: GOVERNANCE, retentionDays: 365 }
//	cells:
//	  - { id: eu-1, region: eu-west-1 }
//	  - { id: us-1, region: us-east-1, maxInstances: 200 }
//	retired: [ { id: us-0, region: us-east-1 } ]
//
// The fields of [Deployment] tell what else there is.
package config

import (
	"fmt"
	"strings"
	"time"

	"github.com/sluicelimits/sluice/internal/configfile"
)

// Deployment is everything that one deployment file says. Zero values are the defaults, which [Deployment.Complete]
// fills in.
type Deployment struct {
	Prefix  string // of every physical name: [a-z][a-z0-9]{0,15}; default "sluice"
	Account string // 12 digits; "": the one of the credentials that deploy

	Architecture string // of the functions: ARM64 (default) or X8664

	Control Control
	Cells   []Cell // at least one, each id once; the order is that in which they are deployed

	// Retired are cells that are gone, and whose counters tables are still there: they stay the homes of quotas until
	// the periods end that were open when they went. Take one out, and delete its table, after the longest period of
	// your quotas.
	Retired []Retired

	Alarms     Alarms
	Operators  Callers
	Dashboards bool // one of the control plane and one of each cell; the first three of an account are free
}

// Architectures of functions, as Lambda spells them.
const (
	ARM64 = "arm64"
	X8664 = "x86_64"
)

// Alarms say which alarms there are, and who hears of them. Without Email and Topics they are seen in the console only.
type Alarms struct {
	Set string // UsualAlarms (default) or AllAlarms

	// Email gets them, by topics that are made for it, one in each region, each with a key of its own, which is 1 USD a
	// month. AWS asks the address first.
	Email string

	// Topics are ARNs of topics of your own instead, one in each region of the deployment. CloudWatch must be allowed
	// to publish on them, and to use their keys.
	Topics []string
}

// Callers say whom the operators' APIs let in at all, of the control plane and of every cell. IAM has to permit a call
// besides. Callers of another account are never let in.
type Callers struct {
	Principals []string // ARNs of roles and users, in which * stands for any text; none: every caller of the account
	Addresses  []string // addresses, or networks such as 203.0.113.0/24, that calls come from; none: any

	// AccessLogs writes a line for each call to the operators' APIs, refused ones included, to CloudWatch Logs. It has
	// the caller's ARN and address. The account's setting of API Gateway in each region must name a role that may write
	// logs.
	AccessLogs bool
}

// The sets of alarms.
const (
	UsualAlarms = "usual" // what somebody must hear of
	AllAlarms   = "all"   // and what is good to know
)

// Topic is the topic of your own in a region; "" where there is none.
func (a *Alarms) Topic(region string) string {
	for _, arn := range a.Topics {
		if parts := strings.Split(arn, ":"); len(parts) > arnRegion && parts[arnRegion] == region {
			return arn
		}
	}
	return ""
}

const arnRegion = 3 // of an ARN's parts

// Retired is a cell that is gone.
type Retired struct{ ID, Region string }

// Control is the control plane.
type Control struct {
	Region string // required
	Audit  Audit

	// do not record data events of the control tables, the config tables and the operators' functions
	NoTrail          bool
	Pepper           string // id of the pepper that new API keys are hashed with; default "p1"
	MetricsNamespace string // of the metrics in CloudWatch, in the cells too; default "Sluice"
	LogLevel         string // debug, info, warn or error, in the cells too; default "info"
	LogDays          int    // how long logs stay, one of those that CloudWatch Logs has; in the cells too; default 30

	// CanaryMinutes is how often the canary makes a change and watches it come to the cells: 1 to 60; default 5. Each
	// is on record for good.
	CanaryMinutes int

	// NoPlatformLogs leaves out Lambda's own lines of each call that went well (START, END, REPORT), in the cells too.
	// It has Lambda expect JSON, which all our lines are; that it passes lines with metrics as they are is by its
	// documentation, and not tried yet. Assumption: emf-metrics.
	NoPlatformLogs bool
}

// Audit says how the audit trail is locked.
type Audit struct {
	Mode          string // Governance (default) or Compliance
	RetentionDays int    // 1 to 36500; default 365
	Confirm       string // with Compliance: what Confirmation returns

	// Anchors has a function sign, once a day, what the newest version of every item is, with a key of KMS that it
	// alone may use. Without it, who can write the tables and the trail's bucket can rewrite both.
	Anchors bool

	// BreakGlass is the ARN of the role, in IAM, that alone may do what the policies of the trail's buckets deny
	// everybody: remove records in the mode Governance, change the retention and the lifecycle, put records back. If
	// empty, nobody may.
	BreakGlass string
}

// The modes of Object Lock.
const (
	Governance = "GOVERNANCE" // those with s3:BypassGovernanceRetention may remove records
	Compliance = "COMPLIANCE" // nobody may, not even AWS, and nobody can take that back; needs a confirmation
)

// Confirmation is what Audit.Confirm must be before records are locked so that nobody can remove them.
func Confirmation(days int) string {
	return fmt.Sprintf("nobody can delete audit records for %d days", days)
}

// Cell is one cell.
type Cell struct {
	ID      string // [a-z][a-z0-9-]{0,23}, in which no hyphen is last or beside another
	Region  string // required; several cells may be in one
	Profile string // Small (default) or Full

	MaxInstances int  // of the authorizer: its reserved concurrency; 1 to 10000; default 100
	MemoryMB     int  // of the authorizer: 128 to 10240; default 512
	TrustedHops  int  // 0 to 16; see docs/authorizer.md
	RetryJitter  int  // percent, 0 to 100
	NoLeases     bool // ask the stores for each decision

	Issuers     []Issuer // who may issue JWTs; none accepts no JWT
	Claims      []string // of JWTs, that limits have in "per: claim:…"
	PassDenials []string // ids of HTTP and WebSocket APIs whose denials go through to the middleware in the backend

	// NoKillSwitch leaves out the kill switch, by which limits can be put in shadow or off without a deployment of the
	// function.
	NoKillSwitch bool

	// RollbackAlarms are ARNs of alarms of your own in the cell's region, such as those of a backend, at most three: a
	// watched deployment of the kill switch is taken back where one of them rings, as where the cell's own do.
	RollbackAlarms []string

	WAF *WAF // nil: none

	Attach []Attachment // APIs that are there already

	Deadlines Deadlines

	// Of a full cell; nil: all by default.
	Cache   *Valkey
	Network *Network
}

// Deadlines are how long a decision waits for each store, 1 ms to 5 s, before it goes on without it; 0: as
// docs/authorizer.md says.
type Deadlines struct {
	Redis    time.Duration // of a full cell
	DynamoDB time.Duration
	Home     time.Duration // the counters tables of other cells, where there are some
}

// WAF is a firewall in front of REST APIs, which counts addresses without asking any store.
type WAF struct {
	Rate   int      // requests of an address in five minutes, 10 to 2000000000: those above it are blocked
	Stages []string // ARNs of stages of REST APIs in the cell's region; none: attach it yourself, by its ARN
}

// The profiles of a cell.
const (
	Small = "small" // no VPC, no Redis: everything is counted in DynamoDB
	Full  = "full"  // rates are counted in Redis, in a VPC
)

// Issuer is as in docs/authorizer.md. It marshals to the form of SLUICE_ISSUERS.
type Issuer struct {
	Issuer        string   `json:"issuer"`
	Audiences     []string `json:"audiences"`
	JWKSURL       string   `json:"jwksUrl"`
	Algorithms    []string `json:"algorithms,omitempty"`
	AudienceClaim string   `json:"audienceClaim,omitempty"`
	TenantClaim   string   `json:"tenantClaim,omitempty"`
	SubjectClaim  string   `json:"subjectClaim,omitempty"`
	Tenants       []string `json:"tenants,omitempty"`
	AllTenants    bool     `json:"allTenants,omitempty"`
}

// Names are the deployment's, for what CDK's tokens or a test stand in for the rest.
func (d *Deployment) Names(partition, account, suffix string) Names {
	return Names{Prefix: d.Prefix, Partition: partition, Account: account, Suffix: suffix}
}

// Cell is the cell of that id; nil where there is none.
func (d *Deployment) Cell(id string) *Cell {
	for i := range d.Cells {
		if d.Cells[i].ID == id {
			return &d.Cells[i]
		}
	}
	return nil
}

// Regions are the regions of the deployment, each once: the control plane's, then those of the cells in their order.
func (d *Deployment) Regions() []string {
	regions := []string{d.Control.Region}
	seen := map[string]bool{d.Control.Region: true}
	for i := range d.Cells {
		if r := d.Cells[i].Region; !seen[r] {
			seen[r] = true
			regions = append(regions, r)
		}
	}
	return regions
}

// Problem is one thing that is wrong in a deployment file, or in a deployment that a program made: then it has no File.
type Problem = configfile.Problem

// Error is every problem of one file, in its order.
type Error = configfile.Error
