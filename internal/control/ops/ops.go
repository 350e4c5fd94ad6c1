// Package ops is what operators do to the counters of one cell: look at them, empty them, give units back.
//
// # Operations
//
// Each is a POST of a JSON object, see package call.
//
//	path              method   does
//	/counters/peek    Peek     what is used and what remains; changes nothing
//	/counters/reset   Reset    counters as if they had never been used
//	/counters/refund  Refund   gives units back in the windows that are open now
//
// Each use is an item in the table operations: version 1 says who asks for what and why, and is written before anything
// is done; version 2 says what came of it. An operation of which there is only version 1 was cut, and may have had its
// effect.
//
// # What is reached
//
// An operation reaches what the cell's store has, the counters per address included: an address is named as the cell's
// authorizer names it, by a keyed hash, and is on no record, in no log and in no error. It does not reach
//
//   - units that instances have leased. Those of a token_bucket count as used until their slot ends. Those of the other algorithms
//     stay with who leased them: they may be spent on top of what the counter then admits, or come back from what was counted
//     since. So after a reset at most the threshold and what was leased then are admitted in a window. Leases end within 10 s,
//     those of another cell's quota within 60 s;
//   - denials that instances remember, 5 s at most, and their backstops while the store is away;
//   - other cells: each has counters of its own, but for a quota's, which are the tenant's home cell's whichever cell is asked, where it
//     has a way there. Limits of which the cell grants nothing are left out, and refused where the operation is about one;
//   - ipLimits of a small cell, which each instance counts in its own memory;
//   - counters per claim.
//
// Reset works on every algorithm. Refund works on all but token_bucket: what that has refilled since the units were
// charged has made up for them, and without a receipt nobody knows how much that is. In what has stamps (sliding_log,
// sliding_buckets) the newest units come back first; a leaky_bucket's slot comes nearer, to now at most.
package ops

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/sluicelimits/sluice/events"
	"github.com/sluicelimits/sluice/internal/control"
	"github.com/sluicelimits/sluice/internal/control/call"
	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/plan"
	"github.com/sluicelimits/sluice/internal/plan/route"
)

// Config sets up a Service.
type Config struct {
	Cell   string         // required
	Store  limit.Store    // where the cell counts, without leases, backstop or cache in front; required
	Tables control.Tables // for the table operations; required

	// Tenant is a tenant with the limits that the cell enforces; nil where there is none. Required.
	Tenant func(ctx context.Context, id string) (*plan.Tenant, error)

	// NameAddress returns the name under which the cell counts an address, which is in the form of
	// [identity.Canonical]; "" if the cell has no key for that. If nil, counters per address are not reached.
	NameAddress func(ctx context.Context, a netip.Addr) (string, error)

	// IPv6Prefix returns the length of the prefix, in bits, by which the cell counts IPv6 addresses. If nil, it is
	// plan.DefaultIPv6Prefix.
	IPv6Prefix func(ctx context.Context) (int, error)

	// IPLimits are the limits before authentication, and Addresses is where they are counted. nil: they are not
	// reached.
	IPLimits  func(ctx context.Context) (*plan.Set, error)
	Addresses limit.Store

	Now func() time.Time // default time.Now
	Log *slog.Logger     // default slog.Default()
}

// Service carries out operations. It is safe for concurrent use. Make it with New.
type Service struct{ c Config }

// New makes a service. It calls nothing yet. The error names the field.
func New(c Config) (*Service, error) {
	switch {
	case !limit.ValidID(c.Cell):
		return nil, fmt.Errorf("ops: Cell %q is not 1 to 64 of A-Z a-z 0-9 . _ -", c.Cell)
	case c.Store == nil:
		return nil, errors.New("ops: Store is missing")
	case c.Tables == nil:
		return nil, errors.New("ops: Tables is missing")
	case c.Tenant == nil:
		return nil, errors.New("ops: Tenant is missing")
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	c.Log = cmp.Or(c.Log, slog.Default())
	return &Service{c}, nil
}

// NewMux is the operations of a service by their paths, for call.Lambda and call.Local.
func NewMux(s *Service) *call.Mux {
	m := call.NewMux(s.c.Log)
	call.Register(m, "/counters/peek", s.Peek)
	call.Register(m, "/counters/reset", s.Reset)
	call.Register(m, "/counters/refund", s.Refund)
	return m
}

// Counters names counters of a tenant. Without a path they are those of the limits per tenant, whatever their match.
// With one they are those that a request like this would be charged to. With an address and without a tenant they are
// those of ipLimits.
type Counters struct {
	Tenant  string `json:"tenant,omitempty"`
	Limit   string `json:"limit,omitempty"` // empty: all limits; required for what changes anything
	Method  string `json:"method,omitempty"`
	Path    string `json:"path,omitempty"`
	Subject string `json:"subject,omitempty"`
	APIKey  string `json:"api_key,omitempty"` // the id of a key, never a key
	Address string `json:"address,omitempty"` // of a client, IPv4 or IPv6; in the table operations its name
	Reason  string `json:"reason,omitempty"`  // required for what changes anything
	Units   int64  `json:"units,omitempty"`   // of a refund: to each tier, 1..limit.MaxUnits
}

// Counter is one tier of one limit.
type Counter struct {
	Limit      string    `json:"limit"`
	Tier       string    `json:"tier"` // what makes the counter this one, such as its period
	Algorithm  string    `json:"algorithm"`
	Mode       string    `json:"mode"`
	Capacity   int64     `json:"capacity"` // units
	Used       int64     `json:"used"`     // units, leased ones included
	Remaining  int64     `json:"remaining"`
	ResetAt    time.Time `json:"reset_at"`              // when it is as if never used, if nothing more is charged
	UsedBefore *int64    `json:"used_before,omitempty"` // of an operation that changed it
}

// Response is the counters after the operation.
type Response struct {
	Operation string    `json:"operation"` // key in the table operations
	Cell      string    `json:"cell"`
	Tenant    string    `json:"tenant,omitempty"`
	At        time.Time `json:"at"` // by the store's clock
	Counters  []Counter `json:"counters"`
	Notes     []string  `json:"notes,omitempty"` // what was not reached
}

// Peek looks at counters.
func (s *Service) Peek(ctx context.Context, actor string, r *Counters) (*Response, error) {
	if r.Units != 0 {
		return nil, call.Refuse(call.Invalid, "units go with a refund")
	}
	asked := *r
	asked.Reason = cmp.Or(r.Reason, "peek")
	return s.audited(ctx, actor, "peek", &asked, (*counters).look)
}

// notReached is said wherever counters were changed.
var notReached = []string{
	"units that instances have leased: a token_bucket's count as used until the leases end; others may be spent on " +
		"top, or come back from what was counted since",
	"leases end within 10 s, those of another cell's quota within 60 s",
	"instances may go on denying for up to 5 s out of what they remember",
	"other cells have counters of their own, but for a quota's, which are the tenant's home cell's whichever cell " +
		"is asked",
}

// Reset empties counters. What is charged while it goes on may be forgotten with the rest, or stay.
func (s *Service) Reset(ctx context.Context, actor string, r *Counters) (*Response, error) {
	if r.Units != 0 {
		return nil, call.Refuse(call.Invalid, "units go with a refund")
	}
	if err := r.changes(); err != nil {
		return nil, err
	}
	return s.audited(ctx, actor, "reset", r, func(k *counters, ctx context.Context) (*Response, error) {
		return k.changed(ctx, func(now int64) error { return k.reset(ctx, now) })
	})
}

// Refund gives units back, to each tier of the limit, in the window that is open now. A counter does not go below zero.
// Where the answer is lost, a second refund is one more: peek first.
func (s *Service) Refund(ctx context.Context, actor string, r *Counters) (*Response, error) {
	if r.Units < 1 || r.Units > limit.MaxUnits {
		return nil, call.Refuse(call.Invalid, "units: %d, want 1..%d", r.Units, int64(limit.MaxUnits))
	}
	if err := r.changes(); err != nil {
		return nil, err
	}
	return s.audited(ctx, actor, "refund", r, func(k *counters, ctx context.Context) (*Response, error) {
		return k.changed(ctx, func(now int64) error { return k.refund(ctx, r.Units, now) })
	})
}

func (r *Counters) changes() error {
	if r.Limit == "" {
		return call.Refuse(call.Invalid, "limit is missing")
	}
	if err := events.CheckText(r.Reason); err != nil {
		return call.Refuse(call.Invalid, "reason: %v", err)
	}
	return nil
}

// counters are those that an operation is about, each asked for one unit, and where they are.
type counters struct {
	*Service
	tenant string // "": an address
	store  limit.Store
	req    *limit.Request
	notes  []string
}

// find finds the counters that are meant. address is the name of r.Address.
func (s *Service) find(ctx context.Context, r *Counters, address string) (*counters, error) {
	k := &counters{Service: s, tenant: r.Tenant, store: s.c.Store,
		req: &limit.Request{Owner: limit.Owner{Kind: limit.Tenant, Name: r.Tenant}}}
	var set *plan.Set
	var err error
	if r.Tenant == "" {
		k.store, k.req.Owner = s.c.Addresses, limit.Owner{Kind: limit.Address, Name: address}
		set, err = s.ipLimits(ctx)
	} else {
		set, err = s.ofTenant(ctx, r.Tenant)
	}
	if err != nil {
		return nil, err
	}
	if r.Limit != "" && !slices.ContainsFunc(set.Limits,
		func(e *plan.Effective) bool { return e.Limit.ID == r.Limit }) {
		if r.Tenant == "" {
			return nil, call.Refuse(call.NotFound, "ipLimits have no limit %.64q", r.Limit)
		}
		return nil, call.Refuse(call.NotFound, "tenant %q has no limit %.64q", r.Tenant, r.Limit)
	}
	if r.Path == "" {
		k.req.Charges = r.perOwner(set)
	} else {
		k.req.Charges = r.ofRequest(set, address)
	}
	if r.Limit != "" && len(k.req.Charges) == 0 {
		return nil, call.Refuse(call.Invalid, "limit %q has no such counter: it is off, does not apply to the "+
			"request, or is not per tenant and needs a path", r.Limit)
	}
	return k, k.leaveOut(set, r.Limit)
}

// leaveOut leaves out limits of which the cell grants nothing: what its store has of them is not what is counted. It
// refuses where the operation is about one.
func (k *counters) leaveOut(set *plan.Set, named string) error {
	var ids []string
	var why error
	for _, e := range set.Limits {
		if e.Share() == nil || e.Share().Limit != nil {
			continue
		}
		before := len(k.req.Charges)
		k.req.Charges = slices.DeleteFunc(k.req.Charges, func(c limit.Charge) bool { return c.Limit == e.Limit })
		if len(k.req.Charges) < before {
			ids = append(ids, e.Limit.ID)
			why = call.Refuse(call.Unsupported, "cell %s grants nothing of limit %q and reaches no counter of it "+
				"(%s): ask a cell that does; nothing was changed",
				k.c.Cell, e.Limit.ID, e.Share().Why)
		}
	}
	switch {
	case len(ids) == 0:
		return nil
	case named != "":
		return why
	}
	k.notes = append(k.notes, "left out, for this cell grants nothing of them and reaches no counter of theirs: "+strings.Join(ids, ", "))
	return nil
}

func (s *Service) ofTenant(ctx context.Context, id string) (*plan.Set, error) {
	tenant, err := s.c.Tenant(ctx, id)
	switch {
	case err != nil:
		s.c.Log.ErrorContext(ctx, "a tenant could not be read", "tenant", id, "error", err)
		return nil, call.Refuse(call.Unavailable, "the cell's configuration did not answer; try again")
	case tenant == nil:
		return nil, call.Refuse(call.NotFound, "cell %s knows no tenant %q", s.c.Cell, id)
	}
	return tenant.Limits(s.c.Now()), nil
}

func (s *Service) ipLimits(ctx context.Context) (*plan.Set, error) {
	if s.c.IPLimits == nil || s.c.Addresses == nil {
		return nil, call.Refuse(call.Unsupported,
			"cell %s counts ipLimits in the memory of each of its instances, which nothing else reaches: they end "+
				"with the instance", s.c.Cell)
	}
	set, err := s.c.IPLimits(ctx)
	if err != nil {
		s.c.Log.ErrorContext(ctx, "ipLimits could not be read", "error", err)
		return nil, call.Refuse(call.Unavailable, "the cell's configuration did not answer; try again")
	}
	return set, nil
}

// check refuses what names no counter of any tenant, or address.
func (r *Counters) check() error {
	if err := events.CheckKey(control.Tenants, r.Tenant); err != nil && (r.Tenant != "" || r.Address == "") {
		return call.Refuse(call.Invalid, "tenant: %v", err)
	}
	switch {
	case len(r.Subject) > limit.MaxNameBytes:
		return call.Refuse(call.Invalid, "subject: %d bytes, want at most %d", len(r.Subject), limit.MaxNameBytes)
	case strings.HasPrefix(r.APIKey, "slk_"):
		return call.Refuse(call.Invalid, "api_key: want the id of a key, not the key")
	case len(r.APIKey) > limit.MaxNameBytes:
		return call.Refuse(call.Invalid, "api_key: %d bytes, want at most %d", len(r.APIKey), limit.MaxNameBytes)
	case r.Path != "" && (len(r.Path) > 4096 || r.Path[0] != '/' || len(r.Method) > 32):
		return call.Refuse(call.Invalid, "path: want one such as /v1/products, of at most 4096 bytes, and a method "+
			"of at most 32")
	}
	return r.together()
}

// together refuses what makes no sense beside each other.
func (r *Counters) together() error {
	switch {
	case r.Tenant == "" && (r.Subject != "" || r.APIKey != ""):
		return call.Refuse(call.Invalid, "tenant is missing: ipLimits are counted before anybody is known")
	case r.Path == "" && (r.Method != "" || r.Subject != "" || r.APIKey != "" || r.Tenant != "" && r.Address != ""):
		return call.Refuse(call.Invalid, "path is missing: a method, a subject, an API key and an address say which "+
			"counter of a request with that path")
	}
	return nil
}

// perOwner are the charges of the limits that have one counter for the tenant, or for the address.
func (r *Counters) perOwner(set *plan.Set) (out []limit.Charge) {
	for _, e := range set.Limits {
		if e.Limit.Per == limit.PerTenant && e.Limit.Mode != limit.Off && (r.Limit == "" || r.Limit == e.Limit.ID) {
			out = append(out, limit.Charge{Limit: e.Limit, Cost: 1})
		}
	}
	return out
}

// ofRequest are the charges of a request.
func (r *Counters) ofRequest(set *plan.Set, address string) (out []limit.Charge) {
	path := route.Clean(r.Path)
	for _, c := range set.AppendCharges(nil, &plan.Attributes{Method: cmp.Or(r.Method, "GET"), Path: &path,
		Subject: r.Subject, APIKey: r.APIKey, IP: address}) {
		if r.Limit == "" || c.Limit.ID == r.Limit {
			c.Cost = 1
			out = append(out, c)
		}
	}
	return out
}

// look peeks.
func (k *counters) look(ctx context.Context) (*Response, error) {
	out := &Response{Cell: k.c.Cell, Tenant: k.tenant, At: k.c.Now().UTC(), Counters: []Counter{}, Notes: k.notes}
	if len(k.req.Charges) == 0 {
		return out, nil
	}
	d, err := k.peek(ctx, k.req)
	if err != nil {
		return nil, err
	}
	out.At = time.UnixMicro(d.Now).UTC()
	for i := range d.Results {
		r := &d.Results[i]
		l := r.Limit()
		out.Counters = append(out.Counters, Counter{Limit: l.ID, Tier: tierName(r.Tier),
			Algorithm: r.Tier.Algorithm.String(), Mode: l.Mode.String(),
			Capacity: r.Tier.Capacity(), Used: r.Used(), Remaining: r.Remaining(),
			ResetAt: time.UnixMicro(r.ResetAt()).UTC()})
	}
	return out, nil
}

func tierName(t *limit.Tier) string {
	if t.Calendar != nil {
		return t.Calendar.String()
	}
	return limit.DurationText(t.Period)
}

// changed looks before and after. do is given the time by the store's clock.
func (k *counters) changed(ctx context.Context, do func(now int64) error) (*Response, error) {
	before, err := k.look(ctx)
	if err != nil {
		return nil, err
	}
	if err := do(before.At.UnixMicro()); err != nil {
		return nil, err
	}
	after, err := k.look(ctx)
	if err != nil {
		return nil, err
	}
	for i := range after.Counters {
		after.Counters[i].UsedBefore = &before.Counters[i].Used
	}
	after.Notes = append(after.Notes, notReached...)
	return after, nil
}

func (s *Service) failed(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if limit.Answered(err) {
		s.c.Log.ErrorContext(ctx, "the cell's store answered that it cannot do this", "error", err)
		return call.Refuse(call.Invalid, "the cell's store cannot do this: %v", err)
	}
	s.c.Log.ErrorContext(ctx, "the cell's store failed", "error", err)
	return call.Refuse(call.Unavailable, "the cell's store did not answer")
}
