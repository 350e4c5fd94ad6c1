// Package answer turns decisions into answers for clients: rate-limit headers and problem bodies.
//
// The headers are X-RateLimit-Limit, X-RateLimit-Remaining and X-RateLimit-Reset for the binding limit; RateLimit and
// RateLimit-Policy (draft-ietf-httpapi-ratelimit-headers-11, structured fields) for every enforcing limit; and
// Retry-After on a denial if a wait helps. The bodies are application/problem+json (RFC 9457). Shadow limits occur in
// neither.
package answer

import "net/http"

// Kind is the outcome of a request. It determines the answer.
type Kind uint8

// The kinds. Sluice answers all but Allowed itself, with a problem body.
const (
	Allowed         Kind = iota
	Limited              // 429 by a limit of the plan
	IPLimited            // 429 by an ipLimit, before authentication
	NeverFits            // 429, the cost is above what a limit can ever hold, so no wait helps
	Unavailable          // 429, the store of counters did not answer, and a limit says to deny then
	Unidentified         // 429, the caller could not be looked up in time
	NoCredential         // 401
	BadCredential        // 401
	UnknownTenant        // 403, the key is good but its tenant is not configured
	SuspendedTenant      // 403
	NoPlan               // 403, the tenant has no plan
	NoRoute              // 404, routes are declared and none matches
	TooLarge             // 413
	BadRequest           // 400
	LocalOnly            // 403, the live page answers this machine only
	UpstreamDown         // 502
	UpstreamTimeout      // 504
	Internal             // 500
	NotHere              // 429, this cell grants nothing of a limit, or less than the cost, and other cells do
	NoDecision           // 403, a backend received a request without a readable decision of the authorizer
	kindCount
)

// docs is the page that describes our own problem types.
const docs = "https://github.com/sluicelimits/sluice/blob/main/docs/problems.md#"

// quotaExceeded is the problem type that the draft of the rate-limit headers registers.
const quotaExceeded = "https://iana.org/assignments/http-problem-types#quota-exceeded"

type kind struct {
	name   string // stable, for logs and metrics
	status int
	typ    string // problem type URI
	title  string
	detail string // fixed text, never that of an error
}

var kinds = [kindCount]kind{
	Allowed: {"allowed", http.StatusOK, "", "", ""},
	Limited: {"limited", http.StatusTooManyRequests, quotaExceeded, "Rate limit exceeded", ""},
	IPLimited: {"ip_limited", http.StatusTooManyRequests, quotaExceeded, "Rate limit of this address exceeded",
		""},
	NeverFits: {"never_fits", http.StatusTooManyRequests, docs + "cost-above-limit",
		"Request costs more than a limit can ever allow", ""},
	Unavailable: {"unavailable", http.StatusTooManyRequests, docs + "limiter-unavailable",
		"Limits cannot be checked right now",
		"The counters could not be reached and a limit is set to deny then. Try again later."},
	Unidentified: {"unidentified", http.StatusTooManyRequests, docs + "caller-not-identified",
		"Caller cannot be identified right now",
		"The credential may be good: what it is checked against could not be read in time. Try again later."},
	NoCredential: {"no_credential", http.StatusUnauthorized, docs + "no-credential", "No credential",
		"The request does not say who calls."},
	BadCredential: {"bad_credential", http.StatusUnauthorized, docs + "bad-credential", "Credential not valid",
		"The credential is malformed, unknown, expired or revoked."},
	UnknownTenant: {"unknown_tenant", http.StatusForbidden, docs + "unknown-tenant", "Tenant not known",
		"The credential is valid, but its tenant is not configured here."},
	SuspendedTenant: {"suspended_tenant", http.StatusForbidden, docs + "tenant-suspended", "Tenant suspended",
		"The tenant is suspended. Ask whoever operates this API."},
	NoPlan: {"no_plan", http.StatusForbidden, docs + "no-plan", "Tenant without a plan",
		"The tenant has no plan, so nothing is allowed."},
	NoRoute: {"no_route", http.StatusNotFound, docs + "no-route", "No such route",
		"The API declares its routes, and none matches this method and path."},
	TooLarge: {"too_large", http.StatusRequestEntityTooLarge, docs + "too-large", "Request body too large",
		"The request body is larger than the gateway accepts."},
	BadRequest: {"bad_request", http.StatusBadRequest, docs + "bad-request", "Bad request",
		"This kind of request is not served."},
	LocalOnly: {"local_only", http.StatusForbidden, docs + "local-only", "Only from this machine",
		"The live page answers requests from the machine it runs on. See 'sluice dev --help', --live-page."},
	UpstreamDown: {"upstream_down", http.StatusBadGateway, docs + "upstream-down", "Upstream not reachable",
		"The request was allowed, but the service behind the gateway did not answer."},
	UpstreamTimeout: {"upstream_timeout", http.StatusGatewayTimeout, docs + "upstream-timeout", "Upstream too slow",
		"The request was allowed, but the service behind the gateway did not answer in time."},
	Internal: {"internal", http.StatusInternalServerError, docs + "internal", "Internal error",
		"The gateway failed on this request. Its log has the instance."},
	NotHere: {"not_here", http.StatusTooManyRequests, docs + "not-granted-here", "Not granted in this cell",
		"This cell grants nothing of a limit of the tenant's plan, or less than the request costs: another cell " +
			"does, or this one will. Try again later, or where the tenant is served."},
	NoDecision: {"no_decision", http.StatusForbidden, docs + "no-decision", "Request without a decision",
		"The request reached this service without a readable decision about its limits, so it is denied."},
}

// Kinds returns all kinds, for tables and tests.
func Kinds() []Kind {
	all := make([]Kind, kindCount)
	for i := range all {
		all[i] = Kind(i)
	}
	return all
}

// String returns a stable name for logs and metrics.
func (k Kind) String() string { return k.row().name }

// ParseKind is the inverse of String. It returns false for an unknown name.
func ParseKind(name string) (Kind, bool) {
	for i := range kinds {
		if kinds[i].name == name {
			return Kind(i), true
		}
	}
	return Internal, false
}

// Status returns the HTTP status of the answer. It is 200 for Allowed, but the upstream decides then.
func (k Kind) Status() int { return k.row().status }

// Type returns the URI of the problem type, or "" for Allowed.
func (k Kind) Type() string { return k.row().typ }

func (k Kind) row() *kind {
	if k >= kindCount {
		k = Internal
	}
	return &kinds[k]
}
