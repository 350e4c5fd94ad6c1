// Package secrets reads the secrets of a cell from AWS Secrets Manager, caches them, and follows their rotation.
//
// There is one secret, of this form. Each member may be absent, but not all of them; any other member is an error.
//
//	{
//	  "peppers":    {"p1": "<base64 of 16 to 1024 bytes>"},
//	  "addressKey": "<base64 of 32 to 1024 bytes>",
//	  "redis":      {"username": "<up to 128 characters>", "password": "<16 to 128 characters>"}
//	}
//
// peppers are the keys with which API keys are hashed, by id, at most eight. A hash cannot be converted to another
// pepper, since the key itself is stored nowhere. To rotate, add a pepper with a new id, issue keys with it, and
// remove the old pepper when no key in use names it. Never change the bytes of an existing id: all its keys would
// become unknown. The commands are in docs/runbooks/leaked_pepper.md.
//
// addressKey is the key with which addresses are named where they are counted, so that counters and logs contain no
// addresses. It may be replaced at any time: counters of addresses then start afresh, and while instances have
// different keys an address has two counters.
//
// redis is the login of the counters' ElastiCache user. Without "username" it is the login of the default user; with
// IAM there is no login. AWS's rotation replaces the password and accepts the old one for a while. Each new connection
// uses the present password, and causes a read of the secret, at most one per Cooldown: a login that is refused
// because of an old password succeeds in one of the next tries.
//
// Only the version with the stage AWSCURRENT is ever used. A secret that cannot be read, or does not have the form,
// never replaces a valid one: the last valid version stays in use until there is another. No value appears in any
// error, log line or print.
//
// The client is that of the AWS SDK. In addition to DynamoDB's client it adds 0.26 MB to a Lambda on arm64 (0.07 MB
// zipped) and 0.4 ms of initialisation. A hand-written signed request would add nothing, but would have to implement
// retries, throttling and endpoints itself.
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

// ErrUnavailable says that the secret could not be read in time, and that there is no earlier copy.
var ErrUnavailable = errors.New("secret not available")

// ErrNoRedis says that the secret has no login for Redis.
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

// Client is the part of [secretsmanager.Client] that this package uses.
type Client interface {
	GetSecretValue(context.Context, *secretsmanager.GetSecretValueInput,
		...func(*secretsmanager.Options)) (*secretsmanager.GetSecretValueOutput, error)
}

// Config sets up a [Cache]. A zero value selects the default.
type Config struct {
	Client Client // required
	ID     string // the secret's name or ARN; required

	Wait time.Duration // longest time that Get waits for the first values, up to 30 s

	// Refresh is the age at which the secret is read again, and up to a fifth more so that instances spread; at most
	// 24 h. The read does not delay the caller. At twice this age, for example in an environment that was thawed, Get
	// waits for the read, half a second at most.
	Refresh time.Duration

	// Cooldown is the least time between two reads that are caused by an unknown key or a refused password; at most
	// Refresh. It is how late a new pepper or password can be, and bounds what a flood of unknown keys costs.
	Cooldown time.Duration

	Now func() time.Time // for calls without a time argument; default time.Now
	Log *slog.Logger     // default slog.Default()
}

// Cache holds the values of one secret. It is safe for concurrent use. Make it with [New].
type Cache struct {
	c      Config
	values *refresh.Cache[Values]
	random *identity.Anonymiser // used while there is no addressKey
	warned [reasons]atomic.Bool // whether each reason for using random was logged
}

// New checks the configuration and makes a cache. It does not read the secret; see [Cache.Warm]. The error names the
// fields and joins everything that is wrong.
func New(c Config) (*Cache, error) {
	if errs := c.complete(); len(errs) > 0 {
		return nil, fmt.Errorf("secrets: %w", errors.Join(errs...))
	}
	s := &Cache{c: c, random: identity.NewAnonymiser()}
	s.values = refresh.New(refresh.Config[Values]{Read: s.read, Ended: s.ended, Wait: s.c.Wait, Refresh: s.c.Refresh,
		Cooldown: s.c.Cooldown})
	return s, nil
}

// complete sets defaults, and returns errors for values out of bounds.
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

// Close ends a read in progress and waits for its end. Present values stay.
func (s *Cache) Close() { s.values.Close() }

// Warm begins the first read of the secret and does not wait for it: it uses the time while a Lambda function starts.
func (s *Cache) Warm(now time.Time) { s.values.Warm(now) }

// Get returns the values, as fresh as Config.Refresh says. It waits at most Config.Wait, and only for the first
// values; if they cannot be read, the error wraps ErrUnavailable.
func (s *Cache) Get(ctx context.Context, now time.Time) (*Values, error) {
	if s.values.Value() == nil {
		return s.first(ctx, now)
	}
	if reading, overdue := s.values.Upkeep(now); overdue {
		s.values.Await(ctx, reading)
	}
	return s.values.Value(), nil
}

// Renew is Get after a key's hash was unknown or a password was refused, which a newer version may know. It reads the
// secret unless a read began less than Config.Cooldown ago, and waits for it half a second at most. If the returned
// Version is the one that the caller had, there is nothing new.
func (s *Cache) Renew(ctx context.Context, now time.Time) (*Values, error) {
	if s.values.Value() == nil {
		return s.first(ctx, now)
	}
	s.values.Await(ctx, s.values.Look(now))
	return s.values.Value(), nil
}

// RedisCredentials returns the login for a new connection to Redis, as the Redis store expects it. If the secret has
// no login, the error is ErrNoRedis. Before the first read it waits as Get does, and the error wraps ErrUnavailable.
func (s *Cache) RedisCredentials(ctx context.Context) (username, password string, err error) {
	now := s.c.Now()
	s.values.Look(now) // the present password may be refused soon
	v, err := s.first(ctx, now)
	if err != nil {
		return "", "", err
	}
	if v.in.login == nil {
		return "", "", ErrNoRedis
	}
	return v.in.login.username, v.in.login.password, nil
}

// Reasons for naming addresses with a random key.
const (
	notRead = iota
	noAddressKey
	reasons
)

// Anonymise names an address with the secret's addressKey. It implements the authorizer's Sources. Without an
// addressKey, or before the first read, it uses a random key of this process, and logs that once: each instance then
// counts an address separately. It never waits; it begins a read if one is due, since there may be no other caller.
func (s *Cache) Anonymise(addr netip.Addr) string {
	s.values.Upkeep(s.c.Now())
	v := s.values.Value()
	switch {
	case v == nil:
		s.warnOnce(notRead, "the secret is not read yet")
		return s.random.Anonymise(addr)
	case v.in.addresses == nil:
		s.warnOnce(noAddressKey, "the secret has no addressKey")
		return s.random.Anonymise(addr)
	}
	return v.in.addresses.Anonymise(addr)
}

func (s *Cache) warnOnce(reason int, why string) {
	if !s.warned[reason].Swap(true) {
		s.c.Log.Warn("addresses are named with a random key of this process", "secret", s.c.ID, "reason", why)
	}
}

// Format writes the name of the secret, for every verb, so that printing a Cache neither shows values nor reads fields
// that change.
func (s *Cache) Format(f fmt.State, _ rune) { _, _ = fmt.Fprintf(f, "cache of the secret %q", s.c.ID) }

// Stats are counts since New.
type Stats struct {
	Reads    int64
	Failures int64     // of Reads
	From     time.Time // when the values in use were read; zero if there are none
	Version  string    // of the values in use
}

// Stats returns the counts.
func (s *Cache) Stats() Stats {
	is := s.values.Stats()
	return Stats{Reads: is.Reads, Failures: is.Failures, From: is.From, Version: is.Value.Version()}
}
