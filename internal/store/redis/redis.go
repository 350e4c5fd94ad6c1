// Package redis keeps counters in Redis or Valkey: one script, one round trip and one hash slot for a decision over all
// limits of a tenant.
//
// # Layout
//
// Every key of an owner begins with "{rl:", the netstring of the namespace if there is one, the owner's kind (a letter),
// the netstring of the owner's name, and "}". In a cluster the keys of an owner therefore share a slot. The keys are composed from the parts that package limit spells, so a
// counter's key depends on the counter's identity alone.
//
//	{rl:t4:acme,}                             pack of all limits that are per tenant
//	{rl:t4:acme,}5:login,7:subject,=3:bob,    pack of a limit's counters for one value ("~0:," absent, "*0:," all others)
//	{rl:t4:acme,}5:login,7:subject,values     sorted set: values that have a pack, by the time their pack's expiry is armed until
//	….stamps<16 bytes>                        sorted set "time:units" by time: a sliding log's entries, or buckets
//	{rl:t4:acme,}refunded:<32 hex>            a receipt that was refunded
//
// A pack is a string. Numbers are doubles that hold integers, times are µs since 1970, and everything is little-endian:
//
//	4 bytes      version: "SLU3", or "SLU4" while units of a token bucket in front are leased
//	16 bits      n, the number of tiers in front: all tiers of the last request that charged, so that a request over the same
//	             limits finds its counters in place; none if requests of the owner name different limits
//	n × 25 bytes heads of the tiers in front: 1 byte for the algorithm, half a SHA-256 of the tier's identity (16 bytes), and the
//	             rate that the state is counted in
//	8 bytes      the time that the expiry of the key is armed until
//	n states     At, N and, in windows and quotas, M of [limit.State]. A log's or buckets' state is the time that the expiry of
//	             its sorted set is armed until, and the sum of its entries
//	records      to the end of the pack, each with its head, the time until which it may make a difference, and its state
//
// The records hold the tiers that the last request did not name, and three kinds of marks of token buckets, in front or
// not: what was refunded (its head begins with 133), what is leased and until when (197), and what may come back late
// from the leases of the slot before (229). A record leaves the front with the time that the pack's expiry is armed
// until, and a charge drops it when that time has passed. A counter is then no different from one that was never used.
// No other record is ever dropped.
//
// A charge that would keep more than 16,384 records of tiers that it does not name is refused with [limit.ErrFull]. The
// largest request names as many tiers: 1,024 limits of 16 tiers. Each decision reads the whole pack, so a server spends
// about half a microsecond on each record that a decision does not name, and some 5 µs on each tier that it names.
// Decisions over thousands of tiers need a Deadline above the default. Every request that [limit.Request.Check] accepts
// fits into one question.
//
// Expiry is garbage collection only: windows are in the states. It is armed for more than twice as long as the state
// can matter, about once a window.
//
// # Versions
//
// A pack of another version is refused with [limit.ErrUnreadable], which names key and version. It is neither taken for
// an empty one nor changed: it expires by itself, or an operator deletes it. Version 1 and 2 ("SLU1", "SLU2") kept a
// limit that only some requests count in a pack of its own, at the key of the limit. The first use of a limit therefore
// looks whether there is one.
//
// What is no pack at all is refused with [limit.ErrUnreadable] as well, and is dropped within a minute, so that nobody
// is shut out for good.
//
// # Leases
//
// Leases (see [limit.LeaseRequest]) are granted by decide.lua. The scripts of shapes (see shape.go) know nothing of them.
// While units of a bucket in front are leased the pack is a "SLU4", which no script of a shape takes for its own: that
// script would let the bucket refill beyond what is held. The first charge after the slot makes it a "SLU3" again. In
// either version a bucket may owe: its level is below zero. Leased units of a log or of buckets are entries of the
// sorted set at the lease's end. Those of windows and quotas are counted like others. What was adjusted is written with
// the charge, so a denial changes nothing.
//
// # Servers
//
// The server's clock decides; the caller's only names the calendar periods of quotas around it.
//
// The server is Redis 7.0 or later, or Valkey, alone or as a cluster, and a primary. A replica is refused when a
// connection is made, and refuses each script itself, looks included, because what it holds is old.
//
// A charge is never sent twice: the client's retries are off. When the reply does not come, the charge may have been
// made: units are lost then, never given twice. A server that comes back empty, or a replica that is promoted before it
// heard of the last charges, forgets at most what was admitted in the windows that are open.
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

// New connects. It refuses a server that is not a primary with [ErrReplica]; a server that cannot be reached is no
// error: the store answers errors until it can. Close the store when done.
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

// Ping asks the server, or each primary of the cluster, whether it is there, and waits for a new connection longer than
// a decision does.
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

// Decide charges all limits of the request or none, in one round trip. See [limit.Store]. After an error the charge may
// have been made or not, unless the error says that it was refused: units can be lost, and are never given twice. So
// may what it adjusts: a caller that gives the same units of a lease back again after an error gives them back twice.
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
		d.BeginChecked(&limit.Request{Owner: req.Owner}, now.UnixMicro()) // an error leaves no outcome behind
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
