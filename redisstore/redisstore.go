// Package redisstore keeps the counters of package sluice in Redis or Valkey (ElastiCache, node-based or cluster). All
// processes that share a server enforce each limit together.
//
// A decision takes at most one round trip: one script, on the server's clock. The store opens its own connections and
// does not accept your client, because clients send a command again by default, and that would charge twice.
package redisstore

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"github.com/sluicelimits/sluice/internal/limiter/ledger"
	"github.com/sluicelimits/sluice/internal/limiter/store"
	"github.com/sluicelimits/sluice/internal/limiter/store/redis"
)

// DefaultDeadline is how long a decision waits for the server if Config.Deadline is 0.
const DefaultDeadline = redis.DefaultDeadline

// ErrReplica means that the server is not a primary. Its counters are out of date, and it would lose charges.
var ErrReplica = redis.ErrReplica

// Config says where the server is.
type Config struct {
	Addrs   []string // required; host:port of one primary, or of some nodes of a cluster
	Cluster bool     // cluster mode

	// Credentials returns the user and the password for each new connection, so that tokens that expire are renewed. If
	// nil, connections send none.
	Credentials func(ctx context.Context) (user, password string, err error)
	TLS         *tls.Config // nil means plain text; see AllowPlaintextPassword

	// AllowPlaintextPassword lets the password of Credentials travel without TLS. Without it, New refuses Credentials
	// with a nil TLS, unless Addrs is a single server on a loopback address, because then the password stays on this
	// machine. A cluster always needs it, because its nodes may be anywhere.
	AllowPlaintextPassword bool

	// Namespace separates the counters of several programs in one Redis; any text up to 64 bytes. Processes with the
	// same namespace, "" included, enforce each limit together.
	Namespace string

	// Deadline bounds a decision, including connecting; 1 ms or more; default DefaultDeadline. If the server does not
	// answer by then, each limit's onStoreFailure decides.
	Deadline time.Duration
	PoolSize int // connections per node; 0 is ten for each CPU
}

// Store is a store for sluice.Config.Store. It is safe for concurrent use. Make it with [New].
type Store struct{ inner *redis.Store }

// New connects. It refuses a server that is not a primary with [ErrReplica], and a password without TLS (see
// Config.AllowPlaintextPassword). Errors name the field. An unreachable server is no error: each limit's onStoreFailure
// decides until the server answers. Call Ping to find out. Close the store when it is no longer used.
func New(ctx context.Context, c Config) (*Store, error) {
	if len(c.Addrs) > 0 && c.Credentials != nil && c.TLS == nil && !c.AllowPlaintextPassword && !c.onThisMachine() {
		return nil, errPlaintextPassword
	}
	s, err := redis.New(ctx, redis.Config{Addrs: c.Addrs, Cluster: c.Cluster, Credentials: c.Credentials, TLS: c.TLS,
		Namespace: c.Namespace, Deadline: c.Deadline, PoolSize: c.PoolSize})
	if err != nil {
		return nil, fmt.Errorf("redisstore: %w", err)
	}
	return &Store{s}, nil
}

var errPlaintextPassword = errors.New("redisstore: Credentials without TLS would send a password in plain text: " +
	"set TLS (&tls.Config{} verifies the server by its name), or AllowPlaintextPassword where nobody can listen on " +
	"the way")

// onThisMachine reports whether all data goes to a loopback address.
func (c *Config) onThisMachine() bool {
	if c.Cluster || len(c.Addrs) != 1 {
		return false
	}
	host, _, err := net.SplitHostPort(c.Addrs[0])
	if err != nil {
		return false
	}
	ip, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && ip.Unmap().IsLoopback()
}

// Ping reports whether the server, or each primary of the cluster, answers.
func (s *Store) Ping(ctx context.Context) error { return s.inner.Ping(ctx) }

// Close ends the connections. Close limiters that use the store first.
func (s *Store) Close() error { return s.inner.Close() }

// Backend is for package sluice.
func (s *Store) Backend() store.Backend {
	return store.Backend{Name: "Redis", Counters: s.inner, Keeper: s.inner}
}

// Ledger shares limits of providers between processes, for package pacer.
func (s *Store) Ledger() ledger.Ledger { return s.inner.Ledger() }
