package sluice

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluicelimits/sluice/authorizer"
	"github.com/sluicelimits/sluice/internal/cell/planfile"
	"github.com/sluicelimits/sluice/internal/configfile/configyaml"
	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/limiter/resilience"
	"github.com/sluicelimits/sluice/internal/limiter/store"
	"github.com/sluicelimits/sluice/internal/limiter/store/memory"
)

// Errors in the decisions of reason Internal.
var (
	ErrClosed = errors.New("sluice: the limiter is closed")
	ErrCost   = errors.New("sluice: a cost is 1..2^40 units")
)

// Limiter decides. It is safe for concurrent use. Make it with [New].
type Limiter struct {
	c          Config
	plans      *planfile.Plans
	authorizer *authorizer.Authorizer
	store      *resilience.Fallback
	chain      *resilience.Chain // nil where counters are in memory only

	closed  atomic.Bool
	stop    context.CancelFunc
	running sync.WaitGroup
}

// New reads the plans and makes a limiter. It starts goroutines that watch the plans files and, with a Store, count the processes
// that share it: close the limiter to end them. The error wraps ErrConfig or ErrPlans. A Store that does not answer is none.
func New(c Config) (*Limiter, error) {
	if err := c.complete(); err != nil {
		return nil, err
	}
	tokens, err := c.tokenVerifier()
	if err != nil {
		return nil, err
	}
	l := &Limiter{c: c}
	addresses, err := l.openStores()
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrConfig, err)
	}
	if err := l.begin(tokens, addresses); err != nil {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		return nil, errors.Join(err, l.closeStores(ctx))
	}
	return l, nil
}

// openStores puts over the counters what answers when they do not, and returns where addresses are counted.
func (l *Limiter) openStores() (addresses limit.Store, err error) {
	counters := memory.Config{MaxBytes: l.c.Memory, Log: l.c.Log}
	if l.c.Store != nil {
		counters.UnidentifiedBytes = l.c.Memory // it counts addresses alone, if anything
	}
	own, err := memory.New(counters)
	if err != nil {
		return nil, err
	}
	bytes := min(l.c.Memory, resilience.DefaultFallbackBytes)
	if l.c.Store == nil {
		l.store, err = resilience.NewFallback(resilience.FallbackConfig{Store: own, Bytes: bytes, Log: l.c.Log})
		return l.store, err
	}
	rates := l.c.Store.Backend()
	shared := resilience.ChainConfig{Rates: named(rates), NoLeases: l.c.NoLeases, MaxInstances: l.c.MaxInstances,
		Fallback: resilience.FallbackConfig{Bytes: bytes}, Log: l.c.Log}
	if l.c.Quotas != nil && l.c.Quotas != l.c.Store {
		shared.Quotas = named(l.c.Quotas.Backend())
	}
	if l.chain, err = resilience.NewChain(shared); err != nil {
		return nil, err
	}
	l.store = l.chain.Fallback
	if rates.Metered {
		return own, nil
	}
	return l.store, nil
}

func named(b store.Backend) resilience.NamedStore {
	return resilience.NamedStore{Name: b.Name, Store: b.Counters}
}

func acceptsPlan(s limit.Store) func(all []*limit.Limit, together ...[]*limit.Limit) error {
	return func(all []*limit.Limit, together ...[]*limit.Limit) error {
		return limit.AcceptsPlan(s, all, together...)
	}
}

// begin loads the plans, and watches them where they are files.
func (l *Limiter) begin(tokens authorizer.Tokens, addresses limit.Store) error {
	var err error
	l.plans, err = planfile.Open(planfile.Config{Files: l.c.Plans, Source: configyaml.Source("plans", l.c.PlansData),
		Peppers: l.c.Peppers, Accepts: l.store.Accepts, AcceptsPlan: acceptsPlan(l.store), Now: l.c.Now, Log: l.c.Log})
	if err != nil {
		return fmt.Errorf("%w: %w", ErrPlans, err)
	}
	l.authorizer, err = authorizer.New(authorizer.Config{Source: authorizer.Current(l.plans.Current), Tokens: tokens, Store: l.store,
		Addresses: addresses, Now: l.c.Now, Log: l.c.Log, TrustedHops: l.c.TrustedHops, Jitter: l.c.RetryJitter})
	if err != nil {
		return fmt.Errorf("%w: %w", ErrConfig, err)
	}
	var ctx context.Context
	ctx, l.stop = context.WithCancel(context.Background())
	if len(l.c.Plans) > 0 {
		l.running.Go(func() {
			if err := l.plans.Watch(ctx, nil, nil); err != nil {
				l.c.Log.Warn("changes of the plans are not seen; Reload loads them", "error", err)
			}
		})
	}
	return nil
}

// Close stops watching the plans, charges what is still owed to the Store and gives back what was leased of it, as far as it
// answers before ctx ends. It does not close the Store. No decision may be under way; those after it are denied.
func (l *Limiter) Close(ctx context.Context) error {
	if l.closed.Swap(true) {
		return nil
	}
	l.stop()
	l.running.Wait()
	return l.closeStores(ctx)
}

func (l *Limiter) closeStores(ctx context.Context) error {
	if l.chain != nil {
		return l.chain.Close(ctx)
	}
	return l.store.Close(ctx)
}

// Identity is who calls, as the program itself has verified.
type Identity struct {
	Tenant  string            // who pays and is limited, 1..128 bytes of any text
	Subject string            // who acts inside the tenant, for limits `per: subject`; "" is nobody in particular
	KeyID   string            // names the credential, never the credential itself, for limits `per: api_key`
	Claims  map[string]string // for limits `per: claim:NAME`

	// Plan is the id of the plan that applies where the plans do not list the tenant. Where they do, what they say applies.
	Plan string

	// Anonymous is a call without a credential, under the plans' anonymousPlan. The other fields are then not looked at.
	Anonymous bool
}

// Request is what is asked for. The zero Request is for any path and any method.
type Request struct {
	Method string      // as "GET"; where it is "", limits that name methods do not apply
	Path   string      // percent-encoded as sent, without the query; "" is "/"
	Header http.Header // credentials, X-Forwarded-For, and costs in trusted headers; names in canonical form, may be nil

	// Peer is the address of the connection's other end, with or without port. Where it is "", Decide applies no ipLimits, and
	// Authorize denies if there are any: they are what protects it.
	Peer string

	// Cost is the units that are spent of each limit of the plan that applies, 1..2^40; 0 is what the plan says. Never let a client choose it.
	Cost int64

	// Identify finds out who calls, for [Limiter.Authorize]; nil reads API keys and JWTs from Header. It is called once, after
	// ipLimits and routes let the request pass. Its error is ErrNoCredential or ErrUnidentified, or wraps one of them; any other
	// is a credential that is refused.
	Identify func(context.Context) (Identity, error)
}

// RequestOf is the request as a server received it. If its target is a URL inside a URL, such as x:http://host/path,
// Path is that of the innermost URL, since a reverse proxy would hand that URL on.
func RequestOf(r *http.Request) Request {
	return Request{Method: r.Method, Path: innermost(r.URL).EscapedPath(), Header: r.Header, Peer: r.RemoteAddr}
}

func innermost(u *url.URL) *url.URL {
	for u.Opaque != "" {
		inner, err := url.Parse(u.Opaque)
		if err != nil {
			return &url.URL{Path: u.Opaque}
		}
		u = inner
	}
	return u
}

// Decide charges every limit that applies to the caller, or none. Credentials in the header are not looked at.
func (l *Limiter) Decide(ctx context.Context, who Identity, r Request) Decision {
	req := l.known(who, r)
	return l.decide(ctx, &req, false)
}

// Authorize finds out who calls, and charges every limit that applies, or none: first ipLimits, which count each attempt, then
// routes, credentials, the tenant, the limits of its plan.
func (l *Limiter) Authorize(ctx context.Context, r Request) Decision {
	req := r.inner()
	req.Sourceless = r.Peer == ""
	if r.Identify != nil {
		req.Identify = func(ctx context.Context) (authorizer.Caller, error) {
			who, err := r.Identify(ctx)
			if err != nil {
				return authorizer.Caller{}, err
			}
			return l.caller(&who)
		}
	}
	return l.decide(ctx, &req, false)
}

// Peek says what Decide would, and charges nothing, anywhere. What a client can trigger must not peek: it would learn for
// nothing what a request would tell it at a price.
func (l *Limiter) Peek(ctx context.Context, who Identity, r Request) Decision {
	req := l.known(who, r)
	return l.decide(ctx, &req, true)
}

func (r *Request) inner() authorizer.Request {
	return authorizer.Request{Method: r.Method, Path: r.Path, Header: r.Header, Peer: r.Peer, Cost: r.Cost}
}

func (l *Limiter) known(who Identity, r Request) authorizer.Request {
	req := r.inner()
	req.NoAddress = r.Peer == ""
	req.Identify = func(context.Context) (authorizer.Caller, error) { return l.caller(&who) }
	return req
}

func (l *Limiter) caller(who *Identity) (authorizer.Caller, error) {
	if who.Anonymous {
		return authorizer.Caller{}, ErrNoCredential
	}
	c := authorizer.Caller{Tenant: who.Tenant, Subject: who.Subject, KeyID: who.KeyID, Claims: who.Claims, Plan: who.Plan}
	if who.Plan != "" {
		for _, p := range l.plans.Current().Config.Plans() {
			if p.ID == who.Plan {
				c.Limits = p.Set()
			}
		}
	}
	return c, nil
}

func (l *Limiter) decide(ctx context.Context, req *authorizer.Request, peek bool) Decision {
	if l.closed.Load() {
		return refusal(ErrClosed)
	}
	if req.Cost < 0 || req.Cost > limit.MaxUnits {
		return refusal(ErrCost)
	}
	ask := l.authorizer.Authorize
	if peek {
		ask = l.authorizer.Peek
	}
	a := ask(ctx, req)
	defer a.Release()
	return decisionOf(a, peek)
}

// Refunded is what a refund gave back.
type Refunded struct {
	Units    int64 // the most that one limit got back
	Repeated bool  // the receipt was refunded before, and nothing was given back
	Expired  bool  // the receipt is older than MaxReceiptAge, and nothing was given back
}

// MaxReceiptAge is how long after its decision a receipt can be refunded.
const MaxReceiptAge = limit.MaxReceiptAge

// Refund gives back what a decision charged: at most so many units of each limit, 0 for all, in the windows that were charged and
// are still open, once for each receipt, within MaxReceiptAge of the decision. What ipLimits counted is not given back.
//
// The error wraps ErrRefund if the units are outside 0..2^40, if the limiter is closed, or if the store of counters
// refused or did not answer. If it also wraps ErrRefundsFull, try again later. After any other error of a store it is
// not known whether anything was given back. To try again is always safe: no receipt gives anything back twice.
func (l *Limiter) Refund(ctx context.Context, r Receipt, units int64) (Refunded, error) {
	if r.inner == nil {
		return Refunded{}, nil
	}
	if l.closed.Load() {
		return Refunded{}, fmt.Errorf("%w: %w", ErrRefund, ErrClosed)
	}
	back, err := l.store.Refund(ctx, r.inner, units, l.c.Now())
	if err != nil {
		return Refunded{}, fmt.Errorf("%w: %w", ErrRefund, err)
	}
	out := Refunded{Repeated: back.Repeated, Expired: back.Expired}
	for _, n := range back.Units {
		out.Units = max(out.Units, n)
	}
	return out, nil
}

// Errors of [Limiter.Refund].
var (
	// ErrRefund is in each of them.
	ErrRefund = errors.New("sluice: refund")

	// ErrRefundsFull means that the counters in memory remember as many refunds as they have room for, an eighth of
	// Config.Memory. Room comes free within 2·MaxReceiptAge. The receipt stays valid until it expires, and decisions go
	// on.
	ErrRefundsFull = limit.ErrRefundsFull
)

// Reload reads the plans files now. Where anything is wrong the plans in force stay, and the error wraps ErrPlans.
func (l *Limiter) Reload() error {
	if err := l.plans.Reload(); err != nil {
		return fmt.Errorf("%w: %w", ErrPlans, err)
	}
	return nil
}

// PlansStatus is when the plans in force were loaded, and what was wrong with later ones, if anything (it wraps ErrPlans): for
// health checks.
func (l *Limiter) PlansStatus() (loadedAt time.Time, err error) {
	if loadedAt, err = l.plans.Status(); err != nil {
		err = fmt.Errorf("%w: %w", ErrPlans, err)
	}
	return loadedAt, err
}

// StoreFailures is how many times the Store did not decide, since the start.
func (l *Limiter) StoreFailures() int64 { return l.authorizer.Failures() }
