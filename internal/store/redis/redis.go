// Package redis keeps counters in Redis or Valkey: one script, one round trip and one hash slot for a decision over all
// limits of a tenant.
//
// Layout. Every key of an owner begins with "{rl:", the netstring of the namespace where there is one, the owner's kind (a letter)
// and the netstring of its name, "}"; in a cluster they share a slot.
//
//	{rl:t4:acme,}                             pack of the limits that every request of the owner counts
//	{rl:t4:acme,}8:put-prod,6:tenant,         pack of a limit that only some requests count
//	{rl:t4:acme,}5:login,7:subject,=3:bob,    pack of a limit's counters for one value ("~0:," absent, "*0:," all others)
//	{rl:t4:acme,}5:login,7:subject,values     sorted set: values that have a pack, by the time its expiry is armed until
//	….stamps<16 bytes>                        sorted set "time:units" by time: a sliding log's entries, or buckets
//	{rl:t4:acme,}refunded:<32 hex>            a receipt that was refunded
//
// A pack is a string: "SLU1" or "SLU2", a number of tiers (16 bits), the head of each tier's record (its algorithm and half a
// SHA-256 of its identity, 17 bytes, and the rate its state is counted in, a double), the time its expiry is armed until, and the
// state of each tier: At, N and, where it has three numbers, M of [limit.State]; numbers are doubles. These are the tiers of
// the last request, so that the usual request finds all it needs in place. Behind them are, with their heads, what was refunded
// to token buckets among them, what of those is leased (until when, and units), and up to 64 others for limits that come back.
// The state of a log or of buckets is the time the expiry of its sorted set is armed until, and the set's sum. Expiry is
// garbage collection only: windows are in the states, and it is armed for more than twice as long as the state can matter, about
// once a window.
//
// Leases (see [limit.Ahead]) are decide.lua's; the scripts of shapes (see shape.go) know nothing of them. While units of a bucket
// in front are leased the pack is a "SLU2", which no script of a shape takes for its own: it would let the bucket refill beyond
// what is held. The first charge after the slot makes it a "SLU1" again. In either, a bucket may owe: its level is below zero.
// Leased units of a log or of buckets are entries of the sorted set at the lease's end; those of windows and quotas are counted
// like others. What was adjusted is written with the charge, so a denial changes nothing.
//
// The server's clock decides; the caller's only names the calendar periods of quotas around it.
//
// Servers: Redis 7.0 or later, or Valkey, alone or as a cluster; a primary. A replica is refused when a connection is made,
// and refuses each script itself, looks included, for what it holds is old.
//
// A charge is never sent twice: the client's retries are off. When the reply does not come, the charge may have been made:
// units are lost then, never given twice. A server that comes back empty, or a replica that is promoted before it heard of
// the last charges, forgets what it forgets: at most what was admitted in the windows that are open.
//
// What lies under our keys and cannot be read is an error that names the key, and it is dropped within a minute, so that
// nobody is shut out for good.
package redis

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/sluicelimits/sluice/internal/limit"
)

var _ limit.Store = (*Store)(nil)

// Store is a [limit.Store] on Redis. Make it with [New].
type Store struct {
	client   goredis.UniversalClient
	deadline time.Duration
	boot     uint64 // with serial, names receipts
	serial   atomic.Uint64
	space    string // of Config.Namespace, in each key: "" or its netstring. Tests keep their counters apart by it

	// For tests only.
	callerClock bool               // the caller's clock takes the place of the server's
	generalOnly bool               // no scripts for shapes
	onAnswer    func(general bool) // called for each reply that is an answer
}

// Config sets up a store.
type Config struct {
	Addrs   []string // host:port of the primary, one; or of some nodes of a cluster. Required
	Cluster bool     // cluster mode

	// Credentials returns user and password for each new connection; nil is none. See package elasticache for IAM.
	Credentials func(ctx context.Context) (user, password string, err error)
	TLS         *tls.Config // nil is plain text

	Namespace string // keeps the counters of several programs in one Redis apart; any text up to 64 bytes

	Deadline time.Duration // of one decision, connecting included; at least 1 ms; 0 means DefaultDeadline
	PoolSize int           // connections per node; 0 means the client's default
}

// DefaultDeadline is how long a decision waits for Redis.
const DefaultDeadline = 8 * time.Millisecond

func (c Config) withDefaults() Config {
	if c.Deadline == 0 {
		c.Deadline = DefaultDeadline
	}
	return c
}

// New connects. It refuses a server that is not a primary with [ErrReplica]; a server that cannot be reached is no error:
// the store answers errors until it can. Close the store when done.
func New(ctx context.Context, c Config) (*Store, error) {
	c = c.withDefaults()
	switch {
	case len(c.Addrs) == 0:
		return nil, errors.New("redis store: no address")
	case len(c.Addrs) > 1 && !c.Cluster:
		return nil, fmt.Errorf("redis store: %d addresses, and no cluster", len(c.Addrs))
	case len(c.Namespace) > 64:
		return nil, fmt.Errorf("redis store: namespace has %d bytes, want at most 64", len(c.Namespace))
	case c.Deadline < time.Millisecond:
		return nil, fmt.Errorf("redis store: a deadline of %s, want at least 1ms", c.Deadline)
	}
	s := &Store{client: client(c), deadline: c.Deadline, boot: rand.Uint64(), space: space(c.Namespace)}
	if err := s.Ping(ctx); errors.Is(err, ErrReplica) {
		return nil, errors.Join(err, s.client.Close())
	}
	return s, nil
}

// Ping asks the server, or each primary of the cluster, whether it is there, and waits for a new connection longer than a
// decision does.
func (s *Store) Ping(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, max(s.deadline, dialTimeout))
	defer cancel()
	var err error
	if c, ok := s.client.(*goredis.ClusterClient); ok {
		err = c.ForEachMaster(ctx, func(ctx context.Context, node *goredis.Client) error { return node.Ping(ctx).Err() })
	} else {
		err = s.client.Ping(ctx).Err()
	}
	if err != nil {
		return fmt.Errorf("redis store: ping: %w", err)
	}
	return nil
}

// Close ends the connections.
func (s *Store) Close() error { return s.client.Close() }

// Accepts every limit.
func (s *Store) Accepts(*limit.Limit) error { return nil }

// Decide charges all limits of the request or none, in one round trip. See [limit.Store]. After an error the charge may have
// been made or not, unless the error says that it was refused: units can be lost, and are never given twice. So may what it
// adjusts: a caller that gives the same units of a lease back again after an error gives them back twice.
func (s *Store) Decide(ctx context.Context, req *limit.Request, now time.Time, d *limit.Decision) error {
	if err := s.decide(ctx, req, now, d, true); err != nil {
		return err
	}
	if d.Allowed {
		d.ID = limit.ReceiptID{Hi: s.boot, Lo: s.serial.Add(1)}
	}
	return nil
}

// Peek is Decide without the charge. See [limit.Store].
func (s *Store) Peek(ctx context.Context, req *limit.Request, now time.Time, d *limit.Decision) error {
	return s.decide(ctx, req, now, d, false)
}

func (s *Store) decide(ctx context.Context, req *limit.Request, now time.Time, d *limit.Decision, charge bool) error {
	err := ctx.Err()
	if err == nil {
		err = req.Check()
	}
	if err == nil {
		err = s.decideInTime(ctx, req, now, d, charge)
	}
	if err != nil {
		d.Begin(&limit.Request{Owner: req.Owner}, now.UnixMicro()) // an error leaves no outcome behind
	}
	return err
}

func (s *Store) decideInTime(parent context.Context, req *limit.Request, now time.Time, d *limit.Decision, charge bool) error {
	ctx := within(parent, s.deadline)
	defer ctx.release()
	q := questions.Get().(*question)
	defer q.end()
	q.begin(s, req, now.UnixMicro(), charge)
	reply, general, err := s.ask(ctx, q)
	if err == nil {
		err = q.decode(reply, general, d)
		if err != nil && !general {
			err = errors.Join(err, s.inspect(ctx, q))
		}
	}
	if err != nil {
		return fmt.Errorf("redis store: %d limits of %s: %w", len(req.Charges), ownerText(req.Owner), err)
	}
	return nil
}

func ownerText(o limit.Owner) string { return fmt.Sprintf("%c %q", o.Kind, o.Name) }
