package sluice_test

import (
	"testing"

	"github.com/sluicelimits/sluice/internal/layers"
)

// A program that keeps its counters in memory links no client of a store, and nobody who uses the library links a server or CDK.
func TestLayers(t *testing.T) {
	layers.Forbid(t, map[string]string{
		"github.com/redis/go-redis/v9":      "only package redisstore brings it",
		"github.com/aws":                    "only package dynamodbstore brings it",
		"./internal/limiter/store/redis":    "only package redisstore brings it",
		"./internal/limiter/store/dynamodb": "only package dynamodbstore brings it",
		"./redisstore":                      "a store is handed in",
		"./dynamodbstore":                   "a store is handed in",
		"./internal/dev/gateway":            "the library is no server",
		"./internal/dev/livepage":           "the library is no server",
		"./middleware":                      "the middleware stands on the library, never the reverse",
		"./cmd":                             "programs import packages, never the reverse",
		"github.com/spf13/cobra":            "command lines are the affair of programs",
		"github.com/aws/jsii-runtime-go":    "CDK is imported by nobody",
	})
}
