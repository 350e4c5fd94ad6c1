// Package redisstore keeps the counters of package sluice in Redis or Valkey (ElastiCache, node-based or cluster), so
// that all processes that share a server hold each limit together.
//
// A decision is one round trip at most, by one script, on the server's clock. It opens connections of its own and takes
// no client of yours: a client that sends a command again, as clients do by default, would charge twice.
package redisstore

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"github.com/sluicelimits/sluice/internal/limiter/store"
	"github.com/sluicelimits/sluice/internal/limiter/store/redis"
)

// DefaultDeadline is how long a decision waits for the server, where Config.Deadline is 0.
const DefaultDeadline = redis.DefaultDeadline

// ErrReplica is a server that is not a primary. What it holds is old, and it would lose what is charged.
var ErrReplica = redis.ErrReplica

// Config says where the server is.
type Config struct {
	Addrs   []string // host:port of the primary, one; or of some nodes of a cluster. Required
	Cluster bool     // cluster mode

	// Credentials returns user and password for each new connection; nil is none. Tokens that expire are renewed so.
	Credentials func(ctx context.Context) (user, password string, err error)
	TLS         *tls.Config // nil is plain text; see AllowPlaintextPassword

	// AllowPlaintextPassword lets the password of Credentials travel without TLS. Without it New refuses Credentials
	// with a nil TLS, but for a single server on a loopback address: what is sent to that stays on this machine. The
	// nodes that a cluster names may be anywhere, so a cluster needs it wherever its addresses are.
	AllowPlaintextPassword bool

	// Namespace keeps the counters of several programs in one Redis apart; any text up to 64 bytes. Processes with the
	// same namespace, "" included, hold each limit together.
	Namespace string

	// Deadline of one decision, connecting included, 1 ms or more; default DefaultDeadline. One that is not answered by
	// then is decided by each limit's onStoreFailure.
	Deadline time.Duration
	PoolSize int // connections per node; 0 is ten for each CPU
}

// Store is a store for sluice.Config. It is safe for concurrent use. Make it with [New].
type Store struct{ inner *redis.Store }

// New connects. It refuses a server that is not a primary with [ErrReplica], and a password without TLS (see
// Config.AllowPlaintextPassword); errors name the field. A server that cannot be reached is no error, and limits are
// held by their onStoreFailure until it can: call Ping to know. Close the store when done.
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

// onThisMachine reports whether all that is sent goes to a loopback address.
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

// Ping asks the server, or each primary of the cluster, whether it is there.
func (s *Store) Ping(ctx context.Context) error { return s.inner.Ping(ctx) }

// Close ends the connections. Close limiters that use the store first.
func (s *Store) Close() error { return s.inner.Close() }

// Backend is for package sluice.
func (s *Store) Backend() store.Backend { return store.Backend{Name: "Redis", Counters: s.inner} }
