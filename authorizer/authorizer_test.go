package authorizer_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluicelimits/sluice/authorizer"
	"github.com/sluicelimits/sluice/internal/configfile/configyaml"
	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/limiter/resilience"
	"github.com/sluicelimits/sluice/internal/limiter/store/memory"
	"github.com/sluicelimits/sluice/internal/limiter/store/memory/memorytest"
	"github.com/sluicelimits/sluice/internal/plan"
	"github.com/sluicelimits/sluice/internal/request/answer"
	"github.com/sluicelimits/sluice/internal/request/identity"
)

var noon = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

const plans = `
plans:
  - id: small
    limits:
      - { id: burst, algorithm: token_bucket, rate: 1, period: 1s, burst: 5 }
  - id: costly
    limits:
      - { id: units, algorithm: token_bucket, rate: 10, period: 1s, burst: 10,
          cost: { trustedHeader: x-query-cost, max: 100, default: 1 } }
  - id: open
    limits: [ { id: l, algorithm: token_bucket, rate: 1, period: 1s, burst: 2, onStoreFailure: open } ]
  - id: closed
    limits:
      - { id: l, algorithm: token_bucket, rate: 1, period: 1s, burst: 2, onStoreFailure: closed }
      - { id: o, algorithm: token_bucket, rate: 1, period: 1s, burst: 2, onStoreFailure: open }
tenants:
  - { id: acme, plan: small }
  - { id: globex, plan: costly }
  - { id: initech, plan: small, suspended: true }
  - { id: lax, plan: open }
  - { id: strict, plan: closed }
`

const ipPlans = plans + `
ipLimits:
  - { id: per-address, algorithm: token_bucket, rate: 1, period: 10s, burst: 8 }
`

// fixture is an Authorizer with a clock and a configuration that the test sets.
type fixture struct {
	*authorizer.Authorizer
	now  time.Time
	snap *authorizer.Snapshot
}

// newFixture makes a fixture with the plans of the text and an API key for each tenant. "nobody" has a key and is no
// tenant. A nil store means one in memory.
func newFixture(t testing.TB, text string, store limit.Store, hops int) *fixture {
	t.Helper()
	cfg, err := plan.Parse(configyaml.Source("test.yaml", []byte(text)))
	if err != nil {
		t.Fatal(err)
	}
	var keys []identity.Key
	for _, tenant := range []string{"acme", "globex", "initech", "lax", "strict", "nobody"} {
		keys = append(keys, identity.Key{ID: "k-" + tenant, Tenant: tenant, Subject: "ci", Pepper: "dev",
			Hash: identity.HashKey(identity.DevPepper(), identity.ExampleKey(tenant))})
	}
	found, err := identity.NewKeys(keys, map[string][]byte{"dev": identity.DevPepper()})
	if err != nil {
		t.Fatal(err)
	}
	if store == nil {
		if store, err = memory.New(memory.Config{}); err != nil {
			t.Fatal(err)
		}
	}
	f := &fixture{now: noon, snap: &authorizer.Snapshot{Config: cfg, Keys: found}}
	f.Authorizer, err = authorizer.New(authorizer.Config{
		Source: authorizer.Current(func() *authorizer.Snapshot { return f.snap }), Store: store,
		Now: func() time.Time { return f.now },
		Log: slog.New(slog.NewTextHandler(io.Discard, nil)), TrustedHops: hops,
	})
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// limitFallbackBytes gives the fixture an authorizer on the store, whose fallback limiter counts in so many bytes.
func (f *fixture) limitFallbackBytes(t *testing.T, store limit.Store, bytes int64) {
	t.Helper()
	z, err := authorizer.New(authorizer.Config{
		Source: authorizer.Current(func() *authorizer.Snapshot { return f.snap }), Store: store,
		Now: func() time.Time { return f.now }, Log: slog.New(slog.NewTextHandler(io.Discard, nil)),
		BackstopBytes: bytes})
	if err != nil {
		t.Fatal(err)
	}
	f.Authorizer = z
}

func request(tenant string, extra ...string) *authorizer.Request {
	h := http.Header{}
	if tenant != "" {
		h.Set("X-API-Key", identity.ExampleKey(tenant))
	}
	for i := 0; i < len(extra); i += 2 {
		h.Add(extra[i], extra[i+1])
	}
	return &authorizer.Request{Method: "GET", Path: "/product/1", Header: h, Peer: "198.51.100.9:4711"}
}

// requestTo is a request for a path.
func requestTo(path, tenant string) *authorizer.Request {
	r := request(tenant)
	r.Path = path
	return r
}

// ask decides about a request and checks the answer's kind. It returns the rate-limit headers.
func (f *fixture) ask(t testing.TB, req *authorizer.Request, want answer.Kind) answer.Header {
	t.Helper()
	a := f.Authorize(context.Background(), req)
	defer a.Release()
	if a.Kind != want {
		t.Fatalf("%s %s with %v: %s, want %s (%s)", req.Method, req.Path, req.Header, a.Kind, want,
			a.AppendProblem(nil))
	}
	return a.Header
}

func TestOutcomes(t *testing.T) {
	for _, c := range []struct {
		name, plans string
		req         *authorizer.Request
		want        answer.Kind
	}{
		{"allowed", plans, request("acme"), answer.Allowed},
		{"bearer", plans, request("", "Authorization", "Bearer "+identity.ExampleKey("acme")), answer.Allowed},
		{"no credential", plans, request(""), answer.NoCredential},
		{"no credential, anonymous plan", plans + "anonymousPlan: small", request(""), answer.Allowed},
		{"unknown key", plans, request("", "X-Api-Key", identity.NewKey()), answer.BadCredential},
		{"unknown key is never anonymous", plans + "anonymousPlan: small", request("", "X-Api-Key", identity.NewKey()),
			answer.BadCredential},
		{"malformed key is never anonymous", plans + "anonymousPlan: small", request("", "X-Api-Key", "slk_x"),
			answer.BadCredential},
		{"empty key is never anonymous", plans + "anonymousPlan: small", request("", "X-Api-Key", ""),
			answer.BadCredential},
		{"basic is never anonymous", plans + "anonymousPlan: small", request("", "Authorization", "Basic eDp5"),
			answer.BadCredential},
		{"oversized key", plans, request("", "X-Api-Key", strings.Repeat("k", 1<<16)), answer.BadCredential},
		{"unknown tenant", plans, request("nobody"), answer.UnknownTenant},
		{"suspended", plans, request("initech"), answer.SuspendedTenant},
		{"undeclared route", plans + `routes: [ { methods: [GET], pathPattern: "/order/*" } ]`, request("acme"),
			answer.NoRoute},
		{"undeclared route comes before the key", plans + `routes: [ { methods: [GET], pathPattern: "/order/*" } ]`,
			request(""), answer.NoRoute},
		{"a reading is no declared route", plans + `routes: [ { methods: [GET], pathPattern: "/product/*" } ]`,
			requestTo("/product/..%2Fadmin", "acme"), answer.NoRoute},
		{"declared route", plans + `routes: [ { methods: [GET], pathPattern: "/product/*" } ]`, request("acme"),
			answer.Allowed},
		{"never fits", plans, request("globex", "X-Query-Cost", "11"), answer.NeverFits},
		{"two cost headers are no integer", plans, request("globex", "X-Query-Cost", "11", "X-Query-Cost", "11"),
			answer.Allowed},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := newFixture(t, c.plans, nil, 0)
			h := f.ask(t, c.req, c.want)
			if (h.RetryAfter != "") != (c.want == answer.Limited) {
				t.Errorf("Retry-After = %q", h.RetryAfter)
			}
		})
	}
}

// Guarantees that the wait in a problem's body is exact: the request passes after the wait, and not 30 ms earlier.
func TestWaitIsExact(t *testing.T) {
	f := newFixture(t, plans, nil, 0)
	for range 5 {
		f.ask(t, request("acme"), answer.Allowed)
	}
	f.now = noon.Add(123_457 * time.Microsecond)
	a := f.Authorize(context.Background(), request("acme"))
	wait := retryAfterMs(t, a)
	a.Release()
	if wait != 877 {
		t.Errorf("wait = %d ms, want 877: what is left of a second, rounded up", wait)
	}
	denied := f.now
	f.now = denied.Add(time.Duration(wait-30) * time.Millisecond)
	f.ask(t, request("acme"), answer.Limited)
	f.now = denied.Add(time.Duration(wait) * time.Millisecond)
	f.ask(t, request("acme"), answer.Allowed)
}

func retryAfterMs(t *testing.T, a *authorizer.Answer) int64 {
	t.Helper()
	var body struct {
		Wait *int64 `json:"retry-after-ms"`
	}
	if err := json.Unmarshal(a.AppendProblem(nil), &body); err != nil || body.Wait == nil {
		t.Fatalf("%s has no retry-after-ms (%v)", a.AppendProblem(nil), err)
	}
	return *body.Wait
}

// Guarantees that the ipLimits admit another attempt, too, after the wait of a denial by the plan.
func TestWaitCoversTheAddress(t *testing.T) {
	f := newFixture(t, ipPlans, nil, 0)
	for range 5 {
		f.ask(t, request("acme"), answer.Allowed)
	}
	f.ask(t, request("acme"), answer.Limited)
	f.ask(t, request("acme"), answer.Limited)
	a := f.Authorize(context.Background(), request("acme")) // the eighth attempt, and the last that the address has
	defer a.Release()
	if wait := retryAfterMs(t, a); a.Kind != answer.Limited || wait != 10_000 || a.Header.RetryAfter != "10" {
		t.Fatalf("%s, wait %d ms, Retry-After %q; want limited, 10000, 10", a.Kind, wait, a.Header.RetryAfter)
	}
	f.now = noon.Add(10*time.Second - 30*time.Millisecond)
	f.ask(t, request("acme"), answer.IPLimited)
	f.now = noon.Add(10 * time.Second)
	f.ask(t, request("acme"), answer.Allowed)
}

// Guarantees that ipLimits count every attempt: also one with a bad key, without a key, for an undeclared route, or
// that the plan denies. If they did not, nothing would limit who guesses keys.
func TestIPLimitsCountEveryAttempt(t *testing.T) {
	routed := ipPlans + `routes: [ { pathPattern: "/product/*" } ]`
	lost := request("acme")
	lost.Path = "/nowhere"
	for name, c := range map[string]struct {
		req  *authorizer.Request
		want answer.Kind
	}{
		"bad key":   {request("", "X-Api-Key", identity.NewKey()), answer.BadCredential},
		"no key":    {request(""), answer.NoCredential},
		"suspended": {request("initech"), answer.SuspendedTenant},
		"no route":  {lost, answer.NoRoute},
	} {
		f := newFixture(t, routed, nil, 0)
		for range 8 {
			f.ask(t, c.req, c.want)
		}
		if h := f.ask(t, c.req, answer.IPLimited); h.RetryAfter != "10" ||
			!strings.Contains(h.Policy, `"ip:per-address"`) {
			t.Errorf("%s: headers %+v", name, h)
		}
		// Everybody behind the same address is denied; another address is not.
		f.ask(t, request("acme"), answer.IPLimited)
		other := request("acme")
		other.Peer = "198.51.100.10:4711"
		f.ask(t, other, answer.Allowed)
	}
	f := newFixture(t, ipPlans, nil, 0)
	for range 5 {
		f.ask(t, request("acme"), answer.Allowed)
	}
	for range 3 {
		f.ask(t, request("acme"), answer.Limited) // the plan denies, and the address is charged all the same
	}
	f.ask(t, request("acme"), answer.IPLimited)
}

// Guarantees that a denial by an ipLimit charges no plan: nobody has verified yet that the request is the tenant's.
func TestAddressDenialLeavesThePlanAlone(t *testing.T) {
	f := newFixture(t, ipPlans, nil, 0)
	for range 8 {
		f.ask(t, request(""), answer.NoCredential)
	}
	for range 20 {
		f.ask(t, request("acme"), answer.IPLimited)
	}
	other := request("acme")
	other.Peer = "198.51.100.10:4711"
	if h := f.ask(t, other, answer.Allowed); h.Remaining != "4" {
		t.Errorf("remaining = %s after 20 requests that the address was denied, want 4", h.Remaining)
	}
}

func TestReloadKeepsCounters(t *testing.T) {
	f := newFixture(t, plans, nil, 0)
	for range 5 {
		f.ask(t, request("acme"), answer.Allowed)
	}
	f.snap = newFixture(t, strings.Replace(plans, "burst: 5", "burst: 6", 1), nil, 0).snap
	f.ask(t, request("acme"), answer.Allowed) // 5 of the 6 are used
	f.ask(t, request("acme"), answer.Limited)
	f.now = noon.Add(6 * time.Second)
	if h := f.ask(t, request("acme"), answer.Allowed); h.Limit != "6" || h.Remaining != "5" {
		t.Errorf("limit %s, remaining %s after the reload; want 6, 5", h.Limit, h.Remaining)
	}
}

// failingStore is a store whose decisions fail with the error in down, if it is set.
type failingStore struct {
	limit.Store
	down atomic.Pointer[error]
}

func (s *failingStore) Decide(ctx context.Context, req *limit.Request, now time.Time, d *limit.Decision) error {
	if err := s.down.Load(); err != nil {
		return *err
	}
	return s.Store.Decide(ctx, req, now, d)
}

// Guarantees that a store that does not answer leads neither to a 5xx nor to requests without limits: each limit does
// what its onStoreFailure says.
func TestStoreAway(t *testing.T) {
	inner := memorytest.New(t)
	store := &failingStore{Store: inner}
	gone := errors.New("connection refused")
	store.down.Store(&gone)
	f := newFixture(t, ipPlans, store, 0)
	peer := 0
	ask := func(tenant string, want answer.Kind) {
		t.Helper()
		req := request(tenant)
		peer++
		req.Peer = fmt.Sprintf("203.0.113.%d:1", peer)
		a := f.Authorize(context.Background(), req)
		defer a.Release()
		if a.Kind != want || !a.StoreFailed || a.Kind.Status() >= 500 {
			t.Fatalf("%s: %s, marked %v; want %s, marked", tenant, a.Kind, a.StoreFailed, want)
		}
	}
	for range 5 {
		ask("acme", answer.Allowed) // backstop: the limit itself, counted here
	}
	ask("acme", answer.Limited)
	for range 20 {
		ask("lax", answer.Allowed)
		ask("strict", answer.Unavailable)
	}
	for range 8 {
		f.ask(t, request(""), answer.NoCredential)
	}
	f.ask(t, request(""), answer.IPLimited) // addresses have a backstop, too
	if f.Failures() == 0 {
		t.Error("failures are not counted")
	}
	store.down.Store(nil)
	// A minute later the limit has room again. It does so whether or not the fallback limiter has already charged the
	// store for the requests that it admitted at noon.
	f.now = noon.Add(time.Minute)
	a := f.Authorize(context.Background(), request("acme"))
	defer a.Release()
	if a.Kind != answer.Allowed || a.StoreFailed {
		t.Errorf("once the store is back: %s, marked %v; want %s, not marked", a.Kind, a.StoreFailed, answer.Allowed)
	}
}

// Guarantees that an authorizer uses the fallback limiters that it is given, for tenants and for addresses, with their
// instance counts; and that what they decide alone sets StoreFailed and has a wait.
func TestOutageStore(t *testing.T) {
	inner := memorytest.New(t)
	store := &failingStore{Store: inner}
	gone := errors.New("connection refused")
	store.down.Store(&gone)
	quiet := slog.New(slog.NewTextHandler(io.Discard, nil))
	tenants, err := resilience.NewFallback(resilience.FallbackConfig{Store: store, MaxInstances: 5, Log: quiet})
	if err != nil {
		t.Fatal(err)
	}
	addresses, err := resilience.NewFallback(resilience.FallbackConfig{Store: store, MaxInstances: 2, Log: quiet})
	if err != nil {
		t.Fatal(err)
	}
	f := newFixture(t, ipPlans, nil, 0)
	if f.Authorizer, err = authorizer.New(authorizer.Config{
		Source: authorizer.Current(func() *authorizer.Snapshot { return f.snap }), Store: tenants,
		Addresses: addresses, Now: func() time.Time { return f.now }, Log: quiet}); err != nil {
		t.Fatal(err)
	}
	if h := f.ask(t, request("acme"), answer.Allowed); h.Limit != "1" ||
		h.Policy != `"burst";q=1;w=1, "ip:per-address";q=4;w=40` {
		t.Errorf("%+v: want a fifth of 5, and half of 8", h)
	}
	a := f.Authorize(context.Background(), request("acme"))
	if wait := retryAfterMs(t, a); a.Kind != answer.Limited || !a.StoreFailed || wait != 1000 {
		t.Errorf("%s, marked %v, wait %d ms; want limited, marked, 1000", a.Kind, a.StoreFailed, wait)
	}
	a.Release()
	a = f.Authorize(context.Background(), request("strict"))
	if wait := retryAfterMs(t, a); a.Kind != answer.Unavailable || !a.StoreFailed || wait != 1000 ||
		a.IPDecision() == nil {
		t.Errorf("%s, marked %v, wait %d ms; want unavailable, marked, 1000", a.Kind, a.StoreFailed, wait)
	}
	a.Release()
	if n := f.Failures(); n != 6 || tenants.Stats().Failures != 3 {
		t.Errorf("%d failures, %d of tenants; want 6 and 3", n, tenants.Stats().Failures)
	}
	store.down.Store(nil)
	a = f.Authorize(context.Background(), request("globex"))
	if !a.Allowed() || a.StoreFailed {
		t.Errorf("%s, marked %v with the store back", a.Kind, a.StoreFailed)
	}
	a.Release()
	for _, s := range []*resilience.Fallback{tenants, addresses} {
		if err := s.Close(context.Background()); err != nil {
			t.Error(err)
		}
	}
}

// Guarantees that StoreFailed says that the store of addresses failed, also if the store of tenants then decides.
func TestFailedStoreOfAddresses(t *testing.T) {
	inner := memorytest.New(t)
	addresses := &failingStore{}
	gone := errors.New("connection refused")
	addresses.down.Store(&gone)
	f := newFixture(t, ipPlans, nil, 0)
	var err error
	if f.Authorizer, err = authorizer.New(authorizer.Config{
		Source: authorizer.Current(func() *authorizer.Snapshot { return f.snap }), Store: inner, Addresses: addresses,
		Now: func() time.Time { return f.now }, Log: slog.New(slog.DiscardHandler),
	}); err != nil {
		t.Fatal(err)
	}
	a := f.Authorize(t.Context(), request("acme"))
	defer a.Release()
	if d := a.Decision(); !a.Allowed() || !a.StoreFailed || d == nil || d.Degraded {
		t.Errorf("%s, StoreFailed %t, decision %+v; want allowed by the store of tenants, and StoreFailed", a.Kind,
			a.StoreFailed, d)
	}
}

// Guarantees that new addresses share one counter once the memory for addresses is full: a flood of addresses is
// limited as one address.
func TestFullStoreSharesOneAddressCounter(t *testing.T) {
	inner := memorytest.New(t)
	store := &failingStore{Store: inner}
	full := fmt.Errorf("memory store: %w", limit.ErrFull)
	store.down.Store(&full)
	f := newFixture(t, ipPlans, store, 0)
	f.limitFallbackBytes(t, store, 256<<10)
	allowed := 0
	const addresses = 3_000
	for i := range addresses {
		req := request("")
		req.Peer = fmt.Sprintf("10.%d.%d.%d:1", i>>16, i>>8&255, i&255)
		a := f.Authorize(context.Background(), req)
		if a.Kind != answer.IPLimited {
			allowed++
		}
		a.Release()
	}
	// An address has a counter of its own while there is room for it. All others share one counter of 8.
	if allowed == addresses || allowed < 8 {
		t.Errorf("%d of %d new addresses passed; want the backstop's room and 8", allowed, addresses)
	}
	before := allowed
	for i := range 1000 {
		req := request("")
		req.Peer = fmt.Sprintf("11.0.%d.%d:1", i>>8, i&255)
		a := f.Authorize(context.Background(), req)
		if a.Kind != answer.IPLimited {
			allowed++
		}
		a.Release()
	}
	if allowed != before {
		t.Errorf("%d of 1000 further addresses passed, want 0: the shared counter is used up", allowed-before)
	}
}

// Guarantees that a request whose context has ended charges nothing.
func TestGivenUpRequest(t *testing.T) {
	f := newFixture(t, plans, nil, 0)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	for range 20 {
		a := f.Authorize(ctx, request("acme"))
		if a.Kind != answer.Unavailable {
			t.Fatalf("%s, want unavailable", a.Kind)
		}
		a.Release()
	}
	if h := f.ask(t, request("acme"), answer.Allowed); h.Remaining != "4" {
		t.Errorf("remaining = %s, want 4", h.Remaining)
	}
}

func TestNewRefuses(t *testing.T) {
	store := memorytest.New(t)
	current := authorizer.Current(func() *authorizer.Snapshot { return nil })
	for want, c := range map[string]authorizer.Config{
		"Source is missing":     {Store: store},
		"Store is missing":      {Source: current},
		"TrustedHops -1 is":     {Source: current, Store: store, TrustedHops: -1},
		"Jitter 101 is outside": {Source: current, Store: store, Jitter: 101},
	} {
		if _, err := authorizer.New(c); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("New = %v, want an error with %q", err, want)
		}
	}
}
