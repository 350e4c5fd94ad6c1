package authorizer

import (
	"context"
	"errors"
	"fmt"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/plan"
	"github.com/sluicelimits/sluice/internal/request/answer"
	"github.com/sluicelimits/sluice/internal/request/identity"
	"github.com/sluicelimits/sluice/internal/request/identity/token"
)

var errNobody = errors.New("there are plans or tenants, and neither an issuer of tokens nor an API key nor an " +
	"anonymousPlan: nobody can call")

// identify is steps 3 and 4: it finds out who calls, and returns whose counters are charged and the limits that apply.
// The limits are nil for an anonymous call without a plan. They are nil, too, if the kind is not answer.Allowed.
func (a *Authorizer) identify(ctx context.Context, out *Answer, current Configuration) (
	owner limit.Owner, limits *plan.Set, kind answer.Kind) {
	if out.request.Identify != nil {
		return a.identifyByHost(ctx, out, current)
	}
	if a.config.Tokens == nil && !current.HasKeys() {
		return ignoreCredentials(ctx, out, current)
	}
	presented, err := identity.FindCredentials(out.request.Header)
	switch {
	case err != nil:
		return limit.Owner{}, nil, out.refuseCredential(err)
	case !presented.Any():
		return findAnonymousPlan(ctx, out, current)
	}
	if kind := a.verifyCredentials(ctx, out, current, presented); kind != answer.Allowed {
		return limit.Owner{}, nil, kind
	}
	return findTenant(ctx, out, current)
}

// identifyByHost is steps 3 and 4 if the host has an authentication of its own.
func (a *Authorizer) identifyByHost(ctx context.Context, out *Answer, current Configuration) (
	limit.Owner, *plan.Set, answer.Kind) {
	caller, err := out.request.Identify(ctx)
	switch {
	case errors.Is(err, ErrNoCredential):
		return findAnonymousPlan(ctx, out, current)
	case errors.Is(err, ErrNotLoaded), err != nil && ctx.Err() != nil:
		return limit.Owner{}, nil, out.failIdentification(err)
	case err != nil:
		out.Err = err
		return limit.Owner{}, nil, answer.BadCredential
	}
	out.caller = &caller
	out.Tenant, out.Subject, out.KeyID = caller.Tenant, caller.Subject, caller.KeyID
	out.attributes.Subject, out.attributes.APIKey = out.Subject, out.KeyID
	if caller.Tenant == "" || len(caller.Tenant) > limit.MaxNameBytes {
		out.Err = ErrBadTenant
		return limit.Owner{}, nil, answer.UnknownTenant
	}
	owner, limits, kind := findTenant(ctx, out, current)
	if kind != answer.UnknownTenant || caller.Plan == "" {
		return owner, limits, kind
	}
	if caller.Limits == nil {
		out.Err = fmt.Errorf("the program gave the tenant the plan %.100q, and the plans have no plan of this id",
			caller.Plan)
		return limit.Owner{}, nil, answer.NoPlan
	}
	out.Plan = caller.Plan
	return limit.Owner{Kind: limit.Tenant, Name: caller.Tenant}, caller.Limits, answer.Allowed
}

// verifyCredentials checks the JWT, the API key, or both, and writes to out whom they identify. Every credential that
// is presented must be good. If both are presented, the JWT names tenant and subject, the key must be of the same
// tenant, and limits per api_key count the key.
//
// A bearer credential is taken for an API key if it does not look like a JWT, or if no JWT is accepted.
func (a *Authorizer) verifyCredentials(ctx context.Context, out *Answer, current Configuration,
	presented identity.Credentials) answer.Kind {
	key := presented.Key
	hasToken := a.config.Tokens != nil && token.Shaped(presented.Bearer)
	switch {
	case hasToken:
		if kind := a.verifyToken(ctx, out, presented.Bearer); kind != answer.Allowed {
			return kind
		}
	case presented.Bearer != "" && key != "" && presented.Bearer != key:
		return out.refuseCredential(errTwoKeys)
	case presented.Bearer != "":
		key = presented.Bearer
	}
	if key != "" {
		if kind := verifyKey(ctx, out, current, key, hasToken); kind != answer.Allowed {
			return kind
		}
	}
	out.attributes.Subject, out.attributes.APIKey = out.Subject, out.KeyID
	return answer.Allowed
}

// verifyToken verifies a JWT and writes its claims to out.
func (a *Authorizer) verifyToken(ctx context.Context, out *Answer, jwt string) answer.Kind {
	claims, err := a.config.Tokens.Verify(ctx, jwt, out.At)
	if errors.Is(err, token.ErrKeysUnavailable) {
		return out.failIdentification(err)
	}
	if err != nil {
		return out.refuseCredential(err)
	}
	out.claims, out.Tenant, out.Subject = claims, claims.Tenant, claims.Subject
	return answer.Allowed
}

// verifyKey verifies an API key and writes its id to out. If a JWT was verified before, the key must be of the JWT's
// tenant. Otherwise the key names the tenant and the subject.
func verifyKey(ctx context.Context, out *Answer, current Configuration, key string, hasToken bool) answer.Kind {
	stored, err := current.Key(ctx, key, out.At)
	switch {
	case errors.Is(err, ErrNotLoaded):
		return out.failIdentification(err)
	case err != nil && !hasToken && token.Shaped(key):
		return out.refuseCredential(errTokenUnwanted)
	case err != nil:
		return out.refuseCredential(err)
	case hasToken && stored.Tenant != out.Tenant:
		return out.refuseCredential(errOtherTenant)
	}
	out.KeyID = stored.ID
	if !hasToken {
		out.Tenant, out.Subject = stored.Tenant, stored.Subject
	}
	return answer.Allowed
}

// findTenant is step 4: it looks up the tenant that a credential or the host named, and returns the limits of its plan.
func findTenant(ctx context.Context, out *Answer, current Configuration) (limit.Owner, *plan.Set, answer.Kind) {
	tenant, err := current.Tenant(ctx, out.Tenant)
	switch {
	case err != nil:
		return limit.Owner{}, nil, out.failIdentification(err)
	case tenant == nil:
		return limit.Owner{}, nil, answer.UnknownTenant
	case tenant.Suspended:
		return limit.Owner{}, nil, answer.SuspendedTenant
	case tenant.Plan == "":
		return limit.Owner{}, nil, answer.NoPlan
	}
	out.Plan = tenant.Plan
	return limit.Owner{Kind: limit.Tenant, Name: tenant.ID}, tenant.Limits(out.At), answer.Allowed
}

// findAnonymousPlan returns the limits of the anonymousPlan, for a call without a credential. If there is no such plan,
// the call is denied.
func findAnonymousPlan(ctx context.Context, out *Answer, current Configuration) (limit.Owner, *plan.Set, answer.Kind) {
	id, limits, err := current.Anonymous(ctx)
	switch {
	case err != nil:
		return limit.Owner{}, nil, out.failIdentification(err)
	case limits == nil:
		out.Reason = reasonNone
		out.acceptsKeys = out.authorizer.config.Tokens == nil || current.HasKeys()
		return limit.Owner{}, nil, answer.NoCredential
	}
	out.Anonymous, out.Plan = true, id
	return limit.Owner{Kind: limit.Anonymous}, limits, answer.Allowed
}

// ignoreCredentials is step 3 if there is neither an issuer of JWTs nor an API key. A credential in the request is then
// meant for somebody else, such as the backend. The call is anonymous whatever the credential is.
//
// Without an anonymousPlan, the call passes under no plan. It is denied, however, if there are plans or tenants: the
// operator wrote limits, and letting everybody pass would ignore them.
func ignoreCredentials(ctx context.Context, out *Answer, current Configuration) (limit.Owner, *plan.Set, answer.Kind) {
	owner, limits, kind := findAnonymousPlan(ctx, out, current)
	if kind != answer.NoCredential {
		return owner, limits, kind
	}
	if current.HasPlans() {
		out.Reason, out.Err = reasonNobody, errNobody
		return owner, limits, kind
	}
	out.Anonymous, out.Reason = true, ""
	return limit.Owner{Kind: limit.Anonymous}, nil, answer.Allowed
}

// refuseCredential answers a bad credential. It removes from the answer what a good credential beside it said, because
// nobody has shown to be that caller.
func (a *Answer) refuseCredential(err error) answer.Kind {
	a.Tenant, a.Subject, a.KeyID = "", "", ""
	a.claims = token.Claims{}
	a.Reason, a.Err = reasonOf(err)
	return answer.BadCredential
}

// failIdentification answers a request whose caller could not be looked up. The credential may be good, so the client
// is told to try again.
func (a *Answer) failIdentification(err error) answer.Kind {
	a.Err = err
	a.Tenant, a.Subject, a.KeyID = "", "", ""
	a.wait = answer.Wait{Micros: defaultRetryAfter.Microseconds(), Known: true}
	return answer.Unidentified
}
