package sluice

import (
	"net/http"
	"slices"
	"time"

	"github.com/sluicelimits/sluice/authorizer"
	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/request/answer"
)

// Reason is why a request was denied. The texts are stable, for logs and metrics.
type Reason string

// The reasons, with the HTTP status of each.
const (
	Allowed        Reason = "allowed"
	Limited        Reason = "limited"    // 429, a limit of the plan
	AddressLimited Reason = "ip_limited" // 429, one of the ipLimits
	NeverFits      Reason = "never_fits" // 429, the cost is above what a limit can ever hold: no wait helps
	// 429, the Store did not answer, and a limit says `onStoreFailure: closed`
	Unavailable   Reason = "unavailable"
	Unidentified  Reason = "unidentified"   // 429, who calls could not be looked up in time
	NoCredential  Reason = "no_credential"  // 401, nothing says who calls, and the plans have no anonymousPlan
	BadCredential Reason = "bad_credential" // 401
	// 403, the plans do not list the tenant, and no Identity.Plan was given; or its name is "" or too long
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

	Tenant, Subject, KeyID, Plan string // "" where not known
	// the caller is not identified: under the anonymousPlan, or under ipLimits alone
	Anonymous   bool
	StoreFailed bool // the Store did not answer, and each limit's onStoreFailure was applied

	// Limit is the binding limit: the one that denied, or that has least left. It is "" where none was asked. It is
	// named as in the headers: the limit's id, with several tiers "id/period", one of the ipLimits "ip:id".
	Limit      string
	Capacity   int64         // the most units that Limit ever holds
	Remaining  int64         // of these, how many are left
	ResetAfter time.Duration // until Limit is as if it had never been used, if nobody spends

	// RetryAfter is the exact wait until this request fits all limits, if nobody else spends; 0 where it was allowed,
	// or no wait helps.
	RetryAfter time.Duration

	// Shadowed are the ids of the limits in mode shadow that would have denied.
	Shadowed []string

	// Err says why the reason is Unidentified or Internal, where that is known, and is the error of Request.Identify
	// where that refused. With the reason NoCredential it is set if the configuration has no way to identify anybody.
	// For logs, not for clients.
	Err error

	kind    answer.Kind
	header  answer.Header
	problem []byte
	receipt Receipt
}

// Receipt is the proof of what a decision charged. The zero Receipt is of nothing.
type Receipt struct{ inner *limit.Receipt }

// Receipt is for [Limiter.Refund]; the zero Receipt where nothing was charged.
func (d *Decision) Receipt() Receipt { return d.receipt }

// Status is the HTTP status of the answer: 200 where it is allowed.
func (d *Decision) Status() int { return d.kind.Status() }

// SetHeaders puts X-RateLimit-Limit, -Remaining and -Reset, RateLimit, RateLimit-Policy and, on a denial that waiting
// helps, Retry-After into the headers of a response, in place of what stands there, and names them in
// Access-Control-Expose-Headers.
func (d *Decision) SetHeaders(h http.Header) { d.header.Set(h) }

// Problem is the body of a denial, application/problem+json (RFC 9457); nil where it is allowed.
func (d *Decision) Problem() []byte { return slices.Clone(d.problem) }

// decisionOf copies what outlives the answer.
func decisionOf(a *authorizer.Answer, peek bool) Decision {
	d := Decision{Allowed: a.Allowed(), Reason: Reason(a.Kind.String()), Tenant: a.Tenant, Subject: a.Subject,
		KeyID: a.KeyID, Plan: a.Plan,
		Anonymous: a.Anonymous, StoreFailed: a.StoreFailed, Err: a.Err, kind: a.Kind, header: a.Header}
	all := a.Decision()
	if in, r := answer.Binding(a.IPDecision(), all); r != nil {
		d.Limit = answer.PolicyName(r.Tier, in.Owner.Kind == limit.Address)
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
	if !peek {
		d.receipt = Receipt{all.Receipt()}
	}
	return d
}

// refusal is the outcome where nothing could be asked.
func refusal(err error) Decision {
	p := answer.Problem{Kind: answer.Internal, Instance: answer.NewInstance()}
	return Decision{Reason: Internal, Err: err, kind: answer.Internal, problem: p.Append(nil)}
}
