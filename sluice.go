package sluice

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluicelimits/sluice/authorizer"
	"github.com/sluicelimits/sluice/internal/cell/planfile"
	"github.com/sluicelimits/sluice/internal/configfile/configyaml"
	"github.com/sluicelimits/sluice/internal/limiter/inflight"
	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/limiter/resilience"
	"github.com/sluicelimits/sluice/internal/limiter/store"
	"github.com/sluicelimits/sluice/internal/limiter/store/memory"
	"github.com/sluicelimits/sluice/internal/plan"
	"github.com/sluicelimits/sluice/internal/request/answer"
	"github.com/sluicelimits/sluice/internal/request/identity"
	"github.com/sluicelimits/sluice/internal/request/identity/addresskey"
)

// Errors that [Decision.Err] wraps if the reason is Internal.
var (
	ErrClosed = errors.New("sluice: the limiter is closed")
	ErrCost   = errors.New("sluice: bad cost")
)

// Limiter decides. It is safe for concurrent use. Make it with [New].
type Limiter struct {
	c          Config
	plans      *planfile.Plans
	authorizer *authorizer.Authorizer
	store      *resilience.Fallback
	chain      *resilience.Chain // nil if counters are in memory only
	shared     *addresskey.Names // nil unless the Store keeps the key that names addresses
	measured   *measured         // nil without Config.Measure
	mistakes   mistakes
	places     *inflight.Keeper

	closed  atomic.Bool
	stop    context.CancelFunc
	running sync.WaitGroup
}

// New reads the plans and makes a limiter. It starts goroutines that watch the plans files and, if there is a Store,
// count the processes that share it. Close the limiter to end them. An error wraps ErrConfig or ErrPlans. A Store that
// does not answer is not an error.
func New(c Config) (*Limiter, error) {
	if err := c.complete(); err != nil {
		return nil, err
	}
	tokens, err := c.tokenVerifier()
	if err != nil {
		return nil, err
	}
	l := &Limiter{c: c}
	if c.Measure {
		l.measured = new(measured)
	}
	addresses, err := l.openStores()
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrConfig, err)
	}
	l.places = &inflight.Keeper{Store: l.store, Now: l.c.Now, Log: l.c.Log}
	if err := l.begin(tokens, addresses); err != nil {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		return nil, errors.Join(err, l.closeStores(ctx))
	}
	return l, nil
}

// openStores wraps the store of counters in the store chain, which decides if the store does not answer. It returns the
// store that counts addresses.
func (l *Limiter) openStores() (addresses limit.Store, err error) {
	counters := memory.Config{MaxBytes: l.c.Memory, Log: l.c.Log}
	if l.c.Store != nil {
		counters.UnidentifiedBytes = l.c.Memory // in this process, only addresses are counted
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
	if l.measured != nil {
		shared.Observe = l.measured.calls.Observe
	}
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

// names returns what names addresses.
func (l *Limiter) names() authorizer.Sources {
	switch {
	case len(l.c.AddressKey) > 0:
		names, _ := identity.NewAnonymiserFrom(l.c.AddressKey) // complete has checked its length
		return names
	case l.c.Store == nil:
		return identity.NewAnonymiser()
	}
	keeper := l.c.Store.Backend().Keeper
	if l.c.Quotas != nil { // it keeps counters for longer
		keeper = l.c.Quotas.Backend().Keeper
	}
	l.shared = addresskey.New(keeper, l.c.Log)
	return l.shared
}

// begin loads the plans, and watches the plans files if there are any.
func (l *Limiter) begin(tokens authorizer.Tokens, addresses limit.Store) error {
	var err error
	l.plans, err = planfile.Open(planfile.Config{Files: l.c.Plans, Source: configyaml.Source("plans", l.c.PlansData),
		Peppers: l.c.Peppers, Store: l.store, Now: l.c.Now, Log: l.c.Log})
	if err != nil {
		return fmt.Errorf("%w: %w", ErrPlans, err)
	}
	l.authorizer, err = authorizer.New(authorizer.Config{Source: authorizer.Current(l.plans.Current), Tokens: tokens,
		Store:     l.store,
		Addresses: addresses, Sources: l.names(), Now: l.c.Now, Log: l.c.Log, TrustedHops: l.c.TrustedHops,
		Jitter: l.c.RetryJitter})
	if err != nil {
		return fmt.Errorf("%w: %w", ErrConfig, err)
	}
	var ctx context.Context
	ctx, l.stop = context.WithCancel(context.Background())
	if len(l.c.Plans) > 0 {
		l.running.Go(func() { l.plans.Watch(ctx, nil) })
	}
	return nil
}

// Close stops watching the plans, replays pending units to the Store, and gives unused leased units back to it, as far
// as the Store answers before ctx ends. It does not close the Store. No decision may be under way. Later decisions are
// denied.
func (l *Limiter) Close(ctx context.Context) error {
	if l.closed.Swap(true) {
		return nil
	}
	l.stop()
	l.running.Wait()
	return l.closeStores(ctx)
}

func (l *Limiter) closeStores(ctx context.Context) error {
	if l.shared != nil {
		l.shared.Close()
	}
	if l.chain != nil {
		return l.chain.Close(ctx)
	}
	return l.store.Close(ctx)
}

// Identity says who calls. The program itself has verified it.
type Identity struct {
	Tenant  string            // who pays and is limited; 1..128 bytes of any text
	Subject string            // who acts inside the tenant, for limits `per: subject`; "" if nobody in particular
	KeyID   string            // id of the API key that was sent, "" if none was; for limits `per: api_key`
	Claims  map[string]string // for limits `per: claim:NAME`

	// Plan is the id of the plan that applies if the plans files do not list the tenant. If they do, the plan that they
	// name applies.
	Plan string

	// Anonymous says that the call has no credential. The anonymousPlan applies, and the other fields are ignored.
	Anonymous bool
}

// Request holds the parts of an HTTP request that a decision depends on. The zero Request has any method and the path
// "/".
type Request struct {
	Method string // such as "GET"; if "", limits that name methods do not apply
	Path   string // percent-encoded as sent, without the query; "" means "/"
	// Header holds credentials, X-Forwarded-For, and costs in trusted headers. Names are in canonical form. It may be
	// nil.
	Header http.Header

	// Peer is the address of the other end of the connection, with or without port. If it is "", Decide applies no
	// ipLimits. Authorize denies the request if there are ipLimits, because they protect it.
	Peer string

	// Cost is how many units the request spends of each limit that counts requests, which are the limits without a
	// `unit`, 1..2^40. 0 means the cost that the plan says. Never let a client choose it.
	Cost int64

	// Costs is what the request spends by unit. Never let a client choose it.
	Costs Costs

	// ReserveFor makes a reservation of an allowed request, see [Decision.Reservation], that lasts for so long, up to
	// MaxReservation. 0 makes none.
	ReserveFor time.Duration

	// Identify finds out who calls, for [Limiter.Authorize]. If nil, API keys and JWTs are read from Header. It is
	// called once, after ipLimits and routes let the request pass. Its error is ErrNoCredential or ErrUnidentified, or
	// wraps one of them. Any other error refuses the credential.
	Identify func(context.Context) (Identity, error)
}

// Costs is how much a request spends, by unit, as in {"tokens": 1200, "micro-usd": 900}; 0..2^40 of each. Each limit
// charges the cost in its own unit, or what the plan says if its unit is not named. A limit with the cost 0 is neither
// charged nor asked. "requests" names the cost in requests, in place of [Request.Cost]. A unit that no limit of the
// plan has is ignored if its name is valid ([a-z][a-z0-9-]{0,31}), so that a program can name all that it knows. An
// invalid name, or a cost out of range, is an ErrCost.
type Costs map[string]int64

// Errors that a [Request.Identify] returns. Any other error refuses the credential.
var (
	// ErrNoCredential says that the request does not say who calls. The call is then anonymous if the plans have an
	// anonymousPlan, and denied otherwise.
	ErrNoCredential = authorizer.ErrNoCredential

	// ErrUnidentified says that the caller could not be looked up. The client is told to retry after a second.
	ErrUnidentified = authorizer.ErrNotLoaded
)

// RequestOf returns the request as a server received it. If its target is a URL inside a URL, such as
// x:http://host/path, Path is the path of the innermost URL, because a reverse proxy would forward that URL.
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

// Decide charges every limit that applies to the caller, or none. It ignores credentials in the header.
func (l *Limiter) Decide(ctx context.Context, who Identity, r Request) Decision {
	req := l.known(who, r)
	return l.decide(ctx, &req, false, r.ReserveFor)
}

// Authorize finds out who calls, and charges every limit that applies, or none. It checks in this order: ipLimits,
// which count each attempt; routes; credentials; the tenant; the limits of its plan.
func (l *Limiter) Authorize(ctx context.Context, r Request) Decision {
	req := r.inner()
	req.AddressUnknown = r.Peer == ""
	if r.Identify != nil {
		req.Identify = func(ctx context.Context) (authorizer.Caller, error) {
			who, err := r.Identify(ctx)
			if err != nil {
				return authorizer.Caller{}, err
			}
			return l.caller(&who)
		}
	}
	return l.decide(ctx, &req, false, r.ReserveFor)
}

// Peek returns what Decide would return, and charges nothing. Do not peek on behalf of a client: it would learn for
// free what costs it units otherwise.
func (l *Limiter) Peek(ctx context.Context, who Identity, r Request) Decision {
	req := l.known(who, r)
	return l.decide(ctx, &req, true, 0)
}

func (r *Request) inner() authorizer.Request {
	return authorizer.Request{Method: r.Method, Path: r.Path, Header: r.Header, Peer: r.Peer, Cost: r.Cost,
		Costs: r.Costs}
}

func (l *Limiter) known(who Identity, r Request) authorizer.Request {
	req := r.inner()
	req.SkipIPLimits = r.Peer == ""
	req.Identify = func(context.Context) (authorizer.Caller, error) { return l.caller(&who) }
	return req
}

func (l *Limiter) caller(who *Identity) (authorizer.Caller, error) {
	if who.Anonymous {
		return authorizer.Caller{}, ErrNoCredential
	}
	c := authorizer.Caller{Tenant: who.Tenant, Subject: who.Subject, KeyID: who.KeyID, Claims: who.Claims,
		Plan: who.Plan}
	if who.Plan != "" {
		for _, p := range l.plans.Current().Config.Plans() {
			if p.ID == who.Plan {
				c.Limits = p.Set()
			}
		}
	}
	return c, nil
}

// decide decides about the request. If keep is above 0, an allowed decision has a reservation that lasts for so long.
// So has a request that takes a place, for at least as long as the place counts.
func (l *Limiter) decide(ctx context.Context, req *authorizer.Request, peek bool, keep time.Duration) Decision {
	if l.closed.Load() {
		return refusal(ErrClosed)
	}
	if err := plan.CheckCosts(req.Cost, req.Costs); err != nil {
		err = fmt.Errorf("%w: %w", ErrCost, err)
		l.mistakes.log(l.c.Log, err)
		return refusal(err)
	}
	if keep < 0 || keep > MaxReservation {
		return l.badTime(keep)
	}
	ask := l.authorizer.Authorize
	if peek {
		ask = l.authorizer.Peek
	}
	began := time.Time{}
	if l.measured != nil && !peek {
		began = time.Now()
	}
	a := ask(ctx, req)
	defer a.Release()
	if !began.IsZero() {
		l.measured.decisions.At(a.Kind).Observe(time.Since(began))
	}
	if a.Err != nil && (a.Kind == answer.NoPlan || a.Kind == answer.NoCredential) {
		l.mistakes.log(l.c.Log, a.Err)
	}
	a.LogRefusal(ctx)
	d := decisionOf(a)
	if d.Allowed && !peek {
		if taken := a.Decision(); taken != nil {
			keep = max(keep, inflight.HoldFor(taken))
		}
		if keep > 0 {
			d.reservation = l.reserved(a, req, keep)
		}
	}
	return d
}

// mistakes logs each mistake of the program or its plans once. The zero value is ready.
type mistakes struct {
	mu     sync.Mutex
	logged map[string]struct{} // texts, at most maxMistakes
}

// maxMistakes bounds the log and the memory: a program may take the id of a plan from its clients.
const maxMistakes = 100

func (m *mistakes) log(log *slog.Logger, mistake error) {
	text := mistake.Error()
	m.mu.Lock()
	_, known := m.logged[text]
	known = known || len(m.logged) >= maxMistakes
	if !known {
		if m.logged == nil {
			m.logged = make(map[string]struct{})
		}
		m.logged[text] = struct{}{}
	}
	m.mu.Unlock()
	if !known {
		log.Warn("requests are denied because of a mistake in the program or its plans", "error", mistake)
	}
}

// Reload reads the plans files. If anything in them is wrong, the plans in force stay, and the error wraps ErrPlans.
func (l *Limiter) Reload() error {
	if err := l.plans.Reload(); err != nil {
		return fmt.Errorf("%w: %w", ErrPlans, err)
	}
	return nil
}

// PlansStatus returns when the plans in force were loaded, and what is wrong with newer plans files, if anything. The
// error wraps ErrPlans. It is for health checks.
func (l *Limiter) PlansStatus() (loadedAt time.Time, err error) {
	if loadedAt, err = l.plans.Status(); err != nil {
		err = fmt.Errorf("%w: %w", ErrPlans, err)
	}
	return loadedAt, err
}

// StoreFailures returns how many times the Store failed to decide, since the start.
func (l *Limiter) StoreFailures() int64 { return l.authorizer.Failures() }
