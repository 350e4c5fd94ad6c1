package limits_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sluicelimits/sluice"
	"github.com/sluicelimits/sluice/authorizer"
	"github.com/sluicelimits/sluice/internal/configfile/configyaml"
	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/limiter/resilience"
	"github.com/sluicelimits/sluice/internal/limiter/store/memory"
	"github.com/sluicelimits/sluice/internal/plan"
	"github.com/sluicelimits/sluice/internal/request/identity"
	"github.com/sluicelimits/sluice/internal/server/limits"
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
      - { id: role, per: "claim:role", algorithm: fixed_window, threshold: 6, period: 1m }
      - { id: quiet, mode: shadow, algorithm: fixed_window, threshold: 1, period: 1m }
  - id: nobody
    limits: [ { id: few, algorithm: fixed_window, threshold: 1, period: 1h } ]
  - id: metered
    limits:
      - { id: calls, algorithm: fixed_window, threshold: 9, period: 1h }
      - { id: tokens, unit: tokens, cost: { default: 10 }, algorithm: fixed_window, threshold: 100, period: 1h }
tenants: [ { id: llm, plan: metered }, { id: acme, plan: basic }, { id: gone, plan: basic, suspended: true } ]
`

type world struct {
	*limits.Service
	t   *testing.T
	now time.Time
}

func newWorld(t *testing.T, maxReceipts int) *world {
	t.Helper()
	quiet := slog.New(slog.DiscardHandler)
	own, err := memory.New(memory.Config{Log: quiet})
	if err != nil {
		t.Fatal(err)
	}
	store, err := resilience.NewFallback(resilience.FallbackConfig{Store: own, Log: quiet})
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
	w := &world{t: t, now: time.Date(2026, 3, 1, 0, 0, 10, 0, time.UTC)}
	now := func() time.Time { return w.now }
	plansAuthorizer, err := authorizer.New(authorizer.Config{Store: store, Now: now, Log: quiet,
		Source: authorizer.Current(func() *authorizer.Snapshot {
			return &authorizer.Snapshot{Config: parsed, Keys: keys}
		})})
	if err != nil {
		t.Fatal(err)
	}
	if w.Service, err = limits.New(limits.Config{Plans: plansAuthorizer, Store: store, MaxReceipts: maxReceipts,
		Now: now}); err != nil {
		t.Fatal(err)
	}
	return w
}

func (w *world) check(c *limits.Call) *limits.Decision {
	w.t.Helper()
	out, err := w.Check(w.t.Context(), &limits.CheckRequest{Call: c})
	if err != nil {
		w.t.Fatal(err)
	}
	return out.Decision
}

func (w *world) refund(receipt string, units int64) *limits.RefundResponse {
	w.t.Helper()
	out, err := w.Refund(w.t.Context(), &limits.RefundRequest{Receipt: receipt, Units: units})
	if err != nil {
		w.t.Fatal(err)
	}
	return out
}

// isError reports whether an error of the API has that code.
func isError(err error, code string) bool {
	var e *limits.Error
	return errors.As(err, &e) && e.Code == code
}

// wait returns how long the decision tells the caller to wait, or 0 if it tells nothing.
func wait(d *limits.Decision) time.Duration {
	if d.RetryAfter == nil {
		return 0
	}
	return time.Duration(*d.RetryAfter)
}

// remainingOf returns the units that remain of the limit with that policy, or -1 if the decision does not list it.
func remainingOf(d *limits.Decision, policy string) int64 {
	for _, l := range d.Limits {
		if l.Policy == policy {
			return l.Remaining
		}
	}
	return -1
}

// Guarantees that a check and a peek are decided as the library decides the same call, for random calls over
// time.
func TestLikeLibrary(t *testing.T) {
	w := newWorld(t, 0)
	library, err := sluice.New(sluice.Config{PlansData: []byte(plans), Now: func() time.Time { return w.now },
		Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = library.Close(t.Context()) }()
	rng := rand.New(rand.NewPCG(7, 8))
	one := func(of ...string) string { return of[rng.IntN(len(of))] }
	reasons := map[string]int{}
	for step := range 3000 {
		w.now = w.now.Add(time.Duration(rng.IntN(5000)) * time.Millisecond)
		c := &limits.Call{Tenant: one("acme", "acme", "gone", "unknown", ""), Subject: one("", "u"),
			Method: one("GET", "POST"), Path: one("/", "/items/1"),
			Address: one("", "10.0.0.1", "10.0.0.2"), Cost: rng.Int64N(3),
			Claims: map[string]string{"role": one("a", "b")}}
		who := sluice.Identity{Tenant: c.Tenant, Subject: c.Subject, Claims: c.Claims, Anonymous: c.Tenant == ""}
		req := sluice.Request{Method: c.Method, Path: c.Path, Peer: c.Address, Cost: c.Cost}
		want, got := library.Decide, w.check
		if rng.IntN(3) == 0 {
			want = library.Peek
			got = func(c *limits.Call) *limits.Decision {
				out, err := w.Peek(t.Context(), &limits.CheckRequest{Call: c})
				if err != nil || out.Decision.Receipt != "" {
					t.Fatalf("peek: %v, %v", out, err)
				}
				return out.Decision
			}
		}
		d, l := got(c), want(t.Context(), who, req)
		header := http.Header{}
		l.SetHeaders(header)
		delete(header, "Access-Control-Expose-Headers")
		wantHeaders, gotHeaders := map[string]string{}, map[string]string{} // the names in Go's spelling
		for name, values := range header {
			wantHeaders[name] = values[0]
		}
		for name, value := range d.Headers {
			gotHeaders[http.CanonicalHeaderKey(name)] = value
		}
		gotText := fmt.Sprint(d.Allowed, d.Reason, d.Status, d.Tenant, d.Plan,
			wait(d), gotHeaders, d.Problem == "")
		wantText := fmt.Sprint(l.Allowed, l.Reason, l.Status(), l.Tenant, l.Plan, l.RetryAfter, wantHeaders,
			l.Problem() == nil)
		if gotText != wantText {
			t.Fatalf("step %d, %v:\n got %s\nwant %s", step, c, gotText, wantText)
		}
		if l.Limit != "" && (len(d.Limits) == 0 || d.Limits[0].Policy != l.Limit ||
			d.Limits[0].Remaining != l.Remaining) {
			t.Fatalf("step %d: limits %v, want first %s with %d left", step, d.Limits, l.Limit, l.Remaining)
		}
		reasons[d.Reason]++
	}
	for _, r := range []string{"allowed", "limited", "ip_limited", "unknown_tenant", "suspended_tenant"} {
		if reasons[r] < 20 {
			t.Errorf("only %d random calls were %s, want at least 20: the test shows too little", reasons[r], r)
		}
	}
}

// Guarantees that a receipt can be refunded once, in whole or in part, and that unknown, dropped and old receipts are
// not.
func TestRefund(t *testing.T) {
	w := newWorld(t, 2)
	d := w.check(&limits.Call{Tenant: "acme", Cost: 3})
	if got := remainingOf(d, "burst"); got != 1 || d.Receipt == "" {
		t.Fatalf("%v", d)
	}
	if back := w.refund(d.Receipt, 2); back.Units != 2 || back.Repeated || back.Expired {
		t.Errorf("refund: %v", back)
	}
	if back := w.refund(d.Receipt, 0); back.Units != 0 || !back.Repeated {
		t.Errorf("second refund: %v", back)
	}
	if got := remainingOf(w.check(&limits.Call{Tenant: "acme", Cost: 1}), "burst"); got != 2 {
		t.Errorf("%d left after the refund", got)
	}
	late := w.check(&limits.Call{Tenant: "acme", Cost: 1})
	w.now = w.now.Add(limit.MaxReceiptAge)
	if back := w.refund(late.Receipt, 0); !back.Expired {
		t.Errorf("a late refund: %v", back)
	}
	first := w.check(&limits.Call{Tenant: "acme", Cost: 1})
	for range 2 {
		w.check(&limits.Call{Tenant: "acme", Cost: 1})
	}
	// the service keeps two receipts, so the first one was dropped
	for _, receipt := range []string{first.Receipt, "", "x"} {
		_, err := w.Refund(t.Context(), &limits.RefundRequest{Receipt: receipt})
		if !isError(err, "notfound") {
			t.Errorf("receipt %q: %v", receipt, err)
		}
	}
	for _, units := range []int64{-1, limit.MaxUnits + 1} {
		_, err := w.Refund(t.Context(), &limits.RefundRequest{Receipt: "x", Units: units})
		if !isError(err, "invalidargument") {
			t.Errorf("%d units: %v", units, err)
		}
	}
}

// Guarantees that the calls of a batch are charged one by one, or on request all or none, and that invalid batches
// charge nothing.
func TestBatch(t *testing.T) {
	calls := []*limits.Call{{Tenant: "acme", Cost: 2}, {Tenant: "acme", Cost: 3}, {Tenant: "acme", Cost: 1},
		{Tenant: "unknown"}}
	for _, all := range []bool{false, true} {
		w := newWorld(t, 0)
		out, err := w.CheckBatch(t.Context(), &limits.CheckBatchRequest{Calls: calls, AllOrNothing: all})
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, d := range out.Decisions {
			got = append(got, fmt.Sprint(d.Reason, d.Receipt != ""))
		}
		want, used := []string{"allowedtrue", "limitedfalse", "allowedtrue", "unknown_tenantfalse"}, int64(3)
		if all {
			want, used = []string{"allowedfalse", "limitedfalse"}, 0
		}
		if !slices.Equal(got, want) {
			t.Errorf("all %v: %q, want %q", all, got, want)
		}
		if left := remainingOf(w.check(&limits.Call{Tenant: "acme", Cost: 1}), "burst"); left != 3-used {
			t.Errorf("all %v: %d left", all, left)
		}
	}
	w := newWorld(t, 0)
	for _, bad := range [][]*limits.Call{nil, make([]*limits.Call, limits.MaxCalls+1), {{Tenant: "acme"}, nil},
		{{Cost: -1}}} {
		if _, err := w.CheckBatch(t.Context(),
			&limits.CheckBatchRequest{Calls: bad}); !isError(err, "invalidargument") {
			t.Errorf("%d calls: %v", len(bad), err)
		}
	}
	if got := remainingOf(w.check(&limits.Call{Tenant: "acme", Cost: 1}), "burst"); got != 3 {
		t.Errorf("bad batches have charged: %d left", got)
	}
}

// Guarantees that each method of the API is served over HTTP, and that errors have the right status and code.
func TestHTTP(t *testing.T) {
	w := newWorld(t, 0)
	mux := http.NewServeMux()
	w.Register(mux)
	server := httptest.NewServer(http.MaxBytesHandler(mux, 64<<10))
	defer server.Close()
	post := func(path, body string) (int, map[string]any) {
		t.Helper()
		resp, err := http.Post(server.URL+path, "application/json", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = resp.Body.Close() }()
		out := map[string]any{}
		if err := json.NewDecoder(resp.Body).Decode(&out); err != nil {
			t.Fatal(err)
		}
		return resp.StatusCode, out
	}
	code, out := post("/v1/check", `{"call": {"tenant": "acme", "cost": 4}}`)
	d, _ := out["decision"].(map[string]any)
	if code != 200 || d["allowed"] != true || d["receipt"] == "" {
		t.Errorf("check: %d %v", code, out)
	}
	if code, out := post("/v1/peek", `{"call": {"tenant": "acme"}}`); code != 200 ||
		out["decision"].(map[string]any)["retryAfter"] != "10s" {
		t.Errorf("peek: %d %v", code, out)
	}
	code, out = post("/v1/check", `{"call": {"tenant": "llm", "cost": 2, "costs": {"tokens": 91, "unknown": 1}}}`)
	if got := fmt.Sprint(out["decision"].(map[string]any)["limits"]); code != 200 ||
		!strings.Contains(got, "policy:tokens remaining:9 unit:tokens]") ||
		!strings.Contains(got, "policy:calls remaining:7 unit:requests]") {
		t.Errorf("check with costs: %d %v", code, out)
	}
	code, out = post("/v1/check", `{"call": {"tenant": "llm", "costs": null}}`)
	if got := fmt.Sprint(out["decision"].(map[string]any)["problem"]); code != 200 ||
		!strings.Contains(got, "9 left, this request costs 10 tokens") || !strings.Contains(got, `"unit":"tokens"`) {
		t.Errorf("check above the limit of tokens: %d %v", code, out)
	}
	for cost, names := range map[string]string{`{"tokens": -1}`: "tokens", `{"tokens": 1099511627777}`: "tokens",
		`{"tokens": 1e3}`: "tokens", `{"tokens": 99999999999999999999}`: "tokens", `{"tokens": "5"}`: "tokens",
		`{"tokens": null}`: "tokens", `{"tokens": 1.5}`: "tokens", `{"tokens": {}}`: "tokens",
		`{"To ken": 1}`: "To ken", `{"requests": 1}`: "requests", `[1]`: "costs", `7`: "costs"} {
		code, out := post("/v1/check", `{"call": {"tenant": "llm", "cost": 1, "costs": `+cost+`}}`)
		if code != 400 || out["code"] != "invalidargument" || !strings.Contains(fmt.Sprint(out["message"]), names) {
			t.Errorf("costs %s: %d %v", cost, code, out)
		}
	}
	if code, out := post("/v1/refund", fmt.Sprintf(`{"receipt": %q}`, d["receipt"])); code != 200 ||
		out["units"] != 4.0 {
		t.Errorf("refund: %d %v", code, out)
	}
	if code, out := post("/v1/check-batch", `{"calls": [{"tenant": "acme"}, {"tenant": "gone"}]}`); code != 200 ||
		len(out["decisions"].([]any)) != 2 {
		t.Errorf("batch: %d %v", code, out)
	}
	for _, bad := range []struct {
		path, body string
		status     int
		code       string
	}{
		{"/v1/check", "{", 400, "invalidargument"}, {"/v1/check", "{}", 400, "invalidargument"},
		{"/v1/check", `{"call": {"cost": "-1"}}`, 400, "invalidargument"},
		{"/v1/check", `{"calls": {}}`, 400, "invalidargument"},
		{"/v1/check", "{\"call\": {\"tenant\": \"\xff\"}}", 400, "invalidargument"},
		{"/v1/check", `{"call": {"tenant": "acme"}} {"call": {"tenant": "acme"}}`, 400, "invalidargument"},
		{"/v1/refund", `{"receipt": "x"}`, 404, "notfound"}, {"/v1/check-batch", `{}`, 400, "invalidargument"},
		{"/v1/peek", strings.Repeat(" ", 5<<20), 400, "invalidargument"},
	} {
		if code, out := post(bad.path, bad.body); code != bad.status || out["code"] != bad.code ||
			out["message"] == "" {
			t.Errorf("%s %.40s: %d %v", bad.path, bad.body, code, out)
		}
	}
	for contentType, want := range map[string]int{"": 400, "text/plain": 400, "application/x-www-form-urlencoded": 400,
		"multipart/form-data; boundary=x": 400, "text/plain; application/json": 400,
		"Application/JSON; charset=utf-8": 200} {
		resp, err := http.Post(server.URL+"/v1/peek", contentType, strings.NewReader(`{"call": {"tenant": "acme"}}`))
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		if resp.StatusCode != want {
			t.Errorf("a peek with the content type %q: %d, want %d", contentType, resp.StatusCode, want)
		}
	}
	resp, err := http.Get(server.URL + "/v1/openapi.yaml")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	if text, _ := io.ReadAll(resp.Body); resp.StatusCode != 200 || !strings.HasPrefix(string(text), "openapi: 3") {
		t.Errorf("openapi: %d %.40s", resp.StatusCode, text)
	}
}

// Guarantees which responses metrics count as denials: of a batch, one denied call is enough.
func TestDenies(t *testing.T) {
	yes, no := &limits.Decision{Allowed: true}, new(limits.Decision)
	for _, c := range []struct {
		response any
		want     bool
	}{
		{&limits.CheckResponse{Decision: no}, true}, {&limits.CheckResponse{Decision: yes}, false},
		{&limits.CheckBatchResponse{Decisions: []*limits.Decision{yes, no}}, true},
		{&limits.CheckBatchResponse{Decisions: []*limits.Decision{yes}}, false},
		{new(limits.RefundResponse), false},
	} {
		if got := limits.Denies(c.response); got != c.want {
			t.Errorf("%T %v: %t, want %t", c.response, c.response, got, c.want)
		}
	}
}
