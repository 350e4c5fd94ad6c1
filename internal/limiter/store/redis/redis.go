// Package redis keeps counters in Redis or Valkey. One decision over all limits of an owner is one call of one Lua
// script, in one round trip and one hash slot.
//
// # One decision
//
// [Store.Decide] calls in this order:
//
//  1. sendDecision begins the time limit of the decision (withTimeout) and takes a query from a pool.
//  2. query.begin orders the charges by the pack that holds their counters (orderCharges).
//  3. runDecision encodes the request for decide.lua and runs it. Callers that ask at the same moment share one write
//     (batcher) and one run of the script (mergeDecisions).
//  4. The script reads the packs, decides by the server's clock, writes the packs if it admits, and replies with the
//     states of the counters before the charge.
//  5. query.decode reads the states and lets the core (package limit) evaluate them a second time, which fills in the
//     decision. If the core comes to another conclusion than the script, the decision is an error.
//
// # Layout
//
// Every key of an owner begins with "{rl:", the netstring of the namespace if there is one, the owner's kind (a
// letter), the netstring of the owner's name, and "}". In a cluster the keys of an owner therefore share a slot.
// Package limit writes the parts of the keys, so a counter's key depends on the counter's identity alone.
//
//	{rl:t4:acme,}                             pack of all limits that are per tenant
//	{rl:t4:acme,}5:login,7:subject,=3:bob,    pack of a limit's counters for one value ("~0:," if absent, "*0:," for
//	                                          the values beyond the limit's MaxValues)
//	{rl:t4:acme,}5:login,7:subject,values     sorted set: keys of the value packs, by the time until which their
//	                                          expiry is set
//	….stamps<16 bytes>                        sorted set "time:units", by time: entries of a sliding_log, or
//	                                          sliding_buckets
//	{rl:t4:acme,}settled:<32 hex>            exists if the receipt was settled
//	{rl:t4:acme,}reply:<32 hex>               the reply to a call that leased, for half a minute; empty if the call is
//	                                          refused, see lostreply.go
//	{rl:s10:addresskey,}                      a value that the server keeps for all processes, see Store.Keep
//
// A pack is a string that holds several counters. Its numbers are doubles that hold integers, times are µs since 1970,
// and everything is little-endian:
//
//	4 bytes      version: "SLU7"
//	16 bits      n, the number of tiers "in front": all tiers of the last request that charged, in its order, so that
//	             a request over the same limits finds its counters at fixed positions
//	n × 17 bytes heads of the tiers in front: 1 byte for the algorithm, and half a SHA-256 of the tier's identity
//	8 bytes      the time until which the expiry of the key is set
//	n × 24 bytes states of the tiers in front, each of three numbers: At, N and M of [limit.State]. M of a bucket is
//	             the rate by which the state is counted. The state of a sliding_log or of sliding_buckets is 0, the
//	             sum of its entries, and the time until which the expiry of its sorted set is set
//	records      to the end of the pack, 49 bytes each: a head, the time until which the record may influence a
//	             decision, and a state
//
// The records hold the tiers that the last request did not name, and up to three marks of each token bucket, in front
// or not, whose state is two numbers and 0: what was refunded (the head begins with the byte 133), what is leased and
// until when (197), and what may come back late from the leases of the slot before (229). If a tier leaves the front,
// its record gets the time until which the pack's expiry is set. A charge drops a record when its time has passed: the
// counter then equals one that was never used. No other record is ever dropped.
//
// A charge that would keep more than 16,384 records of tiers that it does not name is refused with [limit.ErrFull]. The
// largest request names as many tiers: 1,024 limits of 16 tiers. Each decision reads the whole pack, so a server spends
// about half a microsecond on each record that a decision does not name, and some 5 µs on each tier that it names.
// Decisions over thousands of tiers need a Deadline above the default. Every request that [limit.Request.Check] accepts
// fits into one script call.
//
// Keys expire only to free memory: the states themselves say where windows end. The expiry is set for more than twice
// as long as the state can matter, about once per window.
//
// # Versions
//
// A pack of another version is refused with [limit.ErrUnreadable], which names key and version. It is neither taken for
// an empty pack nor changed: it expires, or an operator deletes it.
//
// A value that is no pack at all is refused with [limit.ErrUnreadable] as well, and expires within a minute, so that no
// owner is locked out for good.
//
// # Leases
//
// decide.lua grants leases (see [limit.LeaseRequest]). A bucket may then miss more than its burst. Leased units of a
// sliding_log or of sliding_buckets are entries of the sorted set at the end of the lease. Leased units of windows and
// quotas are counted like others. Corrections are written with the charge, so a denial changes nothing.
//
// # Servers
//
// The server's clock decides. The caller's clock only selects the calendar periods of quotas that are sent along.
//
// The server is Redis 7.0 or later, or Valkey, alone or as a cluster, and a primary. A replica is refused when a
// connection is made. It also refuses each script by itself, those of [Store.Peek] included, because its data is old.
//
// A charge is never sent twice: the client's retries are off. If the reply does not arrive, the charge may have been
// made. If the request leased, the store can find out later ([limit.LostReply]); otherwise its units are lost. They are
// never granted twice. If a server comes back empty, or a replica is promoted before it has received the last charges,
// what is forgotten is at most what was admitted in the present windows.
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

	"github.com/sluicelimits/sluice/internal/limiter/limit"
)

var _ limit.Store = (*Store)(nil)

// Store is a [limit.Store] on Redis. Make it with [New]. The package comment describes how it decides.
type Store struct {
	client        goredis.UniversalClient
	batches       *batcher // nil in cluster mode
	deadline      time.Duration
	boot          uint64 // random; with serial it makes receipt ids unique
	serial        atomic.Uint64
	namespacePart string // Config.Namespace in each key, see namespacePart

	callerClock bool // decide by the caller's clock in place of the server's
}

// Config sets up a store.
type Config struct {
	Addrs   []string // required; host:port of the primary, or of some nodes of a cluster
	Cluster bool     // cluster mode

	// Credentials returns user and password for each new connection. If nil, connections are not authenticated. See
	// package elasticache for IAM.
	Credentials func(ctx context.Context) (user, password string, err error)
	TLS         *tls.Config // if nil, connections are not encrypted
	Database    int         // number of the database; 0 in cluster mode

	Namespace string // separates the counters of several programs in one Redis; any text up to 64 bytes

	// time limit of one decision, including a new connection; at least 1 ms; 0 means DefaultDeadline
	Deadline time.Duration
	PoolSize int // connections per node; 0 means the client's default
}

// DefaultDeadline is how long a decision waits for Redis.
const DefaultDeadline = 8 * time.Millisecond

func (c Config) withDefaults() Config {
	if c.Deadline == 0 {
		c.Deadline = DefaultDeadline
	}
	return c
}

// New returns a store that connects to a server. If the server is not a primary, New fails with [ErrReplica]. If the
// server cannot be reached, New succeeds, and the store returns errors until it can be reached. Close the store when
// done.
func New(ctx context.Context, c Config) (*Store, error) {
	c = c.withDefaults()
	switch {
	case len(c.Addrs) == 0:
		return nil, errors.New("redis store: no address")
	case len(c.Addrs) > 1 && !c.Cluster:
		return nil, fmt.Errorf("redis store: %d addresses without cluster mode, want one", len(c.Addrs))
	case len(c.Namespace) > 64:
		return nil, fmt.Errorf("redis store: namespace has %d bytes, want at most 64", len(c.Namespace))
	case c.Deadline < time.Millisecond:
		return nil, fmt.Errorf("redis store: a deadline of %s, want at least 1ms", c.Deadline)
	}
	s := &Store{
		client: newClient(c), deadline: c.Deadline, boot: rand.Uint64(), namespacePart: namespacePart(c.Namespace),
	}
	if !c.Cluster {
		s.batches = newBatcher(s.client, c.Deadline)
	}
	if err := s.Ping(ctx); errors.Is(err, ErrReplica) {
		return nil, errors.Join(err, s.client.Close())
	}
	return s, nil
}

// Ping asks the server, or each primary of the cluster, whether it is there. It waits at least as long as a new
// connection may take.
func (s *Store) Ping(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, max(s.deadline, dialTimeout))
	defer cancel()
	var err error
	if c, ok := s.client.(*goredis.ClusterClient); ok {
		err = c.ForEachMaster(ctx, func(ctx context.Context, node *goredis.Client) error {
			return node.Ping(ctx).Err()
		})
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

// Accepts returns nil: Redis counts every limit.
func (s *Store) Accepts(*limit.Limit) error { return nil }

// Decide charges all limits of the request or none, in one round trip. See [limit.Store]. After an error the charge and
// the corrections may have been made, unless the error says that the request was refused. Units may be lost by that,
// but they are never granted twice. A caller that returns the same units of a lease a second time after an error
// returns them twice.
func (s *Store) Decide(ctx context.Context, req *limit.Request, now time.Time, d *limit.Decision) error {
	if err := s.decide(ctx, req, now, d, true); err != nil {
		return err
	}
	if d.Allowed {
		d.ID = s.newID()
	}
	return nil
}

// newID returns an id that no other decision has, of any process.
func (s *Store) newID() limit.ReceiptID { return limit.ReceiptID{Hi: s.boot, Lo: s.serial.Add(1)} }

// Peek evaluates the request as Decide does, and charges nothing. See [limit.Store].
func (s *Store) Peek(ctx context.Context, req *limit.Request, now time.Time, d *limit.Decision) error {
	return s.decide(ctx, req, now, d, false)
}

// decide decides, and charges if charge is true.
func (s *Store) decide(ctx context.Context, req *limit.Request, now time.Time, d *limit.Decision, charge bool) error {
	err := ctx.Err()
	if err == nil {
		err = req.Check()
	}
	if err == nil {
		err = s.sendDecision(ctx, req, now, d, charge)
	}
	if err != nil {
		// after an error the caller's Decision is empty
		d.BeginChecked(&limit.Request{Owner: req.Owner}, now.UnixMicro())
	}
	return err
}

// sendDecision runs the script for a request that was checked, and fills in the decision from the reply.
func (s *Store) sendDecision(
	parent context.Context, req *limit.Request, now time.Time, d *limit.Decision, charge bool,
) error {
	ctx := withTimeout(parent, s.deadline)
	defer ctx.release()
	q := queries.Get().(*query)
	defer q.release()
	q.begin(s, req, now.UnixMicro(), charge)
	if charge && asksForUnits(req.Leases) {
		q.id = s.newID()
	}
	reply, err := s.runDecision(ctx, q)
	if err != nil && q.keepsReply() {
		err = s.lostReply(q, now, err)
	}
	if err == nil {
		err = q.decode(reply, d)
	}
	if err != nil {
		return fmt.Errorf("redis store: %d limits of %s: %w", len(req.Charges), ownerText(req.Owner), err)
	}
	return nil
}

// ownerText names an owner for operators.
func ownerText(o limit.Owner) string {
	switch o.Kind {
	case limit.Tenant:
		return fmt.Sprintf("tenant %q", o.Name)
	case limit.Address:
		return fmt.Sprintf("the address whose hash is %q", o.Name)
	case limit.Anonymous:
		return "the anonymous plan"
	default:
		return fmt.Sprintf("key %q", o.Name)
	}
}
