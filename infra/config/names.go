package config

import "strings"

// Names makes the physical names and the ARNs of all resources that other stacks refer to, from the deployment file
// alone. Therefore no stack exports or imports values, cells may be in any region, and adding or removing a cell
// changes no name.
//
// Partition, Account and Suffix (of host names) may be CDK tokens. Two resources never have the same name: a prefix
// contains no hyphen, and the last word of a name, which says what the resource is, contains none either.
type Names struct{ Prefix, Partition, Account, Suffix string }

// The last words of physical names. None contains a hyphen: see [Names].
const (
	Plans      = "plans"
	Tenants    = "tenants"
	Keys       = "keys"
	Cells      = "cells"
	Operations = "operations"
	Counters   = "counters"
	Config     = "config"

	Publisher  = "publisher"
	Archiver   = "archiver"
	Anchor     = "anchor"
	Balancer   = "balancer"
	Admin      = "admin"
	Canary     = "canary"
	Authorizer = "authorizer"
	Applier    = "applier"
	Reconcile  = "reconcile"
	Ops        = "ops"

	Changes     = "changes"     // the topic of changes, and each cell's queue that is subscribed to it
	Kept        = "kept"        // queues of dead letters: messages and records that a function cannot use
	Failed      = "failed"      // queue of dead letters: records on which a function failed until Lambda gave up
	Undelivered = "undelivered" // queue of dead letters: messages that the topic could not deliver to a cell
	Refused     = "refused"     // queue of dead letters: messages on which an applier failed too often
	Operators   = "operators"   // the APIs of the admin function and of the cells' ops functions
	Trail       = "trail"
	Secret      = "identity"
	Cache       = "cache"  // the replication group of a full cell
	AlarmTopic  = "alarms" // the topics to which alarms publish
	Firewall    = "waf"
	audit       = "audit"
)

// ControlTables returns the names of the control plane's tables.
func ControlTables() []string { return []string{Plans, Tenants, Keys, Cells, Operations} }

// ControlFunctions returns the names of the control plane's functions. If [Audit.Anchors] is set, there is [Anchor],
// too.
func ControlFunctions() []string { return []string{Publisher, Archiver, Balancer, Admin, Canary} }

// CellFunctions returns the names of a cell's functions.
func CellFunctions() []string { return []string{Authorizer, Applier, Reconcile, Ops} }

// Control returns the physical name of a resource of the control plane, such as a table or a function.
func (n Names) Control(what string) string { return n.Prefix + "-" + what }

// Cell returns the physical name of a resource of a cell.
func (n Names) Cell(cell, what string) string { return n.Prefix + "-" + cell + "-" + what }

// ControlStack returns the name of the control plane's stack.
func (n Names) ControlStack() string { return n.Prefix + "-control" }

// CellStack returns the name of a cell's stack.
func (n Names) CellStack(cell string) string { return n.Prefix + "-cell-" + cell }

// ControlAlarm returns the physical name of an alarm of the control plane. target is the function or the cell that the
// alarm is about, or "". An alarm's name contains no hyphen, so it cannot equal the name of another resource.
func (n Names) ControlAlarm(alarm, target string) string { return n.Control(alarmName(alarm, target)) }

// CellAlarm returns the physical name of an alarm of a cell.
func (n Names) CellAlarm(cell, alarm, target string) string {
	return n.Cell(cell, alarmName(alarm, target))
}

func alarmName(alarm, of string) string {
	if of == "" {
		return alarm
	}
	return alarm + "." + of
}

// TopicARN returns the ARN of the topic of changes; region is the control plane's.
func (n Names) TopicARN(region string) string { return n.ARN("sns", region, n.Control(Changes)) }

// AuditBucket returns the name of the bucket of the audit trail. It contains account and region, because bucket names
// are unique worldwide.
func (n Names) AuditBucket(region string) string { return n.bucket(audit, region) }

// TrailBucket returns the name of the bucket of CloudTrail's records.
func (n Names) TrailBucket(region string) string { return n.bucket(Trail, region) }

func (n Names) bucket(what, region string) string {
	return strings.Join([]string{n.Prefix, what, n.Account, region}, "-")
}

// SecretARN returns the ARN pattern of the secret with the peppers and the key for addresses, for policies: Secrets
// Manager appends a hyphen and six random characters to the name of each secret.
func (n Names) SecretARN(region string) string {
	return n.ARN("secretsmanager", region, "secret:"+n.Control(Secret)+"-??????")
}

// ControlTableARN returns the ARN of a control table; region is the control plane's.
func (n Names) ControlTableARN(region, table string) string {
	return n.tableARN(region, n.Control(table))
}

// CellTableARN returns the ARN of a cell's table.
func (n Names) CellTableARN(region, cell, table string) string {
	return n.tableARN(region, n.Cell(cell, table))
}

// CellFunctionARN returns the ARN of a cell's function.
func (n Names) CellFunctionARN(region, cell, function string) string {
	return n.ARN("lambda", region, "function:"+n.Cell(cell, function))
}

// ControlFunctionARN returns the ARN of a function of the control plane.
func (n Names) ControlFunctionARN(region, function string) string {
	return n.ARN("lambda", region, "function:"+n.Control(function))
}

func (n Names) tableARN(region, name string) string { return n.ARN("dynamodb", region, "table/"+name) }

// QueueURL returns the URL of the queue with a physical name.
func (n Names) QueueURL(region, name string) string {
	return "https://sqs." + region + "." + n.Suffix + "/" + n.Account + "/" + name
}

// ARN returns the ARN of a resource in this account.
func (n Names) ARN(service, region, resource string) string {
	account := n.Account
	if service == "s3" {
		account = "" // bucket ARNs contain neither account nor region
	}
	return strings.Join([]string{"arn", n.Partition, service, region, account, resource}, ":")
}
