// Package stored holds what the code of earlier commits stored and sent, in testdata, and the tests that today's code
// reads it.
//
// A folder of testdata is named by the commit whose code wrote it, and never changes:
//
//	control.json   every item of the control tables, as DynamoDB has it, by table
//	messages.json  every message that was published, in order
//	cell.json      the configuration table of the cell eu-1, as DynamoDB has it
//	audit/         the archive of the audit trail: one object for each version of each item
//
// To make such a folder, check that commit out with this package in it, and run
//
//	SLUICE_DYNAMODB=$(scripts/dynamodb-local.sh) go test ./internal/testkit/stored -run TestWrite -write COMMIT
//
// What the counters' stores hold is in the testdata of those packages.
package stored
