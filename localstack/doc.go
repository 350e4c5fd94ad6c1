// Package localstack brings LocalStack up on a machine without Docker (localstack/up, localstack/down) and holds the
// tests that run against it.
package localstack
