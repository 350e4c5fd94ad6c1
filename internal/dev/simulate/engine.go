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

	path  route.Path
	attrs plan.Attributes
	first step // ipLimits
	main  step // the tenant's
}

// step makes one decision. Its memory is reused.
type step struct {
	origin string // which part of the plans file the limits are from
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
	}
	e.first.origin = originIP
	e.attrs.Path = &e.path
	if countsPlaces(o.Config) {
		e.attrs.Costs = map[string]int64{limit.ConcurrentRequests: 0} // see notInFlight
	}
	return e, nil
}

// replay decides a request and counts the outcome.
func (e *engine) replay(r *record) error {
	now := time.UnixMicro(r.time).UTC()
	e.tally.begin(now)
	address := e.addresses.address(r.host, e.config.IPv6Prefix())
	e.path = route.Clean(r.path)
	e.attrs.Method, e.attrs.IP, e.attrs.Subject = r.method, address.owner, ""
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
		name = address.Name
	case alwaysTheSame:
		name = e.from.name
	default: // r.tenant holds the name
	}
	if name == "" {
		return nil
	}
	who, found := e.tenants.get(name)
	if !found {
		e.configure(who)
	}
	return who
}

// configure sets the plan and the status of a new tenant.
func (e *engine) configure(who *person) {
	t, ok := e.config.Tenant(who.Name)
	switch {
	case ok:
		who.tenant, who.Plan = t, t.Plan
		if t.Plan == "" {
			who.Status = unknown
		} else if t.Suspended {
			who.Status = suspendedTenant
		}
	case e.defaults != nil && len(who.Name) <= limit.MaxNameBytes && utf8.ValidString(who.Name):
		who.set, who.Plan = e.defaults, e.planID
	case e.from.kind != fromAddress:
		// An address does not claim to be a tenant: without a plan it is a call without a credential.
		who.Status = unknown
	}
}

// limits returns the set of limits that applies to the tenant, or to a request without a credential. If there is none,
// it returns nil and the outcome of the request.
func (e *engine) limits(who *person, now time.Time) (*plan.Set, limit.Owner, outcome) {
	if who != nil {
		owner := limit.Owner{Kind: limit.Tenant, Name: who.owner}
		e.main.origin, e.main.plan = originPlan, who.Plan
		switch {
		case who.tenant != nil && who.tenant.Suspended:
			return nil, owner, suspended
		case who.Status == unknown:
			return nil, owner, unknownTenant
		case who.tenant != nil:
			return who.tenant.Limits(now), owner, allowed
		case who.set != nil:
			return who.set, owner, allowed
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
	var wait time.Duration
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

// subject returns the user, or "" if the user cannot be a subject.
func subject(user string) string {
	if len(user) > limit.MaxNameBytes || !utf8.ValidString(user) {
		return ""
	}
	return user
}
