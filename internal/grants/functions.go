package grants

import (
	"time"

	"github.com/sluicelimits/sluice/events"
	"github.com/sluicelimits/sluice/internal/shares"
)

// What several functions have.
var (
	readItem  = []string{"dynamodb:GetItem"}
	writeItem = []string{"dynamodb:PutItem"}
	counting  = []string{"dynamodb:GetItem", "dynamodb:UpdateItem"}
	follow    = []string{"dynamodb:GetItem", "dynamodb:BatchGetItem", "dynamodb:Query"} // the config table, as a reader
	apply     = []string{"dynamodb:GetItem", "dynamodb:BatchGetItem", "dynamodb:PutItem", "dynamodb:UpdateItem"}
	list      = []string{"dynamodb:GetItem", "dynamodb:Scan"}
	edit      = []string{"dynamodb:GetItem", "dynamodb:PutItem", "dynamodb:Scan"}
	stream    = []string{"dynamodb:DescribeStream", "dynamodb:GetRecords", "dynamodb:GetShardIterator", "dynamodb:ListStreams"}
	send      = []string{"sqs:SendMessage"}
	secret    = []string{"secretsmanager:GetSecretValue"}
	connect   = []string{"elasticache:Connect"}
	logs      = Grant{On: Logs, Actions: []string{"logs:CreateLogStream", "logs:PutLogEvents"}}

	// network is what Lambda does for a function in a VPC, by the function's role.
	network = Grant{On: Network, With: "SLUICE_REDIS", Actions: []string{
		"ec2:CreateNetworkInterface", "ec2:DescribeNetworkInterfaces", "ec2:DescribeSubnets", "ec2:DeleteNetworkInterface",
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
			{On: Cache, Actions: connect, With: "SLUICE_REDIS_AUTH=iam"},
			network, logs,
		},
	}
}

func publisher() Function {
	return Function{
		Name: "publisher", MemoryMB: 512, Timeout: time.Minute, Reserved: 10,
		Streams: &Streams{Of: []events.Table{events.Plans, events.Tenants, events.Keys}, Batch: 500, Retries: 20, MaxAge: 6 * time.Hour},
		Grants: []Grant{
			{On: PlansStream, Actions: stream}, {On: TenantsStream, Actions: stream}, {On: KeysStream, Actions: stream},
			{On: Topic, Actions: []string{"sns:Publish"}},
			{On: Kept, Actions: send},
			{On: Failed, Actions: send},
			logs,
		},
		Alarms: []Alarm{
			{"records_kept", "Sum", 0, "a record could not be published, and waits in the queue of what is kept"},
		},
	}
}

func balancer() Function {
	return Function{
		// A call on the schedule waits for the end of a grace, of 18 s. Meanwhile the stream's may come.
		Name: "balancer", MemoryMB: 512, Timeout: time.Minute, Reserved: 2, Schedule: time.Minute,
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
			{"records_kept", "Sum", 0, "a record could not be published, and waits in the queue of what is kept"},
			{"shares_refused", "Sum", 0, "a request of an operator cannot be carried out"},
			{"shares_unread", "Sum", 0, "an item of the cells table makes no sense, and was left out"},
		},
	}
}

func applier() Function {
	return Function{
		// More than two calls at once contend for the head of one table.
		Name: "applier", PerCell: true, MemoryMB: 256, Timeout: 30 * time.Second, Reserved: 2,
		Queue: &Queue{Batch: 100, Window: time.Second, MaxConcurrent: 2, Visibility: 3 * time.Minute, Retention: 4 * 24 * time.Hour, MaxReceives: 1000},
		Grants: []Grant{
			{On: Changes, Actions: []string{"sqs:ReceiveMessage", "sqs:DeleteMessage", "sqs:GetQueueAttributes"}},
			{On: Config, Actions: apply},
			{On: Kept, Actions: send},
			{On: Cells, Actions: list, With: "SLUICE_CELLS_TABLE"},
			{On: Cells, Actions: writeItem, With: "SLUICE_CELLS_TABLE", Keys: []string{AckKey}},
			logs,
		},
		Alarms: []Alarm{
			{"messages_kept", "Sum", 0, "a message could not be applied, and waits in the queue of what is kept"},
			{"events_unknown", "Sum", 0, "publisher and applier are of different versions"},
			{"apply_seconds", "p99", 5, "changes take too long from their write to the cell"},
		},
	}
}

func reconcile() Function {
	return Function{
		Name: "reconcile", PerCell: true, MemoryMB: 512, Timeout: 5 * time.Minute, Reserved: 1, Schedule: 15 * time.Minute,
		Grants: []Grant{
			{On: Plans, Actions: list}, {On: Tenants, Actions: list}, {On: Keys, Actions: list}, {On: Cells, Actions: list},
			{On: Cells, Actions: writeItem, Keys: []string{AckKey}},
			{On: Config, Actions: append([]string{"dynamodb:Query"}, apply...)},
			logs,
		},
		Alarms: []Alarm{
			{"drift_unknown", "Sum", 0, "the cell has what no control table has: somebody wrote past Sluice; nothing is repaired by itself"},
			{"drift_altered", "Sum", 0, "the same version differs: the same"},
			{"drift_ahead", "Sum", 0, "the cell has a later version: the same"},
			{"drift_unreadable", "Sum", 0, "an item makes no sense: the same"},
			{"drift_missing", "Sum", 0, "a message was lost; it is repaired"},
			{"drift_older", "Sum", 0, "a message was lost; it is repaired"},
		},
	}
}

func canary() Function {
	return Function{
		// Longer than SLUICE_CANARY_WAIT, and within a period of the schedule.
		Name: "canary", MemoryMB: 256, Timeout: time.Minute, Reserved: 1, Schedule: time.Minute,
		Grants: []Grant{
			{On: Plans, Actions: append(append([]string{}, readItem...), writeItem...), Keys: []string{events.CanaryKey}},
			{On: AllConfig, Actions: []string{"dynamodb:GetItem", "dynamodb:Query"}},
			logs,
		},
		Alarms: []Alarm{
			{"propagation_seconds", "p99", 5, "a change takes too long until it is enforced, by cell"},
			{"canary_missed", "Sum", 0, "a change was not enforced within SLUICE_CANARY_WAIT, by cell"},
		},
	}
}

func archiver() Function {
	all := []events.Table{events.Plans, events.Tenants, events.Keys, events.Cells, events.Operations}
	return Function{
		// What is not kept is tried again for most of the day that a stream holds it.
		Name: "archiver", MemoryMB: 512, Timeout: time.Minute, Reserved: 10,
		Streams: &Streams{Of: all, Batch: 100, Retries: 10_000, MaxAge: 20 * time.Hour},
		Grants: []Grant{
			{On: PlansStream, Actions: stream}, {On: TenantsStream, Actions: stream}, {On: KeysStream, Actions: stream},
			{On: CellsStream, Actions: stream}, {On: OperationsStream, Actions: stream},
			{On: Objects, Actions: []string{"s3:PutObject", "s3:PutObjectRetention", "s3:GetObject"}},
			{On: Failed, Actions: send},
			logs,
		},
		Alarms: []Alarm{
			{"records_unequal", "Sum", 0, "the archive has another record of that version: one of the two was written past Sluice"},
			{"records_unreadable", "Sum", 0, "a record makes no sense; it is kept whole under rejected/"},
			{"records_again", "Sum", 0, "the archive refuses or does not answer; records are delivered again"},
		},
	}
}

func admin() Function {
	return Function{
		Name: "admin", MemoryMB: 512, Timeout: 29 * time.Second, Reserved: 10, API: true, // API Gateway waits no longer
		Grants: []Grant{
			{On: Plans, Actions: edit}, {On: Tenants, Actions: edit}, {On: Keys, Actions: edit}, {On: Cells, Actions: edit},
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
			{On: Secret, Actions: secret},
			{On: Cache, Actions: connect, With: "SLUICE_REDIS_AUTH=iam"},
			network, logs,
		},
	}
}
