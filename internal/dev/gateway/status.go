package gateway

import (
	"context"
	"errors"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/sluicelimits/sluice/internal/dev/livepage"
	"github.com/sluicelimits/sluice/internal/limiter/lease"
	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/limiter/resilience"
	"github.com/sluicelimits/sluice/internal/plan"
)

const (
	// maxStatusTenants bounds the work for one status: each tenant takes a peek at the store.
	maxStatusTenants = 200
	// peeksTime is how long one status goes on with peeks, so that the live page stays responsive. The remaining
	// tenants are shown as at their last peek, and the next status begins with them.
	peeksTime = 500 * time.Millisecond
	// peekTimeout bounds peeks at a store without a deadline of its own. It is longer than the deadlines of stores, so
	// that a circuit breaker sees the store's own timeout.
	peekTimeout = 2 * time.Second
)

// Overview is the configuration in force, as far as the live page shows it.
type Overview struct {
	Name      string // of the plans files or the data folder
	LoadedAt  time.Time
	LastError error          // what is wrong with a newer configuration, which is therefore not in force
	Tenants   []*plan.Tenant // the first tenants by id, as many as were asked for
	Total     int            // number of all tenants
	IPLimits  *plan.Set
	Routes    int // number of declared routes
}

// StatusSource collects what the live page shows besides the counts of requests. Do not copy it after its first use.
type StatusSource struct {
	Overview func(most int) Overview      // lists at most that many tenants; required
	Cells    func() []livepage.CellStatus // nil if there is only one cell
	Store    limit.Store
	// Chain is the store chain in front of shared stores. If it is not nil, it is peeked at instead of Store.
	Chain    *resilience.Chain
	Bytes    func() int64 // memory that the store takes
	Upstream *url.URL     // nil selects the echo
	Listen   string
	Try      []string
	Now      func() time.Time

	mu         sync.Mutex // held while the tenants are described
	next       int        // index of the tenant at which the next status begins
	lastStatus map[string]tenantStatus
}

// tenantStatus is what the last status found out about a tenant.
type tenantStatus struct {
	set    *plan.Set
	limits []livepage.LimitStatus
	at     time.Time
}

// Status describes the configuration and the counters. It charges nothing. It is safe for concurrent use.
func (s *StatusSource) Status() livepage.Status {
	now := s.Now()
	over := s.Overview(maxStatusTenants)
	out := livepage.Status{PlansFile: over.Name, LoadedAt: over.LoadedAt, Upstream: "echo (built in)", Now: now,
		Listen: s.Listen, Try: s.Try,
		TenantsTotal: over.Total, RoutesCount: over.Routes}
	if s.Upstream != nil {
		out.Upstream = s.Upstream.Redacted()
	}
	if over.LastError != nil {
		out.LastError = over.LastError.Error()
	}
	if s.Bytes != nil {
		out.StoreBytes = s.Bytes()
	}
	for _, e := range over.IPLimits.Limits {
		for i := range e.Limit.Tiers {
			out.IPLimits = append(out.IPLimits, livepage.StatusOf(&e.Limit.Tiers[i], nil, now, applies(e)))
		}
	}
	out.Tenants = s.tenants(over.Tenants, now)
	if s.Cells != nil {
		out.Cells = s.Cells()
	}
	if s.Chain != nil {
		out.Store = storeStatus(s.Chain) // after the peeks, since a peek may notice that a store does not answer
	}
	return out
}

// storeStatus returns what the store chain has done so far.
func storeStatus(l *resilience.Chain) *livepage.StoreStatus {
	o := l.Fallback.Stats()
	out := &livepage.StoreStatus{
		Instances: l.Instances.Count(),
		Outage: livepage.OutageStatus{
			Failures: o.Failures, Backstop: o.Backstop, Open: o.Open, Closed: o.Closed,
			ChargedBack: o.ChargedBack, Dropped: o.Dropped, Waiting: o.Waiting,
		},
	}
	for _, b := range l.Breakers {
		n := b.Stats()
		out.Breakers = append(out.Breakers, livepage.BreakerStatus{
			Name: b.Name(), State: n.State.String(), Opened: n.Opened, Probes: n.Probes, Refused: n.Refused,
		})
	}
	if l.Leases != nil {
		n := l.Leases.Stats()
		out.Leases = &livepage.LeaseStatus{
			Counters: n.Counters, Units: n.Units, Local: n.Local, Denied: n.Denied, Early: n.Early,
			Calls: n.Calls, Waited: n.Waited, Returned: n.Returned, Lost: n.Lost,
		}
	}
	return out
}

// tenants describes the tenants, with peeks at their counters while there is time.
func (s *StatusSource) tenants(list []*plan.Tenant, now time.Time) []livepage.TenantStatus {
	s.mu.Lock()
	defer s.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), peekTimeout)
	defer cancel()
	l, began, first := s.newPeeks(), time.Now(), s.next
	out, seen := make([]livepage.TenantStatus, len(list)), make(map[string]tenantStatus, len(list))
	for i := range list {
		at := (first + i) % len(list)
		t := list[at]
		k := tenantStatus{t.Limits(now), nil, now}
		switch before := s.lastStatus[t.ID]; {
		case l.away || time.Since(began) < peeksTime:
			k.limits = l.limits(ctx, limit.Owner{Kind: limit.Tenant, Name: t.ID}, k.set, now)
			s.next = at + 1
		case before.set == k.set:
			k = before
		default:
			k.limits = l.describe(t.ID, k.set, &peeked{}, now)
		}
		out[at] = livepage.TenantStatus{ID: t.ID, Plan: t.Plan, Suspended: t.Suspended, Limits: k.since(now)}
		seen[t.ID] = k
	}
	s.lastStatus = seen
	return out
}

// since returns the known limits, with their times until a reset brought forward to now.
func (k *tenantStatus) since(now time.Time) []livepage.LimitStatus {
	gone := now.Sub(k.at).Milliseconds()
	if gone <= 0 {
		return k.limits
	}
	out := slices.Clone(k.limits)
	for i := range out {
		out[i].ResetMs = max(0, out[i].ResetMs-gone)
	}
	return out
}

// statusPeeks holds what the peeks of one status have in common.
type statusPeeks struct {
	store  limit.Store
	chain  *resilience.Chain    // nil if the store is in this process
	leased map[leasedTier]int64 // units that this process has leased
	away   bool                 // the only store did not answer, so it is not asked again
}

type leasedTier struct{ tenant, identity string }

func (s *StatusSource) newPeeks() *statusPeeks {
	l := &statusPeeks{store: s.Store, chain: s.Chain}
	if l.chain == nil {
		return l
	}
	l.store = l.chain
	if l.chain.Leases != nil {
		l.leased = make(map[leasedTier]int64)
		l.chain.Leases.Each(func(h lease.Held) bool {
			if h.Owner.Kind == limit.Tenant {
				l.leased[leasedTier{h.Owner.Name, h.Tier.Identity()}] += h.Units
			}
			return true
		})
	}
	return l
}

// passed returns a context whose deadline has passed. A peek with it does not call the store: the fallback limiter
// answers, and no circuit breaker counts a call.
func passed() (context.Context, context.CancelFunc) {
	return context.WithDeadline(context.Background(), time.Unix(0, 0))
}

// peeked is the result of a peek at a tenant's counters.
type peeked struct {
	limit.Decision
	results map[*limit.Limit][]limit.Result
	away    bool // a store that is needed did not answer
}

// limits describes a tenant's limits, with a peek at those that have one counter. If the store does not answer, it
// peeks at the counters of the fallback limiter instead.
func (l *statusPeeks) limits(
	ctx context.Context, owner limit.Owner, set *plan.Set, now time.Time,
) []livepage.LimitStatus {
	var a peeked
	if !l.away {
		err := l.peek(ctx, owner, set, counted, now, &a)
		if a.away = l.chain != nil && (a.Degraded || errors.Is(err, resilience.ErrFailClosed)); !a.away {
			return l.describe(owner.Name, set, &a, now)
		}
		l.away = len(l.chain.Breakers) == 1
	}
	a.away = true
	if l.away { // otherwise one of two stores may still answer, so it is called
		var cancel context.CancelFunc
		ctx, cancel = passed()
		defer cancel()
	}
	_ = l.peek(ctx, owner, set, backstopped, now, &a) // after an error the limits are shown without counts
	return l.describe(owner.Name, set, &a, now)
}

// counted reports whether the limit has one counter for a tenant.
func counted(l *limit.Limit) bool { return l.Per == limit.PerTenant && l.Mode != limit.Off }

// backstopped reports whether the fallback limiter, too, has one counter of the limit for a tenant.
func backstopped(l *limit.Limit) bool {
	return counted(l) && l.Mode == limit.Enforce && l.OnStoreFailure == limit.Backstop
}

// peek peeks at the counters of the limits that which selects, and sets a.
func (l *statusPeeks) peek(
	ctx context.Context, owner limit.Owner, set *plan.Set, which func(*limit.Limit) bool, now time.Time, a *peeked,
) error {
	req := limit.Request{Owner: owner}
	for _, e := range set.Limits {
		if which(e.Limit) {
			req.Charges = append(req.Charges, limit.Charge{Limit: e.Limit, Cost: 1})
		}
	}
	a.results = make(map[*limit.Limit][]limit.Result, len(req.Charges))
	if len(req.Charges) == 0 {
		return nil
	}
	if err := l.store.Peek(ctx, &req, now, &a.Decision); err != nil {
		return err
	}
	rest := a.Results
	for i := range req.Charges {
		charged := req.Charges[i].Limit
		a.results[charged], rest = rest[:len(charged.Tiers)], rest[len(charged.Tiers):]
	}
	return nil
}

// describe combines the configured limits with what the peek found out.
func (l *statusPeeks) describe(tenant string, set *plan.Set, a *peeked, now time.Time) []livepage.LimitStatus {
	var out []livepage.LimitStatus
	for _, e := range set.Limits {
		results := a.results[e.Limit]
		for i := range e.Limit.Tiers {
			t, peeked := &e.Limit.Tiers[i], (*limit.Result)(nil)
			if results != nil {
				peeked = &results[i]
			}
			row := livepage.StatusOf(t, peeked, now, applies(e))
			switch {
			case peeked != nil && a.Degraded: // the fallback limiter has a smaller tier: the instance's part
				row.Counted, row.Capacity = livepage.CountedHere, peeked.Tier.Capacity()
			case peeked == nil && counted(e.Limit):
				row.Counted = uncounted(e.Limit, a.away)
			}
			row.Leased = l.leased[leasedTier{tenant, t.Identity()}]
			out = append(out, row)
		}
	}
	return out
}

// uncounted says why there is no count of a limit.
func uncounted(l *limit.Limit, away bool) livepage.Counting {
	switch {
	case away && l.Mode == limit.Enforce && l.OnStoreFailure == limit.Open:
		return livepage.CountedOpen
	case away && l.Mode == limit.Enforce && l.OnStoreFailure == limit.Closed:
		return livepage.CountedClosed
	}
	return livepage.CountedUnknown
}

// applies describes the requests that a limit counts.
func applies(e *plan.Effective) string {
	methods := strings.Join(e.Methods(), ", ")
	switch {
	case e.Pattern() == "/**" && methods == "":
		return "every route"
	case e.Pattern() == "/**":
		return methods + " of every route"
	case methods == "":
		return e.Pattern()
	}
	return methods + " " + e.Pattern()
}
