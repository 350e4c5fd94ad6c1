// Package authorizer decides about one request: who sends it, which limits apply, and what to answer.
//
// [Authorizer.Authorize] takes a [Request] and returns an [Answer]. It knows neither HTTP servers nor the events of API
// Gateway. A [Handler] connects it to API Gateway: [Handler.Invoke] reads the event that a Lambda authorizer gets,
// calls Authorize, and encodes the Answer.
//
// # The steps of one request
//
// Authorize takes the configuration that is in force ([Source.Begin]) and calls decide, which goes through these steps.
// The first step that denies the request ends it.
//
//  1. chargeIPLimits charges the ipLimits of the client's address. This step comes first, so that every attempt of an
//     address is counted, and so that the ipLimits protect all other steps.
//  2. checkPath denies a path that can be read in too many ways. If routes are declared, it denies a request for any
//     other route. Clients who scan for routes have met the ipLimits before.
//  3. identify finds out who calls. The credential is a JWT, an API key, or both (verifyCredentials). If the host,
//     which is the program that serves the request, has an authentication of its own, it says who calls
//     (identifyByHost). A call without a credential is anonymous if the plans have an anonymousPlan
//     (findAnonymousPlan); without an anonymousPlan the call is denied. A call with a bad credential is always denied.
//     If neither JWTs nor API keys are configured, credentials are ignored, and each call is anonymous
//     (ignoreCredentials).
//  4. findTenant looks up the tenant that step 3 named. The tenant must be known, not suspended, and have a plan.
//     Anonymous calls skip this step.
//  5. chargePlan charges all limits of the plan that match the request, or none. If there are several cells, each cell
//     charges its own share of each limit.
//
// Steps 1 and 5 ask the store by way of the fallback limiter (charge). At the end, Authorize composes the rate-limit
// headers from the decisions of steps 1 and 5.
//
// # Modes
//
// [Config.Mode] changes what limits do. In limit.Shadow, steps 1 and 5 charge, and deny nobody. In limit.Off, steps 1
// and 5 are left out, and step 2 denies no path for its readings. Everything else is the same in each mode.
package authorizer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"sync"
	"time"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/limiter/resilience"
	"github.com/sluicelimits/sluice/internal/plan/route"
	"github.com/sluicelimits/sluice/internal/request/answer"
	"github.com/sluicelimits/sluice/internal/request/identity"
	"github.com/sluicelimits/sluice/internal/request/identity/token"
)

// Tokens verifies JWTs. [token.Verifier] implements it.
type Tokens interface {
	Verify(ctx context.Context, token string, now time.Time) (token.Claims, error)
}

// Sources replaces a client's address by a name from which nobody can learn the address. [identity.Anonymiser]
// implements it. Anonymise is called at most once for each request, by many goroutines at once.
type Sources interface {
	Anonymise(addr netip.Addr) string
}

// Config sets up an [Authorizer].
type Config struct {
	Source Source // of the plans, tenants and keys; required
	Tokens Tokens // nil accepts no JWT

	// Store counts the limits of plans; required. Addresses counts the ipLimits; default Store. Each should be a
	// [resilience.Fallback], which knows the instance count and replays what it admitted without its store. A store of
	// another type is wrapped in a fallback limiter that takes this process for the only instance.
	Store, Addresses limit.Store

	Now         func() time.Time // default time.Now
	Log         *slog.Logger     // default slog.Default()
	TrustedHops int              // proxies of the operator in front, 0..identity.MaxHops; see identity.SourceIP
	Jitter      int              // percent by which Retry-After is lengthened at most, 0..100; see answer.Encoder
	Sources     Sources          // default an identity.Anonymiser with a random key of this process
	Measure     bool             // whether Answer.Took is measured

	// Mode returns what limits do; nil means limit.Enforce for each request. It is called once for each request and
	// must not wait.
	//
	// In limit.Shadow, limits are decided and charged as in limit.Enforce, all of a request or none. A request that a
	// limit or a failing store would deny passes. In limit.Off, no limit is looked at. In each mode, callers are
	// identified, and denied if they cannot be.
	Mode func() limit.Mode

	// BackstopBytes bounds the memory in which this process counts by itself while a store does not answer. It is for a
	// store that is not a [resilience.Fallback] already. 0 means resilience.DefaultFallbackBytes.
	BackstopBytes int64
}

// Authorizer decides about requests. It is safe for concurrent use. Make it with [New].
type Authorizer struct {
	config    Config
	store     *resilience.Fallback // counts the limits of plans
	addresses *resilience.Fallback // counts the ipLimits; the same as store without Config.Addresses
	encoder   answer.Encoder
	answers   sync.Pool // of *Answer
	refusals  logThrottle
}

// New checks the configuration and makes an authorizer. The error names the field.
func New(config Config) (*Authorizer, error) {
	switch {
	case config.Source == nil:
		return nil, errors.New("authorizer: Source is missing")
	case config.Store == nil:
		return nil, errors.New("authorizer: Store is missing")
	case config.TrustedHops < 0 || config.TrustedHops > identity.MaxHops:
		return nil, fmt.Errorf("authorizer: TrustedHops %d is outside 0..%d", config.TrustedHops, identity.MaxHops)
	case config.Jitter < 0 || config.Jitter > 100:
		return nil, fmt.Errorf("authorizer: Jitter %d is outside 0..100", config.Jitter)
	}
	if config.Now == nil {
		config.Now = time.Now
	}
	if config.Log == nil {
		config.Log = slog.Default()
	}
	if config.Sources == nil {
		config.Sources = identity.NewAnonymiser()
	}
	a := &Authorizer{config: config, encoder: answer.Encoder{JitterPercent: config.Jitter}}
	var err error
	if a.store, err = config.withFallback(config.Store); err != nil {
		return nil, err
	}
	if a.addresses = a.store; config.Addresses != nil && config.Addresses != config.Store {
		if a.addresses, err = config.withFallback(config.Addresses); err != nil {
			return nil, err
		}
	}
	a.answers.New = func() any {
		out := &Answer{authorizer: a}
		out.attributes.Header, out.attributes.Claim = out.headerValue, out.claim
		return out
	}
	return a, nil
}

// withFallback returns the store itself if it is a fallback limiter, and a fallback limiter before the store if not.
func (c *Config) withFallback(store limit.Store) (*resilience.Fallback, error) {
	if s, ok := store.(*resilience.Fallback); ok {
		return s, nil
	}
	s, err := resilience.NewFallback(resilience.FallbackConfig{Store: store, Bytes: c.BackstopBytes, Log: c.Log})
	if err != nil {
		return nil, fmt.Errorf("authorizer: %w", err)
	}
	return s, nil
}

// Authorize decides about the request and charges its limits. It returns no error: whatever fails has an answer of its
// own. The package comment lists the steps.
func (a *Authorizer) Authorize(ctx context.Context, req *Request) *Answer {
	return a.authorize(ctx, req, false)
}

// Peek returns the answer that [Authorizer.Authorize] would return, and charges no limit.
func (a *Authorizer) Peek(ctx context.Context, req *Request) *Answer {
	return a.authorize(ctx, req, true)
}

func (a *Authorizer) authorize(ctx context.Context, req *Request, peeking bool) *Answer {
	out := a.answers.Get().(*Answer)
	out.peeking = peeking
	out.reset(req, a.config.Now())
	if a.config.Mode != nil {
		out.Mode = a.config.Mode()
	}
	current, waitForBackground := a.config.Source.Begin(ctx, out.At)
	out.ConfigStale = current.Stale()
	out.Kind = a.decide(ctx, out, current)
	if waitForBackground != nil {
		waitForBackground()
	}
	if out.Kind != answer.Allowed {
		// A later step denied the request, perhaps after an ipLimit had denied it in shadow.
		out.ShadowDenial, out.Instance = answer.Allowed, answer.NewInstance()
	}
	out.Header = a.encoder.Header(out.ipCheck.decisionIfMade(), out.planCheck.decisionIfMade(), out.wait)
	return out
}

// decide goes through the steps of the package comment. It returns the kind of the first step that denies, or
// answer.Allowed.
func (a *Authorizer) decide(ctx context.Context, out *Answer, current Configuration) answer.Kind {
	a.nameSource(out, current)
	if kind := out.passInShadow(a.chargeIPLimits(ctx, out, current)); kind != answer.Allowed {
		return kind
	}
	if kind := checkPath(out, current); kind != answer.Allowed {
		return kind
	}
	owner, limits, kind := a.identify(ctx, out, current)
	if kind != answer.Allowed {
		return kind
	}
	if limits == nil { // an anonymous call without a plan
		return answer.Allowed
	}
	return out.passInShadow(a.chargePlan(ctx, out, owner, limits))
}

// nameSource finds the client's address and keeps its anonymous name, if anybody knows the address.
func (a *Authorizer) nameSource(out *Answer, current Configuration) {
	if out.request.AddressUnknown || out.request.SkipIPLimits && out.request.Peer == "" {
		return
	}
	address := identity.SourceIP(out.request.Peer, out.request.Header[forwardedFor], a.config.TrustedHops)
	out.Source = a.config.Sources.Anonymise(identity.Canonical(address, current.IPv6Prefix()))
	out.attributes.IP = out.Source
}

// checkPath is step 2.
func checkPath(out *Answer, current Configuration) answer.Kind {
	// An ambiguous path is no honest client's. It would be charged to every limit of its method. They can be more than
	// a store decides at once, and then onStoreFailure would let the request pass.
	if out.path.Ambiguous() && out.Mode != limit.Off {
		return answer.BadRequest
	}
	if !current.Routed(out.request.Method, &out.path) {
		return answer.NoRoute
	}
	return answer.Allowed
}

// passInShadow returns answer.Allowed in limit.Shadow, and keeps in ShadowDenial what a limit answered. Nobody has to
// wait then. In the other modes it returns the kind.
func (a *Answer) passInShadow(kind answer.Kind) answer.Kind {
	if a.Mode != limit.Shadow || kind == answer.Allowed {
		return kind
	}
	a.ShadowDenial, a.wait = kind, answer.Wait{}
	return answer.Allowed
}

// Failures returns how many decisions the stores did not make, since the start.
func (a *Authorizer) Failures() int64 {
	n := a.store.Stats().Failures
	if a.addresses != a.store {
		n += a.addresses.Stats().Failures
	}
	return n
}

// reset clears what the answer holds of an earlier request, and takes the parts of req that limits match on.
func (a *Answer) reset(req *Request, now time.Time) {
	a.request, a.At = req, now
	a.Tenant, a.Plan, a.Subject, a.KeyID, a.Source, a.Instance = "", "", "", "", "", ""
	a.Reason, a.NotGranted, a.Err = "", "", nil
	a.Anonymous, a.StoreFailed, a.wait, a.Took = false, false, answer.Wait{}, 0
	a.Mode, a.ShadowDenial = limit.Enforce, answer.Allowed
	a.ipCheck.made, a.planCheck.made = false, false
	a.path = route.Clean(req.Path)
	a.attributes.Method, a.attributes.Path = req.Method, &a.path
	a.attributes.Subject, a.attributes.APIKey, a.attributes.IP = "", "", ""
}
