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
// Each use is an item in the table operations: version 1 says who asks for what and why, and is written before anything is
// done; version 2 says what came of it. An operation of which there is only version 1 was cut, and may have had its effect.
//
// # What is reached
//
// An operation reaches what the cell's store has. It does not reach
//
//   - units that instances have leased: they are spent within the lease's life, 10 s at most, and count as used until then;
//   - denials that instances remember, 5 s at most, and their backstops while the store is away;
//   - other cells: each has counters of its own, and a quota's are in the tenant's home cell only;
//   - counters per address: these are named by a keyed hash, which operators do not have.
//
// Reset works on fixed_window, sliding_window, sliding_buckets, quota and token_bucket. A sliding_log's units are stored under
// the times at which they came, and a leaky_bucket's slot never reaches further than its next one or few requests: neither
// can be emptied through what stores offer. Refund works on fixed_window, sliding_window and quota, whose units have a window that
// can be named; buckets refill by themselves, and can be reset or boosted.
package ops

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/sluicelimits/sluice/events"
	"github.com/sluicelimits/sluice/internal/admin/call"
	"github.com/sluicelimits/sluice/internal/control"
	"github.com/sluicelimits/sluice/internal/limit"
	"github.com/sluicelimits/sluice/internal/plan"
	"github.com/sluicelimits/sluice/internal/route"
)

// Config sets up a Service.
type Config struct {
	Cell   string         // required
	Store  limit.Store    // where the cell counts, without leases, backstop or cache in front; required
	Tables control.Tables // for the table operations; required

	// Tenant is a tenant with the limits that the cell enforces; nil where there is none. Required.
	Tenant func(ctx context.Context, id string) (*plan.Tenant, error)

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

// Counters names counters of a tenant. Without a path they are those of the limits per tenant, whatever their match. With
// one they are those that a request like this would be charged to.
type Counters struct {
	Tenant  string `json:"tenant"`
	Limit   string `json:"limit,omitempty"` // empty: all limits; required for what changes anything
	Method  string `json:"method,omitempty"`
	Path    string `json:"path,omitempty"`
	Subject string `json:"subject,omitempty"`
	APIKey  string `json:"api_key,omitempty"` // the id of a key, never a key
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
	Tenant    string    `json:"tenant"`
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
	return s.audited(ctx, actor, "peek", &asked, func(ctx context.Context, req *limit.Request) (*Response, error) {
		return s.look(ctx, r.Tenant, req)
	})
}

// notReached is said wherever counters were changed.
var notReached = []string{
	"units that instances have leased count as used until their leases end, within 10 s",
	"instances may go on denying for up to 5 s out of what they remember",
	"other cells have counters of their own; a quota is counted in the tenant's home cell only",
}

// Reset empties counters. What is charged while it goes on may be forgotten with the rest, or stay.
func (s *Service) Reset(ctx context.Context, actor string, r *Counters) (*Response, error) {
	if r.Units != 0 {
		return nil, call.Refuse(call.Invalid, "units go with a refund")
	}
	if err := r.changes(); err != nil {
		return nil, err
	}
	return s.audited(ctx, actor, "reset", r, func(ctx context.Context, req *limit.Request) (*Response, error) {
		return s.changed(ctx, r.Tenant, req, func(now int64) error { return s.reset(ctx, req, now) })
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
	return s.audited(ctx, actor, "refund", r, func(ctx context.Context, req *limit.Request) (*Response, error) {
		if err := only(req, "refunded", limit.FixedWindow, limit.SlidingWindow, limit.Quota); err != nil {
			return nil, err
		}
		return s.changed(ctx, r.Tenant, req, func(now int64) error {
			return s.adjust(ctx, req, func(*limit.Tier) limit.Ahead { return limit.Ahead{Adjust: -r.Units, AdjustAt: now} })
		})
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

// only refuses limits with a tier that counts in another way.
func only(req *limit.Request, what string, algorithms ...limit.Algorithm) error {
	for _, c := range req.Charges {
		for i := range c.Limit.Tiers {
			if a := c.Limit.Tiers[i].Algorithm; !slices.Contains(algorithms, a) {
				return call.Refuse(call.Unsupported, "limit %s: a %s cannot be %s; nothing was changed", c.Limit.ID, a, what)
			}
		}
	}
	return nil
}

// charges are the counters that are meant, each asked for one unit.
func (s *Service) charges(ctx context.Context, r *Counters) (*limit.Request, error) {
	if err := r.check(); err != nil {
		return nil, err
	}
	tenant, err := s.c.Tenant(ctx, r.Tenant)
	switch {
	case err != nil:
		s.c.Log.ErrorContext(ctx, "a tenant could not be read", "tenant", r.Tenant, "error", err)
		return nil, call.Refuse(call.Unavailable, "the cell's configuration did not answer; try again")
	case tenant == nil:
		return nil, call.Refuse(call.NotFound, "cell %s knows no tenant %q", s.c.Cell, r.Tenant)
	}
	set := tenant.Limits(s.c.Now())
	if r.Limit != "" && !slices.ContainsFunc(set.Limits, func(e *plan.Effective) bool { return e.Limit.ID == r.Limit }) {
		return nil, call.Refuse(call.NotFound, "tenant %q has no limit %.64q", r.Tenant, r.Limit)
	}
	req := &limit.Request{Owner: limit.Owner{Kind: limit.Tenant, Name: r.Tenant}}
	if r.Path == "" {
		req.Charges = r.ofTenant(set)
	} else {
		req.Charges = r.ofRequest(set)
	}
	if r.Limit != "" && len(req.Charges) == 0 {
		return nil, call.Refuse(call.Invalid, "limit %q has no such counter: it is off, does not apply to the request, or is not per tenant and needs a path", r.Limit)
	}
	return req, nil
}

// check refuses what names no counter of any tenant.
func (r *Counters) check() error {
	if err := events.CheckKey(control.Tenants, r.Tenant); err != nil {
		return call.Refuse(call.Invalid, "tenant: %v", err)
	}
	switch {
	case len(r.Subject) > limit.MaxNameBytes:
		return call.Refuse(call.Invalid, "subject: %d bytes, want at most %d", len(r.Subject), limit.MaxNameBytes)
	case strings.HasPrefix(r.APIKey, "slk_"):
		return call.Refuse(call.Invalid, "api_key: want the id of a key, not the key")
	case len(r.APIKey) > limit.MaxNameBytes:
		return call.Refuse(call.Invalid, "api_key: %d bytes, want at most %d", len(r.APIKey), limit.MaxNameBytes)
	case r.Path == "" && (r.Method != "" || r.Subject != "" || r.APIKey != ""):
		return call.Refuse(call.Invalid, "path is missing: a method, a subject and an API key say which counter of a request with that path")
	case r.Path != "" && (len(r.Path) > 4096 || r.Path[0] != '/' || len(r.Method) > 32):
		return call.Refuse(call.Invalid, "path: want one such as /v1/products, of at most 4096 bytes, and a method of at most 32")
	}
	return nil
}

// ofTenant are the charges of the limits that have one counter for the tenant.
func (r *Counters) ofTenant(set *plan.Set) (out []limit.Charge) {
	for _, e := range set.Limits {
		if e.Limit.Per == limit.PerTenant && e.Limit.Mode != limit.Off && (r.Limit == "" || r.Limit == e.Limit.ID) {
			out = append(out, limit.Charge{Limit: e.Limit, Cost: 1})
		}
	}
	return out
}

// ofRequest are the charges of a request.
func (r *Counters) ofRequest(set *plan.Set) (out []limit.Charge) {
	path := route.Clean(r.Path)
	for _, c := range set.AppendCharges(nil, &plan.Attributes{Method: cmp.Or(r.Method, "GET"), Path: &path, Subject: r.Subject, APIKey: r.APIKey}) {
		if r.Limit == "" || c.Limit.ID == r.Limit {
			c.Cost = 1
			out = append(out, c)
		}
	}
	return out
}

// look peeks.
func (s *Service) look(ctx context.Context, tenant string, req *limit.Request) (*Response, error) {
	out := &Response{Cell: s.c.Cell, Tenant: tenant, At: s.c.Now().UTC(), Counters: []Counter{}}
	if len(req.Charges) == 0 {
		return out, nil
	}
	var d limit.Decision
	if err := s.c.Store.Peek(ctx, req, s.c.Now(), &d); err != nil {
		return nil, s.failed(ctx, err)
	}
	out.At = time.UnixMicro(d.Now).UTC()
	for i := range d.Results {
		r := &d.Results[i]
		l := r.Limit()
		out.Counters = append(out.Counters, Counter{Limit: l.ID, Tier: tierName(r.Tier), Algorithm: r.Tier.Algorithm.String(), Mode: l.Mode.String(),
			Capacity: r.Tier.Capacity(), Used: r.Used(), Remaining: r.Remaining(), ResetAt: time.UnixMicro(r.ResetAt()).UTC()})
	}
	return out, nil
}

func tierName(t *limit.Tier) string {
	if t.Calendar != nil {
		return t.Calendar.String()
	}
	return call.Duration(t.Period)
}

// changed looks before and after. do is given the time by the store's clock.
func (s *Service) changed(ctx context.Context, tenant string, req *limit.Request, do func(now int64) error) (*Response, error) {
	before, err := s.look(ctx, tenant, req)
	if err != nil {
		return nil, err
	}
	if err := do(before.At.UnixMicro()); err != nil {
		return nil, err
	}
	after, err := s.look(ctx, tenant, req)
	if err != nil {
		return nil, err
	}
	for i := range after.Counters {
		after.Counters[i].UsedBefore = &before.Counters[i].Used
	}
	after.Notes = notReached
	return after, nil
}

func (s *Service) failed(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	s.c.Log.ErrorContext(ctx, "the cell's store failed", "error", err)
	return call.Refuse(call.Unavailable, "the cell's store did not answer")
}
