package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sluicelimits/sluice/internal/request/identity"
	"github.com/sluicelimits/sluice/internal/testkit/dynamodbtest"
)

// sharedPlans writes plans with a quota, and with a rate that does not refill while a test runs.
func sharedPlans(t *testing.T, rate, quota int, more string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "plans.yaml")
	text := fmt.Sprintf(`
plans:
  - id: shared
    limits:
      - { id: rate, algorithm: token_bucket, rate: 1, period: 24h, burst: %d, onStoreFailure: closed }
      - { id: quota, quota: { units: %d, every: year }, onStoreFailure: closed }
%s
tenants: [ { id: globex, plan: shared } ]
keys: [ { id: k, tenant: globex, subject: web, hash: %s, pepper: dev } ]
`, rate, quota, more, identity.HashKey(identity.DevPepper(), identity.ExampleKey("globex")))
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

func tableName(t *testing.T) string {
	t.Helper()
	return fmt.Sprintf("sluice-test-%d-%d", os.Getpid(), time.Now().UnixNano())
}

// Guarantees that a store which cannot be used is reported in one clear line at the start, not at the first request.
func TestDevRefusesStores(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		args []string
		want string
	}{
		{"no redis there", []string{"--redis", "127.0.0.1:1"}, "--redis 127.0.0.1:1: start a Redis there"},
		{"no URL", []string{"--dynamodb", "localhost"}, `--dynamodb "localhost" is not a URL`},
		{"no table name", []string{"--dynamodb", "http://127.0.0.1:1", "--dynamodb-table", ""}, "--dynamodb"},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := sluice(t, "", append([]string{"dev", "--listen", "127.0.0.1:0"}, c.args...)...)
			if got.code != exitFailed || !strings.Contains(got.stderr, c.want) {
				t.Errorf("exit code %d, want %d; stderr %q, want %q in it", got.code, exitFailed, got.stderr, c.want)
			}
		})
	}
}

// A value that --redis does not take is a usage error. The error does not contain a password.
func TestDevRedisFlags(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		args []string
		want string
	}{
		{"a URL with a password, and no port", []string{"--redis", "redis://:hunter2@127.0.0.1:x"},
			"--redis is not HOST:PORT"},
		{"a password", []string{"--redis", ":hunter2@127.0.0.1:6379"}, "without a password"},
		{"a user and a password", []string{"--redis", "ann:hunter2@127.0.0.1:6379"}, "--redis is not HOST:PORT"},
		{"a password and no port", []string{"--redis", "hunter2@127.0.0.1"}, "--redis is not HOST:PORT"},
		{"a comma for the @", []string{"--redis", "redis://ann:hunter2,127.0.0.1:6379"}, "--redis is not HOST:PORT"},
		{"several URLs", []string{"--redis", "redis://127.0.0.1:6379,redis://127.0.0.1:6380"},
			"--redis is not HOST:PORT"},
		{"an encoded @", []string{"--redis", "redis://hunter2%40127.0.0.1:6379"}, "--redis is not HOST:PORT"},
		{"a user without a password", []string{"--redis", "redis://ann@127.0.0.1:6379"}, "needs a password"},
		{"DynamoDB with a password", []string{"--dynamodb", "http://ann:hunter2@127.0.0.1:1"},
			"--dynamodb takes no user and no password"},
		{"no port", []string{"--redis", "127.0.0.1"}, "such as 127.0.0.1:6379"},
		{"a namespace of nothing", []string{"--redis-namespace", "billing"},
			"--redis-namespace has no use without --redis"},
		{"a long namespace", []string{"--redis", "127.0.0.1:1", "--redis-namespace", strings.Repeat("n", 65)},
			"--redis-namespace has 65 bytes, want at most 64"},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := sluice(t, "", append([]string{"dev", "--listen", "127.0.0.1:0"}, c.args...)...)
			if got.code != exitUsage || !strings.Contains(got.stderr, c.want) ||
				strings.Contains(got.stdout+got.stderr, "hunter2") {
				t.Errorf("exit code %d, want %d; stderr %q, want %q in it and no password", got.code, exitUsage,
					got.stderr, c.want)
			}
		})
	}
}

// Guarantees that a limit which the store cannot keep is refused when the plans are loaded. Otherwise the store would
// fail later.
func TestDevRefusesLimitsOfTheStore(t *testing.T) {
	t.Parallel()
	plans := sharedPlans(t, 5, 5, "      - { id: log, algorithm: sliding_log, threshold: 5, period: 1m }")
	got := sluice(t, "", "dev", "--listen", "127.0.0.1:0", "--dynamodb", dynamodbtest.Need(t), "--dynamodb-table",
		tableName(t),
		"--plans", plans)
	for _, want := range []string{"plan shared", "limit log", "sliding_log"} {
		if got.code != exitFailed || !strings.Contains(got.stderr, want) {
			t.Errorf("exit code %d, want %d; stderr %q, want %q in it", got.code, exitFailed, got.stderr, want)
		}
	}
}
