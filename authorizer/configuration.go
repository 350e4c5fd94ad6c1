package authorizer

import (
	"context"
	"errors"
	"time"

	"github.com/sluicelimits/sluice/internal/identity"
	"github.com/sluicelimits/sluice/internal/plan"
	"github.com/sluicelimits/sluice/internal/route"
)

// ErrNotLoaded is a part of the configuration that could not be had in time, and of which no earlier copy is here. What
// wraps it says why, without anything that a client sent.
var ErrNotLoaded = errors.New("configuration not available")

// Source has the configuration. It is safe for concurrent use.
type Source interface {
	// Begin is called once for each request, which is then decided on what it returns from beginning to end. A configuration
	// that is too old to decide on is renewed first, within ctx. join, if not nil, is called after the decision and before the
	// answer: it waits for what goes on beside the decision, since afterwards the process may be frozen.
	Begin(ctx context.Context, now time.Time) (c Configuration, join func())
}

// Configuration is what is in force for one request. Nothing that it returns may be changed.
type Configuration interface {
	// IPLimits are the limits before authentication; never nil.
	IPLimits() *plan.Set

	// IPv6Prefix is the length of the prefix, in bits, by which IPv6 addresses are counted.
	IPv6Prefix() int

	// Routed reports whether the request is for a declared route; all are where none is declared.
	Routed(method string, path *route.Path) bool

	// Anonymous is the plan for calls without a credential and its limits; a nil set where there is none. The error wraps
	// ErrNotLoaded.
	Anonymous(ctx context.Context) (planID string, set *plan.Set, err error)

	// Key is the stored key of the presented one, if that is valid at now. The error is one of package identity, or wraps
	// ErrNotLoaded.
	Key(ctx context.Context, presented string, now time.Time) (*identity.Key, error)

	// Tenant is the tenant with the id; nil where there is none. The error wraps ErrNotLoaded.
	Tenant(ctx context.Context, id string) (*plan.Tenant, error)

	// HasKeys reports whether the configuration has an API key, a revoked or expired one included. A configuration that
	// does not know whether it has one reports true.
	HasKeys() bool

	// HasPlans reports whether the configuration has a plan or a tenant. A configuration that does not know whether it
	// has one reports true.
	HasPlans() bool

	// Stale reports whether the configuration is older than it may be. Decisions on it are marked.
	Stale() bool
}

// Snapshot is a whole configuration in memory. It never waits and is never stale.
type Snapshot struct {
	Config *plan.Config
	Keys   *identity.Keys
}

// IPLimits implements [Configuration].
func (s *Snapshot) IPLimits() *plan.Set { return s.Config.IPLimits() }

// IPv6Prefix implements [Configuration].
func (s *Snapshot) IPv6Prefix() int { return s.Config.IPv6Prefix() }

// Routed implements [Configuration].
func (s *Snapshot) Routed(method string, path *route.Path) bool { return s.Config.Routed(method, path) }

// Anonymous implements [Configuration].
func (s *Snapshot) Anonymous(context.Context) (string, *plan.Set, error) {
	return s.Config.AnonymousPlan(), s.Config.Anonymous(), nil
}

// Key implements [Configuration].
func (s *Snapshot) Key(_ context.Context, presented string, now time.Time) (*identity.Key, error) {
	return s.Keys.Verify(presented, now)
}

// Tenant implements [Configuration].
func (s *Snapshot) Tenant(_ context.Context, id string) (*plan.Tenant, error) {
	t, _ := s.Config.Tenant(id)
	return t, nil
}

// HasKeys implements [Configuration].
func (s *Snapshot) HasKeys() bool { return s.Keys.Len() > 0 }

// HasPlans implements [Configuration].
func (s *Snapshot) HasPlans() bool { return len(s.Config.Plans()) > 0 || len(s.Config.Tenants()) > 0 }

// Stale implements [Configuration].
func (s *Snapshot) Stale() bool { return false }

// Current is a [Source] of snapshots: it is called for each request.
type Current func() *Snapshot

// Begin implements [Source].
func (f Current) Begin(context.Context, time.Time) (Configuration, func()) { return f(), nil }
