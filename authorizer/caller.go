package authorizer

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/sluicelimits/sluice/internal/answer"
	"github.com/sluicelimits/sluice/internal/limit"
	"github.com/sluicelimits/sluice/internal/plan"
)

// ErrNoCredential is what [Request.Identify] returns where nothing says who calls: the call is anonymous where there is an
// anonymousPlan, and refused where there is none.
var ErrNoCredential = errors.New("no credential")

// ErrBadTenant is a tenant's name that counters cannot have.
var ErrBadTenant = fmt.Errorf("a tenant's name is 1..%d bytes", limit.MaxNameBytes)

// Caller is who calls, as somebody else has verified.
type Caller struct {
	Tenant, Subject, KeyID string
	Claims                 map[string]string // for limits per claim

	// Plan applies where the configuration does not know the tenant: its id, and its limits or nil where there is no such plan.
	Plan   string
	Limits *plan.Set
}

// identified is steps 3 and 4 where the host has its own authentication.
func (z *Authorizer) identified(ctx context.Context, a *Answer, c Configuration) (limit.Owner, *plan.Set, answer.Kind) {
	caller, err := a.request.Identify(ctx)
	switch {
	case errors.Is(err, ErrNoCredential):
		return z.anonymous(ctx, a, c)
	case errors.Is(err, ErrNotLoaded), err != nil && ctx.Err() != nil:
		return limit.Owner{}, nil, a.unidentified(err)
	case err != nil:
		a.Err = err
		return limit.Owner{}, nil, answer.BadCredential
	}
	a.caller = &caller
	a.Tenant, a.Subject, a.KeyID = caller.Tenant, caller.Subject, caller.KeyID
	a.attributes.Subject, a.attributes.APIKey = a.Subject, a.KeyID
	if caller.Tenant == "" || len(caller.Tenant) > limit.MaxNameBytes {
		a.Err = ErrBadTenant
		return limit.Owner{}, nil, answer.UnknownTenant
	}
	owner, set, kind := z.tenant(ctx, a, c)
	if kind != answer.UnknownTenant || caller.Plan == "" {
		return owner, set, kind
	}
	if caller.Limits == nil {
		return limit.Owner{}, nil, answer.NoPlan
	}
	a.Plan = caller.Plan
	return limit.Owner{Kind: limit.Tenant, Name: caller.Tenant}, caller.Limits, answer.Allowed
}

// claim is a claim of a verified token, or of the caller.
func (a *Answer) claim(name string) (string, bool) {
	if a.caller == nil {
		return a.claims.Claim(name)
	}
	value, ok := a.caller.Claims[name]
	return value, ok
}

// Peek answers as [Authorizer.Authorize] would, and charges nothing, anywhere.
func (z *Authorizer) Peek(ctx context.Context, req *Request) *Answer { return z.answer(ctx, req, true) }

// RetryAfter is the exact wait of a denial; false where no wait helps, or none is known.
func (a *Answer) RetryAfter() (time.Duration, bool) {
	return time.Duration(a.wait.Micros) * time.Microsecond, a.wait.Known
}
