package gateway

import (
	"context"
	"net/url"
	"strings"
	"time"

	"github.com/sluicelimits/sluice/internal/limit"
	"github.com/sluicelimits/sluice/internal/livepage"
	"github.com/sluicelimits/sluice/internal/plan"
)

// maxStatusTenants bounds what one look at the live page costs: each tenant is a peek at the store.
const maxStatusTenants = 200

// StatusSource gathers what the live page shows beside its counts.
type StatusSource struct {
	Plans    *Plans
	Store    limit.Store
	Bytes    func() int64 // of the store
	Upstream *url.URL     // nil is the echo
	Listen   string
	Try      []string
	Now      func() time.Time
}

// Status looks at the configuration and the counters; it charges nothing. It is safe for concurrent use.
func (s *StatusSource) Status() livepage.Status {
	now := s.Now()
	cfg := s.Plans.Current().Config
	out := livepage.Status{PlansFile: s.Plans.Name(), Upstream: "echo (built in)", Now: now, Listen: s.Listen, Try: s.Try}
	if s.Upstream != nil {
		out.Upstream = s.Upstream.Redacted()
	}
	loadedAt, err := s.Plans.Status()
	out.LoadedAt = loadedAt
	if err != nil {
		out.LastError = err.Error()
	}
	if s.Bytes != nil {
		out.StoreBytes = s.Bytes()
	}
	for _, f := range cfg.Files() {
		out.RoutesCount += f.Routes
	}
	for _, e := range cfg.IPLimits().Limits {
		for i := range e.Limit.Tiers {
			out.IPLimits = append(out.IPLimits, livepage.StatusOf(&e.Limit.Tiers[i], nil, now, applies(e)))
		}
	}
	tenants := cfg.Tenants()
	out.TenantsTotal = len(tenants)
	for _, t := range tenants[:min(len(tenants), maxStatusTenants)] {
		out.Tenants = append(out.Tenants, livepage.TenantStatus{ID: t.ID, Plan: t.Plan, Suspended: t.Suspended,
			Limits: s.limits(limit.Owner{Kind: limit.Tenant, Name: t.ID}, t.Limits(now), now)})
	}
	return out
}

// limits describes a tenant's limits, with a peek at those that have one counter.
func (s *StatusSource) limits(owner limit.Owner, set *plan.Set, now time.Time) []livepage.LimitStatus {
	req := limit.Request{Owner: owner}
	for _, e := range set.Limits {
		if e.Limit.Per == limit.PerTenant && e.Limit.Mode != limit.Off {
			req.Charges = append(req.Charges, limit.Charge{Limit: e.Limit, Cost: 1})
		}
	}
	var d limit.Decision
	peeked := make(map[*limit.Tier]*limit.Result)
	if err := s.Store.Peek(context.Background(), &req, now, &d); err == nil {
		for i := range d.Results {
			peeked[d.Results[i].Tier] = &d.Results[i]
		}
	}
	var out []livepage.LimitStatus
	for _, e := range set.Limits {
		for i := range e.Limit.Tiers {
			t := &e.Limit.Tiers[i]
			out = append(out, livepage.StatusOf(t, peeked[t], now, applies(e)))
		}
	}
	return out
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
