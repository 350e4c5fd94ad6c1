package authorizer_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/sluicelimits/sluice/authorizer"
	"github.com/sluicelimits/sluice/internal/answer"
	"github.com/sluicelimits/sluice/internal/limit"
)

func as(c authorizer.Caller, err error) *authorizer.Request {
	return &authorizer.Request{Method: "GET", Path: "/", Peer: "198.51.100.9:1", Identify: func(context.Context) (authorizer.Caller, error) { return c, err }}
}

// Guarantees what becomes of each thing that a host's own authentication can say. A failure of it must never be anonymous,
// and never another tenant.
func TestIdentify(t *testing.T) {
	f := newFixture(t, plans, nil, 0)
	small := f.snap.Config.Plans()[0].Set()
	for _, c := range []struct {
		name  string
		plans string
		req   *authorizer.Request
		want  answer.Kind
	}{
		{"configured", plans, as(authorizer.Caller{Tenant: "acme"}, nil), answer.Allowed},
		{"suspended", plans, as(authorizer.Caller{Tenant: "initech"}, nil), answer.SuspendedTenant},
		{"suspended, with a plan of the host's", plans, as(authorizer.Caller{Tenant: "initech", Plan: "small", Limits: small}, nil), answer.SuspendedTenant},
		{"not configured", plans, as(authorizer.Caller{Tenant: "new"}, nil), answer.UnknownTenant},
		{"not configured, with a plan", plans, as(authorizer.Caller{Tenant: "new", Plan: "small", Limits: small}, nil), answer.Allowed},
		{"not configured, with an unknown plan", plans, as(authorizer.Caller{Tenant: "new", Plan: "large"}, nil), answer.NoPlan},
		{"nobody", plans, as(authorizer.Caller{}, nil), answer.UnknownTenant},
		{"nobody is not anonymous", plans + "anonymousPlan: small", as(authorizer.Caller{}, nil), answer.UnknownTenant},
		{"too long a name", plans, as(authorizer.Caller{Tenant: strings.Repeat("a", 129), Plan: "small", Limits: small}, nil), answer.UnknownTenant},
		{"no credential", plans, as(authorizer.Caller{}, authorizer.ErrNoCredential), answer.NoCredential},
		{"no credential, anonymous plan", plans + "anonymousPlan: small", as(authorizer.Caller{}, authorizer.ErrNoCredential), answer.Allowed},
		{"refused", plans + "anonymousPlan: small", as(authorizer.Caller{Tenant: "acme"}, errors.New("expired")), answer.BadCredential},
		{"not looked up", plans, as(authorizer.Caller{}, fmt.Errorf("directory: %w", authorizer.ErrNotLoaded)), answer.Unidentified},
	} {
		t.Run(c.name, func(t *testing.T) { newFixture(t, c.plans, nil, 0).ask(t, c.req, c.want) })
	}
}

// Guarantees that addresses are limited before a host's authentication is asked, which may be what they flood.
func TestIdentifyAfterAddresses(t *testing.T) {
	f := newFixture(t, ipPlans, nil, 0)
	asked := 0
	req := as(authorizer.Caller{}, nil)
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

// Guarantees that an answer of one caller holds nothing of another's: its memory is used again.
func TestCallersDoNotMix(t *testing.T) {
	const text = "plans: [ { id: p, limits: [ { id: l, per: \"claim:region\", algorithm: fixed_window, threshold: 1, period: 1h } ] } ]\ntenants: [ { id: acme, plan: p } ]\n"
	f := newFixture(t, text, nil, 0)
	north := as(authorizer.Caller{Tenant: "acme", Claims: map[string]string{"region": "north"}}, nil)
	f.ask(t, north, answer.Allowed)
	f.ask(t, north, answer.Limited)
	f.ask(t, as(authorizer.Caller{Tenant: "acme", Claims: map[string]string{"region": "south"}}, nil), answer.Allowed)
	f.ask(t, as(authorizer.Caller{Tenant: "acme"}, nil), answer.Allowed) // of no region, a counter of its own
	f.ask(t, request("acme"), answer.Limited)                            // by a key, which has no claims either
}

// Guarantees that a cost of the caller's choice is spent, and that one beyond all counting is never and charges nothing.
func TestCostOfTheCaller(t *testing.T) {
	f := newFixture(t, plans, nil, 0)
	req := as(authorizer.Caller{Tenant: "acme"}, nil)
	for _, c := range []struct {
		cost int64
		want answer.Kind
	}{{6, answer.NeverFits}, {limit.MaxUnits + 1, answer.NeverFits}, {-1, answer.NeverFits}, {4, answer.Allowed}, {2, answer.Limited}, {0, answer.Allowed}, {0, answer.Limited}} {
		req.Cost = c.cost
		f.ask(t, req, c.want)
	}
}

// Guarantees that a peek answers as a decision would and leaves every counter as it was, those of addresses included.
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
