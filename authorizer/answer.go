package authorizer

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"net/textproto"
	"slices"
	"strings"
	"time"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/plan"
	"github.com/sluicelimits/sluice/internal/plan/route"
	"github.com/sluicelimits/sluice/internal/request/answer"
	"github.com/sluicelimits/sluice/internal/request/identity/token"
)

// Answer is what [Authorizer.Authorize] decided about one request. It is valid until [Answer.Release].
type Answer struct {
	Kind         answer.Kind
	At           time.Time // when the decision began, by Config.Now
	Tenant       string    // "" if the tenant is not known or the call is anonymous
	Plan         string    // id of the plan; "" if it is not known
	Subject      string
	KeyID        string
	Anonymous    bool        // the caller is not identified: the anonymousPlan applies, or no plan does
	StoreFailed  bool        // a store did not answer, and each limit's onStoreFailure applied
	ConfigStale  bool        // the configuration is older than it may be
	Mode         limit.Mode  // what Config.Mode returned
	ShadowDenial answer.Kind // in limit.Shadow, the denial of a limit that was not enforced; otherwise answer.Allowed
	Source       string      // the name that Config.Sources gives the client's address; "" if the request says none
	Header       answer.Header
	Instance     string // URI that names this one denial; "" if the request is allowed

	// NotGranted is the id of a limit of which this cell grants nothing, or less than the request's cost. It is ""
	// unless Kind, or ShadowDenial in mode shadow, is NotHere.
	NotGranted string

	// Reason says why nobody was identified, as a word such as "token_expired"; see reason.go. It is "" if somebody
	// was, or if credentials were not looked at. It is for logs: a client does not learn what exactly is wrong with a
	// credential.
	Reason string

	// Took is how long the stores took to decide in steps 1 and 5. It is 0 without Config.Measure.
	Took time.Duration

	// Err says what an operator should know about a denial: which check refused a credential (never what the client
	// presented), the configuration or the keys of an issuer could not be loaded, the configuration has no way to
	// identify anybody, the authorizer is attached to an API that does not give it addresses, or the host's own
	// authentication, plan or cost is invalid. It is for logs.
	Err error

	authorizer *Authorizer // whose pool the answer returns to
	request    *Request
	path       route.Path      // of the request, normalised
	claims     token.Claims    // of the verified JWT
	caller     *Caller         // what Request.Identify returned; nil without it
	peeking    bool            // nothing is charged; see Authorizer.Peek
	attributes plan.Attributes // what limits match on and count by

	ipCheck   check          // of the ipLimits
	planCheck check          // of the plan's limits
	ipPeek    limit.Decision // memory for extendWaitToIPLimits
	limits    *plan.Set      // that planCheck is over; nil if none apply
	wait      answer.Wait    // after which the request would pass

	acceptsKeys bool // whether a NoCredential asks for an API key
}

// check is one request to a store, and the store's decision.
type check struct {
	request  limit.Request
	decision limit.Decision
	made     bool // decision belongs to this request; otherwise to an earlier one
}

// decisionIfMade returns the decision, or nil if none was made.
func (c *check) decisionIfMade() *limit.Decision {
	if !c.made {
		return nil
	}
	return &c.decision
}

// Allowed reports whether the request may pass.
func (a *Answer) Allowed() bool { return a.Kind == answer.Allowed }

// Decision returns the decision over the ipLimits if they denied, and the decision over the plan's limits otherwise. It
// returns nil if that was not made. The decision is valid until Release.
func (a *Answer) Decision() *limit.Decision {
	if d := a.ipCheck.decisionIfMade(); d != nil && !d.Allowed {
		return d
	}
	return a.planCheck.decisionIfMade()
}

// IPDecision returns the decision over the ipLimits if they admitted the request, and nil otherwise. The decision is
// valid until Release.
func (a *Answer) IPDecision() *limit.Decision {
	if d := a.ipCheck.decisionIfMade(); d != nil && d.Allowed {
		return d
	}
	return nil
}

// RetryAfter returns the exact wait of a denial. It returns false if no wait helps, or none is known.
func (a *Answer) RetryAfter() (time.Duration, bool) {
	return time.Duration(a.wait.Micros) * time.Microsecond, a.wait.Known
}

// Receipt returns the receipt of what an allowed request has charged to the plan's limits, and a cost of 1 in each unit
// that the plan has. The receipt also has the limits of which the request spends nothing, with 0 units, so that it can
// be settled to more.
func (a *Answer) Receipt() (receipt *limit.Receipt, units map[string]int64) {
	request := &a.planCheck.request
	if d := a.planCheck.decisionIfMade(); d != nil && d.ID != (limit.ReceiptID{}) {
		receipt = d.Receipt()
	} else {
		id := limit.ReceiptID{Hi: rand.Uint64(), Lo: rand.Uint64()}
		receipt = limit.NewReceipt(id, request.Owner, a.At.UnixMicro())
	}
	if a.limits == nil {
		return receipt, nil
	}
	units = a.limits.UnitCosts()
	a.attributes.Cost, a.attributes.Costs = 0, units
	for _, c := range a.limits.AppendCharges(nil, &a.attributes) {
		isCharged := func(o limit.Charge) bool { return o.Limit == c.Limit && o.Value == c.Value }
		// A limit that is withheld has another cost.
		if c.Cost == 1 && !slices.ContainsFunc(request.Charges, isCharged) {
			receipt.Cover(c)
		}
	}
	return receipt, units
}

// Path returns the request's path, normalised, for display only. It may hold any byte.
func (a *Answer) Path() string { return a.path.String() }

// AppendProblem appends the body of an answer that is not allowed, as application/problem+json.
func (a *Answer) AppendProblem(b []byte) []byte {
	p := answer.Problem{Kind: a.Kind, Instance: a.Instance, Wait: a.wait, Limit: a.NotGranted}
	if a.request.Identify == nil {
		p.Keys, p.Tokens = a.acceptsKeys, a.authorizer.config.Tokens != nil
	}
	switch a.Kind {
	case answer.Limited, answer.IPLimited, answer.NeverFits:
		p.Decision = a.Decision()
	default: // not denied by a limit
	}
	return p.Append(b)
}

// Release gives the answer's memory back for another request. Neither the answer nor what its methods returned may be
// used afterwards.
func (a *Answer) Release() {
	pool := &a.authorizer.answers
	a.request, a.Err, a.claims, a.caller, a.limits = nil, nil, token.Claims{}, nil, nil
	a.attributes.Cost, a.attributes.Costs = 0, nil // ipLimits, which are charged first, have costs of their own
	pool.Put(a)
}

// headerValue returns the value of a header that says a request's cost. Several lines of one name are joined with
// commas, as HTTP says. The joined value is no integer, so a client cannot add a line to the one that a trusted proxy
// wrote and have its own counted.
func (a *Answer) headerValue(name string) (string, bool) {
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

// claim returns a claim of the verified JWT, or of the caller that Request.Identify returned.
func (a *Answer) claim(name string) (string, bool) {
	if a.caller == nil {
		return a.claims.Claim(name)
	}
	value, ok := a.caller.Claims[name]
	return value, ok
}

// LogRefusal logs which check refused a credential, at most once a second for each Reason. It logs nothing about other
// answers, or if [Request.Identify] refused the credential. It is for hosts that log no decisions; a [Handler] logs by
// itself.
func (a *Answer) LogRefusal(ctx context.Context) {
	if a.Kind != answer.BadCredential || a.Reason == "" {
		return
	}
	if suppressed, ok := a.authorizer.refusals.admit(a.Reason, a.At); ok {
		a.authorizer.config.Log.LogAttrs(ctx, slog.LevelInfo, "a credential is refused",
			slog.String("reason", a.Reason), slog.Any("error", a.Err), slog.String("source", a.Source),
			slog.Int64("more", suppressed))
	}
}
