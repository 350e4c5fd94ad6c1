// Package config reads the deployment file: which cells a deployment has, in which regions, their sizes and settings.
//
// It does not use CDK. Reading is strict, and the error lists all problems, each with file, line and column:
//
//	prefix: sluice                 # begins every name in AWS; a letter and up to 15 of a-z 0-9
//	account: "123456789012"        # optional; CDK refuses to deploy to another account
//	control:
//	  region: eu-west-1
//	  audit: { mode: GOVERNANCE, retentionDays: 365 }
//	cells:
//	  - { id: eu-1, region: eu-west-1 }
//	  - { id: us-1, region: us-east-1, maxInstances: 200 }
//	retired: [ { id: us-0, region: us-east-1 } ]
//
// The fields of [Deployment] describe all keys. A key is the field's name, beginning in lower case, or the tag "key" of
// the field. A field that begins with "No" stands for a key without "no" whose default is true, such as killSwitch or
// leases.
package config

import (
	"fmt"
	"strings"
	"time"

	"github.com/sluicelimits/sluice/internal/configfile"
)

// Deployment is the content of a deployment file. Zero values select the defaults, which [Deployment.Complete] fills
// in.
type Deployment struct {
	Prefix  string // begins every physical name; [a-z][a-z0-9]{0,15}; default "sluice"
	Account string // 12 digits; if empty, the account of the credentials that deploy

	Architecture string // of the functions: ARM64 (default) or X8664

	Control Control
	// 1 to 50, each id once; they are deployed in this order. Long names, and cells in other regions than a function's,
	// leave room for fewer: making the templates fails if the variables of a function have more than 4,096 bytes.
	Cells []Cell

	// Retired lists removed cells whose counters tables still exist. Such a table keeps the counters of quotas whose
	// home was the cell, until the periods end that were open when the cell was removed. Remove an entry and delete the
	// table after the longest period of your quotas.
	Retired []Retired

	Alarms    Alarms
	Operators Callers
	// makes a dashboard of the control plane and one of each cell; the first three of an account are free
	Dashboards bool
}

// Processor architectures of the functions, as Lambda spells them.
const (
	ARM64 = "arm64"
	X8664 = "x86_64"
)

// Alarms selects the alarms and who is notified. Without Email and Topics, alarms are visible in the CloudWatch console
// only.
type Alarms struct {
	Set string // UsualAlarms (default) or AllAlarms

	// Email is an address that is notified. For it, a topic with a KMS key is made in each region; a key costs 1 USD a
	// month. AWS sends a message with a link by which the address confirms the subscription.
	Email string

	// Topics are ARNs of your own topics, to use instead of Email: one in each region of the deployment. Their policies
	// must allow CloudWatch to publish to them, and to use their KMS keys.
	Topics []string
}

// Callers restricts who may call the operators' APIs of the control plane and of every cell. In addition, IAM has to
// allow each call. Callers of other accounts are never admitted.
type Callers struct {
	Principals []string // ARNs of roles and users; * stands for any text; if empty, every caller of the account
	Addresses  []string // client addresses, or networks such as 203.0.113.0/24; if empty, any address

	// AccessLogs writes a line for each call of the operators' APIs to CloudWatch Logs, also for refused calls. The
	// line contains the caller's ARN and address. The account settings of API Gateway in each region must name a role
	// that may write logs.
	AccessLogs bool
}

// The sets of alarms.
const (
	UsualAlarms = "usual" // alarms about which somebody has to do something
	AllAlarms   = "all"   // also alarms that are good to know
)

// Topic returns the topic of Topics in a region, or "" if there is none.
func (a *Alarms) Topic(region string) string {
	for _, arn := range a.Topics {
		if parts := strings.Split(arn, ":"); len(parts) > arnRegion && parts[arnRegion] == region {
			return arn
		}
	}
	return ""
}

const arnRegion = 3 // index of the region in an ARN that is split at ":"

// Retired is a removed cell.
type Retired struct{ ID, Region string }

// Control configures the control plane.
type Control struct {
	Region string // required
	Audit  Audit

	// do not make the CloudTrail trail of changes, writes to tables and calls of the operators' functions
	NoTrail          bool
	Pepper           string // id of the pepper with which new API keys are hashed; default "p1"
	MetricsNamespace string // of the CloudWatch metrics, also of the cells; default "Sluice"
	LogLevel         string // debug, info, warn or error, also of the cells; default "info"
	// retention of logs in days, also of the cells: a value that CloudWatch Logs accepts; default 30
	LogDays int

	// CanaryMinutes is the time between two runs of the canary, 1 to 60; default 5. In each run the canary changes an
	// item and waits until all cells have the change. The audit trail keeps each change.
	CanaryMinutes int

	// NoPlatformLogs leaves out Lambda's own lines about successful invocations (START, END, REPORT), also of the
	// cells. Lambda then expects log lines in JSON, which all lines of the functions are. According to Lambda's
	// documentation it leaves lines with metrics unchanged; this has not been tried on AWS. Assumption: emf-metrics.
	NoPlatformLogs bool
}

// Audit configures how the audit trail is locked.
type Audit struct {
	Mode          string // Governance (default) or Compliance
	RetentionDays int    // 1 to 36500; default 365
	Confirm       string // must be the text that Confirmation returns if Mode is Compliance, and empty otherwise

	// Anchors makes a function that signs, once a day, a list of the newest versions of all items, with a KMS key that
	// only this function may use. Without anchors, somebody who can write both the tables and the trail's bucket can
	// rewrite the history unnoticed.
	Anchors bool

	// BreakGlass is the ARN of an IAM role for emergencies. Only this role is exempt from the denials in the policies
	// of the trail's buckets: it may remove records in the mode Governance, change retention and lifecycle, and restore
	// records. If empty, no role is exempt.
	BreakGlass string
}

// The modes of Object Lock.
const (
	Governance = "GOVERNANCE" // whoever has s3:BypassGovernanceRetention may remove records
	// nobody may remove records, not even AWS, and nobody can undo the mode; needs Audit.Confirm
	Compliance = "COMPLIANCE"
)

// Confirmation returns the text that Audit.Confirm must have before records are locked in the mode Compliance.
func Confirmation(days int) string {
	return fmt.Sprintf("nobody can delete audit records for %d days", days)
}

// Cell configures one cell.
type Cell struct {
	ID      string // required; 1 to 24 of a-z 0-9 and single hyphens between them, beginning with a letter
	Region  string // required; a region may have several cells
	Profile string // Small (default) or Full

	MaxInstances int // the authorizer's reserved concurrency, 1 to 10000; default 100
	MemoryMB     int // the authorizer's memory, 128 to 10240; default 512
	// how many proxies in front of API Gateway are trusted, 0 to 16; see docs/authorizer.md
	TrustedHops int  `key:"may be 0"`
	RetryJitter int  `key:"may be 0"` // percent by which Retry-After is randomly increased, 0 to 100
	NoLeases    bool // make each decision in the store, without leases

	Issuers     []Issuer // whose JWTs are accepted; if empty, no JWT is accepted
	Claims      []string // the JWT claims that limits use in "per: claim:…"
	PassDenials []string // ids of HTTP and WebSocket APIs whose denied requests pass to the middleware in the backend

	// NoKillSwitch leaves out the kill switch. With it, operators switch the cell's limits to shadow or off without
	// deploying a function.
	NoKillSwitch bool

	// RollbackAlarms are ARNs of at most three of your own alarms in the cell's region, such as a backend's. AppConfig
	// takes back a watched deployment of the kill switch if one of them, or an alarm of the cell, rings.
	RollbackAlarms []string

	WAF *WAF // the firewall; nil for none

	Attach []Attachment // existing APIs that get the cell's authorizer

	Deadlines Deadlines

	// Cache and Network are for full cells only. If nil, all of their defaults are used.
	Cache   *Valkey
	Network *Network
}

// Deadlines are the times for which a decision waits for each store before it continues without the store, 1 ms to 5 s.
// If 0, the default in docs/authorizer.md is used.
type Deadlines struct {
	Redis    time.Duration // for full cells only
	DynamoDB time.Duration `key:"dynamodb"`
	Home     time.Duration // for calls of the counters tables of other cells
}

// WAF configures a firewall in front of REST APIs. It counts the requests of each address, without any store of Sluice.
type WAF struct {
	Rate   int      // requests of an address in five minutes, 10 to 2000000000; requests above it are blocked
	Stages []string // ARNs of stages of REST APIs in the cell's region; if empty, attach the firewall yourself
}

// The profiles of a cell.
const (
	Small = "small" // no VPC and no cache: everything is counted in DynamoDB
	Full  = "full"  // rates are counted in a cache in a VPC
)

// Issuer is an issuer of JWTs. docs/authorizer.md describes its members. Its JSON form is an element of SLUICE_ISSUERS.
type Issuer struct {
	Issuer        string   `json:"issuer"`
	Audiences     []string `json:"audiences"`
	JWKSURL       string   `json:"jwksUrl" key:"jwksUrl"`
	Algorithms    []string `json:"algorithms,omitempty"`
	AudienceClaim string   `json:"audienceClaim,omitempty"`
	TenantClaim   string   `json:"tenantClaim,omitempty"`
	SubjectClaim  string   `json:"subjectClaim,omitempty"`
	Tenants       []string `json:"tenants,omitempty"`
	AllTenants    bool     `json:"allTenants,omitempty"`
}

// Names returns the names of the deployment's resources. The arguments may be CDK tokens.
func (d *Deployment) Names(partition, account, suffix string) Names {
	return Names{Prefix: d.Prefix, Partition: partition, Account: account, Suffix: suffix}
}

// Cell returns the cell with an id, or nil if there is none.
func (d *Deployment) Cell(id string) *Cell {
	for i := range d.Cells {
		if d.Cells[i].ID == id {
			return &d.Cells[i]
		}
	}
	return nil
}

// Regions returns the deployment's regions, each once: the control plane's region, then those of the cells in their
// order.
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

// Problem is one problem in a deployment file. If a program made the deployment, the problem has no File.
type Problem = configfile.Problem

// Error has all problems of one file, in the file's order.
type Error = configfile.Error
