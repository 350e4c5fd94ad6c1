// Package redis keeps counters in Redis or Valkey: one script, one round trip and one hash slot for a decision over all
// limits of a tenant.
//
// Layout. Every key of an owner begins with "{rl:", the owner's kind and the netstring of its name, "}"; in a cluster they
// share a slot.
//
//	{rl:t4:acme,}                             pack of the limits that every request of the owner counts
//	{rl:t4:acme,}8:put-prod,6:tenant,         pack of a limit that only some requests count
//	{rl:t4:acme,}5:login,7:subject,=3:bob,    pack of a limit's counters for one value ("~0:," absent, "*0:," all others)
//	{rl:t4:acme,}5:login,7:subject,values     sorted set: values that have a pack, by the time its expiry is armed until
//	….stamps<16 bytes>                        sorted set "time:units" by time: a sliding log's entries, or buckets
//	{rl:t4:acme,}refunded:<32 hex>            a receipt that was refunded
//
// A pack is a string: "SLU1", a number of tiers (16 bits), the head of each tier's record (its algorithm and half a
// SHA-256 of its identity, 17 bytes, and the rate its state is counted in), the time its expiry is armed until, and the
// state of each tier: At, N and, where it has three numbers, M of [limit.State]; numbers are doubles. These are the tiers of
// the last request, so that the usual request finds all it needs in place. Behind them are, with their heads, up to 64
// others for limits that come back, and what was refunded to token buckets. The state of a log or of buckets is the time the
// expiry of its sorted set is armed until, and the set's sum. Expiry is garbage collection only: windows are in the
// states, and it is armed for more than twice as long as the state can matter, about once a window.
//
// The server's clock decides; the caller's only names the calendar periods of quotas around it.
//
// A charge is never sent twice: the client's retries are off. When the reply does not come, the charge may have been made:
// units are lost then, never given twice.
package redis

import (
	"context"
	"crypto/tls"
	_ "embed"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/sluicelimits/sluice/internal/limit"
)

var _ limit.Store = (*Store)(nil)

//go:embed decide.lua
var decideScript string

var decide = goredis.NewScript(decideScript)

// Store is a [limit.Store] on Redis. Make it with [New].
type Store struct {
	client   goredis.UniversalClient
	deadline time.Duration
	boot     uint64
	serial   atomic.Uint64

	// For tests only.
	space       string             // keeps the counters of tests apart
	callerClock bool               // the caller's clock takes the place of the server's
	generalOnly bool               // no scripts for shapes
	onAnswer    func(general bool) // called for each reply that is an answer
}

// Config sets up a store.
type Config struct {
	Addrs   []string // host:port of the primary, or of some nodes of a cluster; required
	Cluster bool     // cluster mode

	// Credentials returns user and password for each new connection; nil is none. See package elasticache for IAM.
	Credentials func(ctx context.Context) (user, password string, err error)
	TLS         *tls.Config // nil is plain text

	Deadline time.Duration // of one decision, connecting included; 0 means DefaultDeadline
	PoolSize int           // connections per node; 0 means the client's default
}

// DefaultDeadline is how long a decision waits for Redis.
const DefaultDeadline = 8 * time.Millisecond

// New connects, and refuses a server that is not a primary. It does not fail for a server that cannot be reached: the
// store answers errors until it can. Close the store when done.
func New(ctx context.Context, c Config) (*Store, error) {
	if len(c.Addrs) == 0 {
		return nil, errors.New("redis store: no address")
	}
	if c.Deadline == 0 {
		c.Deadline = DefaultDeadline
	}
	opt := &goredis.UniversalOptions{
		Addrs:                      c.Addrs,
		IsClusterMode:              c.Cluster,
		TLSConfig:                  c.TLS,
		CredentialsProviderContext: c.Credentials,
		ContextTimeoutEnabled:      true,
		DialTimeout:                max(c.Deadline, time.Second),
		ReadTimeout:                c.Deadline,
		WriteTimeout:               c.Deadline,
		PoolTimeout:                c.Deadline,
		PoolSize:                   c.PoolSize,
		MaxRetries:                 -1, // a charge whose reply was lost may have been made
		DisableIdentity:            true,
	}
	s := &Store{client: goredis.NewUniversalClient(opt), deadline: c.Deadline, boot: rand.Uint64()}
	if err := s.assertPrimary(ctx); err != nil {
		return nil, errors.Join(err, s.client.Close())
	}
	return s, nil
}

// Close ends the connections.
func (s *Store) Close() error { return s.client.Close() }

// Accepts every limit.
func (s *Store) Accepts(*limit.Limit) error { return nil }

// once is a command that no layer of the client sends again after it may have been carried out.
type once struct{ *goredis.Cmd }

// NoRetry is read by the client.
func (once) NoRetry() bool { return true }

// Decide charges all limits of the request or none, in one round trip. See [limit.Store].
func (s *Store) Decide(ctx context.Context, req *limit.Request, now time.Time, d *limit.Decision) error {
	if err := s.ask(ctx, req, now, d, true); err != nil {
		return err
	}
	if d.Allowed {
		d.ID = limit.ReceiptID{Hi: s.boot, Lo: s.serial.Add(1)}
	}
	return nil
}

// Peek is Decide without the charge. See [limit.Store].
func (s *Store) Peek(ctx context.Context, req *limit.Request, now time.Time, d *limit.Decision) error {
	return s.ask(ctx, req, now, d, false)
}

func (s *Store) ask(ctx context.Context, req *limit.Request, now time.Time, d *limit.Decision, charge bool) error {
	err := ctx.Err()
	if err == nil {
		err = req.Check()
	}
	if err == nil {
		err = s.askInTime(ctx, req, now, d, charge)
	}
	if err != nil {
		d.Begin(&limit.Request{Owner: req.Owner}, now.UnixMicro()) // an error leaves no outcome behind
	}
	return err
}

func (s *Store) askInTime(ctx context.Context, req *limit.Request, now time.Time, d *limit.Decision, charge bool) error {
	ctx, cancel := context.WithTimeout(ctx, s.deadline)
	defer cancel()
	q := questions.Get().(*question)
	defer questions.Put(q)
	us := now.UnixMicro()
	override := int64(-1)
	if s.callerClock {
		override = us
	}
	q.prefix = s.appendPrefix(q.prefix[:0], req.Owner)
	q.arrange(req)
	if err := s.askScripts(ctx, q, req, us, override, d, charge); err != nil {
		return fmt.Errorf("redis store: %d limits of %s: %w", len(req.Charges), ownerText(req.Owner), err)
	}
	return nil
}

// askScripts asks the script for requests of this shape, if there is one, and where that does not apply the general one.
func (s *Store) askScripts(ctx context.Context, q *question, req *limit.Request, now, override int64, d *limit.Decision, charge bool) error {
	if !s.generalOnly && q.encodeShape(req, now, override, charge) {
		if sh := q.shapeOf(); sh != nil {
			q.args = append(q.args[:0], "evalsha", sh.script.Hash(), len(q.ends))
			q.addKeys()
			q.args = append(q.args, q.numbers, format(len(q.numbers)/8))
			start := 0
			for _, end := range q.heads {
				q.args = append(q.args, q.ids[start:end])
				start = end
			}
			reply, err := s.run(ctx, sh.script, shapeScript, q)
			if err != nil {
				return err
			}
			if reply != "" {
				s.answered(false)
				return q.decode(reply, false, req, d, charge)
			}
		}
	}
	if err := q.encode(req, now, override, charge); err != nil {
		return err
	}
	q.args = append(q.args[:0], "evalsha", decide.Hash(), len(q.ends))
	q.addKeys()
	q.args = append(q.args, q.numbers, format(len(q.numbers)/8), q.ids)
	reply, err := s.run(ctx, decide, nil, q)
	if err != nil {
		return err
	}
	s.answered(true)
	return q.decode(reply, true, req, d, charge)
}

func (s *Store) answered(general bool) {
	if s.onAnswer != nil {
		s.onAnswer(general)
	}
}

func (q *question) addKeys() {
	start := 0
	keys := string(q.keys)
	for _, end := range q.ends {
		q.args = append(q.args, keys[start:end])
		start = end
	}
}

// run sends a script by its hash, and once more in full where the server does not know it: then it did nothing. The reply
// is "" where the script says that it does not apply.
func (s *Store) run(ctx context.Context, script *goredis.Script, source func(string) string, q *question) (string, error) {
	cmd := once{goredis.NewCmd(ctx, q.args...)}
	err := s.client.Process(ctx, cmd)
	if goredis.HasErrorPrefix(err, "NOSCRIPT") {
		q.args[0], q.args[1] = "eval", decideScript
		if source != nil {
			q.args[1] = source(string(q.shape))
		}
		cmd = once{goredis.NewCmd(ctx, q.args...)}
		err = s.client.Process(ctx, cmd)
	}
	if err != nil {
		return "", translate(err)
	}
	switch v := cmd.Val().(type) {
	case string:
		if v != "" {
			return v, nil
		}
	case int64:
		if v == 0 && script != decide {
			return "", nil
		}
	}
	return "", fmt.Errorf("%w: %.100v", errReply, cmd.Val())
}

// translate turns what decide.lua refuses into errors of package limit.
func translate(err error) error {
	if goredis.HasErrorPrefix(err, "SLUICE two values share a counter") {
		return limit.ErrDuplicateCounter
	}
	return err
}

func ownerText(o limit.Owner) string { return fmt.Sprintf("%c %q", o.Kind, o.Name) }

// assertPrimary asks each server that charges would go to for its role.
func (s *Store) assertPrimary(ctx context.Context) error {
	check := func(ctx context.Context, c *goredis.Client) error {
		role, err := c.Do(ctx, "ROLE").Slice()
		switch {
		case err != nil:
			return nil //nolint:nilerr // not there now; it is asked again by the first decision, whose writes a replica refuses
		case len(role) == 0 || role[0] != "master":
			return fmt.Errorf("redis store: %s is a %v, not a primary: give the primary endpoint", c.Options().Addr, role[:min(1, len(role))])
		}
		return nil
	}
	switch c := s.client.(type) {
	case *goredis.ClusterClient:
		return c.ForEachMaster(ctx, check)
	case *goredis.Client:
		return check(ctx, c)
	}
	return nil
}
