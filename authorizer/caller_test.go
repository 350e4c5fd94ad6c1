package authorizer_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/sluicelimits/sluice/authorizer"
	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/request/answer"
)

// identifiedAs is a request for which the host's authentication returns the caller and the error.
func identifiedAs(c authorizer.Caller, err error) *authorizer.Request {
	return &authorizer.Request{Method: "GET", Path: "/", Peer: "198.51.100.9:1",
		Identify: func(context.Context) (authorizer.Caller, error) { return c, err }}
}

// Guarantees the answer to each result of a host's own authentication. If it fails, the call must not count as
// anonymous, nor as another tenant's.
func TestIdentify(t *testing.T) {
	f := newFixture(t, plans, nil, 0)
	small := f.snap.Config.Plans()[0].Set()
	for _, c := range []struct {
		name  string
		plans string
		req   *authorizer.Request
		want  answer.Kind
	}{
		{"configured", plans, identifiedAs(authorizer.Caller{Tenant: "acme"}, nil), answer.Allowed},
		{"suspended", plans, identifiedAs(authorizer.Caller{Tenant: "initech"}, nil), answer.SuspendedTenant},
		{"suspended, with a plan of the host's", plans,
			identifiedAs(authorizer.Caller{Tenant: "initech", Plan: "small", Limits: small}, nil),
			answer.SuspendedTenant},
		{"not configured", plans, identifiedAs(authorizer.Caller{Tenant: "new"}, nil), answer.UnknownTenant},
		{"not configured, with a plan", plans,
			identifiedAs(authorizer.Caller{Tenant: "new", Plan: "small", Limits: small}, nil), answer.Allowed},
		{"not configured, with an unknown plan", plans,
			identifiedAs(authorizer.Caller{Tenant: "new", Plan: "large"}, nil), answer.NoPlan},
		{"nobody", plans, identifiedAs(authorizer.Caller{}, nil), answer.UnknownTenant},
		{"nobody is not anonymous", plans + "anonymousPlan: small", identifiedAs(authorizer.Caller{}, nil),
			answer.UnknownTenant},
		{"too long a name", plans, identifiedAs(authorizer.Caller{Tenant: strings.Repeat("a", 129), Plan: "small",
			Limits: small}, nil), answer.UnknownTenant},
		{"no credential", plans, identifiedAs(authorizer.Caller{}, authorizer.ErrNoCredential), answer.NoCredential},
		{"no credential, anonymous plan", plans + "anonymousPlan: small",
			identifiedAs(authorizer.Caller{}, authorizer.ErrNoCredential), answer.Allowed},
		{"refused", plans + "anonymousPlan: small",
			identifiedAs(authorizer.Caller{Tenant: "acme"}, errors.New("expired")), answer.BadCredential},
		{"not looked up", plans, identifiedAs(authorizer.Caller{},
			fmt.Errorf("directory: %w", authorizer.ErrNotLoaded)), answer.Unidentified},
	} {
		t.Run(c.name, func(t *testing.T) { newFixture(t, c.plans, nil, 0).ask(t, c.req, c.want) })
	}
}

// Guarantees that ipLimits come before a host's own authentication, and protect it from a flood of requests.
func TestIdentifyAfterAddresses(t *testing.T) {
	f := newFixture(t, ipPlans, nil, 0)
	asked := 0
	req := identifiedAs(authorizer.Caller{}, nil)
	req.Identify = func(context.Context) (authorizer.Caller, error) {
		asked++
		return authorizer.Caller{}, errors.New("bad")
	}
	for range 8 {
		f.ask(t, req, answer.BadCredential)
	}
	f.ask(t, req, answer.IPLimited)
	if asked != 8 {
		t.Errorf("asked %d times, want 8: not for the address that is over its limit", asked)
	}
}

// Guarantees that a host's authentication which was cut off by the request's deadline says nothing about the
// credential: the client is told to try again, and not that the credential is bad.
func TestIdentifyIsCutOff(t *testing.T) {
	f := newFixture(t, plans, nil, 0)
	ctx, cancel := context.WithCancel(t.Context())
	req := identifiedAs(authorizer.Caller{}, nil)
	req.Identify = func(ctx context.Context) (authorizer.Caller, error) {
		cancel()
		return authorizer.Caller{}, fmt.Errorf("directory: %w", ctx.Err())
	}
	a := f.Authorize(ctx, req)
	defer a.Release()
	if a.Kind != answer.Unidentified || a.Header.RetryAfter != "1" || a.Err == nil {
		t.Errorf("%s, Retry-After %q, %v; want unidentified, 1, and why", a.Kind, a.Header.RetryAfter, a.Err)
	}
}

// Guarantees that an answer holds nothing of an earlier one's caller, although answers are pooled.
func TestCallersDoNotMix(t *testing.T) {
	const text = "plans: [ { id: p, limits: [ { id: l, per: \"claim:region\", algorithm: fixed_window, threshold: 1, " +
		"period: 1h } ] } ]\ntenants: [ { id: acme, plan: p } ]\n"
	f := newFixture(t, text, nil, 0)
	north := identifiedAs(authorizer.Caller{Tenant: "acme", Claims: map[string]string{"region": "north"}}, nil)
	f.ask(t, north, answer.Allowed)
	f.ask(t, north, answer.Limited)
	f.ask(t, identifiedAs(authorizer.Caller{Tenant: "acme", Claims: map[string]string{"region": "south"}}, nil),
		answer.Allowed)
	// calls without a region have a counter
	f.ask(t, identifiedAs(authorizer.Caller{Tenant: "acme"}, nil), answer.Allowed)
	f.ask(t, request("acme"), answer.Limited) // an API key has no claims, either
}

// Guarantees that Request.Cost is charged, and that a cost which no counter can count is NeverFits and charges nothing.
func TestCostOfTheCaller(t *testing.T) {
	f := newFixture(t, plans, nil, 0)
	req := identifiedAs(authorizer.Caller{Tenant: "acme"}, nil)
	for _, c := range []struct {
		cost int64
		want answer.Kind
	}{{6, answer.NeverFits}, {limit.MaxUnits + 1, answer.NeverFits}, {-1, answer.NeverFits}, {4, answer.Allowed},
		{2, answer.Limited}, {0, answer.Allowed}, {0, answer.Limited}} {
		req.Cost = c.cost
		f.ask(t, req, c.want)
	}
}

// Guarantees that Peek answers as Authorize would and changes no counter, those of addresses included.
func TestPeek(t *testing.T) {
	f := newFixture(t, ipPlans, nil, 0)
	for range 20 {
		a := f.Peek(context.Background(), request("acme"))
		if a.Kind != answer.Allowed || a.Header.Remaining != "5" {
			t.Fatalf("peek: %s, %s left; want all 5", a.Kind, a.Header.Remaining)
		}
		a.Release()
	}
	for range 5 {
		f.ask(t, request("acme"), answer.Allowed)
	}
	a := f.Peek(context.Background(), request("acme"))
	if a.Kind != answer.Limited {
		t.Errorf("peek at an empty bucket: %s", a.Kind)
	}
	a.Release()
	f.ask(t, request("acme"), answer.Limited)
	f.now = f.now.Add(time.Second)
	f.ask(t, request("acme"), answer.Allowed)
}
