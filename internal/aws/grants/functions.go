package grants

import (
	"time"

	"github.com/sluicelimits/sluice/events"
	"github.com/sluicelimits/sluice/internal/plan/shares"
)

// Values that several functions share. Reserved concurrency counts against the account's quota: Assumption: quotas.
var (
	readItem  = []string{"dynamodb:GetItem"}
	writeItem = []string{"dynamodb:PutItem"}
	counting  = []string{"dynamodb:GetItem", "dynamodb:UpdateItem"}
	follow    = []string{"dynamodb:GetItem", "dynamodb:BatchGetItem", "dynamodb:Query"} // the config table, as a reader
	apply     = []string{"dynamodb:GetItem", "dynamodb:BatchGetItem", "dynamodb:PutItem", "dynamodb:UpdateItem"}
	list      = []string{"dynamodb:GetItem", "dynamodb:Scan"}
	scan      = []string{"dynamodb:Scan"}
	edit      = []string{"dynamodb:GetItem", "dynamodb:PutItem", "dynamodb:Scan"}
	stream    = []string{"dynamodb:DescribeStream", "dynamodb:GetRecords", "dynamodb:GetShardIterator",
		"dynamodb:ListStreams"}
	receive = []string{"sqs:ReceiveMessage", "sqs:DeleteMessage", "sqs:ChangeMessageVisibility"}
	send    = []string{"sqs:SendMessage"}
	secret  = []string{"secretsmanager:GetSecretValue"}
	connect = []string{"elasticache:Connect"}
	watch   = []string{"appconfig:StartConfigurationSession", "appconfig:GetLatestConfiguration"}
	logs    = Grant{On: Logs, Actions: []string{"logs:CreateLogStream", "logs:PutLogEvents"}}

	// network is what Lambda does for a function in a VPC, with the function's role.
	network = Grant{On: Network, With: "SLUICE_REDIS", Actions: []string{
		"ec2:CreateNetworkInterface", "ec2:DescribeNetworkInterfaces", "ec2:DescribeSubnets",
		"ec2:DeleteNetworkInterface",
		"ec2:AssignPrivateIpAddresses", "ec2:UnassignPrivateIpAddresses",
	}}
)

func authorizer() Function {
	return Function{
		Name: "authorizer", PerCell: true, MemoryMB: 512, Timeout: 10 * time.Second, API: true,
		Grants: []Grant{
			{On: Counters, Actions: counting},
			{On: Config, Actions: follow, With: "SLUICE_CONFIG_TABLE"},
			{On: Secret, Actions: secret},
			{On: Switch, Actions: watch, With: "SLUICE_KILL_SWITCH"},
			{On: Login, Actions: secret, With: "SLUICE_REDIS_SECRET"},
			{On: Cache, Actions: connect, With: "SLUICE_REDIS_AUTH=iam"},
			network, logs,
		},
	}
}

func publisher() Function {
	return Function{
		Name: "publisher", MemoryMB: 512, Timeout: time.Minute, Reserved: 3 * Shards,
		Streams: &Streams{Of: []events.Table{events.Plans, events.Tenants, events.Keys}, Batch: 500, Retries: 20,
			MaxAge: 6 * time.Hour, Silence: true},
		Grants: []Grant{
			{On: PlansStream, Actions: stream}, {On: TenantsStream, Actions: stream}, {On: KeysStream, Actions: stream},
			{On: Topic, Actions: []string{"sns:Publish"}},
			{On: Kept, Actions: send},
			{On: Failed, Actions: send},
			logs,
		},
	}
}

func balancer() Function {
	return Function{
		// A call on the schedule waits for the end of a grace, 18 s. Calls of the stream may arrive meanwhile.
		Name: "balancer", MemoryMB: 512, Timeout: time.Minute, Reserved: Shards + 1, Schedule: time.Minute,
		Streams: &Streams{Of: []events.Table{events.Cells}, Batch: 500, Retries: 20, MaxAge: 6 * time.Hour},
		Grants: []Grant{
			{On: CellsStream, Actions: stream},
			{On: Cells, Actions: list},
			{On: Cells, Actions: writeItem, Keys: []string{events.SharesKey, shares.PlacementPrefix + "*"}},
			{On: Plans, Actions: []string{"dynamodb:Scan"}},
			{On: Topic, Actions: []string{"sns:Publish"}},
			{On: Kept, Actions: send},
			{On: Failed, Actions: send},
			logs,
		},
		Alarms: []Alarm{
			{Metric: "active_cell_count", Silence: true,
				Means: "the balancer does not run, or fails: changes of the shares make no progress"},
			{Metric: "shares_refused", Stat: "Sum", Means: "a request of an operator cannot be carried out"},
			{Metric: "shares_unread", Stat: "Maximum",
				Means: "an item of the cells table cannot be read, and was left out"},
		},
	}
}

func applier() Function {
	return Function{
		// More than two concurrent calls contend for the head of one table.
		Name: "applier", PerCell: true, MemoryMB: 256, Timeout: 30 * time.Second, Reserved: 2,
		Queue: &Queue{Batch: 100, Window: time.Second, MaxConcurrent: 2, Visibility: 6*30*time.Second + time.Second,
			Retention: 4 * 24 * time.Hour, MaxReceives: 1000},
		Grants: []Grant{
			{On: Changes, Actions: []string{"sqs:ReceiveMessage", "sqs:DeleteMessage", "sqs:GetQueueAttributes",
				"sqs:ChangeMessageVisibility"}},
			{On: Config, Actions: apply},
			{On: Kept, Actions: send},
			{On: Plans, Actions: readItem}, {On: Tenants, Actions: readItem}, {On: Keys, Actions: readItem},
			{On: Cells, Actions: list},
			{On: Cells, Actions: writeItem, Keys: []string{AckKey}}, // Assumption: shares-acknowledged
			logs,
		},
	}
}

func reconcile() Function {
	return Function{
		Name: "reconcile", PerCell: true, MemoryMB: 512, Timeout: 5 * time.Minute, Reserved: 1,
		Schedule: 15 * time.Minute,
		Grants: []Grant{
			{On: Plans, Actions: list}, {On: Tenants, Actions: list}, {On: Keys, Actions: list},
			{On: Cells, Actions: list},
			{On: Cells, Actions: writeItem, Keys: []string{AckKey}},
			// to repair what was forged
			{On: Config, Actions: append([]string{"dynamodb:Query", "dynamodb:DeleteItem"}, apply...)},
			logs,
		},
		Alarms: []Alarm{
			{Metric: "drift", Stat: "Maximum", Silence: true,
				Means: "the cell differs from the control tables: `drift_missing` and the other drift metrics say " +
					"how; or reconcile does not run"},
		},
	}
}

func canary() Function {
	return Function{
		// The timeout is longer than SLUICE_CANARY_WAIT and shorter than the schedule's period. Each run is a change
		// that the audit trail keeps forever.
		Name: "canary", MemoryMB: 256, Timeout: time.Minute, Reserved: 1, Schedule: 5 * time.Minute,
		Grants: []Grant{
			{On: Plans, Actions: append(append([]string{}, readItem...), writeItem...),
				Keys: []string{events.CanaryKey}},
			{On: AllConfig, Actions: []string{"dynamodb:GetItem", "dynamodb:Query"}},
			logs,
		},
		Alarms: []Alarm{
			{Metric: "propagation_seconds", Stat: "p99", Above: 5, Silence: true,
				Means: "by cell: a change is enforced too late, or was not enforced within `SLUICE_CANARY_WAIT` " +
					"(then `canary_missed` is above 0); or the canary does not run"},
		},
	}
}

func archiver() Function {
	all := events.AllTables()
	return Function{
		// The archiver retries records for most of the day for which a stream keeps them.
		Name: "archiver", MemoryMB: 512, Timeout: time.Minute, Reserved: len(all) * Shards,
		Streams: &Streams{Of: all, Batch: 100, Retries: 10_000, MaxAge: 20 * time.Hour, Silence: true},
		Grants: []Grant{
			{On: PlansStream, Actions: stream}, {On: TenantsStream, Actions: stream}, {On: KeysStream, Actions: stream},
			{On: CellsStream, Actions: stream}, {On: OperationsStream, Actions: stream},
			{On: Objects, Actions: []string{"s3:PutObject", "s3:GetObject"}},
			{On: Failed, Actions: send},
			logs,
		},
		Alarms: []Alarm{
			{Metric: "records_unequal", Stat: "Sum", Means: "the archive has another record of that version, or an " +
				"object that cannot be read: that object, or the change, was written without Sluice"},
			{Metric: "records_unreadable", Stat: "Sum",
				Means: "a record of a stream cannot be read; all of it is kept under rejected/"},
		},
	}
}

func anchor() Function {
	return Function{
		// The anchor function reads every table, and keeps the heads of all items in memory to sort them.
		Name: "anchor", MemoryMB: 512, Timeout: 5 * time.Minute, Reserved: 1, Schedule: time.Hour,
		Grants: []Grant{
			{On: Plans, Actions: scan}, {On: Tenants, Actions: scan}, {On: Keys, Actions: scan}, {On: Cells,
				Actions: scan},
			{On: Operations, Actions: scan},
			{On: Anchors, Actions: []string{"s3:PutObject", "s3:GetObject", "s3:GetObjectVersion"}},
			{On: Names, Actions: []string{"s3:ListBucketVersions"}},
			{On: Signing, Actions: []string{"kms:Sign"}},
			logs,
		},
		Alarms: []Alarm{
			{Metric: "anchor_missing", Stat: "Maximum", Silence: true,
				Means: "the audit trail has no anchor of today: what was changed since the last one could be " +
					"rewritten unnoticed"},
			{Metric: "anchor_taken", Stat: "Maximum",
				Means: "an object has the name of an anchor but is not an anchor: somebody wrote it without Sluice"},
		},
	}
}

func admin() Function {
	return Function{
		Name: "admin", MemoryMB: 512, Timeout: 29 * time.Second, Reserved: 10, API: true, // the timeout of API Gateway
		Grants: []Grant{
			{On: Plans, Actions: edit}, {On: Tenants, Actions: edit}, {On: Keys, Actions: edit},
			{On: Cells, Actions: edit},
			{On: AllConfig, Actions: []string{"dynamodb:GetItem", "dynamodb:Query"}, With: "SLUICE_STATUS_CELLS"},
			{On: Secret, Actions: secret, With: "SLUICE_SECRET"},
			logs,
		},
	}
}

func ops() Function {
	return Function{
		Name: "ops", PerCell: true, MemoryMB: 256, Timeout: 29 * time.Second, Reserved: 2, API: true,
		Grants: []Grant{
			{On: Operations, Actions: append(append([]string{}, readItem...), writeItem...)},
			{On: Counters, Actions: counting},
			{On: Config, Actions: follow},
			{On: Secret, Actions: secret, With: "SLUICE_REDIS_AUTH=secret"},
			{On: Login, Actions: secret, With: "SLUICE_REDIS_SECRET"},
			{On: Cache, Actions: connect, With: "SLUICE_REDIS_AUTH=iam"},
			network, logs,
		},
	}
}

// Worker returns the function that has a queue's messages handled under a provider's limit. It is a part of no
// deployment, and therefore not in Functions: each user deploys as many as there are queues.
func Worker() Function {
	return Function{
		// A call lasts almost as long as Lambda allows, so that little time is lost between two calls. There is one
		// call at a time, because two pacers would use the limit twice. Lambda drops what the schedule sends meanwhile,
		// and begins the next call within a minute after the end of the last one.
		Name: "worker", MemoryMB: 256, Timeout: 15 * time.Minute, Reserved: 1, Schedule: time.Minute,
		Grants: []Grant{
			{On: Jobs, Actions: receive},
			{On: Target, Actions: []string{"lambda:InvokeFunction"}},
			logs,
		},
	}
}
