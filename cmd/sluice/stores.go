package main

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
	"github.com/spf13/pflag"

	"github.com/sluicelimits/sluice/internal/dev"
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

// storeOptions are the flags that say where counters are kept.
type storeOptions struct {
	redis, redisNamespace string
	dynamodb, table       string
	redisDeadline         time.Duration
	dynamodbDeadline      time.Duration
	leases                bool
	maxInstances          int
	addressKey            string // file

	// Flags of sluice serve alone.
	redisCluster, redisTLS bool
	redisCA, redisUser     string
	redisCert, redisKey    string
	redisPasswordFile      string

	// What --redis says, set by check.
	redisAddrs                  []string
	redisDB                     int
	redisURLUser, redisPassword string
}

// flags adds the flags of all commands. redisDeadline is the default of --redis-deadline.
func (o *storeOptions) flags(f *pflag.FlagSet, redisDeadline time.Duration) {
	f.StringVar(&o.redis, "redis", "", "keep counters in Redis at `HOST:PORT` or "+
		"redis[s]://USER:PASSWORD@HOST:PORT/DATABASE, so that several processes share each limit")
	f.StringVar(&o.redisNamespace, "redis-namespace", "",
		"`TEXT` that begins the names of the counters, so that several programs can use one Redis")
	durationFlag(f, &o.redisDeadline, "redis-deadline", redisDeadline, time.Millisecond,
		"longest `TIME` that a decision waits for Redis")
	f.StringVar(&o.dynamodb, "dynamodb", "", "keep counters in DynamoDB: `aws`, or the URL of DynamoDB Local; "+
		"beside --redis: quotas only")
	durationFlag(f, &o.dynamodbDeadline, "dynamodb-deadline", time.Second, time.Millisecond,
		"longest `TIME` that a decision waits for DynamoDB (in a deployment: "+dynamodb.DefaultTimeout.String()+")")
	f.StringVar(&o.table, "dynamodb-table", "sluice-dev", "`TABLE` for --dynamodb, which is created in DynamoDB Local "+
		"if it does not exist")
	f.BoolVar(&o.leases, "leases", true, "decide from units leased from a shared store, without a call for each "+
		"request")
	numberFlag(f, &o.maxInstances, "max-instances", 1, 1, 1_000_000,
		"at most `N` processes share the store: while it does not answer "+
			"and the instance count is not known, each admits 1/N of a limit")
	f.StringVar(&o.addressKey, "address-key", "", "`FILE` with the key that names addresses where they are counted, "+
		"32 bytes or more (default: a random key, which a shared store keeps)")
}

// serveFlags adds the flags about Redis that only sluice serve has.
func (o *storeOptions) serveFlags(f *pflag.FlagSet) {
	f.BoolVar(&o.redisCluster, "redis-cluster", false, "--redis names nodes of a cluster, separated by commas")
	f.BoolVar(&o.redisTLS, "redis-tls", false, "connect to Redis with TLS, as a URL rediss:// does")
	f.StringVar(&o.redisCA, "redis-ca", "",
		"PEM `FILE` with authorities for the certificate of Redis (default: those of the system)")
	f.StringVar(&o.redisCert, "redis-cert", "", "PEM `FILE` with a certificate that Redis knows this client by")
	f.StringVar(&o.redisKey, "redis-key", "", "PEM `FILE` with the key of --redis-cert")
	f.StringVar(&o.redisUser, "redis-user", "", "`NAME` of the user at Redis")
	f.StringVar(&o.redisPasswordFile, "redis-password-file", "",
		"`FILE` with the password for Redis, which is read again for each connection")
}

const maxNamespaceBytes = 64 // the store refuses longer ones, too

// check checks the flags, and sets the fields that --redis says. Call it before open. Its errors never contain the
// values of --redis and --dynamodb, which may have a password in them.
func (o *storeOptions) check() error {
	switch n := len(o.redisNamespace); {
	case strings.Contains(o.dynamodb, "@"):
		return errors.New("--dynamodb takes no user and no password: give aws, or a URL such as http://127.0.0.1:8000")
	case o.redisNamespace != "" && o.redis == "":
		return errors.New("--redis-namespace has no use without --redis")
	case n > maxNamespaceBytes:
		return fmt.Errorf("--redis-namespace has %d bytes, want at most %d", n, maxNamespaceBytes)
	case o.redis == "" && (o.redisCluster || o.redisTLS || o.redisCA != "" || o.redisUser != "" ||
		o.redisPasswordFile != "" || o.redisCert != "" || o.redisKey != ""):
		return errors.New("--redis-cluster, --redis-tls, --redis-ca, --redis-cert, --redis-key, --redis-user and " +
			"--redis-password-file have no use without --redis")
	case o.redis == "":
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

// readRedis reads --redis: HOST:PORT, several of them with commas between, or URLs.
func (o *storeOptions) readRedis() error {
	parts := []string{o.redis}
	if o.redisCluster || !strings.Contains(o.redis, "://") { // a password in a URL may have a comma
		parts = strings.Split(o.redis, ",")
	}
	o.redisAddrs = nil
	var firstTLS bool // of the first URL
	for i, address := range parts {
		if strings.Contains(address, "://") {
			to, err := parseRedisURL(address)
			if err != nil {
				return err
			}
			withTLS := to.TLSConfig != nil
			if i == 0 {
				firstTLS = withTLS
			} else if to.Username != o.redisURLUser || to.Password != o.redisPassword || to.DB != o.redisDB ||
				withTLS != firstTLS {
				return errors.New("the URLs of --redis differ in more than HOST:PORT: the nodes of a cluster have " +
					"one user, and all or none have TLS")
			}
			address = to.Addr
			o.redisURLUser, o.redisPassword, o.redisDB = to.Username, to.Password, to.DB
			o.redisTLS = o.redisTLS || withTLS
		}
		if err := checkRedis(address); err != nil {
			return err
		}
		o.redisAddrs = append(o.redisAddrs, address)
	}
	return nil
}

// addresses returns HOST:PORT of each address in --redis, without a user and a password.
func (o *storeOptions) addresses() string { return strings.Join(o.redisAddrs, ",") }

// checkRedisConnection checks the flags about TLS and about a cluster.
func (o *storeOptions) checkRedisConnection() error {
	switch {
	case o.redisCA != "" && !o.redisTLS:
		return errors.New("--redis-ca needs --redis-tls, or a URL rediss:// in --redis")
	case (o.redisCert == "") != (o.redisKey == ""):
		return errors.New("--redis-cert and --redis-key need each other")
	case o.redisCert != "" && !o.redisTLS:
		return errors.New("--redis-cert needs --redis-tls, or a URL rediss:// in --redis")
	case len(o.redisAddrs) > 1 && !o.redisCluster:
		return errors.New("--redis has several addresses, which needs --redis-cluster")
	case o.redisCluster && o.redisDB != 0:
		return errors.New("--redis names a database, and a cluster has only one: leave the number out")
	}
	return nil
}

// checkRedisLogin checks that the user and the password are given once, and that no password of a file travels in plain
// text. Of one in a URL, openRedis warns.
func (o *storeOptions) checkRedisLogin() error {
	switch {
	case o.redisPasswordFile != "" && o.redisPassword != "":
		return errors.New("--redis-password-file and the URL of --redis both have a password: leave one out")
	case o.redisUser != "" && o.redisURLUser != "":
		return errors.New("--redis-user and the URL of --redis both have a user: leave one out")
	case o.redisUser != "" && o.redisPasswordFile == "" && o.redisPassword == "":
		return errors.New("--redis-user needs --redis-password-file")
	case o.redisURLUser != "" && o.redisPasswordFile == "" && o.redisPassword == "":
		return errors.New("the user in the URL of --redis needs a password: the client would connect without a login")
	case o.redisPasswordFile != "" && !o.redisTLS && !o.redisOnThisMachine():
		return errors.New("--redis-password-file needs --redis-tls: the password would travel in plain text")
	}
	return nil
}

// checkRedis checks an address of --redis. The error does not contain the address, which may have a password in it.
func checkRedis(address string) error {
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
func (o *storeOptions) redisOnThisMachine() bool {
	host, _, _ := net.SplitHostPort(o.redisAddrs[0])
	address, err := netip.ParseAddr(host)
	return !o.redisCluster && (host == "localhost" || err == nil && address.IsLoopback())
}

// noRedis is the error if no Redis answers at the address of --redis.
func noRedis(address string, err error) error {
	return fmt.Errorf("--redis %s: start a Redis there, or correct the address: %w", address, err)
}

// counters are the stores of a process.
type counters struct {
	dev.Counters

	closers []func(context.Context) error
	flags   []storeFlag // the shared stores
}

// storeUse says what a process opens stores for.
type storeUse struct {
	maxBytes   int64                            // of counters in memory
	cell       string                           // see resilience.ChainConfig
	homes      map[string]resilience.NamedStore // likewise
	mustAnswer bool                             // a Redis that does not answer at once is an error
}

// open opens the stores. Without --redis and --dynamodb, counters are in memory. With both, quotas are in DynamoDB and
// rates in Redis. With --dynamodb alone, the counters of addresses stay in memory, because DynamoDB would need a paid
// write for every call of an attacker.
func (o *storeOptions) open(ctx context.Context, use *storeUse, log *slog.Logger) (*counters, error) {
	c := &counters{Counters: dev.Counters{Calls: new(metrics.StoreCalls), Bytes: func() int64 { return 0 }}}
	c.Close = func() { c.close(log) }
	var keeper store.Keeper
	err := o.openMemory(c, use, log)
	if err == nil && (o.redis != "" || o.dynamodb != "") {
		keeper, err = o.openShared(ctx, c, use, log)
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
func (o *storeOptions) openMemory(c *counters, use *storeUse, log *slog.Logger) error {
	if o.redis != "" {
		return nil
	}
	config := memory.Config{MaxBytes: use.maxBytes, Log: log}
	if o.dynamodb != "" {
		config.UnidentifiedBytes = use.maxBytes
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
func (o *storeOptions) openShared(
	ctx context.Context, c *counters, use *storeUse, log *slog.Logger,
) (keeper store.Keeper, err error) {
	shared := resilience.ChainConfig{NoLeases: !o.leases, MaxInstances: o.maxInstances, Cell: use.cell,
		Homes: use.homes, Observe: c.Calls.Observe, Log: log}
	if o.dynamodb != "" {
		s, err := o.openDynamoDB(ctx)
		if err != nil {
			return nil, err
		}
		c.flags = append(c.flags, storeFlag{"--dynamodb", o.dynamodb, s})
		shared.Rates, keeper = resilience.NamedStore{Name: "DynamoDB", Store: s}, s
	}
	if o.redis != "" {
		rates, err := o.openRedis(ctx, use.mustAnswer, log)
		if err != nil {
			return nil, err
		}
		c.closers = append(c.closers, func(context.Context) error { return rates.Close() })
		c.flags = append(c.flags, storeFlag{"--redis", o.addresses(), rates})
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
	if o.redis != "" {
		c.Addresses = c.Tenants
	}
	return keeper, nil
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

// openRedis makes the store in Redis. It is only an error if Redis does not answer if mustAnswer is set.
func (o *storeOptions) openRedis(ctx context.Context, mustAnswer bool, log *slog.Logger) (*redis.Store, error) {
	c := redis.Config{Addrs: o.redisAddrs, Cluster: o.redisCluster, Namespace: o.redisNamespace,
		Deadline: o.redisDeadline, Database: o.redisDB}
	if o.redisTLS {
		var err error
		if c.TLS, err = o.redisTLSConfig(); err != nil {
			return nil, err
		}
	}
	user := o.redisUser + o.redisURLUser // check allows one of them
	switch {
	case o.redisPasswordFile != "":
		c.Credentials = func(context.Context) (string, string, error) {
			text, err := os.ReadFile(o.redisPasswordFile)
			return user, strings.TrimRight(string(text), "\r\n"), err
		}
		if _, _, err := c.Credentials(ctx); err != nil {
			return nil, fmt.Errorf("--redis-password-file: %w", err)
		}
	case o.redisPassword != "":
		c.Credentials = func(context.Context) (string, string, error) { return user, o.redisPassword, nil }
		if !o.redisTLS && !o.redisOnThisMachine() {
			log.Warn("the password of the URL in --redis travels in plain text: use rediss:// if Redis has TLS",
				"redis", o.addresses())
		}
	}
	s, err := redis.New(ctx, c)
	if err != nil {
		return nil, fmt.Errorf("--redis: %w", err)
	}
	if mustAnswer {
		if err := s.Ping(ctx); err != nil {
			return nil, errors.Join(noRedis(o.addresses(), err), s.Close())
		}
	}
	return s, nil
}

func (o *storeOptions) redisTLSConfig() (*tls.Config, error) {
	c := &tls.Config{MinVersion: tls.VersionTLS12}
	if o.redisCA != "" {
		pem, err := os.ReadFile(o.redisCA)
		if err != nil {
			return nil, fmt.Errorf("--redis-ca: %w", err)
		}
		if c.RootCAs = x509.NewCertPool(); !c.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("--redis-ca: %s has no certificate in PEM", o.redisCA)
		}
	}
	if o.redisCert != "" {
		read := func() (*tls.Certificate, error) {
			pair, err := tls.LoadX509KeyPair(o.redisCert, o.redisKey)
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
func (o *storeOptions) openDynamoDB(ctx context.Context) (*dynamodb.Store, error) {
	client, err := o.dynamoDBClient(ctx, "")
	if err != nil {
		return nil, err
	}
	if o.dynamodb != realDynamoDB {
		ctx, cancel := context.WithTimeout(ctx, 15*time.Second)
		defer cancel()
		if err := dynamodb.Create(ctx, client, o.table); err != nil {
			return nil, fmt.Errorf("--dynamodb %s: table %s: %w", o.dynamodb, o.table, err)
		}
	}
	return dynamodb.New(dynamodb.Config{Client: client, Table: o.table, Timeout: o.dynamodbDeadline})
}

// dynamoDBClient makes a client of the DynamoDB that --dynamodb names, or of AWS's without the flag. On AWS it is in
// the given region, or in the usual one if that is "". DynamoDB Local accepts any credentials.
func (o *storeOptions) dynamoDBClient(ctx context.Context, region string) (*awsdynamodb.Client, error) {
	if o.dynamodb == "" || o.dynamodb == realDynamoDB {
		config, err := awsconfig.LoadDefaultConfig(ctx)
		if err != nil {
			return nil, fmt.Errorf("--dynamodb %s: %w", realDynamoDB, err)
		}
		if region != "" {
			config.Region = region
		}
		return awsdynamodb.NewFromConfig(config), nil
	}
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
