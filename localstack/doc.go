// Package localstack contains the integration tests, which run against Sluice deployed to LocalStack. The scripts up
// and down in the same folder start and end LocalStack without Docker.
package localstack
