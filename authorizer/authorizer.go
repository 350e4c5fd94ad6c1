// Package authorizer decides about one request: who sends it, which limits apply, and what to answer. An [Authorizer] knows
// neither HTTP servers nor event shapes; those translate into a [Request] and out of an [Answer]. A [Handler] does so for
// the events that API Gateway sends to a Lambda.
//
// The order, each step only where the one before let the request pass:
//
//  1. ipLimits, charged before anything else: every attempt from an address counts, they protect the rest of the list
//  2. the route, where routes are declared: after step 1, so that scanning for routes is limited
//  3. the credentials, a JWT, an API key or both; none at all is anonymous where there is an anonymousPlan, a bad one
//     never is. Where there is neither an issuer of JWTs nor an API key, no credential is looked at: each call is
//     anonymous
//  4. the tenant: known, not suspended, with a plan
//  5. all limits of the plan that match, all or nothing; where there are several cells, the parts of them that this one grants
//
// With [Config.Mode] limits deny nobody in steps 1 and 5, or are left out there; the other steps stay.
package authorizer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"net/textproto"
	"strings"
	"sync"
	"time"

	"github.com/sluicelimits/sluice/internal/answer"
	"github.com/sluicelimits/sluice/internal/identity"
	"github.com/sluicelimits/sluice/internal/identity/token"
	"github.com/sluicelimits/sluice/internal/limit"
	"github.com/sluicelimits/sluice/internal/limiter/resilience"
	"github.com/sluicelimits/sluice/internal/plan"
	"github.com/sluicelimits/sluice/internal/route"
)

// Tokens verifies JWTs; [token.Verifier] does.
type Tokens interface {
	Verify(ctx context.Context, token string, now time.Time) (token.Claims, error)
}

// Sources names addresses so that the name says nothing about them; [identity.Anonymiser] does. It is asked once for each
// request, and is safe for concurrent use.
type Sources interface {
	Anonymise(addr netip.Addr) string
}

// Config sets up an [Authorizer].
type Config struct {
	Source Source // required
	Tokens Tokens // nil accepts no JWT

	// Store is required. Addresses counts the ipLimits; default Store. Each is to be a [resilience.Fallback], which knows how many
	// instances there are and replays what it admitted. A store of another type is wrapped in a fallback limiter that takes
	// this process for the only instance.
	Store, Addresses limit.Store

	Now         func() time.Time // default time.Now
	Log         *slog.Logger     // default slog.Default()
	TrustedHops int              // proxies of the operator's own in front, 0..identity.MaxHops; see identity.SourceIP
	Jitter      int              // percent, 0..100; see answer.Encoder
	Sources     Sources          // default an identity.Anonymiser with a random key: names differ from process to process
	Measure     bool             // fills Answer.Took

	// Mode is asked once for each request, and must not wait: what its limits do, nil for limit.Enforce always. With
	// limit.Shadow they are decided and charged as by limit.Enforce, all or nothing, and then nobody is denied by one, nor by a
	// store that is away. With limit.Off none is looked at. Who calls is known, or denied, in each mode.
	Mode func() limit.Mode

	// BackstopBytes bounds what is counted in this process while a store that is no [resilience.Fallback] does not answer; 0 is
	// resilience.DefaultFallbackBytes.
	BackstopBytes int64
}

const unavailableFor = time.Second // what a client is told to wait where nobody knows

var errSourceless = errors.New("ipLimits are configured, and the authorizer's type tells it no address: attach it with type REQUEST")

var errNobody = errors.New("there are plans or tenants, and neither an issuer of tokens nor an API key nor an " +
	"anonymousPlan: nobody can call")

// Authorizer decides requests. It is safe for concurrent use. Make it with [New].
type Authorizer struct {
	c                Config
	store, addresses *resilience.Fallback
	encoder          answer.Encoder
	pool             sync.Pool
}

// New checks the configuration and makes an authorizer. The error names the field.
func New(c Config) (*Authorizer, error) {
	switch {
	case c.Source == nil:
		return nil, errors.New("authorizer: Source is missing")
	case c.Store == nil:
		return nil, errors.New("authorizer: Store is missing")
	case c.TrustedHops < 0 || c.TrustedHops > identity.MaxHops:
		return nil, fmt.Errorf("authorizer: TrustedHops %d is outside 0..%d", c.TrustedHops, identity.MaxHops)
	case c.Jitter < 0 || c.Jitter > 100:
		return nil, fmt.Errorf("authorizer: Jitter %d is outside 0..100", c.Jitter)
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.Log == nil {
		c.Log = slog.Default()
	}
	if c.Sources == nil {
		c.Sources = identity.NewAnonymiser()
	}
	z := &Authorizer{c: c, encoder: answer.Encoder{JitterPercent: c.Jitter}}
	var err error
	if z.store, err = c.answering(c.Store); err != nil {
		return nil, err
	}
	if z.addresses = z.store; c.Addresses != nil && c.Addresses != c.Store {
		if z.addresses, err = c.answering(c.Addresses); err != nil {
			return nil, err
		}
	}
	z.pool.New = func() any {
		a := &Answer{from: z}
		a.attributes.Header, a.attributes.Claim = a.header, a.claim
		return a
	}
	return z, nil
}

// answering is the store as one that always has an answer.
func (c *Config) answering(store limit.Store) (*resilience.Fallback, error) {
	if s, ok := store.(*resilience.Fallback); ok {
		return s, nil
	}
	s, err := resilience.NewFallback(resilience.FallbackConfig{Store: store, Bytes: c.BackstopBytes, Log: c.Log})
	if err != nil {
		return nil, fmt.Errorf("authorizer: %w", err)
	}
	return s, nil
}

// Request is what of a request a decision needs.
type Request struct {
	Method string
	Path   string              // as sent: percent-encoded, not normalised, without the query
	Header map[string][]string // names in canonical form
	Peer   string              // address of the connection's other end, with or without port

	// Sourceless says that nobody knows where the request comes from, and Peer means nothing. Where there are ipLimits such
	// a request is denied: it is the operator who attached an authorizer that cannot see addresses.
	Sourceless bool

	// NoAddress says that no ipLimits apply: the caller was let in already, by whoever knows where the request comes from.
	NoAddress bool

	// Identify says who calls where the host has its own authentication; nil reads the credentials in Header. It is called
	// after the ipLimits and the routes let the request pass, at most once. Its error is ErrNoCredential, or one that wraps
	// ErrNotLoaded where who calls could not be looked up; any other is a bad credential.
	Identify func(context.Context) (Caller, error)

	// Cost is the units that the request spends of each limit of the plan; 0 is what the plan says. Never a client's choice.
	Cost int64
}

// Answer is the outcome. It is valid until [Answer.Release].
type Answer struct {
	Kind        answer.Kind
	At          time.Time // of the decision, by Config.Now
	Tenant      string    // "" where it is not known or the call is anonymous
	Plan        string    // "" where it is not known
	Subject     string
	KeyID       string
	Anonymous   bool        // the caller is not identified: under the anonymousPlan, or under ipLimits alone
	StoreFailed bool        // a store did not answer, and each limit's onStoreFailure was applied
	ConfigStale bool        // decided on a configuration that is older than it may be
	Mode        limit.Mode  // of Config.Mode
	Spared      answer.Kind // with limit.Shadow, what a limit's denial would have been; else answer.Allowed
	Source      string
	Header      answer.Header
	Instance    string // URI of this occurrence; "" where allowed

	// NotGranted is the id of a limit of which this cell grants nothing, or less than the request's cost, where Kind is
	// NotHere; "" otherwise.
	NotGranted string

	// Reason says why there is no identity, in words of ours such as "token_expired"; "" where there is one, and where nobody
	// asked for it. It is for logs: a client is not told what exactly is wrong with a credential.
	Reason string

	// Took is what the limits' steps took, waiting for the stores included; 0 without Config.Measure.
	Took time.Duration

	// Err says why where the configuration or the keys of an issuer could not be had, the configuration has no way to
	// identify anybody, or the authorizer is attached where it cannot work; for logs.
	Err error

	from       *Authorizer
	wait       answer.Wait
	request    *Request
	path       route.Path
	claims     token.Claims
	caller     *Caller // of Request.Identify
	peeking    bool    // nothing is charged
	attributes plan.Attributes
	ip, plan   step
	peek       limit.Decision
}

// step is one decision with what it was asked.
type step struct {
	request  limit.Request
	decision limit.Decision
	made     bool
}

// Allowed reports whether the request may pass.
func (a *Answer) Allowed() bool { return a.Kind == answer.Allowed }

// Decision is the decision over the plan's limits, or the one over the ipLimits where that denied; nil where none was
// made. It is valid until Release.
func (a *Answer) Decision() *limit.Decision {
	if d := a.ip.outcome(); d != nil && !d.Allowed {
		return d
	}
	return a.plan.outcome()
}

// IPDecision is the decision over the ipLimits where these admitted; nil where there are none. It is valid until Release.
func (a *Answer) IPDecision() *limit.Decision {
	if d := a.ip.outcome(); d != nil && d.Allowed {
		return d
	}
	return nil
}

func (s *step) outcome() *limit.Decision {
	if !s.made {
		return nil
	}
	return &s.decision
}

// AppendProblem appends the body of an answer that is not allowed, as application/problem+json.
func (a *Answer) AppendProblem(b []byte) []byte {
	p := answer.Problem{Kind: a.Kind, Instance: a.Instance, Wait: a.wait, Limit: a.NotGranted}
	switch a.Kind {
	case answer.Limited, answer.IPLimited, answer.NeverFits:
		p.Decision = a.Decision()
	default: // not denied by a limit
	}
	return p.Append(b)
}

// Release gives the answer's memory back for another request. Neither it nor what it returned may be used afterwards.
func (a *Answer) Release() {
	z := a.from
	a.request, a.Err, a.claims, a.caller = nil, nil, token.Claims{}, nil
	z.pool.Put(a)
}

// header looks a header up for a cost. Several lines of one name are one value with commas, as HTTP has it, and so no
// integer: a second line cannot pass for the trusted one.
func (a *Answer) header(name string) (string, bool) {
	lines := a.request.Header[name]
	if lines == nil {
		lines = a.request.Header[textproto.CanonicalMIMEHeaderKey(name)]
	}
	switch len(lines) {
	case 0:
		return "", false
	case 1:
		return lines[0], true
	}
	return strings.Join(lines, ", "), true
}

// Authorize decides about the request. It never fails: whatever goes wrong has a defined answer.
func (z *Authorizer) Authorize(ctx context.Context, req *Request) *Answer {
	return z.answer(ctx, req, false)
}

func (z *Authorizer) answer(ctx context.Context, req *Request, peek bool) *Answer {
	a := z.pool.Get().(*Answer)
	a.peeking = peek
	a.reset(req, z.c.Now())
	if z.c.Mode != nil {
		a.Mode = z.c.Mode()
	}
	configuration, join := z.c.Source.Begin(ctx, a.At)
	a.ConfigStale = configuration.Stale()
	a.Kind = z.decide(ctx, a, configuration)
	if join != nil {
		join()
	}
	if a.Kind != answer.Allowed {
		a.Spared, a.Instance = answer.Allowed, answer.NewInstance() // what an ipLimit spared may be refused by a later step
	}
	a.Header = z.encoder.Header(a.ip.outcome(), a.plan.outcome(), a.wait)
	return a
}

func (a *Answer) reset(req *Request, now time.Time) {
	a.request, a.At = req, now
	a.Tenant, a.Plan, a.Subject, a.KeyID, a.Source, a.Instance = "", "", "", "", "", ""
	a.Reason, a.NotGranted, a.Err = "", "", nil
	a.Anonymous, a.StoreFailed, a.wait, a.Took = false, false, answer.Wait{}, 0
	a.Mode, a.Spared = limit.Enforce, answer.Allowed
	a.ip.made, a.plan.made = false, false
	a.path = route.Clean(req.Path)
	a.attributes.Method, a.attributes.Path = req.Method, &a.path
	a.attributes.Subject, a.attributes.APIKey, a.attributes.IP = "", "", ""
}

func (z *Authorizer) decide(ctx context.Context, a *Answer, c Configuration) answer.Kind {
	if !a.request.Sourceless && !a.request.NoAddress {
		address := identity.SourceIP(a.request.Peer, a.request.Header["X-Forwarded-For"], z.c.TrustedHops)
		a.Source = z.c.Sources.Anonymise(identity.Canonical(address, c.IPv6Prefix()))
		a.attributes.IP = a.Source
	}
	if kind := a.spare(z.limitAddress(ctx, a, c)); kind != answer.Allowed {
		return kind
	}
	// No honest path has so many readings. It would be charged to every limit of its method, which can be more than a store
	// decides at once, and onStoreFailure would then let it pass.
	if a.path.Ambiguous() && a.Mode != limit.Off {
		return answer.BadRequest
	}
	if !c.Routed(a.request.Method, &a.path) {
		return answer.NoRoute
	}
	owner, set, kind := z.identify(ctx, a, c)
	if kind != answer.Allowed {
		return kind
	}
	if set == nil { // an anonymous call without a plan
		return answer.Allowed
	}
	return a.spare(z.limitTenant(ctx, a, owner, set))
}

// spare lets pass, in shadow, what a limit denies. There is nothing to wait for then.
func (a *Answer) spare(kind answer.Kind) answer.Kind {
	if a.Mode != limit.Shadow || kind == answer.Allowed {
		return kind
	}
	a.Spared, a.wait = kind, answer.Wait{}
	return answer.Allowed
}

// limitAddress is step 1.
func (z *Authorizer) limitAddress(ctx context.Context, a *Answer, c Configuration) answer.Kind {
	set := c.IPLimits()
	if len(set.Limits) == 0 || a.request.NoAddress || a.Mode == limit.Off {
		return answer.Allowed
	}
	if a.request.Sourceless {
		a.Err = errSourceless
		return answer.Internal
	}
	a.ip.request.Owner = limit.Owner{Kind: limit.Address, Name: a.Source}
	a.ip.request.Charges = set.AppendCharges(a.ip.request.Charges[:0], &a.attributes)
	kind := z.charge(ctx, a, &a.ip)
	if kind == answer.Limited {
		return answer.IPLimited
	}
	return kind
}

// identify is steps 3 and 4: whose limits apply.
func (z *Authorizer) identify(ctx context.Context, a *Answer, c Configuration) (limit.Owner, *plan.Set, answer.Kind) {
	if a.request.Identify != nil {
		return z.identified(ctx, a, c)
	}
	if z.c.Tokens == nil && !c.HasKeys() {
		return z.unjudged(ctx, a, c)
	}
	presented, err := identity.FindCredentials(a.request.Header)
	switch {
	case err != nil:
		return limit.Owner{}, nil, a.refused(reasonOf(err))
	case !presented.Any():
		return z.anonymous(ctx, a, c)
	}
	if kind := z.verify(ctx, a, c, presented); kind != answer.Allowed {
		return limit.Owner{}, nil, kind
	}
	return z.tenant(ctx, a, c)
}

// tenant is step 4.
func (z *Authorizer) tenant(ctx context.Context, a *Answer, c Configuration) (limit.Owner, *plan.Set, answer.Kind) {
	tenant, err := c.Tenant(ctx, a.Tenant)
	switch {
	case err != nil:
		return limit.Owner{}, nil, a.unidentified(err)
	case tenant == nil:
		return limit.Owner{}, nil, answer.UnknownTenant
	case tenant.Suspended:
		return limit.Owner{}, nil, answer.SuspendedTenant
	case tenant.Plan == "":
		return limit.Owner{}, nil, answer.NoPlan
	}
	a.Plan = tenant.Plan
	return limit.Owner{Kind: limit.Tenant, Name: tenant.ID}, tenant.Limits(a.At), answer.Allowed
}

// anonymous is what applies to a call without any credential.
func (z *Authorizer) anonymous(ctx context.Context, a *Answer, c Configuration) (limit.Owner, *plan.Set, answer.Kind) {
	id, set, err := c.Anonymous(ctx)
	switch {
	case err != nil:
		return limit.Owner{}, nil, a.unidentified(err)
	case set == nil:
		a.Reason = reasonNone
		return limit.Owner{}, nil, answer.NoCredential
	}
	a.Anonymous, a.Plan = true, id
	return limit.Owner{Kind: limit.Anonymous}, set, answer.Allowed
}

// unjudged is step 3 where there is neither an issuer nor a key. Credentials in the request are meant for somebody
// else, so the call is anonymous, whatever the credentials are. Without an anonymousPlan the call is under no plan;
// where there are plans or tenants, that would let everybody in without the limits that the operator wrote, and so the
// call is refused.
func (z *Authorizer) unjudged(ctx context.Context, a *Answer, c Configuration) (limit.Owner, *plan.Set, answer.Kind) {
	owner, set, kind := z.anonymous(ctx, a, c)
	if kind != answer.NoCredential {
		return owner, set, kind
	}
	if c.HasPlans() {
		a.Reason, a.Err = reasonNobody, errNobody
		return owner, set, kind
	}
	a.Anonymous, a.Reason = true, ""
	return limit.Owner{Kind: limit.Anonymous}, nil, answer.Allowed
}

// verify is step 3: every credential that is presented must be good. Where a JWT and a key are, the JWT says who acts, the
// key must be of the same tenant, and limits per api_key count it.
func (z *Authorizer) verify(ctx context.Context, a *Answer, c Configuration, presented identity.Credentials) answer.Kind {
	key := presented.Key
	bearsToken := z.c.Tokens != nil && token.Shaped(presented.Bearer)
	switch {
	case bearsToken:
		claims, err := z.c.Tokens.Verify(ctx, presented.Bearer, a.At)
		if errors.Is(err, token.ErrKeysUnavailable) {
			return a.unidentified(err)
		}
		if err != nil {
			return a.refused(reasonOf(err))
		}
		a.claims, a.Tenant, a.Subject = claims, claims.Tenant, claims.Subject
	case presented.Bearer != "" && key != "" && presented.Bearer != key:
		return a.refused(reasonTwoKeys)
	case presented.Bearer != "":
		key = presented.Bearer
	}
	if key != "" {
		stored, err := c.Key(ctx, key, a.At)
		switch {
		case errors.Is(err, ErrNotLoaded):
			return a.unidentified(err)
		case err != nil && !bearsToken && token.Shaped(key):
			return a.refused(reasonTokenUnwanted)
		case err != nil:
			return a.refused(reasonOf(err))
		case bearsToken && stored.Tenant != a.Tenant:
			return a.refused(reasonOtherTenant)
		}
		a.KeyID = stored.ID
		if !bearsToken {
			a.Tenant, a.Subject = stored.Tenant, stored.Subject
		}
	}
	a.attributes.Subject, a.attributes.APIKey = a.Subject, a.KeyID
	return answer.Allowed
}

// refused is the answer to a bad credential. Whoever it is, it is not shown to be the one whom another credential names.
func (a *Answer) refused(reason string) answer.Kind {
	a.Tenant, a.Subject, a.KeyID, a.Reason = "", "", "", reason
	a.claims = token.Claims{}
	return answer.BadCredential
}

// unidentified is the answer where who calls could not be looked up. The credential may be good.
func (a *Answer) unidentified(err error) answer.Kind {
	a.Err = err
	a.Tenant, a.Subject, a.KeyID = "", "", ""
	a.wait = answer.Wait{Micros: unavailableFor.Microseconds(), Known: true}
	return answer.Unidentified
}

// limitTenant is step 5. What step 1 would have denied charges nothing in it, as if it had.
func (z *Authorizer) limitTenant(ctx context.Context, a *Answer, owner limit.Owner, set *plan.Set) answer.Kind {
	if a.Mode == limit.Off || a.Spared != answer.Allowed {
		return answer.Allowed
	}
	a.plan.request.Owner = owner
	a.plan.request.Charges = set.AppendCharges(a.plan.request.Charges[:0], &a.attributes)
	if e := set.Withheld(a.plan.request.Charges); e != nil {
		a.NotGranted = e.Whole().ID
		if until := e.Share().Until; until > 0 {
			a.wait = answer.Wait{Micros: max(until-a.At.UnixMicro(), 1), Known: true}
		}
		return answer.NotHere
	}
	if cost := a.request.Cost; cost != 0 {
		for i := range a.plan.request.Charges {
			a.plan.request.Charges[i].Cost = cost
		}
	}
	kind := z.charge(ctx, a, &a.plan)
	if kind == answer.NeverFits && a.plan.made {
		// Never is judged against the plan, and not against a cell's share.
		if r := a.plan.decision.Binding(); r != nil && set.FitsWhole(r.Tier, r.Cost) {
			a.NotGranted = r.Tier.Limit().ID
			return answer.NotHere
		}
	}
	if kind == answer.Limited && a.ip.made && a.Mode == limit.Enforce {
		z.waitForAddress(ctx, a)
	}
	return kind
}

// waitForAddress lengthens the wait of a denial to when the next attempt fits the ipLimits too: the wait that is told
// must be one after which the request passes. It only peeks.
func (z *Authorizer) waitForAddress(ctx context.Context, a *Answer) {
	if err := z.addresses.Peek(ctx, &a.ip.request, a.At, &a.peek); err != nil || a.peek.Allowed || a.peek.Never {
		return
	}
	a.wait.Micros = max(a.wait.Micros, a.peek.RetryAt-a.peek.Now)
}

// charge decides a step and notes how long a denial lasts. A step without charges is allowed and makes no decision. A request
// that was given up meanwhile is denied, since nobody waits for it.
func (z *Authorizer) charge(ctx context.Context, a *Answer, s *step) answer.Kind {
	if len(s.request.Charges) == 0 {
		return answer.Allowed
	}
	store := z.store
	if s.request.Owner.Kind == limit.Address {
		store = z.addresses
	}
	err := z.measured(ctx, a, store, s)
	if errors.Is(err, limit.ErrInvalidCost) { // of Request.Cost: more than can be counted
		a.Err = err
		return answer.NeverFits
	}
	if err != nil {
		a.StoreFailed = true
		a.wait = answer.Wait{Micros: unavailableFor.Microseconds(), Known: true}
		return answer.Unavailable
	}
	a.StoreFailed = a.StoreFailed || s.decision.Degraded
	s.made = true
	switch d := &s.decision; {
	case d.Allowed:
		return answer.Allowed
	case d.Never:
		return answer.NeverFits
	default:
		a.wait = answer.Wait{Micros: d.RetryAt - d.Now, Known: true}
		return answer.Limited
	}
}

// measured asks the store, and notes what it took where that is wanted.
func (z *Authorizer) measured(ctx context.Context, a *Answer, store *resilience.Fallback, s *step) error {
	if a.peeking {
		return store.Peek(ctx, &s.request, a.At, &s.decision)
	}
	if !z.c.Measure {
		return store.Decide(ctx, &s.request, a.At, &s.decision)
	}
	began := time.Now()
	err := store.Decide(ctx, &s.request, a.At, &s.decision)
	a.Took += time.Since(began)
	return err
}

// Failures is how many steps the stores have not decided.
func (z *Authorizer) Failures() int64 {
	n := z.store.Stats().Failures
	if z.addresses != z.store {
		n += z.addresses.Stats().Failures
	}
	return n
}

// Path is the request's path, normalised, for display only. It may hold any byte.
func (a *Answer) Path() string { return a.path.String() }
