// Package testkit is the folder of what only tests use: stand-ins of AWS services (s3test, secretstest, killswitchtest
// of AppConfig, functiontest of Lambda, SNS and SQS), stores to run against (redistest, dynamodbtest), makers of tokens
// (tokentest), Sluice end to end (endtoend), data that earlier commits stored (stored), longer runs of random tests
// (soak), and checks of the repository itself (repotest).
//
// The contract that every implementation of an interface must keep stands beside the interface, as in package
// limittest.
package testkit
