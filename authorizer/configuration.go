package authorizer

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/plan"
	"github.com/sluicelimits/sluice/internal/plan/route"
	"github.com/sluicelimits/sluice/internal/request/identity"
)

// ErrNotLoaded means that a part of the configuration could not be loaded in time, and that no earlier copy of it is in
// memory. Errors that wrap it say why, without anything that a client sent.
var ErrNotLoaded = errors.New("configuration not available")

// Source returns the configuration. It is safe for concurrent use.
type Source interface {
	// Begin returns the configuration that applies to one request. It is called once for each request, and the whole
	// request is decided on what it returns. If the configuration is too old to decide on, Begin loads it anew, within
	// ctx.
	//
	// If join is not nil, it is called after the decision and before the answer. It waits for what the source does in
	// the background of the request, because the process may be frozen once the request is answered.
	Begin(ctx context.Context, now time.Time) (c Configuration, join func())
}

// Configuration is the configuration that applies to one request. What its methods return must not be changed.
type Configuration interface {
	// IPLimits returns the limits of addresses, which apply before anybody is identified; never nil.
	IPLimits() *plan.Set

	// IPv6Prefix returns the length of the prefix, in bits, by which IPv6 addresses are counted.
	IPv6Prefix() int

	// Routed reports whether the request is for a declared route. If no route is declared, it is true for each request.
	Routed(method string, path *route.Path) bool

	// Anonymous returns the id and the limits of the plan for calls without a credential. The limits are nil if there
	// is no such plan. The error wraps ErrNotLoaded.
	Anonymous(ctx context.Context) (planID string, set *plan.Set, err error)

	// Key returns the stored key that the presented text is, if that key is valid at now. The error is one of package
	// identity, or wraps ErrNotLoaded.
	Key(ctx context.Context, presented string, now time.Time) (*identity.Key, error)

	// Tenant returns the tenant with the id, or nil if no tenant has that id. The error wraps ErrNotLoaded.
	Tenant(ctx context.Context, id string) (*plan.Tenant, error)

	// HasKeys reports whether the configuration has an API key, a revoked or expired one included. A configuration that
	// does not know whether it has one reports true.
	HasKeys() bool

	// HasPlans reports whether the configuration has a plan or a tenant. A configuration that does not know whether it
	// has one reports true.
	HasPlans() bool

	// Stale reports whether the configuration is older than it may be. Answers that were decided on it say so.
	Stale() bool
}

// Snapshot is a [Configuration] that is completely in memory. It waits for nothing and is never stale.
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

// Accepted asks a store about every limit of each plan and tenant, and about those of each plan together. It returns an
// error for each limit that the store cannot keep, and for each plan that it cannot decide.
func Accepted(c *plan.Config, now time.Time, store limit.Store) error {
	acceptsPlan := func(all []*limit.Limit, together ...[]*limit.Limit) error {
		return limit.AcceptsPlan(store, all, together...)
	}
	var errs []error
	refused := make(map[string]bool)
	check := func(where string, set *plan.Set) {
		refuse := func(err error) {
			if err != nil && !refused[err.Error()] {
				refused[err.Error()] = true // report a plan's limit once, not for each of its tenants
				errs = append(errs, fmt.Errorf("%s: %w", where, err))
			}
		}
		for _, e := range set.Limits {
			refuse(store.Accepts(e.Limit))
		}
		refuse(set.AcceptedBy(acceptsPlan))
	}
	for _, p := range c.Plans() {
		check("plan "+p.ID, p.Set())
	}
	for _, t := range c.Tenants() {
		check(fmt.Sprintf("tenant %q", t.ID), t.Limits(now))
	}
	return errors.Join(errs...)
}

// Current is a [Source] made of a function that returns the snapshot in force. It is called once for each request.
type Current func() *Snapshot

// Begin implements [Source].
func (f Current) Begin(context.Context, time.Time) (Configuration, func()) { return f(), nil }
