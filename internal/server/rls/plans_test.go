package rls_test

import (
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net/http"
	"strings"
	"testing"
	"time"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"

	"github.com/sluicelimits/sluice"
	"github.com/sluicelimits/sluice/authorizer"
	"github.com/sluicelimits/sluice/internal/configfile/configyaml"
	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/limiter/resilience"
	"github.com/sluicelimits/sluice/internal/limiter/store/memory"
	"github.com/sluicelimits/sluice/internal/plan"
	"github.com/sluicelimits/sluice/internal/request/identity"
	"github.com/sluicelimits/sluice/internal/server/envoyconfig"
	"github.com/sluicelimits/sluice/internal/server/rls"
)

const plans = `
anonymousPlan: nobody
ipLimits: [ { id: ip, algorithm: fixed_window, threshold: 8, period: 1h } ]
plans:
  - id: basic
    limits:
      - { id: burst, algorithm: token_bucket, rate: 1, period: 10s, burst: 4 }
      - { id: writes, match: { methods: [POST] }, algorithm: fixed_window, threshold: 2, period: 1h }
      - id: each
        per: subject
        match: { pathPattern: "/items/*" }
        algorithm: sliding_window
        threshold: 3
        period: 1m
        cost: 2
  - { id: wide, limits: [ { id: wide, algorithm: fixed_window, threshold: 1000, period: 1h } ] }
  - id: nobody
    limits: [ { id: few, algorithm: fixed_window, threshold: 1, period: 1h } ]
tenants:
  - { id: acme, plan: basic }
  - { id: globex, plan: basic, overrides: [ { id: burst, burst: 6 } ] }
  - { id: gone, plan: basic, suspended: true }
  - { id: initech, plan: wide }
`

const mappingFile = `
domain: d
sluice:
  mapping: {tenant: tenant, subject: user, method: method, path: path, address: remote_address}
descriptors:
  - {key: a, rate_limit: {unit: hour, requests_per_unit: 3}}
`

// newPlanned returns a service that decides the domain d by the plans.
func newPlanned(t *testing.T, c rls.Config) *world {
	t.Helper()
	return newPlannedInMode(t, c, new(limit.Mode))
}

// newPlannedInMode is newPlanned with a mode that a kill switch has set.
func newPlannedInMode(t *testing.T, c rls.Config, mode *limit.Mode) *world {
	t.Helper()
	own, err := memory.New(memory.Config{Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	store, err := resilience.NewFallback(resilience.FallbackConfig{Store: own, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	parsed, err := plan.Parse(configyaml.Source("plans", []byte(plans)))
	if err != nil {
		t.Fatal(err)
	}
	keys, err := identity.NewKeys(nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	w := &world{t: t, now: start, store: store}
	now := func() time.Time { return w.now }
	c.Store, c.Now, c.Log = store, now, slog.New(slog.DiscardHandler)
	c.Plans, err = authorizer.New(authorizer.Config{Store: store, Now: now, Log: c.Log,
		Mode: func() limit.Mode { return *mode },
		Source: authorizer.Current(func() *authorizer.Snapshot {
			return &authorizer.Snapshot{Config: parsed, Keys: keys}
		})})
	if err != nil {
		t.Fatal(err)
	}
	if w.Service, err = rls.New(c); err != nil {
		t.Fatal(err)
	}
	config, err := envoyconfig.Load([]envoyconfig.File{{Name: "test", Data: []byte(mappingFile)}},
		envoyconfig.Options{Mapping: true})
	if err != nil {
		t.Fatal(err)
	}
	w.SetConfig(config)
	return w
}

// Guarantees that hits that a plan counts have statistics however many names the values of requests have taken, and
// that the names are bounded.
func TestMappedStats(t *testing.T) {
	w := newPlanned(t, rls.Config{MaxStats: 2})
	for i := range 5 {
		own := descriptor(fmt.Sprint("a=", i))
		own.Limit = &ratelimitv3.RateLimitDescriptor_RateLimitOverride{RequestsPerUnit: 1,
			Unit: typev3.RateLimitUnit_HOUR}
		w.ask(own)
	}
	for _, tenant := range []string{"acme", "globex", "initech", "nobody"} {
		w.ask(descriptor("tenant=" + tenant))
	}
	got := map[string]int64{}
	w.Stats().EachCount(func(key, what string, n int64) {
		if what == "total_hits" {
			got[key] = n
		}
	})
	want := map[string]int64{"d.a": 0, "d.a_0": 1, "d.a_1": 1, "d.plan_basic": 2, "d.plan_wide": 1}
	if !maps.Equal(got, want) {
		t.Errorf("the numbers of hits are %v, want %v", got, want)
	}
}

// Guarantees that a mapped descriptor gets the same decision and the same headers as a call of the library with the
// same tenant, subject, method, path and address, for random calls over time.
func TestMappedLikeLibrary(t *testing.T) {
	w := newPlanned(t, rls.Config{Headers: rls.Headers{Exact: true}})
	library, err := sluice.New(sluice.Config{PlansData: []byte(plans), Now: func() time.Time { return w.now },
		Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = library.Close(t.Context()) }()
	rng := rand.New(rand.NewPCG(5, 6))
	one := func(of ...string) string { return of[rng.IntN(len(of))] }
	reasons := map[sluice.Reason]int{}
	ietf := []string{"RateLimit", "RateLimit-Policy", "Retry-After"}
	for step := range 3000 {
		w.now = w.now.Add(time.Duration(rng.IntN(5000)) * time.Millisecond)
		tenant, user, method := one("acme", "globex", "gone", "unknown", ""), one("", "u1", "u2"), one("GET", "POST")
		path, address := one("/", "/items/1", "/items/2?x=/y"), one("", "10.0.0.1", "10.0.0.2", "10.0.0.3")
		entries := []string{"tenant=" + tenant, "method=" + method, "path=" + path}
		if user != "" {
			entries = append(entries, "user="+user)
		}
		if address != "" {
			entries = append(entries, "remote_address="+address)
		}
		path, _, _ = strings.Cut(path, "?")
		got := w.ask(descriptor(strings.Join(entries, ",")))
		want := library.Decide(t.Context(), sluice.Identity{Tenant: tenant, Subject: user, Anonymous: tenant == ""},
			sluice.Request{Method: method, Path: path, Peer: address})
		reasons[want.Reason]++
		wantHeader := http.Header{}
		want.SetHeaders(wantHeader)
		wantText := fmt.Sprint(want.Allowed)
		for _, name := range ietf {
			wantText += fmt.Sprint(" ", wantHeader[http.CanonicalHeaderKey(name)])
		}
		header := map[string][]string{}
		for _, h := range got.GetResponseHeadersToAdd() {
			header[h.GetKey()] = []string{h.GetValue()}
		}
		gotText := fmt.Sprint(got.GetOverallCode() == rlsv3.RateLimitResponse_OK)
		for _, name := range ietf {
			gotText += fmt.Sprint(" ", header[name])
		}
		if gotText != wantText {
			t.Fatalf("step %d, %v, %s:\n got %s\nwant %s", step, entries, want.Reason, gotText, wantText)
		}
		if hasBody := len(got.GetRawBody()) > 0; hasBody == want.Allowed {
			t.Fatalf("step %d: body %q of %s", step, got.GetRawBody(), want.Reason)
		}
	}
	for _, r := range []sluice.Reason{sluice.Allowed, sluice.Limited, sluice.AddressLimited, sluice.UnknownTenant,
		sluice.SuspendedTenant} {
		if reasons[r] < 20 {
			t.Errorf("only %d random calls were %s, want at least 20: the test shows too little", reasons[r], r)
		}
	}
}

// Guarantees that a mapped descriptor and another one of the same request are charged together or not at all.
func TestMappedAllOrNothing(t *testing.T) {
	for _, first := range []bool{true, false} {
		w := newPlanned(t, rls.Config{PeekAfterDenial: true})
		both := func() *rlsv3.RateLimitResponse {
			list := []*ratelimitv3.RateLimitDescriptor{descriptor("tenant=acme,method=GET"), descriptor("a=x")}
			if first {
				list[0], list[1] = list[1], list[0]
			}
			return w.ask(list...)
		}
		for i, want := range []rlsv3.RateLimitResponse_Code{1, 1, 1, 2, 2, 2, 2} {
			if got := both().GetOverallCode(); got != want {
				t.Errorf("request %d: %s", i, got)
			}
		}
		w.want("ok: ok 0", descriptor("tenant=acme")) // the fourth unit of burst is still there
		w.want("over: over 0", descriptor("tenant=acme"))
	}
}

// Guarantees that a mapped descriptor without hits is only peeked at, that several hits are charged, that negative hits
// are refused, and that the statistics are those of the plan.
func TestMappedHits(t *testing.T) {
	w := newPlanned(t, rls.Config{})
	w.want("ok: ok 4", descriptorWithHits("tenant=acme", 0))
	w.want("ok: ok 1", descriptorWithHits("tenant=acme", 3))
	w.want("over: over 0", descriptorWithHits("tenant=acme", 2))
	w.want("over: over -", descriptorWithHits("tenant=unknown", 1))
	if _, err := w.ShouldRateLimit(t.Context(), &rlsv3.RateLimitRequest{Domain: "d",
		Descriptors: []*ratelimitv3.RateLimitDescriptor{negative("tenant=acme", 1)}}); err == nil ||
		!strings.Contains(err.Error(), "descriptor 1 has negative hits, and is decided by the plan of a tenant") {
		t.Errorf("negative hits: %v", err)
	}
	got := map[string]int64{}
	w.Stats().Each(func(name string, n int64) { got[name] = n })
	for name, want := range map[string]int64{"plan_basic.over_limit": 2, "plan_basic.within_limit": 3,
		"unknown_tenant.over_limit": 1} {
		if n := got["ratelimit.service.rate_limit.d."+name]; n != want {
			t.Errorf("%s is %d, want %d: %v", name, n, want, got)
		}
	}
}

// Guarantees that a mapped descriptor is charged also if the service counts denied hits.
func TestMappedCountDenied(t *testing.T) {
	w := newPlanned(t, rls.Config{CountDenied: true})
	w.want("ok: ok 1", descriptorWithHits("tenant=acme", 3))
	w.want("ok: ok 0", descriptor("tenant=acme"))
	w.want("over: over 0", descriptor("tenant=acme"))
}

// Guarantees that the kill switch holds for descriptors of a mapping as it does for the authorizer: in shadow they deny
// nobody, what would be denied is charged to nothing and counted as shadow_mode, and in off no limit is looked at.
// Other descriptors deny as always.
func TestMappedKillSwitch(t *testing.T) {
	mode := limit.Shadow
	w := newPlannedInMode(t, rls.Config{Headers: rls.Headers{Exact: true}}, &mode)
	w.want("ok: ok 1", descriptorWithHits("tenant=acme", 3))
	spared := w.want("ok: ok 1", descriptorWithHits("tenant=acme", 2))
	for _, h := range spared.GetResponseHeadersToAdd() {
		if h.GetKey() == "Retry-After" {
			t.Errorf("an admitted request has the header %v, want no Retry-After", h)
		}
	}
	for _, left := range []string{"2", "1", "0"} {
		w.want("ok: ok "+left+" ok 1", descriptor("a=x"), descriptorWithHits("tenant=acme", 2))
	}
	w.want("over: over 0 ok -", descriptor("a=x"), descriptor("tenant=acme"))
	w.want("ok: ok 0", descriptor("tenant=acme")) // the fourth unit of burst is still there
	w.want("over: over -", descriptor("tenant=unknown"))

	mode = limit.Off
	w.want("ok: ok -", descriptor("tenant=acme"))
	w.want("over: over 0 ok -", descriptor("a=x"), descriptor("tenant=acme"))
	w.want("over: over -", descriptor("tenant=unknown"))
	mode = limit.Enforce
	w.want("over: over 0", descriptor("tenant=acme"))

	got := map[string]int64{}
	w.Stats().Each(func(name string, n int64) { got[name] = n })
	for name, want := range map[string]int64{"within_limit": 5, "over_limit": 9, "shadow_mode": 8} {
		if n := got["ratelimit.service.rate_limit.d.plan_basic."+name]; n != want {
			t.Errorf("%s is %d, want %d: %v", name, n, want, got)
		}
	}
}

// Guarantees that the headers have the entry of the binding limit first, also if a mapped descriptor comes before its
// descriptor, and that many mapped descriptors do not make them longer than other descriptors do.
func TestMappedHeaders(t *testing.T) {
	w := newPlanned(t, rls.Config{Headers: rls.Headers{Exact: true}})
	mapped := descriptor("tenant=initech,method=GET,path=/")
	if got := headers(w.ask(mapped, descriptor("a=x"))); !strings.HasPrefix(got, `RateLimit: "a";r=2;`) ||
		!strings.Contains(got, `RateLimit-Policy: "a";`) || !strings.Contains(got, `, "wide";r=999;`) {
		t.Errorf("a has the smallest part left, and the headers are\n%s", got)
	}
	for range 2 {
		w.ask(descriptor("a=x"))
	}
	if got := headers(w.ask(mapped, descriptor("a=x"))); !strings.HasPrefix(got, `RateLimit: "a";r=0;`) {
		t.Errorf("a denies, and the headers are\n%s", got)
	}
	many := make([]*ratelimitv3.RateLimitDescriptor, 300)
	for i := range many {
		many[i] = mapped
	}
	out := w.ask(many...)
	if got := headers(out); out.GetOverallCode() != rlsv3.RateLimitResponse_OK || len(got) > 7000 || len(got) < 5000 {
		t.Errorf("%s: the headers of 300 mapped descriptors have %d bytes, want almost twice 3 KiB",
			out.GetOverallCode(), len(got))
	}
}
