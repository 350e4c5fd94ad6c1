package cell

import (
	"context"
	"crypto/tls"
	"log/slog"
	"strings"
	"time"

	"github.com/sluicelimits/sluice/internal/aws/environ"
	"github.com/sluicelimits/sluice/internal/cell/secrets"
	"github.com/sluicelimits/sluice/internal/limiter/lease"
	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/limiter/resilience"
	"github.com/sluicelimits/sluice/internal/limiter/store/dynamodb"
	memstore "github.com/sluicelimits/sluice/internal/limiter/store/memory"
	"github.com/sluicelimits/sluice/internal/limiter/store/redis"
	"github.com/sluicelimits/sluice/internal/telemetry"
)

// stores are the stores of a cell.
type stores struct {
	chain     *resilience.Chain
	addresses limit.Store  // nil: addresses are counted in the chain
	redis     *redis.Store // nil in a small cell
}

// newStores makes the stores. It opens no connections.
func newStores(
	s *environ.Settings, m memory, a *awsClients, secret *secrets.Cache, recorder func() *telemetry.Recorder,
	log *slog.Logger,
) (*stores, error) {
	counters, err := dynamodb.New(dynamodb.Config{Client: a.dynamodb(), Table: s.CountersTable,
		Timeout: s.DynamoDBDeadline})
	if err != nil {
		return nil, err
	}
	homes, err := a.homes(s.Homes, s.HomeDeadline)
	if err != nil {
		return nil, err
	}
	made := &stores{}
	c := resilience.ChainConfig{
		Rates:  resilience.NamedStore{Name: telemetry.DynamoDB.String(), Store: counters},
		Frozen: true, NoLeases: !s.Leases, MaxInstances: s.MaxInstances, Log: log,
		Lease: lease.Config{MaxCounters: m.leases}, Fallback: resilience.FallbackConfig{Bytes: m.backstop},
		Observe: func(store string, took time.Duration, failed bool) {
			recorder().StoreCall(time.Now(), kindOf(store), took, failed)
		},
		Cell: s.Cell, Homes: make(map[string]resilience.NamedStore, len(homes)),
	}
	for cell, store := range homes {
		c.Homes[cell] = resilience.NamedStore{Name: homePrefix + cell, Store: store}
	}
	if s.Redis == nil {
		alone := memstore.Config{MaxBytes: m.addresses, UnidentifiedBytes: m.addresses, Log: log}
		if made.addresses, err = memstore.New(alone); err != nil {
			return nil, err
		}
	} else {
		if made.redis, err = newRedis(s.Redis, a, secret, log); err != nil {
			return nil, err
		}
		c.Quotas, c.Rates = c.Rates, resilience.NamedStore{Name: telemetry.Redis.String(), Store: made.redis}
	}
	if made.chain, err = resilience.NewChain(c); err != nil {
		return nil, err
	}
	return made, nil
}

// homePrefix begins the name of another cell's counters in logs.
const homePrefix = "home "

// kindOf returns the name of a store in metrics.
func kindOf(name string) telemetry.Store {
	switch {
	case name == telemetry.Redis.String():
		return telemetry.Redis
	case strings.HasPrefix(name, homePrefix):
		return telemetry.Home
	}
	return telemetry.DynamoDB
}

// newRedis makes the store of rates. secret is the cell's secret, which has the login unless Redis has a secret of its
// own.
func newRedis(r *environ.Redis, a *awsClients, secret *secrets.Cache, log *slog.Logger) (*redis.Store, error) {
	c := redis.Config{Addrs: r.Addrs, Cluster: r.Cluster, Deadline: r.Deadline, PoolSize: environ.RedisConnections}
	if r.TLS {
		c.TLS = &tls.Config{MinVersion: tls.VersionTLS12}
	}
	switch r.Auth {
	case environ.AuthNone:
	case environ.AuthSecret:
		if r.Secret != "" {
			var err error
			if secret, err = secrets.New(secrets.Config{Client: a.secretsManager(), ID: r.Secret,
				Log: log}); err != nil {
				return nil, err
			}
		}
		c.Credentials = secret.RedisCredentials
	case environ.AuthIAM:
		c.Credentials = NewCacheSigner(CacheSignerConfig{
			Cache: r.Cache, User: r.User, Region: a.Config("").Region,
			Credentials: a.Config("").Credentials,
		}).Credentials
	}
	// New would connect to the server to check it, for which there is no time while the function starts. With a context
	// that has ended, New only makes the client. Each connection is checked when it is made: see warm.
	ended, end := context.WithCancel(context.Background())
	end()
	return redis.New(ended, c)
}

// warm opens connections and registers this instance, so that the first decision waits for neither.
func (s *stores) warm(ctx context.Context, log *slog.Logger) {
	if s.redis != nil {
		if err := s.redis.Ping(ctx); err != nil {
			log.Warn("Redis does not answer yet", "error", err)
		}
	}
	s.chain.RunBackgroundTasks(ctx, time.Now())
}

// totals returns the counts of the store chain, for the metrics.
func (s *stores) totals() telemetry.Totals {
	of := s.chain.Stats()
	t := telemetry.Totals{Backstop: of.Backstop, Undecidable: of.Undecidable}
	if s.chain.Leases != nil {
		l := s.chain.Leases.Stats()
		t.LeaseLocal, t.LeaseCalls, t.EarlyDenials = l.Local, l.Calls, l.Early
	}
	return t
}
