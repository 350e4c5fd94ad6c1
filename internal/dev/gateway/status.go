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
	// maxStatusTenants bounds what one look at the live page costs: each tenant is a peek at the store.
	maxStatusTenants = 200

	// lookFor is how long a look goes on asking; the tenants that are left are shown as they were, and asked first next
	// time.
	lookFor = 500 * time.Millisecond

	// peekWithin is for a store without a deadline of its own. It is longer than those, so that it is the store's that
	// a breaker counts.
	peekWithin = 2 * time.Second
)

// Overview is what is in force, as far as the live page shows it.
type Overview struct {
	Name      string // of where it is kept
	LoadedAt  time.Time
	LastError error          // what is wrong with a later one that is not in force
	Tenants   []*plan.Tenant // the first of them, by id
	Total     int            // of tenants
	IPLimits  *plan.Set
	Routes    int // that are declared
}

// StatusSource gathers what the live page shows beside its counts. Do not copy it once it is in use.
type StatusSource struct {
	Overview func(most int) Overview      // with at most so many tenants; required
	Cells    func() []livepage.CellStatus // nil where there is only this one
	Store    limit.Store
	// what stands before shared stores, and is looked at instead of Store; nil where there are none
	Chain    *resilience.Chain
	Bytes    func() int64 // of the store
	Upstream *url.URL     // nil is the echo
	Listen   string
	Try      []string
	Now      func() time.Time

	mu    sync.Mutex // over looks at tenants
	next  int        // the tenant to begin with
	known map[string]known
}

// known is a tenant as it was last looked at.
type known struct {
	set    *plan.Set
	limits []livepage.LimitStatus
	at     time.Time
}

// Status looks at the configuration and the counters; it charges nothing. It is safe for concurrent use.
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
		out.Store = storeStatus(s.Chain) // after the peeks: one of them may have found out that a store is away
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

// tenants describes the tenants, each with a peek at its counters while there is time.
func (s *StatusSource) tenants(list []*plan.Tenant, now time.Time) []livepage.TenantStatus {
	s.mu.Lock()
	defer s.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), peekWithin)
	defer cancel()
	l, began, first := s.look(), time.Now(), s.next
	out, seen := make([]livepage.TenantStatus, len(list)), make(map[string]known, len(list))
	for i := range list {
		at := (first + i) % len(list)
		t := list[at]
		k := known{t.Limits(now), nil, now}
		switch before := s.known[t.ID]; {
		case l.away || time.Since(began) < lookFor:
			k.limits = l.limits(ctx, limit.Owner{Kind: limit.Tenant, Name: t.ID}, k.set, now)
			s.next = at + 1
		case before.set == k.set:
			k = before
		default:
			k.limits = l.describe(t.ID, k.set, &asked{}, now)
		}
		out[at] = livepage.TenantStatus{ID: t.ID, Plan: t.Plan, Suspended: t.Suspended, Limits: k.since(now)}
		seen[t.ID] = k
	}
	s.known = seen
	return out
}

// since is what was known, as of now.
func (k *known) since(now time.Time) []livepage.LimitStatus {
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

// look is one look at the counters of many tenants.
type look struct {
	store  limit.Store
	chain  *resilience.Chain // nil: store is in this process
	leased map[leasedTier]int64
	away   bool // the only store there is did not answer: it is not asked again
}

type leasedTier struct{ tenant, identity string }

func (s *StatusSource) look() *look {
	l := &look{store: s.Store, chain: s.Chain}
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

// passed is a context whose time is over: nothing is asked with it, so that the backstop answers and no breaker counts
// a call.
func passed() (context.Context, context.CancelFunc) {
	return context.WithDeadline(context.Background(), time.Unix(0, 0))
}

// asked is what a tenant's counters say.
type asked struct {
	limit.Decision
	results map[*limit.Limit][]limit.Result
	away    bool // a store that is needed did not answer
}

// limits describes a tenant's limits, with a peek at those that have one counter: in the store, or where that does not
// answer in the backstop.
func (l *look) limits(ctx context.Context, owner limit.Owner, set *plan.Set, now time.Time) []livepage.LimitStatus {
	var a asked
	if !l.away {
		err := l.peek(ctx, owner, set, counted, now, &a)
		if a.away = l.chain != nil && (a.Degraded || errors.Is(err, resilience.ErrFailClosed)); !a.away {
			return l.describe(owner.Name, set, &a, now)
		}
		l.away = len(l.chain.Breakers) == 1
	}
	a.away = true
	if l.away { // of two stores one may answer, and a call may give back what it holds of the tenant's
		var cancel context.CancelFunc
		ctx, cancel = passed()
		defer cancel()
	}
	_ = l.peek(ctx, owner, set, backstopped, now, &a) // without an answer nothing is known of them
	return l.describe(owner.Name, set, &a, now)
}

// counted reports whether the limit has one counter for a tenant.
func counted(l *limit.Limit) bool { return l.Per == limit.PerTenant && l.Mode != limit.Off }

// backstopped reports whether the backstop counts so, too.
func backstopped(l *limit.Limit) bool {
	return counted(l) && l.Mode == limit.Enforce && l.OnStoreFailure == limit.Backstop
}

// peek looks at some of the limits' counters.
func (l *look) peek(
	ctx context.Context, owner limit.Owner, set *plan.Set, which func(*limit.Limit) bool, now time.Time, a *asked,
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
		of := req.Charges[i].Limit
		a.results[of], rest = rest[:len(of.Tiers)], rest[len(of.Tiers):]
	}
	return nil
}

// describe puts what the counters say beside what is configured.
func (l *look) describe(tenant string, set *plan.Set, a *asked, now time.Time) []livepage.LimitStatus {
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
			case peeked != nil && a.Degraded: // the backstop's result is of its own tier
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

// uncounted is what there is instead of a result.
func uncounted(l *limit.Limit, away bool) livepage.Counting {
	switch {
	case away && l.Mode == limit.Enforce && l.OnStoreFailure == limit.Open:
		return livepage.CountedOpen
	case away && l.Mode == limit.Enforce && l.OnStoreFailure == limit.Closed:
		return livepage.CountedClosed
	}
	return livepage.CountedUnknown
}

// applies says in words which requests a limit is for.
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
