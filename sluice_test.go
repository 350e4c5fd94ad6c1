package sluice_test

//lint:file-ignore SA1008 names are spelled as on the wire

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"

	"github.com/sluicelimits/sluice"
	"github.com/sluicelimits/sluice/internal/request/answer"
	"github.com/sluicelimits/sluice/internal/request/identity"
)

var (
	noon  = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	quiet = slog.New(slog.NewTextHandler(io.Discard, nil))
	acme  = sluice.Identity{Tenant: "acme"}
)

const hourly = "plans: [ { id: p, limits: [ { id: hourly, algorithm: fixed_window, threshold: 500, period: 1h } ] } " +
	"]\ntenants: [ { id: acme, plan: p } ]\n"

// open returns a limiter with a clock that stands at noon.
func open(t testing.TB, text string, change func(*sluice.Config)) *sluice.Limiter {
	t.Helper()
	c := sluice.Config{PlansData: []byte(text), Log: quiet, Now: func() time.Time { return noon }}
	if change != nil {
		change(&c)
	}
	l, err := sluice.New(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(context.Background()); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	return l
}

// hammered counts the requests that were allowed by the limiters' store or their own memory, those that were decided
// without a store that did not answer, and the allowed ones among these. The store is charged for the last ones later.
type hammered struct{ allowed, without, owed int64 }

// hammer lets goroutines spend each limiter in turn, 2,000 requests in all.
func hammer(t testing.TB, goroutines int, limiters ...*sluice.Limiter) hammered {
	t.Helper()
	var allowed, without, owed, other atomic.Int64
	var running sync.WaitGroup
	for g := range goroutines {
		running.Go(func() {
			for i := g; i < 2000; i += goroutines {
				switch d := limiters[i%len(limiters)].Decide(context.Background(), acme, sluice.Request{}); {
				case d.StoreFailed:
					without.Add(1)
					if d.Allowed {
						owed.Add(1)
					}
				case d.Allowed:
					allowed.Add(1)
				case d.Reason != sluice.Limited:
					other.Add(1)
				}
			}
		})
	}
	running.Wait()
	if n := other.Load(); n > 0 {
		t.Errorf("%d requests were denied for another reason than the limit", n)
	}
	return hammered{allowed.Load(), without.Load(), owed.Load()}
}

// Guarantees that a limit is exact with many concurrent goroutines.
func TestExact(t *testing.T) {
	if n := hammer(t, 64, open(t, hourly, nil)); n != (hammered{allowed: 500}) {
		t.Errorf("of 2,000 %+v, want exactly 500", n)
	}
}

// Guarantees that each kind of denial has its reason, and that reasons have the names that the headers, logs and
// contexts use.
func TestReasons(t *testing.T) {
	reasons := []sluice.Reason{sluice.Allowed, sluice.Limited, sluice.AddressLimited, sluice.NeverFits,
		sluice.Unavailable, sluice.Unidentified,
		sluice.NoCredential, sluice.BadCredential, sluice.UnknownTenant, sluice.SuspendedTenant, sluice.NoPlan,
		sluice.NoRoute, sluice.NotHere, sluice.Internal}
	gateways := []answer.Kind{answer.TooLarge, answer.BadRequest, answer.LocalOnly,
		answer.UpstreamDown,
		answer.UpstreamTimeout, answer.NoDecision}
	for _, k := range answer.Kinds() {
		if slices.Contains(reasons, sluice.Reason(k.String())) == slices.Contains(gateways, k) {
			t.Errorf("%s must be either a reason or a kind that only the gateway has", k)
		}
	}
}

// Guarantees the decision that a program gets in each case, in the words of the library's API.
func TestOutcomes(t *testing.T) {
	const text = `
plans:
  - id: small
    limits: [ { id: burst, algorithm: token_bucket, rate: 1, period: 1s, burst: 5 },
              { id: tried, algorithm: fixed_window, threshold: 1, period: 1m, mode: shadow } ]
tenants: [ { id: acme, plan: small }, { id: initech, plan: small, suspended: true } ]
ipLimits: [ { id: per-address, algorithm: token_bucket, rate: 1, period: 10s, burst: 3 } ]
`
	from := sluice.Request{Peer: "192.0.2.1:1"}
	failing := func(err error) func(context.Context) (sluice.Identity, error) {
		return func(context.Context) (sluice.Identity, error) { return acme, err }
	}
	for _, c := range []struct {
		name string
		ask  func(*sluice.Limiter) sluice.Decision
		want sluice.Reason
	}{
		{"allowed", func(l *sluice.Limiter) sluice.Decision { return l.Decide(t.Context(), acme, from) },
			sluice.Allowed},
		{"nobody", func(l *sluice.Limiter) sluice.Decision { return l.Decide(t.Context(), sluice.Identity{}, from) },
			sluice.UnknownTenant},
		{"anonymous without a plan", func(l *sluice.Limiter) sluice.Decision {
			return l.Decide(t.Context(), sluice.Identity{Tenant: "acme", Anonymous: true}, from)
		}, sluice.NoCredential},
		{"unknown", func(l *sluice.Limiter) sluice.Decision {
			return l.Decide(t.Context(), sluice.Identity{Tenant: "x"}, from)
		}, sluice.UnknownTenant},
		{"unknown plan", func(l *sluice.Limiter) sluice.Decision {
			return l.Decide(t.Context(), sluice.Identity{Tenant: "x", Plan: "large"}, from)
		}, sluice.NoPlan},
		{"suspended, whatever plan it brings", func(l *sluice.Limiter) sluice.Decision {
			return l.Decide(t.Context(), sluice.Identity{Tenant: "initech", Plan: "small"}, from)
		}, sluice.SuspendedTenant},
		{"too much",
			func(l *sluice.Limiter) sluice.Decision { return l.Decide(t.Context(), acme, sluice.Request{Cost: 6}) },
			sluice.NeverFits},
		{"a negative cost",
			func(l *sluice.Limiter) sluice.Decision { return l.Decide(t.Context(), acme, sluice.Request{Cost: -1}) },
			sluice.Internal},
		{"an address over its limit", func(l *sluice.Limiter) sluice.Decision {
			for range 3 {
				l.Decide(t.Context(), acme, from)
			}
			return l.Decide(t.Context(), acme, from)
		}, sluice.AddressLimited},
		{"no address, and so none over its limit", func(l *sluice.Limiter) sluice.Decision {
			for range 4 {
				l.Decide(t.Context(), acme, sluice.Request{})
			}
			return l.Decide(t.Context(), acme, sluice.Request{})
		}, sluice.Allowed},
		{"no address, and nobody known",
			func(l *sluice.Limiter) sluice.Decision { return l.Authorize(t.Context(), sluice.Request{}) },
			sluice.Internal},
		{"no credential", func(l *sluice.Limiter) sluice.Decision { return l.Authorize(t.Context(), from) },
			sluice.NoCredential},
		{"own authentication refuses", func(l *sluice.Limiter) sluice.Decision {
			return l.Authorize(t.Context(), sluice.Request{Peer: from.Peer, Identify: failing(errors.New("expired"))})
		}, sluice.BadCredential},
		{"own authentication is away", func(l *sluice.Limiter) sluice.Decision {
			return l.Authorize(t.Context(), sluice.Request{Peer: from.Peer, Identify: failing(sluice.ErrUnidentified)})
		}, sluice.Unidentified},
		{"own authentication", func(l *sluice.Limiter) sluice.Decision {
			return l.Authorize(t.Context(), sluice.Request{Peer: from.Peer, Identify: failing(nil)})
		}, sluice.Allowed},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := c.ask(open(t, text, nil))
			if d.Reason != c.want || d.Allowed != (c.want == sluice.Allowed) || (len(d.Problem()) > 0) == d.Allowed ||
				d.Status() < 200 {
				t.Fatalf("%+v, want %s", d, c.want)
			}
			var problem struct {
				Status int
				Detail string
			}
			if err := json.Unmarshal(d.Problem(), &problem); !d.Allowed &&
				(err != nil || problem.Status != d.Status() || problem.Detail == "") {
				t.Errorf("problem %s, %v", d.Problem(), err)
			}
		})
	}
}

// Guarantees that the numbers of a decision are exact, and those of the binding limit, and that a shadow limit is
// reported and never denies.
func TestDecision(t *testing.T) {
	const text = `
plans:
  - id: p
    limits:
      - { id: burst, algorithm: token_bucket, rate: 3, period: 1s, burst: 10 }
      - { id: slow, tiers: [ { period: 10s, threshold: 2 }, { period: 1m, threshold: 100 } ] }
      - { id: tried, algorithm: fixed_window, threshold: 1, period: 1m, mode: shadow }
tenants: [ { id: acme, plan: p } ]
`
	l := open(t, text, nil)
	if d := l.Decide(t.Context(), acme, sluice.Request{}); d.Limit != "slow/10s" || d.Capacity != 2 ||
		d.Remaining != 1 || d.ResetAfter != 10*time.Second || d.Shadowed != nil {
		t.Errorf("first: %+v", d)
	}
	if d := l.Decide(t.Context(), acme, sluice.Request{}); !d.Allowed || !slices.Equal(d.Shadowed, []string{"tried"}) ||
		d.RetryAfter != 0 {
		t.Errorf("second: %+v, want it allowed, and the shadow limit reported", d)
	}
	d := l.Decide(t.Context(), acme, sluice.Request{})
	h := make(http.Header)
	d.SetHeaders(h)
	if d.Allowed || d.Limit != "slow/10s" || d.RetryAfter != 10*time.Second || h.Get("Retry-After") != "10" ||
		h.Get("X-RateLimit-Remaining") != "0" {
		t.Errorf("third: %+v with %v", d, h)
	}
	p := d.Problem()
	clear(p)
	if !strings.Contains(string(d.Problem()), `"retry-after-ms":10000`) {
		t.Errorf("a caller that changes its copy of a problem changes the decision: %s", d.Problem())
	}
}

// Guarantees that API keys of the plans, with peppers of the program, identify callers.
func TestKeys(t *testing.T) {
	pepper := []byte("sixteen bytes or more")
	key := identity.NewKey()
	l := open(t, hourly+"keys: [ { id: k1, tenant: acme, subject: ci, pepper: mine, hash: "+
		identity.HashKey(pepper, key)+" } ]\n",
		func(c *sluice.Config) { c.Peppers = map[string][]byte{"mine": pepper} })
	d := l.Authorize(t.Context(), sluice.Request{Header: http.Header{"X-Api-Key": {key}}, Peer: "192.0.2.1"})
	if !d.Allowed || d.Tenant != "acme" || d.Subject != "ci" || d.KeyID != "k1" {
		t.Errorf("%+v", d)
	}
	if d := l.Authorize(t.Context(),
		sluice.Request{Header: http.Header{"X-Api-Key": {identity.NewKey()}}}); d.Reason != sluice.BadCredential {
		t.Errorf("an unknown key: %+v", d)
	}
}

// Guarantees that tokens of the configured issuers identify callers, and that their claims are values of limits.
func TestTokens(t *testing.T) {
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	keys := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_ = json.NewEncoder(w).Encode(jose.JSONWebKeySet{
			Keys: []jose.JSONWebKey{{Key: &private.PublicKey, KeyID: "1", Algorithm: "ES256", Use: "sig"}}})
	}))
	defer keys.Close()
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.ES256,
		Key: jose.JSONWebKey{Key: private, KeyID: "1"}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	sign := func(region string) http.Header {
		payload, _ := json.Marshal(map[string]any{"iss": "https://id.example", "aud": "api", "sub": "u1",
			"tenant_id": "acme", "exp": noon.Add(time.Hour).Unix(), "region": region})
		signed, err := signer.Sign(payload)
		if err != nil {
			t.Fatal(err)
		}
		token, err := signed.CompactSerialize()
		if err != nil {
			t.Fatal(err)
		}
		return http.Header{"Authorization": {"Bearer " + token}}
	}
	l := open(t, strings.Replace(hourly, "{ id: hourly", "{ per: \"claim:region\", id: hourly", 1),
		func(c *sluice.Config) {
			c.Issuers = []sluice.Issuer{{Issuer: "https://id.example", Audiences: []string{"api"}, JWKSURL: keys.URL,
				AllTenants: true}}
			c.TokenClaims = []string{"region"}
		})
	for _, region := range []string{"north", "south"} {
		if d := l.Authorize(t.Context(), sluice.Request{Header: sign(region)}); !d.Allowed || d.Tenant != "acme" ||
			d.Subject != "u1" || d.Remaining != 499 {
			t.Errorf("%s: %+v, want 499 left of a counter of its own", region, d)
		}
	}
	forged := sign("north")
	forged["Authorization"][0] = forged["Authorization"][0][:len(forged["Authorization"][0])-8] + "AAAAAAAA"
	if d := l.Authorize(t.Context(), sluice.Request{Header: forged}); d.Reason != sluice.BadCredential {
		t.Errorf("a forged token: %+v", d)
	}
}

// Guarantees that an invalid configuration is refused with an error that names the field and wraps a sentinel.
func TestConfigErrors(t *testing.T) {
	good := []byte(hourly)
	for _, c := range []struct {
		name   string
		config sluice.Config
		is     error
		says   string
	}{
		{"no plans", sluice.Config{}, sluice.ErrConfig, "PlansData"},
		{"both plans", sluice.Config{Plans: []string{"a"}, PlansData: good}, sluice.ErrConfig, "both set"},
		{"stdin", sluice.Config{Plans: []string{"-"}}, sluice.ErrConfig, "watched"},
		{"no such file", sluice.Config{Plans: []string{"nowhere.yaml"}}, sluice.ErrPlans, "nowhere.yaml"},
		{"bad plans", sluice.Config{PlansData: []byte("plans: 1\n")}, sluice.ErrPlans, "plans:1:"},
		{"unknown pepper",
			sluice.Config{PlansData: []byte(hourly + "keys: [ { id: k, tenant: acme, pepper: other, hash: " +
				strings.Repeat("ab", 32) + " } ]\n")}, sluice.ErrPlans, "other"},
		{"hops", sluice.Config{PlansData: good, TrustedHops: 17}, sluice.ErrConfig, "TrustedHops"},
		{"jitter", sluice.Config{PlansData: good, RetryJitter: 101}, sluice.ErrConfig, "RetryJitter"},
		{"memory", sluice.Config{PlansData: good, Memory: 1}, sluice.ErrConfig, "Memory"},
		{"instances", sluice.Config{PlansData: good, MaxInstances: -1}, sluice.ErrConfig, "MaxInstances"},
		{"leases of nothing", sluice.Config{PlansData: good, NoLeases: true}, sluice.ErrConfig, "NoLeases"},
		{"claims of nobody", sluice.Config{PlansData: good, TokenClaims: []string{"a"}}, sluice.ErrConfig,
			"TokenClaims"},
		{"issuer", sluice.Config{PlansData: good, Issuers: []sluice.Issuer{{Issuer: "i"}}}, sluice.ErrConfig,
			"Issuers"},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.config.Log = quiet
			l, err := sluice.New(c.config)
			if l != nil || !errors.Is(err, c.is) || !strings.Contains(err.Error(), c.says) {
				t.Errorf("New = %v, %v; want %v with %q", l, err, c.is, c.says)
			}
		})
	}
}

// Guarantees that plans are read again on request, that invalid ones change nothing and are reported, and that counters
// stay.
func TestReload(t *testing.T) {
	file := filepath.Join(t.TempDir(), "plans.yaml")
	write := func(text string) {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(hourly)
	l := open(t, "", func(c *sluice.Config) { c.Plans, c.PlansData = []string{file}, nil })
	if d := l.Decide(t.Context(), acme, sluice.Request{Cost: 400}); d.Remaining != 100 {
		t.Fatalf("%+v", d)
	}
	write("plans: 1\n")
	if err := l.Reload(); !errors.Is(err, sluice.ErrPlans) {
		t.Errorf("Reload of bad plans: %v", err)
	}
	if at, err := l.PlansStatus(); !errors.Is(err, sluice.ErrPlans) || !at.Equal(noon) {
		t.Errorf("PlansStatus = %v, %v", at, err)
	}
	write(strings.Replace(hourly, "500", "600", 1))
	if err := l.Reload(); err != nil {
		t.Fatal(err)
	}
	if d := l.Decide(t.Context(), acme, sluice.Request{}); d.Remaining != 199 {
		t.Errorf("%+v, want 600-401 left", d)
	}
	if _, err := l.PlansStatus(); err != nil {
		t.Errorf("PlansStatus after good plans: %v", err)
	}
}

// Guarantees that a peek charges nothing, and reserves nothing.
func TestPeek(t *testing.T) {
	l := open(t, hourly, nil)
	for range 2 {
		d := l.Peek(t.Context(), acme, sluice.Request{Cost: 500, ReserveFor: time.Hour})
		if !d.Allowed || d.Reservation() != (sluice.Reservation{}) {
			t.Errorf("peek: %+v", d)
		}
	}
}

// Guarantees that a closed limiter denies, and may be closed twice.
func TestClosed(t *testing.T) {
	l := open(t, hourly, nil)
	if err := l.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	d := l.Decide(t.Context(), acme, sluice.Request{})
	if d.Allowed || !errors.Is(d.Err, sluice.ErrClosed) || d.Status() != http.StatusInternalServerError {
		t.Errorf("%+v", d)
	}
	h := make(http.Header)
	d.SetHeaders(h)
	if _, err := l.Cancel(t.Context(), d.Reservation()); err != nil || h.Get("Retry-After") != "" {
		t.Errorf("Cancel of a denial: %v; headers %v", err, h)
	}
}
