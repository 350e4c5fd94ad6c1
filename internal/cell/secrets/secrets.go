// Package secrets has what a cell keeps secret, read from AWS Secrets Manager, cached, and followed when it is rotated.
//
// It is one secret, of this form. Each member may be left out, but not all of them; any other member is an error.
//
//	{
//	  "peppers":    {"p1": "<base64 of 16 to 1024 bytes>"},
//	  "addressKey": "<base64 of 32 to 1024 bytes>",
//	  "redis":      {"username": "<up to 128 characters>", "password": "<16 to 128 characters>"}
//	}
//
// peppers are what API keys are hashed with, by id, at most eight. A hash cannot be taken to another pepper, since the
// key itself is kept nowhere: to rotate, add a pepper with a new id, issue keys with it, and remove the old one when no
// key that is in use names it. Never change the bytes of an id: all its keys are unknown from then on. The commands are
// in docs/runbooks/leaked_pepper.md.
//
// addressKey is what addresses are named with where they are counted, so that counters and logs hold none. It may be
// replaced at any time: counters of addresses begin anew, and for as long as instances differ an address has two.
//
// redis is the login of the counters' ElastiCache user; without "username" it is that of the default user, and with IAM
// there is none. The rotation of AWS replaces the password, and lets the old one in for a while. Each new connection
// shows the password of its time, and sets off a look at the secret, at most one per Cooldown: a login that is refused
// for an old password is good at one of the next.
//
// Only the version that is AWSCURRENT is ever used. A secret that cannot be read, or does not have the form, never
// replaces one that was: the last good version stays in use until there is another. No value is in any error, log line
// or print.
//
// The client is that of the AWS SDK. Beside DynamoDB's it adds 0.26 MB to a Lambda on arm64 (0.07 MB zipped) and 0.4 ms
// of initialisation. A request signed by hand would add nothing, and would have to retry, throttle and find endpoints
// by itself.
package secrets

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/secretsmanager"

	"github.com/sluicelimits/sluice/internal/limiter/refresh"
	"github.com/sluicelimits/sluice/internal/request/identity"
)

// ErrUnavailable is a secret that could not be had in time, and of which there is no earlier copy.
var ErrUnavailable = errors.New("secret not available")

// ErrNoRedis is a secret without a login for Redis.
var ErrNoRedis = errors.New(`the secret has no "redis"`)

// Defaults and bounds of a [Config].
const (
	DefaultWait     = 2 * time.Second
	DefaultRefresh  = 5 * time.Minute
	DefaultCooldown = 30 * time.Second

	maxWait    = 30 * time.Second
	maxRefresh = 24 * time.Hour
	maxIDBytes = 2048
)

// Client is the part of [secretsmanager.Client] that is used here.
type Client interface {
	GetSecretValue(context.Context, *secretsmanager.GetSecretValueInput,
		...func(*secretsmanager.Options)) (*secretsmanager.GetSecretValueOutput, error)
}

// Config sets up a [Cache]. Zero values are the defaults.
type Config struct {
	Client Client // required
	ID     string // the secret's name or ARN; required

	Wait time.Duration // that Get waits at most where there are no values yet, up to 30 s

	// Refresh is the age at which the secret is read again, up to a fifth later so that instances spread, at most 24 h.
	// That goes beside the caller. At twice this age, as in an environment that thawed, Get waits for it, half a second
	// at most.
	Refresh time.Duration

	// Cooldown is the least time between two looks because something was unknown or refused, at most Refresh. It is how
	// late a new pepper or password can be, and all that a flood of unknown keys costs.
	Cooldown time.Duration

	Now func() time.Time // for calls that bring no time; default time.Now
	Log *slog.Logger     // default slog.Default()
}

// Cache has the values of one secret. It is safe for concurrent use. Make it with [New].
type Cache struct {
	c      Config
	values *refresh.Cache[Values]
	random *identity.Anonymiser // for as long as there is no key
	said   [reasons]atomic.Bool // why random is used
}

// New checks the configuration and makes a cache, which reads nothing yet; see [Cache.Warm]. The error names the field
// and joins all that is wrong.
func New(c Config) (*Cache, error) {
	if errs := c.complete(); len(errs) > 0 {
		return nil, fmt.Errorf("secrets: %w", errors.Join(errs...))
	}
	s := &Cache{c: c, random: identity.NewAnonymiser()}
	s.values = refresh.New(refresh.Config[Values]{Read: s.read, Ended: s.ended, Wait: s.c.Wait, Refresh: s.c.Refresh,
		Cooldown: s.c.Cooldown})
	return s, nil
}

// complete puts defaults where nothing is said, and says what is out of bounds.
func (c *Config) complete() (errs []error) {
	if c.Client == nil {
		errs = append(errs, errors.New("Client is missing"))
	}
	if c.ID == "" || len(c.ID) > maxIDBytes {
		errs = append(errs, fmt.Errorf("ID has %d bytes, want 1..%d", len(c.ID), maxIDBytes))
	}
	errs = append(errs, bound("Wait", &c.Wait, DefaultWait, maxWait),
		bound("Refresh", &c.Refresh, DefaultRefresh, maxRefresh),
		bound("Cooldown", &c.Cooldown, min(DefaultCooldown, c.Refresh), c.Refresh))
	if c.Now == nil {
		c.Now = time.Now
	}
	c.Log = cmp.Or(c.Log, slog.Default())
	return slices.DeleteFunc(errs, func(err error) bool { return err == nil })
}

func bound(name string, value *time.Duration, standard, most time.Duration) error {
	if *value == 0 {
		*value = standard
	}
	if *value < 0 || *value > most {
		return fmt.Errorf("%s is %v, want at most %v", name, *value, most)
	}
	return nil
}

// Close ends a read under way and waits for its end. Values that are there stay.
func (s *Cache) Close() { s.values.Close() }

// Warm begins to read the secret if it was not yet, and does not wait for it: while a Lambda starts there is time.
func (s *Cache) Warm(now time.Time) { s.values.Warm(now) }

// Get is the values, as fresh as Config.Refresh says. It waits at most Config.Wait, and only for the first ones; where
// those cannot be had the error wraps ErrUnavailable.
func (s *Cache) Get(ctx context.Context, now time.Time) (*Values, error) {
	if s.values.Value() == nil {
		return s.first(ctx, now)
	}
	if reading, overdue := s.values.Upkeep(now); overdue {
		s.values.Await(ctx, reading)
	}
	return s.values.Value(), nil
}

// Renew is Get after something was unknown or refused that a newer version may know: a key's hash under no pepper, a
// password. It looks again unless a look began less than Config.Cooldown ago, and waits for that half a second at most.
// Where the outcome has the Version that the caller had, there is nothing new.
func (s *Cache) Renew(ctx context.Context, now time.Time) (*Values, error) {
	if s.values.Value() == nil {
		return s.first(ctx, now)
	}
	s.values.Await(ctx, s.values.Look(now))
	return s.values.Value(), nil
}

// RedisCredentials returns the login for a new connection to Redis, in the form that the Redis store takes. Without one
// in the secret the error is ErrNoRedis; before the secret was read it waits as Get does, and the error wraps
// ErrUnavailable.
func (s *Cache) RedisCredentials(ctx context.Context) (username, password string, err error) {
	now := s.c.Now()
	s.values.Look(now) // the password may be about to be refused
	v, err := s.first(ctx, now)
	if err != nil {
		return "", "", err
	}
	if v.in.login == nil {
		return "", "", ErrNoRedis
	}
	return v.in.login.username, v.in.login.password, nil
}

// Why addresses are named with a random key.
const (
	notRead = iota
	noAddressKey
	reasons
)

// Anonymise names an address with the secret's addressKey, and implements the authorizer's Sources. Where there is
// none, or before the secret was read, it is a key of this process alone, which the log says once: then instances count
// an address apart. It never waits; it begins a read where one is due, since nobody else may ask.
func (s *Cache) Anonymise(addr netip.Addr) string {
	s.values.Upkeep(s.c.Now())
	v := s.values.Value()
	switch {
	case v == nil:
		s.say(notRead, "the secret is not read yet")
		return s.random.Anonymise(addr)
	case v.in.addresses == nil:
		s.say(noAddressKey, "the secret has no addressKey")
		return s.random.Anonymise(addr)
	}
	return v.in.addresses.Anonymise(addr)
}

func (s *Cache) say(reason int, why string) {
	if !s.said[reason].Swap(true) {
		s.c.Log.Warn("addresses are named with a key of this process alone", "secret", s.c.ID, "reason", why)
	}
}

// Format writes which secret it is, whatever the verb: a print may neither show values nor walk through what changes.
func (s *Cache) Format(f fmt.State, _ rune) { _, _ = fmt.Fprintf(f, "cache of the secret %q", s.c.ID) }

// Stats are counts since New.
type Stats struct {
	Reads    int64
	Failures int64     // of Reads
	From     time.Time // age of the values in use; zero while there are none
	Version  string    // of the values in use
}

// Stats returns the counts.
func (s *Cache) Stats() Stats {
	is := s.values.Stats()
	return Stats{Reads: is.Reads, Failures: is.Failures, From: is.From, Version: is.Value.Version()}
}
