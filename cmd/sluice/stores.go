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

	"github.com/sluicelimits/sluice/authorizer"
	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/limiter/metrics"
	"github.com/sluicelimits/sluice/internal/limiter/resilience"
	"github.com/sluicelimits/sluice/internal/limiter/store"
	"github.com/sluicelimits/sluice/internal/limiter/store/dynamodb"
	"github.com/sluicelimits/sluice/internal/limiter/store/memory"
	"github.com/sluicelimits/sluice/internal/limiter/store/redis"
	"github.com/sluicelimits/sluice/internal/limiter/store/router"
	"github.com/sluicelimits/sluice/internal/request/identity"
	"github.com/sluicelimits/sluice/internal/request/identity/addresskey"
)

// storeOptions are the flags that say where counters are kept.
type storeOptions struct {
	redis, redisNamespace string
	dynamodb, table       string
	redisDeadline         time.Duration
	dynamodbDeadline      time.Duration
	leases                bool
	maxInstances          int
	addressKey            string // file
}

// flags adds the flags. redisDeadline is the default of --redis-deadline.
func (o *storeOptions) flags(f *pflag.FlagSet, redisDeadline time.Duration) {
	f.StringVar(&o.redis, "redis", "", "keep counters in Redis at `HOST:PORT`, so that several gateways share each "+
		"limit")
	f.StringVar(&o.redisNamespace, "redis-namespace", "",
		"`TEXT` that begins the names of the counters, so that several programs can use one Redis")
	durationFlag(f, &o.redisDeadline, "redis-deadline", redisDeadline,
		"longest `TIME` that a decision waits for Redis")
	f.StringVar(&o.dynamodb, "dynamodb", "", "keep counters in DynamoDB Local at `URL`; beside --redis: quotas only")
	durationFlag(f, &o.dynamodbDeadline, "dynamodb-deadline", time.Second,
		"longest `TIME` that a decision waits for DynamoDB (in a deployment: "+dynamodb.DefaultTimeout.String()+")")
	f.StringVar(&o.table, "dynamodb-table", "sluice-dev", "`TABLE` for --dynamodb, which is created if it does not "+
		"exist")
	f.BoolVar(&o.leases, "leases", true, "decide from units leased from a shared store, without a call for each "+
		"request")
	f.IntVar(&o.maxInstances, "max-instances", 1, "at most `N` gateways share the store: while it does not answer and "+
		"the instance count is not known, each admits 1/N of a limit")
	f.StringVar(&o.addressKey, "address-key", "", "`FILE` with the key that names addresses where they are counted, "+
		"32 bytes or more (default: a random key, which a shared store keeps)")
}

const maxNamespaceBytes = 64 // the store refuses longer ones, too

// check checks the flags. Its errors never contain the value of --redis, which may have a password in it.
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
	return checkRedis(o.redis)
}

// checkRedis checks an address of --redis. The error does not contain the address, which may have a password in it.
func checkRedis(address string) error {
	host, port, err := net.SplitHostPort(address)
	if n, bad := strconv.ParseUint(port, 10, 16); err != nil || bad != nil || n == 0 ||
		strings.ContainsAny(host, "@/") {
		return errors.New("--redis is not HOST:PORT, such as 127.0.0.1:6379: want an address without a scheme, and " +
			"without a password")
	}
	return nil
}

// noRedis is the error if no Redis answers at the address of --redis.
func noRedis(address string, err error) error {
	return fmt.Errorf("--redis %s: start a Redis there, or correct the address: %w", address, err)
}

// counters are the stores of a gateway.
type counters struct {
	tenants, addresses limit.Store
	base               limit.Store        // the counters behind tenants, without lease layer and fallback limiter
	chain              *resilience.Chain  // nil if all counters are in memory
	calls              metrics.StoreCalls // calls of the chain
	names              authorizer.Sources // of addresses
	bytes              func() int64       // memory that counters take
	closers            []func(context.Context) error

	flags []storeFlag // of sluice serve: the stores that must answer before it is ready
}

// open opens the stores. Without --redis and --dynamodb, counters are in memory. With both, quotas are in DynamoDB and
// rates in Redis. With --dynamodb alone, the counters of addresses stay in memory, because DynamoDB would need a paid
// write for every call of an attacker.
func (o *storeOptions) open(ctx context.Context, maxBytes int64, log *slog.Logger) (*counters, error) {
	inMemory := memory.Config{MaxBytes: maxBytes, Log: log}
	if o.dynamodb != "" {
		inMemory.UnidentifiedBytes = maxBytes // the store in memory counts only addresses
	}
	own, err := memory.New(inMemory)
	if err != nil {
		return nil, err
	}
	c := &counters{tenants: own, base: own, addresses: own, bytes: own.Bytes}
	if o.dynamodb == "" && o.redis == "" {
		return c, o.setNames(c, nil, log)
	}
	var keeper store.Keeper
	shared := resilience.ChainConfig{NoLeases: !o.leases, MaxInstances: o.maxInstances, Observe: c.calls.Observe,
		Log: log}
	if o.dynamodb != "" {
		s, err := o.openDynamoDB(ctx)
		if err != nil {
			return nil, err
		}
		shared.Rates, keeper = resilience.NamedStore{Name: "DynamoDB", Store: s}, s
	}
	if o.redis != "" {
		rates, err := o.openRedis(ctx)
		if err != nil {
			return nil, err
		}
		c.closers = append(c.closers, func(context.Context) error { return rates.Close() })
		shared.Quotas, shared.Rates = shared.Rates, resilience.NamedStore{Name: "Redis", Store: rates}
		if keeper == nil { // DynamoDB keeps the key if it counts the quotas: it keeps counters for longer
			keeper = rates
		}
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
	if err := o.setNames(c, keeper, log); err != nil {
		c.close(log)
		return nil, err
	}
	return c, nil
}

// setNames sets what names addresses, and closes it with the counters. keeper is the store that keeps the key if no
// flag has it, or nil if all counters are in memory.
func (o *storeOptions) setNames(c *counters, keeper store.Keeper, log *slog.Logger) error {
	switch {
	case o.addressKey != "":
		key, err := readSecret("--address-key "+o.addressKey, o.addressKey, identity.MinAddressKeyBytes)
		if err != nil {
			return err
		}
		c.names, err = identity.NewAnonymiserFrom(key)
		return err
	case keeper == nil:
		c.names = identity.NewAnonymiser()
	default:
		names := addresskey.New(keeper, log)
		c.names = names
		c.closers = append([]func(context.Context) error{
			func(context.Context) error { names.Close(); return nil },
		}, c.closers...)
	}
	return nil
}

func (o *storeOptions) openRedis(ctx context.Context) (*redis.Store, error) {
	c := redis.Config{Addrs: []string{o.redis}, Namespace: o.redisNamespace, Deadline: o.redisDeadline}
	s, err := redis.New(ctx, c)
	if err != nil {
		return nil, err
	}
	if err := s.Ping(ctx); err != nil {
		return nil, errors.Join(noRedis(o.redis, err), s.Close())
	}
	return s, nil
}

// openDynamoDB opens a table in DynamoDB Local, which accepts any credentials.
func (o *storeOptions) openDynamoDB(ctx context.Context) (*dynamodb.Store, error) {
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

// dynamoDBLocal returns a client of DynamoDB Local.
func (o *storeOptions) dynamoDBLocal() (*awsdynamodb.Client, error) {
	if u, err := url.Parse(o.dynamodb); err != nil || u.Host == "" {
		return nil, fmt.Errorf("--dynamodb %q is not a URL such as http://127.0.0.1:8000", o.dynamodb)
	}
	return awsdynamodb.New(awsdynamodb.Options{
		Region: "local", BaseEndpoint: aws.String(o.dynamodb),
		Credentials: credentials.NewStaticCredentialsProvider("local", "local", ""),
	}), nil
}

// close gives leased units back and closes the connections.
func (c *counters) close(log *slog.Logger) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	for _, f := range c.closers {
		if err := f(ctx); err != nil {
			log.Warn("a store did not close properly", "error", err)
		}
	}
}
