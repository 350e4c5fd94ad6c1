// Package stores opens the stores of counters that a command line names: in memory, in Redis, in DynamoDB, or rates in
// Redis and quotas in DynamoDB.
package stores

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awsconfig "github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/credentials"
	awsdynamodb "github.com/aws/aws-sdk-go-v2/service/dynamodb"
	goredis "github.com/redis/go-redis/v9"

	"github.com/sluicelimits/sluice/authorizer"
	"github.com/sluicelimits/sluice/internal/configfile"
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

// realDynamoDB is the value of --dynamodb that selects AWS's service instead of DynamoDB Local.
const realDynamoDB = "aws"

// Options say where counters are kept. The comments name the flags, which errors name, too.
type Options struct {
	Redis, RedisNamespace string // --redis, --redis-namespace
	RedisDeadline         time.Duration
	DynamoDB, Table       string // --dynamodb, --dynamodb-table
	DynamoDBDeadline      time.Duration
	Leases                bool
	MaxInstances          int
	AddressKey            string // --address-key, a file

	RedisCluster, RedisTLS bool
	RedisCA, RedisUser     string
	RedisCert, RedisKey    string // files
	RedisPasswordFile      string

	MaxBytes   int64                            // of counters in memory
	Cell       string                           // see resilience.ChainConfig
	Homes      map[string]resilience.NamedStore // likewise
	MustAnswer bool                             // a Redis that does not answer at once is an error

	// What --redis says, set by Check.
	redisAddrs                  []string
	redisDB                     int
	redisURLUser, redisPassword string
}

const maxNamespaceBytes = 64 // the store refuses longer ones, too

// Check checks the options, and sets the fields that --redis says. Call it before Open. Its errors never contain the
// values of --redis and --dynamodb, which may have a password in them.
func (o *Options) Check() error {
	switch n := len(o.RedisNamespace); {
	case strings.Contains(o.DynamoDB, "@"):
		return errors.New("--dynamodb takes no user and no password: give aws, or a URL such as http://127.0.0.1:8000")
	case o.RedisNamespace != "" && o.Redis == "":
		return errors.New("--redis-namespace has no use without --redis")
	case n > maxNamespaceBytes:
		return fmt.Errorf("--redis-namespace has %d bytes, want at most %d", n, maxNamespaceBytes)
	case o.Redis == "" && (o.RedisCluster || o.RedisTLS || o.RedisCA != "" || o.RedisUser != "" ||
		o.RedisPasswordFile != "" || o.RedisCert != "" || o.RedisKey != ""):
		return errors.New("--redis-cluster, --redis-tls, --redis-ca, --redis-cert, --redis-key, --redis-user and " +
			"--redis-password-file have no use without --redis")
	case o.Redis == "":
		return nil
	}
	if err := o.readRedis(); err != nil {
		return err
	}
	if err := o.checkRedisConnection(); err != nil {
		return err
	}
	return o.checkRedisLogin()
}

// readRedis reads --redis: HOST:PORT, several of them with commas between, or a URL.
func (o *Options) readRedis() error {
	addresses := o.Redis
	if strings.Contains(o.Redis, "://") {
		to, err := parseRedisURL(o.Redis)
		if err != nil {
			return err
		}
		addresses, o.redisURLUser, o.redisPassword, o.redisDB = to.Addr, to.Username, to.Password, to.DB
		o.RedisTLS = o.RedisTLS || to.TLSConfig != nil
	}
	o.redisAddrs = strings.Split(addresses, ",")
	for _, address := range o.redisAddrs {
		if err := CheckRedis(address); err != nil {
			return err
		}
	}
	return nil
}

// addresses returns HOST:PORT of each address in --redis, without a user and a password.
func (o *Options) addresses() string { return strings.Join(o.redisAddrs, ",") }

// checkRedisConnection checks the flags about TLS and about a cluster.
func (o *Options) checkRedisConnection() error {
	switch {
	case o.RedisCA != "" && !o.RedisTLS:
		return errors.New("--redis-ca needs --redis-tls, or a URL rediss:// in --redis")
	case (o.RedisCert == "") != (o.RedisKey == ""):
		return errors.New("--redis-cert and --redis-key need each other")
	case o.RedisCert != "" && !o.RedisTLS:
		return errors.New("--redis-cert needs --redis-tls, or a URL rediss:// in --redis")
	case len(o.redisAddrs) > 1 && !o.RedisCluster:
		return errors.New("--redis has several addresses, which needs --redis-cluster")
	case o.RedisCluster && o.redisDB != 0:
		return errors.New("--redis names a database, and a cluster has only one: leave the number out")
	}
	return nil
}

// checkRedisLogin checks that the user and the password are given once, and that no password of a file travels in plain
// text. Of one in a URL, openRedis warns.
func (o *Options) checkRedisLogin() error {
	switch {
	case o.RedisPasswordFile != "" && o.redisPassword != "":
		return errors.New("--redis-password-file and the URL of --redis both have a password: leave one out")
	case o.RedisUser != "" && o.redisURLUser != "":
		return errors.New("--redis-user and the URL of --redis both have a user: leave one out")
	case o.RedisUser != "" && o.RedisPasswordFile == "" && o.redisPassword == "":
		return errors.New("--redis-user needs --redis-password-file")
	case o.redisURLUser != "" && o.RedisPasswordFile == "" && o.redisPassword == "":
		return errors.New("the user in the URL of --redis needs a password: the client would connect without a login")
	case o.RedisPasswordFile != "" && !o.RedisTLS && !o.redisOnThisMachine():
		return errors.New("--redis-password-file needs --redis-tls: the password would travel in plain text")
	}
	return nil
}

// CheckRedis checks an address of --redis. The error does not contain the address, which may have a password in it.
func CheckRedis(address string) error {
	host, port, err := net.SplitHostPort(address)
	_, notIP := netip.ParseAddr(host)
	if n, bad := strconv.ParseUint(port, 10, 16); err != nil || bad != nil || n == 0 ||
		notIP != nil && strings.ContainsAny(host, ":@/,% ") {
		return errors.New("--redis is not HOST:PORT, such as 127.0.0.1:6379: want an address without a scheme, and " +
			"without a password")
	}
	return nil
}

// parseRedisURL reads a URL such as redis://user:password@host:6379/0, or rediss:// for TLS.
func parseRedisURL(text string) (*goredis.Options, error) {
	u, err := url.Parse(text)
	if err == nil && (u.RawQuery != "" || u.Fragment != "") {
		return nil, errors.New("--redis: a URL has options after ? or #, which are not read: " +
			"use flags, such as --redis-deadline")
	}
	to, parseErr := goredis.ParseURL(text)
	if err != nil || parseErr != nil || to.Network != "tcp" {
		return nil, errors.New("--redis is not HOST:PORT, such as 127.0.0.1:6379, and not a URL such as " +
			"redis://user:password@host:6379/0, or rediss:// for TLS. In a URL, write @, :, / and % of a password as " +
			"%40, %3A, %2F and %25")
	}
	return to, nil
}

// redisOnThisMachine reports whether what is sent to Redis stays on this machine. A cluster may name nodes on other
// machines.
func (o *Options) redisOnThisMachine() bool {
	host, _, _ := net.SplitHostPort(o.redisAddrs[0])
	address, err := netip.ParseAddr(host)
	return !o.RedisCluster && (host == "localhost" || err == nil && address.IsLoopback())
}

// NoRedis is the error if no Redis answers at the address of --redis.
func NoRedis(address string, err error) error {
	return fmt.Errorf("--redis %s: start a Redis there, or correct the address: %w", address, err)
}

// Counters are the stores of a process.
type Counters struct {
	Tenants, Addresses limit.Store
	Base               limit.Store         // the counters behind Tenants, without lease layer and fallback limiter
	Chain              *resilience.Chain   // nil if all counters are in memory
	Calls              *metrics.StoreCalls // calls of the chain
	Names              authorizer.Sources  // of addresses
	Bytes              func() int64        // memory that counters take
	Close              func()              // gives leased units back, and closes the connections
	Shared             []Shared            // the stores behind the chain

	closers []func(context.Context) error
}

// Shared is a store with the flag that names it and what the flag says, without a password.
type Shared struct {
	Flag, Value string
	Store       limit.Store
}

// Open opens the stores. Without --redis and --dynamodb, counters are in memory. With both, quotas are in DynamoDB and
// rates in Redis. With --dynamodb alone, the counters of addresses stay in memory, because DynamoDB would need a paid
// write for every call of an attacker.
func (o *Options) Open(ctx context.Context, log *slog.Logger) (*Counters, error) {
	c := &Counters{Calls: new(metrics.StoreCalls), Bytes: func() int64 { return 0 }}
	c.Close = func() { c.close(log) }
	var keeper store.Keeper
	err := o.openMemory(c, log)
	if err == nil && (o.Redis != "" || o.DynamoDB != "") {
		keeper, err = o.openShared(ctx, c, log)
	}
	if err == nil {
		err = o.setNames(c, keeper, log)
	}
	if err != nil {
		c.close(log)
		return nil, err
	}
	return c, nil
}

// openMemory opens the store in memory, which counts everything, or addresses only beside DynamoDB.
func (o *Options) openMemory(c *Counters, log *slog.Logger) error {
	if o.Redis != "" {
		return nil
	}
	config := memory.Config{MaxBytes: o.MaxBytes, Log: log}
	if o.DynamoDB != "" {
		config.UnidentifiedBytes = o.MaxBytes
	}
	own, err := memory.New(config)
	if err != nil {
		return err
	}
	c.Base, c.Addresses, c.Bytes = own, own, own.Bytes
	fallback, err := resilience.NewFallback(resilience.FallbackConfig{Store: own, Log: log})
	if err != nil {
		return err
	}
	c.Tenants, c.closers = fallback, append(c.closers, fallback.Close)
	return nil
}

// openShared opens the stores of --redis and --dynamodb, and the store chain in front of them. It returns the store
// that keeps the key for the names of addresses.
func (o *Options) openShared(
	ctx context.Context, c *Counters, log *slog.Logger,
) (keeper store.Keeper, err error) {
	shared := resilience.ChainConfig{NoLeases: !o.Leases, MaxInstances: o.MaxInstances, Cell: o.Cell,
		Homes: o.Homes, Observe: c.Calls.Observe, Log: log}
	if o.DynamoDB != "" {
		s, err := o.openDynamoDB(ctx)
		if err != nil {
			return nil, err
		}
		c.Shared = append(c.Shared, Shared{"--dynamodb", o.DynamoDB, s})
		shared.Rates, keeper = resilience.NamedStore{Name: "DynamoDB", Store: s}, s
	}
	if o.Redis != "" {
		rates, err := o.openRedis(ctx, log)
		if err != nil {
			return nil, err
		}
		c.closers = append(c.closers, func(context.Context) error { return rates.Close() })
		c.Shared = append(c.Shared, Shared{"--redis", o.addresses(), rates})
		shared.Quotas, shared.Rates = shared.Rates, resilience.NamedStore{Name: "Redis", Store: rates}
		if keeper == nil { // DynamoDB keeps the key if it counts the quotas: it keeps counters for longer
			keeper = rates
		}
	}
	if c.Chain, err = resilience.NewChain(shared); err != nil {
		return nil, err
	}
	c.closers = append([]func(context.Context) error{c.Chain.Close}, c.closers...)
	c.Tenants, c.Base = c.Chain.Fallback, shared.Rates.Store
	if shared.Quotas.Store != nil {
		if c.Base, err = router.New(router.Config{Rates: router.Backend{Store: shared.Rates.Store},
			Quotas: router.Backend{Store: shared.Quotas.Store}}); err != nil {
			return nil, err
		}
	}
	if o.Redis != "" {
		c.Addresses = c.Tenants
	}
	return keeper, nil
}

// setNames sets what names addresses, and closes it with the counters. keeper is the store that keeps the key if no
// flag has it, or nil if all counters are in memory.
func (o *Options) setNames(c *Counters, keeper store.Keeper, log *slog.Logger) error {
	switch {
	case o.AddressKey != "":
		key, err := configfile.ReadSecret("--address-key "+o.AddressKey, o.AddressKey, identity.MinAddressKeyBytes)
		if err != nil {
			return err
		}
		c.Names, err = identity.NewAnonymiserFrom(key)
		return err
	case keeper == nil:
		c.Names = identity.NewAnonymiser()
	default:
		names := addresskey.New(keeper, log)
		c.Names = names
		c.closers = append([]func(context.Context) error{
			func(context.Context) error { names.Close(); return nil },
		}, c.closers...)
	}
	return nil
}

// openRedis makes the store in Redis. It is only an error if Redis does not answer with MustAnswer.
func (o *Options) openRedis(ctx context.Context, log *slog.Logger) (*redis.Store, error) {
	c := redis.Config{Addrs: o.redisAddrs, Cluster: o.RedisCluster, Namespace: o.RedisNamespace,
		Deadline: o.RedisDeadline, Database: o.redisDB}
	if o.RedisTLS {
		var err error
		if c.TLS, err = o.redisTLSConfig(); err != nil {
			return nil, err
		}
	}
	user := o.RedisUser + o.redisURLUser // check allows one of them
	switch {
	case o.RedisPasswordFile != "":
		c.Credentials = func(context.Context) (string, string, error) {
			text, err := os.ReadFile(o.RedisPasswordFile)
			return user, strings.TrimRight(string(text), "\r\n"), err
		}
		if _, _, err := c.Credentials(ctx); err != nil {
			return nil, fmt.Errorf("--redis-password-file: %w", err)
		}
	case o.redisPassword != "":
		c.Credentials = func(context.Context) (string, string, error) { return user, o.redisPassword, nil }
		if !o.RedisTLS && !o.redisOnThisMachine() {
			log.Warn("the password of the URL in --redis travels in plain text: use rediss:// if Redis has TLS",
				"redis", o.addresses())
		}
	}
	s, err := redis.New(ctx, c)
	if err != nil {
		return nil, fmt.Errorf("--redis: %w", err)
	}
	if o.MustAnswer {
		if err := s.Ping(ctx); err != nil {
			return nil, errors.Join(NoRedis(o.addresses(), err), s.Close())
		}
	}
	return s, nil
}

func (o *Options) redisTLSConfig() (*tls.Config, error) {
	c := &tls.Config{MinVersion: tls.VersionTLS12}
	if o.RedisCA != "" {
		pem, err := os.ReadFile(o.RedisCA)
		if err != nil {
			return nil, fmt.Errorf("--redis-ca: %w", err)
		}
		if c.RootCAs = x509.NewCertPool(); !c.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("--redis-ca: %s has no certificate in PEM", o.RedisCA)
		}
	}
	if o.RedisCert != "" {
		read := func() (*tls.Certificate, error) {
			pair, err := tls.LoadX509KeyPair(o.RedisCert, o.RedisKey)
			return &pair, err
		}
		if _, err := read(); err != nil {
			return nil, fmt.Errorf("--redis-cert and --redis-key: %w", err)
		}
		// The files are read again for each connection, so that a renewed certificate needs no restart.
		c.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return read() }
	}
	return c, nil
}

// openDynamoDB opens the table in DynamoDB. It creates a table in DynamoDB Local.
func (o *Options) openDynamoDB(ctx context.Context) (*dynamodb.Store, error) {
	client, err := o.DynamoDBClient(ctx, "")
	if err != nil {
		return nil, err
	}
	if o.DynamoDB != realDynamoDB {
		ctx, cancel := context.WithTimeout(ctx, 15*time.Second)
		defer cancel()
		if err := dynamodb.Create(ctx, client, o.Table); err != nil {
			return nil, fmt.Errorf("--dynamodb %s: table %s: %w", o.DynamoDB, o.Table, err)
		}
	}
	return dynamodb.New(dynamodb.Config{Client: client, Table: o.Table, Timeout: o.DynamoDBDeadline})
}

// DynamoDBClient makes a client of the DynamoDB that --dynamodb names, or of AWS's without the flag. On AWS it is in
// the given region, or in the usual one if that is "". DynamoDB Local accepts any credentials.
func (o *Options) DynamoDBClient(ctx context.Context, region string) (*awsdynamodb.Client, error) {
	if o.DynamoDB == "" || o.DynamoDB == realDynamoDB {
		config, err := awsconfig.LoadDefaultConfig(ctx)
		if err != nil {
			return nil, fmt.Errorf("--dynamodb %s: %w", realDynamoDB, err)
		}
		if region != "" {
			config.Region = region
		}
		return awsdynamodb.NewFromConfig(config), nil
	}
	if u, err := url.Parse(o.DynamoDB); err != nil || u.Host == "" {
		return nil, fmt.Errorf("--dynamodb %q is not a URL such as http://127.0.0.1:8000", o.DynamoDB)
	}
	return awsdynamodb.New(awsdynamodb.Options{
		Region: "local", BaseEndpoint: aws.String(o.DynamoDB),
		Credentials: credentials.NewStaticCredentialsProvider("local", "local", ""),
	}), nil
}

// close gives leased units back and closes the connections.
func (c *Counters) close(log *slog.Logger) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	for _, f := range c.closers {
		if err := f(ctx); err != nil {
			log.Warn("a store did not close properly", "error", err)
		}
	}
}
