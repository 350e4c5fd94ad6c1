package authorizer

import (
	"context"
	"errors"
	"fmt"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/plan"
)

// forwardedFor is the header in which proxies say whose requests they pass on.
const forwardedFor = "X-Forwarded-For"

// ErrNoCredential is what [Request.Identify] returns if a request does not say who calls. The call is anonymous if
// the plans have an anonymousPlan; otherwise the call is denied.
var ErrNoCredential = errors.New("no credential")

// ErrBadTenant is [Answer.Err] if [Request.Identify] returned a tenant whose name counters cannot have.
var ErrBadTenant = fmt.Errorf("a tenant's name is 1..%d bytes", limit.MaxNameBytes)

// Request holds the parts of an HTTP request that a decision depends on. The host, which is the program that serves the
// request, fills it in.
type Request struct {
	Method string
	Path   string              // as sent: percent-encoded, not normalised, without the query
	Header map[string][]string // names in canonical form
	Peer   string              // address of the connection's other end, with or without port

	// AddressUnknown says that nobody knows the client's address. Peer means nothing then. If there are ipLimits, such
	// a request is denied with answer.Internal, because the operator attached the authorizer to an API that hides
	// addresses from it.
	AddressUnknown bool

	// SkipIPLimits says that ipLimits do not apply to the request. It is for a host that has admitted the caller
	// already. It may leave Peer empty if it knows no address.
	SkipIPLimits bool

	// Identify returns who calls, if the host has an authentication of its own. If nil, the credentials in Header
	// are verified. Identify is called at most once, after steps 1 and 2 let the request pass. It returns
	// ErrNoCredential if the request has no credential, and an error that wraps ErrNotLoaded if the caller could not be
	// looked up. Any other error means a bad credential, unless ctx has ended.
	Identify func(context.Context) (Caller, error)

	// Cost is how many units the request spends of each limit of the plan that counts requests. 0 means the cost that
	// the plan says. Costs is what the request spends by unit, such as "tokens", 0..2^40 of each; it may name
	// "requests" in place of Cost. A limit charges the cost in its own unit, or what the plan says if its unit is not
	// named. Neither may be the client's choice. [plan.CheckCosts] says what is wrong with them.
	Cost  int64
	Costs map[string]int64
}

// Caller is who calls, as the host's own authentication says.
type Caller struct {
	Tenant, Subject, KeyID string
	Claims                 map[string]string // the values of limits per claim, by the claim's name

	// Plan is the id of the plan that applies if the configuration does not know the tenant, and Limits are its limits.
	// Limits is nil if there is no such plan.
	Plan   string
	Limits *plan.Set
}
