package simulate

import (
	"context"
	"errors"
	"fmt"
	"time"
	"unicode/utf8"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/limiter/store/memory"
	"github.com/sluicelimits/sluice/internal/plan"
	"github.com/sluicelimits/sluice/internal/plan/route"
)

// outcome says how a request ended.
type outcome uint8

const (
	allowed       outcome = iota
	denied                // by a limit
	unknownTenant         // refused in production for who makes it, not for how many there are
	suspended             // the same
	noRoute               // the route is not declared
)

// policy holds the limits of a tenant.
type policy struct {
	tenant *plan.Tenant // nil if the tenant is not in the plans file
	set    *plan.Set    // the default plan's, if tenant is nil; nil for an unknown tenant
	plan   string
	// unknown reports that the tenant has no plan. A request that names it is refused for that reason.
	unknown bool
}

// engine replays records in the order of time against the limits.
type engine struct {
	config *plan.Config
	from   *TenantFrom
	planID string // of defaults
	// defaults holds the limits of tenants that the plans file does not name; nil if there are none.
	defaults *plan.Set

	store     limit.Store
	tally     *tally
	tenants   *people
	addresses *people
	methods   map[string]string

	path  route.Path
	attrs plan.Attributes
	first step // ipLimits
	main  step // the tenant's
}

// step makes one decision. Its memory is reused.
type step struct {
	origin origin
	plan   string
	req    limit.Request
	dec    limit.Decision
	asked  bool // false if no limit applied
}

func newEngine(o *Options, from *TenantFrom, planID string, defaults *plan.Set) (*engine, error) {
	store, err := memory.New(memory.Config{MaxBytes: o.StoreBytes, OneBudget: true})
	if err != nil {
		return nil, err
	}
	e := &engine{
		config: o.Config, from: from, planID: planID, defaults: defaults, store: store,
		tally: newTally(o.Config), tenants: newPeople(maxPeople), addresses: newPeople(maxPeople),
		methods: make(map[string]string),
	}
	e.first.origin = originIP
	e.attrs.Path = &e.path
	return e, nil
}

// replay decides a request and counts the outcome.
func (e *engine) replay(r *record) error {
	e.tally.begin(r.time)
	now := time.UnixMicro(r.time)
	address := e.addresses.address(r.host, e.config.IPv6Prefix())
	e.path = route.Clean(string(r.path))
	e.attrs.Method, e.attrs.IP, e.attrs.Subject = e.method(r.method), address.owner, ""
	if e.from.kind != fromUser {
		e.attrs.Subject = subject(r.user)
	}
	e.first.asked, e.main.asked = false, false
	who, what, err := e.decide(r, address, now)
	if err != nil {
		return err
	}
	e.count(what, address, who)
	return nil
}

// decide makes the decisions in the same order as production: first the limits of the address, which count every
// attempt; then the route; then the tenant. who is the tenant, or nil if the line names none.
func (e *engine) decide(r *record, address *person, now time.Time) (who *person, what outcome, err error) {
	ok, err := e.first.decide(e, e.config.IPLimits(), limit.Owner{Kind: limit.Address, Name: address.owner}, now)
	who = e.tenant(r, address)
	if err != nil || !ok {
		return who, denied, err
	}
	if !e.config.Routed(e.attrs.Method, &e.path) {
		return who, noRoute, nil
	}
	set, owner, what := e.limits(who, now)
	if set == nil {
		return who, what, nil
	}
	if ok, err = e.main.decide(e, set, owner, now); err != nil || !ok {
		return who, denied, err
	}
	return who, allowed, nil
}

// tenant returns the tenant that the line names, or nil.
func (e *engine) tenant(r *record, address *person) *person {
	name := r.tenant
	switch e.from.kind {
	case fromAddress:
		name = []byte(address.name)
	case alwaysTheSame:
		name = []byte(e.from.name)
	default: // r.tenant holds the name
	}
	if len(name) == 0 {
		return nil
	}
	who, found := e.tenants.tenant(name)
	if !found {
		who.policy = e.policyOf(who.name)
	}
	return who
}

func (e *engine) policyOf(name string) policy {
	if t, ok := e.config.Tenant(name); ok {
		return policy{tenant: t, plan: t.Plan, unknown: t.Plan == ""}
	}
	if e.defaults == nil || len(name) > limit.MaxNameBytes || !utf8.ValidString(name) {
		// An address does not claim to be a tenant: without a plan it is a call without a credential.
		return policy{unknown: e.from.kind != fromAddress}
	}
	return policy{set: e.defaults, plan: e.planID}
}

// limits returns the set of limits that applies to the tenant, or to a request without a credential. If there is none,
// it returns nil and the outcome of the request.
func (e *engine) limits(who *person, now time.Time) (*plan.Set, limit.Owner, outcome) {
	if who != nil {
		p := &who.policy
		owner := limit.Owner{Kind: limit.Tenant, Name: who.owner}
		e.main.origin, e.main.plan = originPlan, p.plan
		switch {
		case p.tenant != nil && p.tenant.Suspended:
			return nil, owner, suspended
		case p.unknown:
			return nil, owner, unknownTenant
		case p.tenant != nil:
			return p.tenant.Limits(now), owner, allowed
		case p.set != nil:
			return p.set, owner, allowed
		}
	}
	e.main.origin, e.main.plan = originAnonymous, e.config.AnonymousPlan()
	return e.config.Anonymous(), limit.Owner{Kind: limit.Anonymous}, allowed
}

// decide decides about those limits of the set that apply to the request.
func (s *step) decide(e *engine, set *plan.Set, owner limit.Owner, now time.Time) (bool, error) {
	s.req.Charges = set.AppendCharges(s.req.Charges[:0], &e.attrs)
	if len(s.req.Charges) == 0 {
		return true, nil
	}
	s.req.Owner = owner
	if err := e.store.Decide(context.Background(), &s.req, now, &s.dec); err != nil {
		if errors.Is(err, limit.ErrFull) {
			return false, fmt.Errorf("%w: give the counters more memory", err)
		}
		return false, err
	}
	s.asked = true
	return s.dec.Allowed, nil
}

// count adds the outcome to all counts that it concerns.
func (e *engine) count(what outcome, address, who *person) {
	shadowed := e.tally.step(&e.first, what == allowed)
	shadowed = e.tally.step(&e.main, what == allowed) || shadowed
	shadowed = shadowed && what == allowed
	e.tally.outcome(what, shadowed)
	var wait int64
	if what == denied {
		wait = e.tally.denial(e.denier(), address, who)
	}
	for _, p := range [...]*person{address, who} {
		if p != nil {
			p.count(what, shadowed, e.tally.now, wait)
		}
	}
}

// denier returns the step that denied.
func (e *engine) denier() *step {
	if e.first.asked && !e.first.dec.Allowed {
		return &e.first
	}
	return &e.main
}

func (p *person) count(what outcome, shadowed bool, now, wait int64) {
	p.requests++
	switch what {
	case allowed:
		p.allowed++
		if shadowed {
			p.shadowDenied++
		}
	case denied:
		if p.denied == 0 {
			p.firstDenied = now
		}
		p.denied++
		p.lastDenied = now
		p.longestWait = max(p.longestWait, wait)
	case unknownTenant, suspended, noRoute:
	}
}

// method returns the method as a string. The string of a method is kept, so that it is made once; unusual methods are
// kept only up to a bound.
func (e *engine) method(name []byte) string {
	if m, ok := e.methods[string(name)]; ok {
		return m
	}
	m := string(name)
	if len(e.methods) < 64 {
		e.methods[m] = m
	}
	return m
}

// subject returns the user, or "" if the user cannot be a subject.
func subject(user []byte) string {
	if len(user) > limit.MaxNameBytes || !utf8.Valid(user) {
		return ""
	}
	return string(user)
}
