package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	awsdynamodb "github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/spf13/pflag"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/limiter/resilience"
	"github.com/sluicelimits/sluice/internal/limiter/store/dynamodb"
	"github.com/sluicelimits/sluice/internal/limiter/store/memory"
	"github.com/sluicelimits/sluice/internal/limiter/store/redis"
	"github.com/sluicelimits/sluice/internal/limiter/store/router"
	"github.com/sluicelimits/sluice/internal/metrics"
)

// storeOptions say where counters are kept.
type storeOptions struct {
	redis, redisNamespace string
	dynamodb, table       string
	redisDeadline         time.Duration
	dynamodbDeadline      time.Duration
	leases                bool
	maxInstances          int
}

func (o *storeOptions) flags(f *pflag.FlagSet) {
	f.StringVar(&o.redis, "redis", "", "keep counters in Redis at `HOST:PORT`; several gateways then hold one limit "+
		"together")
	f.StringVar(&o.redisNamespace, "redis-namespace", "",
		"`TEXT` in the names of the counters, to keep them apart from other programs' in one Redis")
	f.DurationVar(&o.redisDeadline, "redis-deadline", redis.DefaultDeadline,
		"how long a decision waits for Redis, `TIME`")
	f.StringVar(&o.dynamodb, "dynamodb", "", "keep counters in DynamoDB Local at `URL`; beside --redis: quotas only")
	f.DurationVar(&o.dynamodbDeadline, "dynamodb-deadline", time.Second,
		"how long a decision waits for DynamoDB, `TIME` (deployed: "+dynamodb.DefaultTimeout.String()+")")
	f.StringVar(&o.table, "dynamodb-table", "sluice-dev", "`TABLE` for --dynamodb; made if it is not there")
	f.BoolVar(&o.leases, "leases", true, "decide from units leased of a shared store, not asking it each time")
	f.IntVar(&o.maxInstances, "max-instances", 1, "most gateways that share a store, `N`, to divide limits by while "+
		"it is away and they are not counted")
}

const maxNamespaceBytes = 64 // of a namespace, in the store too

// check says what is wrong on the command line. It never repeats --redis, which may have a password in it.
func (o *storeOptions) check() error {
	if o.maxInstances < 1 {
		return fmt.Errorf("--max-instances %d is below 1", o.maxInstances)
	}
	if o.redisNamespace != "" && o.redis == "" {
		return errors.New("--redis-namespace has no use without --redis")
	}
	if n := len(o.redisNamespace); n > maxNamespaceBytes {
		return fmt.Errorf("--redis-namespace has %d bytes, want at most %d", n, maxNamespaceBytes)
	}
	if o.redis == "" {
		return nil
	}
	host, port, err := net.SplitHostPort(o.redis)
	if n, bad := strconv.ParseUint(port, 10, 16); err != nil || bad != nil || n == 0 ||
		strings.ContainsAny(host, "@/") {
		return errors.New("--redis is not HOST:PORT, such as 127.0.0.1:6379: it takes no URL, and sluice dev " +
			"connects in plain text, without a password")
	}
	return nil
}

// counters are the stores of a gateway.
type counters struct {
	tenants, addresses limit.Store
	// what tenants is in the end: without leases and what decides while a store is away
	base    limit.Store
	chain   *resilience.Chain  // over the stores that are shared; nil where none is
	calls   metrics.StoreCalls // of the chain
	bytes   func() int64
	closers []func(context.Context) error
}

// open connects to the stores: memory where nothing else is named, quotas in DynamoDB and rates in Redis where both
// are, and addresses in memory where only DynamoDB is, which would pay a write for each attempt.
func (o *storeOptions) open(ctx context.Context, maxBytes int64, log *slog.Logger) (*counters, error) {
	inMemory := memory.Config{MaxBytes: maxBytes, Log: log}
	if o.dynamodb != "" {
		inMemory.UnidentifiedBytes = maxBytes // it counts addresses alone
	}
	own, err := memory.New(inMemory)
	if err != nil {
		return nil, err
	}
	c := &counters{tenants: own, base: own, addresses: own, bytes: own.Bytes}
	if o.dynamodb == "" && o.redis == "" {
		return c, nil
	}
	shared := resilience.ChainConfig{NoLeases: !o.leases, MaxInstances: o.maxInstances, Observe: c.calls.Observe,
		Log: log}
	if o.dynamodb != "" {
		s, err := o.openDynamoDB(ctx)
		if err != nil {
			return nil, err
		}
		shared.Rates = resilience.NamedStore{Name: "DynamoDB", Store: s}
	}
	if o.redis != "" {
		rates, err := o.openRedis(ctx)
		if err != nil {
			return nil, err
		}
		c.closers = append(c.closers, func(context.Context) error { return rates.Close() })
		shared.Quotas, shared.Rates = shared.Rates, resilience.NamedStore{Name: "Redis", Store: rates}
	}
	if c.chain, err = resilience.NewChain(shared); err != nil {
		c.close(log)
		return nil, err
	}
	c.closers = append([]func(context.Context) error{c.chain.Close}, c.closers...)
	c.base = shared.Rates.Store
	if shared.Quotas.Store != nil {
		if c.base, err = router.New(router.Config{Rates: router.Backend{Store: shared.Rates.Store},
			Quotas: router.Backend{Store: shared.Quotas.Store}}); err != nil {
			c.close(log)
			return nil, err
		}
	}
	c.tenants = c.chain.Fallback
	if o.redis != "" {
		c.addresses = c.tenants
	}
	return c, nil
}

func (o *storeOptions) openRedis(ctx context.Context) (*redis.Store, error) {
	c := redis.Config{Addrs: []string{o.redis}, Namespace: o.redisNamespace, Deadline: o.redisDeadline}
	s, err := redis.New(ctx, c)
	if err != nil {
		return nil, err
	}
	if err := s.Ping(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("--redis %s: %w", o.redis, err), s.Close())
	}
	return s, nil
}

// openDynamoDB uses an endpoint that checks no credentials, as DynamoDB Local is one.
func (o *storeOptions) openDynamoDB(ctx context.Context) (limit.Store, error) {
	client, err := o.dynamoDBLocal()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, 15*time.Second)
	defer cancel()
	if err := dynamodb.Create(ctx, client, o.table); err != nil {
		return nil, fmt.Errorf("--dynamodb %s: table %s: %w", o.dynamodb, o.table, err)
	}
	return dynamodb.New(dynamodb.Config{Client: client, Table: o.table, Timeout: o.dynamodbDeadline})
}

// dynamoDBLocal makes a client of DynamoDB Local.
func (o *storeOptions) dynamoDBLocal() (*awsdynamodb.Client, error) {
	if u, err := url.Parse(o.dynamodb); err != nil || u.Host == "" {
		return nil, fmt.Errorf("--dynamodb %q is not a URL such as http://127.0.0.1:8000", o.dynamodb)
	}
	return awsdynamodb.New(awsdynamodb.Options{
		Region: "local", BaseEndpoint: aws.String(o.dynamodb),
		Credentials: credentials.NewStaticCredentialsProvider("local", "local", ""),
	}), nil
}

// close gives back what is held and ends the connections.
func (c *counters) close(log *slog.Logger) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	for _, f := range c.closers {
		if err := f(ctx); err != nil {
			log.Warn("a store was not closed in order", "error", err)
		}
	}
}
