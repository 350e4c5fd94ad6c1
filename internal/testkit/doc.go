// Package testkit is the folder of packages that only tests use: stand-ins for AWS services (s3test, secretstest,
// sqstest, killswitchtest for AppConfig, functiontest for Lambda, SNS and SQS), stores to test against (redistest,
// dynamodbtest), tokens (tokentest), tests of Sluice end to end (endtoend), data that earlier commits stored (stored),
// longer runs of random tests (soak), and checks of the repository itself (repotest).
//
// The contract that every implementation of an interface must keep stands beside the interface, as in package
// limittest.
package testkit
