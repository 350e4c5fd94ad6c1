package operate

import (
	"cmp"
	"context"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/sluicelimits/sluice/events"
	"github.com/sluicelimits/sluice/internal/control"
	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/plan"
	"github.com/sluicelimits/sluice/internal/plan/route"
)

// CellConfig sets up a Cell.
type CellConfig struct {
	Cell   string         // required
	Store  limit.Store    // the cell's counters, without leases, backstop or cache; required
	Tables control.Tables // for the table operations; required

	// Tenant returns a tenant with the limits that the cell enforces; nil if there is none. Required.
	Tenant func(ctx context.Context, id string) (*plan.Tenant, error)

	Now func() time.Time // default time.Now
	Log *slog.Logger     // default slog.Default()
}

// Cell carries out operations. It is safe for concurrent use. Make it with NewCell.
type Cell struct{ c CellConfig }

// NewCell makes a service. It does not read or write anything.
func NewCell(c CellConfig) *Cell {
	if c.Now == nil {
		c.Now = time.Now
	}
	c.Log = cmp.Or(c.Log, slog.Default())
	return &Cell{c}
}

// Mux returns the operations of a cell's API, for Lambda and Local.
func (s *Cell) Mux() *Mux { return newMux(s, s.c.Log, cellTable) }

// Counters names counters of a tenant. Without a path these are the counters of the limits per tenant, whatever their
// match. With a path these are the counters that such a request would be charged to.
type Counters struct {
	Tenant  string `json:"tenant"`
	Limit   string `json:"limit,omitempty"` // empty: all limits; required for a reset and a refund
	Method  string `json:"method,omitempty"`
	Path    string `json:"path,omitempty"`
	Subject string `json:"subject,omitempty"`
	APIKey  string `json:"api_key,omitempty"` // the id of a key, never the key itself
	Reason  string `json:"reason,omitempty"`  // required for a reset and a refund
	Units   int64  `json:"units,omitempty"`   // of a refund: for each tier, 1..limit.MaxUnits
}

// Counter is the counter of one tier of a limit.
type Counter struct {
	Limit     string `json:"limit"`
	Tier      string `json:"tier"` // what distinguishes the tier from others, such as its period
	Algorithm string `json:"algorithm"`
	Mode      string `json:"mode"`
	Unit      string `json:"unit,omitempty"` // what is counted; "": requests
	Capacity  int64  `json:"capacity"`       // units
	Used      int64  `json:"used"`           // units, including leased ones
	Remaining int64  `json:"remaining"`
	// when the counter is in the state of an unused one, if nothing more is charged
	ResetAt    time.Time `json:"reset_at"`
	UsedBefore *int64    `json:"used_before,omitempty"` // of a reset or a refund: Used before it
}

// CountersResponse holds the counters after the operation.
type CountersResponse struct {
	Operation string    `json:"operation"` // key in the table operations
	Cell      string    `json:"cell"`
	Tenant    string    `json:"tenant"`
	At        time.Time `json:"at"` // by the store's clock
	Counters  []Counter `json:"counters"`
	Notes     []string  `json:"notes,omitempty"` // what the operation did not reach
}

// Peek reads counters.
func (s *Cell) Peek(ctx context.Context, actor string, r *Counters) (*CountersResponse, error) {
	if r.Units != 0 {
		return nil, Refuse(Invalid, "units are only for a refund")
	}
	asked := *r
	asked.Reason = cmp.Or(r.Reason, "peek")
	return s.audited(ctx, actor, "peek", &asked, func(k *counters, ctx context.Context) (*CountersResponse, error) {
		out, err := k.report(ctx)
		if err == nil && slices.ContainsFunc(out.Counters, func(c Counter) bool { return c.Used > 0 }) {
			out.Notes = append(out.Notes, leasesAreUsed)
		}
		return out, err
	})
}

// leasesAreUsed is part of the answer to a peek at counters that are used. A counter does not tell which of its units
// are leased.
const leasesAreUsed = "used may include units that instances have leased and not spent. Leases end within 10 s, " +
	"those of another cell's quota within 60 s. What an instance did not spend it gives back with its next call for " +
	"the counter; without one within a minute, it stays used until it expires or refills"

// notReached is part of every answer to a reset or a refund.
var notReached = []string{
	"units that instances have leased: a token_bucket's count as used until the leases end; others may be spent in " +
		"addition, or be given back from what was counted later",
	"leases end within 10 s, those of another cell's quota within 60 s",
	"instances may go on denying for up to 5 s because of denials that they remember",
	"other cells have counters of their own; only a quota is counted in the tenant's home cell, whichever cell is " +
		"asked",
}

// Reset empties counters. What is charged during the reset may be removed too, or may stay.
func (s *Cell) Reset(ctx context.Context, actor string, r *Counters) (*CountersResponse, error) {
	if r.Units != 0 {
		return nil, Refuse(Invalid, "units are only for a refund")
	}
	if err := r.checkChange(); err != nil {
		return nil, err
	}
	return s.audited(ctx, actor, "reset", r, func(k *counters, ctx context.Context) (*CountersResponse, error) {
		return k.changeAndReport(ctx, func(now int64) error { return k.reset(ctx, now) })
	})
}

// Refund gives units back to each tier of the limit, in the present window. A counter does not go below zero. A
// repeated refund gives back units once more: if an answer was lost, peek first.
func (s *Cell) Refund(ctx context.Context, actor string, r *Counters) (*CountersResponse, error) {
	if r.Units < 1 || r.Units > limit.MaxUnits {
		return nil, Refuse(Invalid, "units: %d, want 1..%d", r.Units, int64(limit.MaxUnits))
	}
	if err := r.checkChange(); err != nil {
		return nil, err
	}
	return s.audited(ctx, actor, "refund", r, func(k *counters, ctx context.Context) (*CountersResponse, error) {
		return k.changeAndReport(ctx, func(now int64) error { return k.refund(ctx, r.Units, now) })
	})
}

// checkChange checks the parameters that a reset and a refund require.
func (r *Counters) checkChange() error {
	if r.Limit == "" {
		return Refuse(Invalid, "limit is missing")
	}
	if err := events.CheckText(r.Reason); err != nil {
		return Refuse(Invalid, "reason: %v", err)
	}
	return nil
}

// counters are the counters that an operation is about: a request of a tenant that would charge one unit to each.
type counters struct {
	*Cell
	tenant string
	req    *limit.Request
	notes  []string // for CountersResponse.Notes
}

// find finds the counters that r names.
func (s *Cell) find(ctx context.Context, r *Counters) (*counters, error) {
	k := &counters{Cell: s, tenant: r.Tenant,
		req: &limit.Request{Owner: limit.Owner{Kind: limit.Tenant, Name: r.Tenant}}}
	set, err := s.ofTenant(ctx, r.Tenant)
	if err != nil {
		return nil, err
	}
	if r.Limit != "" && !slices.ContainsFunc(set.Limits,
		func(e *plan.Effective) bool { return e.Limit.ID == r.Limit }) {
		return nil, Refuse(NotFound, "tenant %q has no limit %.64q", r.Tenant, r.Limit)
	}
	if r.Path == "" {
		k.req.Charges = r.perTenant(set)
	} else {
		k.req.Charges = r.ofRequest(set)
	}
	if r.Limit != "" && len(k.req.Charges) == 0 {
		return nil, Refuse(Invalid, "limit %q has no such counter: it is off, does not apply to the "+
			"request, is per address, or is not per tenant and needs a path", r.Limit)
	}
	return k, k.removeUnreachable(set, r.Limit)
}

// removeUnreachable removes limits of which the cell grants nothing, since its store does not have their counters. If
// the operation names such a limit, removeUnreachable returns an error.
func (k *counters) removeUnreachable(set *plan.Set, named string) error {
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
			why = Refuse(Unsupported, "cell %s grants nothing of limit %q and cannot reach its counters "+
				"(%s): ask a cell that grants it; nothing was changed", k.c.Cell, e.Limit.ID, e.Share().Why)
		}
	}
	switch {
	case len(ids) == 0:
		return nil
	case named != "":
		return why
	}
	k.notes = append(k.notes, "left out, because this cell grants nothing of them and cannot reach their counters: "+
		strings.Join(ids, ", "))
	return nil
}

// ofTenant returns the limits of a tenant, or a refusal if there is no such tenant.
func (s *Cell) ofTenant(ctx context.Context, id string) (*plan.Set, error) {
	tenant, err := s.c.Tenant(ctx, id)
	switch {
	case err != nil:
		s.c.Log.ErrorContext(ctx, "a tenant of the cell's configuration cannot be read", "tenant", id, "error", err)
		return nil, Refuse(Unavailable, "the cell's configuration did not answer; try again")
	case tenant == nil:
		return nil, Refuse(NotFound, "cell %s has no tenant %q", s.c.Cell, id)
	}
	return tenant.Limits(s.c.Now()), nil
}

// check refuses values that no counter can have.
func (r *Counters) check() error {
	if err := events.CheckKey(control.Tenants, r.Tenant); err != nil {
		return Refuse(Invalid, "tenant: %v", err)
	}
	switch {
	case len(r.Subject) > limit.MaxNameBytes:
		return Refuse(Invalid, "subject: %d bytes, want at most %d", len(r.Subject), limit.MaxNameBytes)
	case strings.HasPrefix(r.APIKey, "slk_"):
		return Refuse(Invalid, "api_key: want the id of a key, not the key")
	case len(r.APIKey) > limit.MaxNameBytes:
		return Refuse(Invalid, "api_key: %d bytes, want at most %d", len(r.APIKey), limit.MaxNameBytes)
	case r.Path != "" && (len(r.Path) > 4096 || r.Path[0] != '/' || len(r.Method) > 32):
		return Refuse(Invalid, "path: want a path such as /v1/products of at most 4096 bytes, and a "+
			"method of at most 32 bytes")
	}
	if r.Path == "" && (r.Method != "" || r.Subject != "" || r.APIKey != "") {
		return Refuse(Invalid, "path is missing: a method, a subject and an API key select the counters of "+
			"a request, which needs a path")
	}
	return nil
}

// perTenant returns the charges of the limits that have one counter for the tenant.
func (r *Counters) perTenant(set *plan.Set) (out []limit.Charge) {
	for _, e := range set.Limits {
		if e.Limit.Per == limit.PerTenant && e.Limit.Mode != limit.Off && (r.Limit == "" || r.Limit == e.Limit.ID) {
			out = append(out, limit.Charge{Limit: e.Limit, Cost: 1})
		}
	}
	return out
}

// ofRequest returns the charges of a request, but for those to counters per address.
func (r *Counters) ofRequest(set *plan.Set) (out []limit.Charge) {
	path := route.Clean(r.Path)
	for _, c := range set.AppendCharges(nil, &plan.Attributes{Method: cmp.Or(r.Method, "GET"), Path: &path,
		Subject: r.Subject, APIKey: r.APIKey, Costs: set.UnitCosts()}) {
		perAddress := slices.Contains(strings.Split(c.Limit.Per, "+"), "ip")
		if !perAddress && (r.Limit == "" || c.Limit.ID == r.Limit) {
			c.Cost = 1
			out = append(out, c)
		}
	}
	return out
}

// report reads the counters and returns the answer that lists them.
func (k *counters) report(ctx context.Context) (*CountersResponse, error) {
	out := &CountersResponse{Cell: k.c.Cell, Tenant: k.tenant, At: k.c.Now().UTC(), Counters: []Counter{},
		Notes: k.notes}
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
			Unit: l.OtherUnit(), Capacity: r.Tier.Capacity(), Used: r.Used(),
			Remaining: r.Remaining(), ResetAt: time.UnixMicro(r.ResetAt()).UTC()})
	}
	return out, nil
}

func tierName(t *limit.Tier) string {
	if t.Calendar != nil {
		return t.Calendar.String()
	}
	return limit.DurationText(t.Period)
}

// changeAndReport calls do and returns an answer with the counters before and after. It passes the time by the store's
// clock to do, in µs since 1970.
func (k *counters) changeAndReport(ctx context.Context, do func(now int64) error) (*CountersResponse, error) {
	before, err := k.report(ctx)
	if err != nil {
		return nil, err
	}
	if err := do(before.At.UnixMicro()); err != nil {
		return nil, err
	}
	after, err := k.report(ctx)
	if err != nil {
		return nil, err
	}
	for i := range after.Counters {
		after.Counters[i].UsedBefore = &before.Counters[i].Used
	}
	after.Notes = append(after.Notes, notReached...)
	return after, nil
}

// failed logs the error of the cell's store and returns the refusal for the operator.
func (s *Cell) failed(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if limit.Answered(err) {
		s.c.Log.ErrorContext(ctx, "the cell's store refused an operation on counters", "error", err)
		return Refuse(Invalid, "the cell's store cannot do this: %v", err)
	}
	s.c.Log.ErrorContext(ctx, "the cell's store did not answer an operation on counters", "error", err)
	return Refuse(Unavailable, "the cell's store did not answer")
}
