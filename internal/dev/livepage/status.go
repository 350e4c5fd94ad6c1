package livepage

import (
	"context"
	"strings"
	"time"

	"github.com/sluicelimits/sluice/internal/limiter/breaker"
	"github.com/sluicelimits/sluice/internal/limiter/lease"
	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/limiter/resilience"
	"github.com/sluicelimits/sluice/internal/plan"
)

const (
	// maxStatusTenants bounds the work for one status: each tenant takes a peek at the store.
	maxStatusTenants = 200
	// peeksTime is how long one status goes on with peeks, so that the live page stays responsive. The use of the
	// remaining limits is not known then.
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

// StatusSource collects what the live page shows besides the counts of requests. It is safe for concurrent use.
type StatusSource struct {
	Overview func(most int) Overview // lists at most that many tenants; required
	Cells    func() []CellStatus     // nil if there is only one cell
	Store    limit.Store
	// Chain is the store chain in front of shared stores. If it is not nil, it is peeked at instead of Store.
	Chain    *resilience.Chain
	Bytes    func() int64 // memory that the store takes
	Upstream string       // the URLs behind the gateway; "": the echo
	Listen   string
	Try      []string
	Now      func() time.Time
}

// Status describes the configuration and the counters. It charges nothing.
func (s *StatusSource) Status() Status {
	now := s.Now()
	over := s.Overview(maxStatusTenants)
	out := Status{Now: now, Gateway: Gateway{PlansFile: over.Name, Upstream: "echo (built in)",
		Listen: s.Listen, Tenants: over.Total, Routes: over.Routes, TryCommands: s.Try}}
	if !over.LoadedAt.IsZero() {
		out.Gateway.LoadedMs = over.LoadedAt.UnixMilli()
	}
	if s.Upstream != "" {
		out.Gateway.Upstream = s.Upstream
	}
	if over.LastError != nil {
		out.Gateway.LastError = over.LastError.Error()
	}
	if s.Bytes != nil {
		out.Gateway.StoreBytes = s.Bytes()
	}
	for _, e := range over.IPLimits.Limits {
		for i := range e.Limit.Tiers {
			out.IPLimits = append(out.IPLimits, StatusOf(&e.Limit.Tiers[i], nil, now, applies(e)))
		}
	}
	out.Tenants = s.tenants(over.Tenants, now)
	if s.Cells != nil {
		out.Cells = s.Cells()
	}
	if s.Chain != nil {
		for _, b := range s.Chain.Breakers { // after the peeks, which may notice that a store does not answer
			if b.State() != breaker.Closed {
				out.Away = append(out.Away, b.Name())
			}
		}
	}
	return out
}

// tenants describes the tenants, with peeks at their counters while there is time and the store answers.
func (s *StatusSource) tenants(list []*plan.Tenant, now time.Time) []TenantRow {
	ctx, cancel := context.WithTimeout(context.Background(), peekTimeout)
	defer cancel()
	leased, began, answers := s.leased(), time.Now(), true
	out := make([]TenantRow, len(list))
	for i, t := range list {
		set := t.Limits(now)
		var use map[*limit.Limit][]limit.Result
		if answers && time.Since(began) < peeksTime {
			use, answers = s.peek(ctx, t.ID, set, now)
		}
		out[i] = TenantRow{ID: t.ID, Plan: t.Plan, Suspended: t.Suspended}
		for _, e := range set.Limits {
			results := use[e.Limit]
			for at := range e.Limit.Tiers {
				tier, result := &e.Limit.Tiers[at], (*limit.Result)(nil)
				if results != nil {
					result = &results[at]
				}
				row := StatusOf(tier, result, now, applies(e))
				row.Leased = leased[leasedTier{t.ID, tier.Identity()}]
				out[i].Limits = append(out[i].Limits, row)
			}
		}
	}
	return out
}

type leasedTier struct{ tenant, identity string }

// leased returns the units that this process has leased and not spent.
func (s *StatusSource) leased() map[leasedTier]int64 {
	units := make(map[leasedTier]int64)
	if s.Chain != nil && s.Chain.Leases != nil {
		s.Chain.Leases.Each(func(h lease.Held) bool {
			if h.Owner.Kind == limit.Tenant {
				units[leasedTier{h.Owner.Name, h.Tier.Identity()}] += h.Units
			}
			return true
		})
	}
	return units
}

// peek returns the use of those limits of a tenant that have one counter. answers is false if a shared store did not
// answer: what the fallback limiter counts meanwhile is not shown.
func (s *StatusSource) peek(
	ctx context.Context, tenant string, set *plan.Set, now time.Time,
) (use map[*limit.Limit][]limit.Result, answers bool) {
	req := limit.Request{Owner: limit.Owner{Kind: limit.Tenant, Name: tenant}}
	for _, e := range set.Limits {
		if e.Limit.Per == limit.PerTenant && e.Limit.Mode != limit.Off {
			req.Charges = append(req.Charges, limit.Charge{Limit: e.Limit, Cost: 1})
		}
	}
	if len(req.Charges) == 0 {
		return nil, true
	}
	store := s.Store
	if s.Chain != nil {
		store = s.Chain
	}
	var d limit.Decision
	if err := store.Peek(ctx, &req, now, &d); err != nil || d.Degraded {
		return nil, false
	}
	use = make(map[*limit.Limit][]limit.Result, len(req.Charges))
	rest := d.Results
	for i := range req.Charges {
		charged := req.Charges[i].Limit
		use[charged], rest = rest[:len(charged.Tiers)], rest[len(charged.Tiers):]
	}
	return use, true
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
