// Package localstack contains the integration tests, which run against Sluice deployed to LocalStack. The scripts up
// and down beside it start and end LocalStack without Docker.
package localstack
