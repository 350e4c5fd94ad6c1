package sluice

import (
	"net/http"
	"slices"
	"time"

	"github.com/sluicelimits/sluice/authorizer"
	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/request/answer"
)

// Reason says why a request was denied. The texts are stable, for logs and metrics.
type Reason string

// The reasons, with the HTTP status of each.
const (
	Allowed        Reason = "allowed"
	Limited        Reason = "limited"    // 429, a limit of the plan
	AddressLimited Reason = "ip_limited" // 429, one of the ipLimits
	NeverFits      Reason = "never_fits" // 429, the cost is above what a limit can ever hold: no wait helps
	// 429: the Store did not answer, and a limit says `onStoreFailure: closed`
	Unavailable   Reason = "unavailable"
	Unidentified  Reason = "unidentified"   // 429, who calls could not be looked up in time
	NoCredential  Reason = "no_credential"  // 401, nothing says who calls, and the plans have no anonymousPlan
	BadCredential Reason = "bad_credential" // 401
	// 403: the plans do not list the tenant, and Identity.Plan is not given; or the tenant's name is "" or too long
	UnknownTenant   Reason = "unknown_tenant"
	SuspendedTenant Reason = "suspended_tenant" // 403
	NoPlan          Reason = "no_plan"          // 403, the tenant has no plan, or one that is not there
	NoRoute         Reason = "no_route"         // 404, the plans declare routes and none matches
	NotHere         Reason = "not_here"         // 429, another cell grants this
	Internal        Reason = "internal"         // 500, a request that the limiter cannot decide; Err says why
)

// Decision is the outcome of one request.
type Decision struct {
	Allowed bool
	Reason  Reason

	Tenant, Subject, KeyID, Plan string // "" if not known
	// Anonymous says that the caller is not identified: the anonymousPlan applies, or ipLimits alone.
	Anonymous   bool
	StoreFailed bool // the Store did not answer, and each limit's onStoreFailure was applied

	// Limit is the binding limit: the one that denied, or else the one with the smallest part left. It is "" if no
	// limit was checked. It is named as in the headers: the id of the limit, "id/period" if the limit has several
	// tiers, and "ip:id" for one of the ipLimits.
	Limit      string
	Unit       string        // what Limit counts, as in "requests" or "tokens"; "" if no limit was checked
	Capacity   int64         // the most units that Limit can hold
	Remaining  int64         // how many of these units are left
	ResetAfter time.Duration // until Limit is as if it had never been used, if nobody spends meanwhile

	// RetryAfter is the exact wait until this request fits all limits, if nobody else spends. It is 0 if the request is
	// allowed, or if no wait helps.
	RetryAfter time.Duration

	// Shadowed are the ids of the limits in mode shadow that would have denied the request.
	Shadowed []string

	// Err says why the reason is Unidentified or Internal, if that is known. If the reason is BadCredential, Err names
	// the check that failed (such as the expiry, audience or signature of a JWT), and contains nothing that the client
	// sent. The limiter logs such errors, too, at most one a second of a kind. If Request.Identify refused the caller,
	// Err is its error, and is not logged. If the reason is NoCredential, Err is set if the configuration has no way to
	// identify anybody. If the reason is NoPlan, Err names the Identity.Plan that is not there. The limiter logs these
	// two itself, once. It is for logs, not for clients.
	Err error

	kind        answer.Kind
	header      answer.Header
	problem     []byte
	reservation Reservation
}

// Status returns the HTTP status of the answer. It is 200 if the request is allowed.
func (d *Decision) Status() int { return d.kind.Status() }

// SetHeaders sets X-RateLimit-Limit, X-RateLimit-Remaining, X-RateLimit-Reset, RateLimit and RateLimit-Policy in the
// headers of a response, and Retry-After if the request is denied and a wait helps. It replaces values that are there,
// and adds the names to Access-Control-Expose-Headers.
func (d *Decision) SetHeaders(h http.Header) { d.header.Set(h) }

// Problem returns the body of a denial, of type application/problem+json (RFC 9457). It is nil if the request is
// allowed.
func (d *Decision) Problem() []byte { return slices.Clone(d.problem) }

// decisionOf copies what is needed after the answer is released.
func decisionOf(a *authorizer.Answer) Decision {
	d := Decision{Allowed: a.Allowed(), Reason: Reason(a.Kind.String()), Tenant: a.Tenant, Subject: a.Subject,
		KeyID: a.KeyID, Plan: a.Plan,
		Anonymous: a.Anonymous, StoreFailed: a.StoreFailed, Err: a.Err, kind: a.Kind, header: a.Header}
	all := a.Decision()
	if in, r := answer.Binding(a.IPDecision(), all); r != nil {
		d.Limit = answer.PolicyName(r.Tier, in.Owner.Kind == limit.Address)
		d.Unit = r.Limit().Unit
		d.Capacity, d.Remaining = r.Tier.Capacity(), r.Remaining()
		d.ResetAfter = time.Duration(max(0, r.ResetAt()-in.Now)) * time.Microsecond
	}
	if !d.Allowed {
		d.RetryAfter, _ = a.RetryAfter()
		d.problem = a.AppendProblem(make([]byte, 0, 768))
		return d
	}
	if all == nil {
		return d
	}
	for i := range all.Results {
		if r := &all.Results[i]; r.Shadow() && !r.Admits && !slices.Contains(d.Shadowed, r.Limit().ID) {
			d.Shadowed = append(d.Shadowed, r.Limit().ID)
		}
	}
	return d
}

// refusal returns the decision about a request that no limiter could check.
func refusal(err error) Decision {
	p := answer.Problem{Kind: answer.Internal, Instance: answer.NewInstance()}
	return Decision{Reason: Internal, Err: err, kind: answer.Internal, problem: p.Append(nil)}
}
