package config

import "strings"

// Names makes the physical name and the ARN of everything that another stack must know, from nothing but the
// deployment. So no stack exports to or imports from another one, cells may be in any region, and a cell that comes or
// goes changes no name.
//
// Partition, Account and Suffix (of host names) may be CDK's tokens. Names are injective: a prefix has no hyphen, and
// what a thing is called ends the name and has none, so no prefix and cell make the name of another's.
type Names struct{ Prefix, Partition, Account, Suffix string }

// What is named. One word each: see [Names].
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

	Changes     = "changes"     // the topic, and each cell's queue of what is published
	Kept        = "kept"        // queues of what cannot be used
	Failed      = "failed"      // queue: failure destination of the streams
	Undelivered = "undelivered" // queue: what the topic could not deliver to a cell
	Refused     = "refused"     // queue: what an applier was given too often
	Operators   = "operators"   // APIs of the admin function and of the cells' ops functions
	Trail       = "trail"
	Secret      = "identity"
	Cache       = "cache"  // replication group of a full cell
	AlarmTopic  = "alarms" // topics on which alarms are heard
	Firewall    = "waf"
	audit       = "audit"
)

// ControlTables are the tables of the control plane.
func ControlTables() []string { return []string{Plans, Tenants, Keys, Cells, Operations} }

// ControlFunctions are the functions beside the control tables. [Anchor] is one more where [Audit.Anchors] asks for it.
func ControlFunctions() []string { return []string{Publisher, Archiver, Balancer, Admin, Canary} }

// CellFunctions are the functions of a cell.
func CellFunctions() []string { return []string{Authorizer, Applier, Reconcile, Ops} }

// Control is the name of one of the control plane's things: a table, a function.
func (n Names) Control(what string) string { return n.Prefix + "-" + what }

// Cell is the name of one of a cell's things.
func (n Names) Cell(cell, what string) string { return n.Prefix + "-" + cell + "-" + what }

// ControlStack is the name of the control plane's stack.
func (n Names) ControlStack() string { return n.Prefix + "-control" }

// CellStack is the name of a cell's stack.
func (n Names) CellStack(cell string) string { return n.Prefix + "-cell-" + cell }

// ControlAlarm is the name of one of the control plane's alarms. An alarm's name has an underscore or is one word, and
// may be of a function or a cell.
func (n Names) ControlAlarm(alarm, of string) string { return n.Control(alarmName(alarm, of)) }

// CellAlarm is the name of one of a cell's alarms.
func (n Names) CellAlarm(cell, alarm, of string) string { return n.Cell(cell, alarmName(alarm, of)) }

func alarmName(alarm, of string) string {
	if of == "" {
		return alarm
	}
	return alarm + "." + of
}

// TopicARN is the ARN of the topic on which changes are published; region is the control plane's.
func (n Names) TopicARN(region string) string { return n.ARN("sns", region, n.Control(Changes)) }

// AuditBucket is the name of the bucket of the audit trail. Names of buckets are the world's, so it has account and
// region.
func (n Names) AuditBucket(region string) string { return n.bucket(audit, region) }

// TrailBucket is the name of the bucket of CloudTrail's records.
func (n Names) TrailBucket(region string) string { return n.bucket(Trail, region) }

func (n Names) bucket(what, region string) string {
	return strings.Join([]string{n.Prefix, what, n.Account, region}, "-")
}

// SecretARN is the ARN of the secret with the peppers and the key for addresses in a region, as policies may name it:
// Secrets Manager adds a hyphen and six characters of its own to each secret's name.
func (n Names) SecretARN(region string) string {
	return n.ARN("secretsmanager", region, "secret:"+n.Control(Secret)+"-??????")
}

// ControlTableARN is the ARN of a control table; region is the control plane's.
func (n Names) ControlTableARN(region, table string) string {
	return n.tableARN(region, n.Control(table))
}

// CellTableARN is the ARN of a cell's table.
func (n Names) CellTableARN(region, cell, table string) string {
	return n.tableARN(region, n.Cell(cell, table))
}

// CellFunctionARN is the ARN of a cell's function.
func (n Names) CellFunctionARN(region, cell, function string) string {
	return n.ARN("lambda", region, "function:"+n.Cell(cell, function))
}

// ControlFunctionARN is the ARN of one of the control plane's functions.
func (n Names) ControlFunctionARN(region, function string) string {
	return n.ARN("lambda", region, "function:"+n.Control(function))
}

func (n Names) tableARN(region, name string) string { return n.ARN("dynamodb", region, "table/"+name) }

// QueueURL is the URL of a queue, by its physical name.
func (n Names) QueueURL(region, name string) string {
	return "https://sqs." + region + "." + n.Suffix + "/" + n.Account + "/" + name
}

// ARN is the ARN of a resource of this account.
func (n Names) ARN(service, region, resource string) string {
	account := n.Account
	if service == "s3" {
		account = "" // a bucket's name is the world's
	}
	return strings.Join([]string{"arn", n.Partition, service, region, account, resource}, ":")
}
