package limits_test

import (
	"encoding/json"
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

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/sluicelimits/sluice"
	"github.com/sluicelimits/sluice/authorizer"
	"github.com/sluicelimits/sluice/client/limitsv1"
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
tenants: [ { id: acme, plan: basic }, { id: gone, plan: basic, suspended: true } ]
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

func (w *world) check(c *limitsv1.Call) *limitsv1.Decision {
	w.t.Helper()
	out, err := w.Check(w.t.Context(), &limitsv1.CheckRequest{Call: c})
	if err != nil {
		w.t.Fatal(err)
	}
	return out.GetDecision()
}

func (w *world) refund(receipt string, units int64) *limitsv1.RefundResponse {
	w.t.Helper()
	out, err := w.Refund(w.t.Context(), &limitsv1.RefundRequest{Receipt: receipt, Units: units})
	if err != nil {
		w.t.Fatal(err)
	}
	return out
}

// remainingOf returns the units that remain of the limit with that policy, or -1 if the decision does not list it.
func remainingOf(d *limitsv1.Decision, policy string) int64 {
	for _, l := range d.GetLimits() {
		if l.GetPolicy() == policy {
			return l.GetRemaining()
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
		c := &limitsv1.Call{Tenant: one("acme", "acme", "gone", "unknown", ""), Subject: one("", "u"),
			Method: one("GET", "POST"), Path: one("/", "/items/1"),
			Address: one("", "10.0.0.1", "10.0.0.2"), Cost: rng.Int64N(3),
			Claims: map[string]string{"role": one("a", "b")}}
		who := sluice.Identity{Tenant: c.Tenant, Subject: c.Subject, Claims: c.Claims, Anonymous: c.Tenant == ""}
		req := sluice.Request{Method: c.Method, Path: c.Path, Peer: c.Address, Cost: c.Cost}
		want, got := library.Decide, w.check
		if rng.IntN(3) == 0 {
			want = library.Peek
			got = func(c *limitsv1.Call) *limitsv1.Decision {
				out, err := w.Peek(t.Context(), &limitsv1.PeekRequest{Call: c})
				if err != nil || out.GetDecision().GetReceipt() != "" {
					t.Fatalf("peek: %v, %v", out, err)
				}
				return out.GetDecision()
			}
		}
		d, l := got(c), want(t.Context(), who, req)
		header := http.Header{}
		l.SetHeaders(header)
		delete(header, "Access-Control-Expose-Headers")
		wantHeaders := map[string]string{}
		for name, values := range header {
			wantHeaders[name] = values[0]
		}
		gotText := fmt.Sprint(d.GetAllowed(), d.GetReason(), d.GetStatus(), d.GetTenant(), d.GetPlan(),
			d.GetRetryAfter().AsDuration(), d.GetHeaders(), d.GetProblem() == "")
		wantText := fmt.Sprint(l.Allowed, l.Reason, l.Status(), l.Tenant, l.Plan, l.RetryAfter, wantHeaders,
			l.Problem() == nil)
		if gotText != wantText {
			t.Fatalf("step %d, %v:\n got %s\nwant %s", step, c, gotText, wantText)
		}
		if l.Limit != "" && (len(d.GetLimits()) == 0 || d.GetLimits()[0].GetPolicy() != l.Limit ||
			d.GetLimits()[0].GetRemaining() != l.Remaining) {
			t.Fatalf("step %d: limits %v, want first %s with %d left", step, d.GetLimits(), l.Limit, l.Remaining)
		}
		reasons[d.GetReason()]++
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
	d := w.check(&limitsv1.Call{Tenant: "acme", Cost: 3})
	if got := remainingOf(d, "burst"); got != 1 || d.GetReceipt() == "" {
		t.Fatalf("%v", d)
	}
	if back := w.refund(d.GetReceipt(), 2); back.GetUnits() != 2 || back.GetRepeated() || back.GetExpired() {
		t.Errorf("refund: %v", back)
	}
	if back := w.refund(d.GetReceipt(), 0); back.GetUnits() != 0 || !back.GetRepeated() {
		t.Errorf("second refund: %v", back)
	}
	if got := remainingOf(w.check(&limitsv1.Call{Tenant: "acme", Cost: 1}), "burst"); got != 2 {
		t.Errorf("%d left after the refund", got)
	}
	late := w.check(&limitsv1.Call{Tenant: "acme", Cost: 1})
	w.now = w.now.Add(limit.MaxReceiptAge)
	if back := w.refund(late.GetReceipt(), 0); !back.GetExpired() {
		t.Errorf("a late refund: %v", back)
	}
	first := w.check(&limitsv1.Call{Tenant: "acme", Cost: 1})
	for range 2 {
		w.check(&limitsv1.Call{Tenant: "acme", Cost: 1})
	}
	// the service keeps two receipts, so the first one was dropped
	for _, receipt := range []string{first.GetReceipt(), "", "x"} {
		_, err := w.Refund(t.Context(), &limitsv1.RefundRequest{Receipt: receipt})
		if status.Code(err) != codes.NotFound {
			t.Errorf("receipt %q: %v", receipt, err)
		}
	}
	for _, units := range []int64{-1, limit.MaxUnits + 1} {
		_, err := w.Refund(t.Context(), &limitsv1.RefundRequest{Receipt: "x", Units: units})
		if status.Code(err) != codes.InvalidArgument {
			t.Errorf("%d units: %v", units, err)
		}
	}
}

// Guarantees that the calls of a batch are charged one by one, or on request all or none, and that invalid batches
// charge nothing.
func TestBatch(t *testing.T) {
	calls := []*limitsv1.Call{{Tenant: "acme", Cost: 2}, {Tenant: "acme", Cost: 3}, {Tenant: "acme", Cost: 1},
		{Tenant: "unknown"}}
	for _, all := range []bool{false, true} {
		w := newWorld(t, 0)
		out, err := w.CheckBatch(t.Context(), &limitsv1.CheckBatchRequest{Calls: calls, AllOrNothing: all})
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, d := range out.GetDecisions() {
			got = append(got, fmt.Sprint(d.GetReason(), d.GetReceipt() != ""))
		}
		want, used := []string{"allowedtrue", "limitedfalse", "allowedtrue", "unknown_tenantfalse"}, int64(3)
		if all {
			want, used = []string{"allowedfalse", "limitedfalse"}, 0
		}
		if !slices.Equal(got, want) {
			t.Errorf("all %v: %q, want %q", all, got, want)
		}
		if left := remainingOf(w.check(&limitsv1.Call{Tenant: "acme", Cost: 1}), "burst"); left != 3-used {
			t.Errorf("all %v: %d left", all, left)
		}
	}
	w := newWorld(t, 0)
	for _, bad := range [][]*limitsv1.Call{nil, make([]*limitsv1.Call, limits.MaxCalls+1), {{Tenant: "acme"}, nil},
		{{Cost: -1}}} {
		if _, err := w.CheckBatch(t.Context(),
			&limitsv1.CheckBatchRequest{Calls: bad}); status.Code(err) != codes.InvalidArgument {
			t.Errorf("%d calls: %v", len(bad), err)
		}
	}
	if got := remainingOf(w.check(&limitsv1.Call{Tenant: "acme", Cost: 1}), "burst"); got != 3 {
		t.Errorf("bad batches have charged: %d left", got)
	}
}

// Guarantees that each method of the API is served over HTTP, and that errors have the right status and code.
func TestHTTP(t *testing.T) {
	w := newWorld(t, 0)
	mux := http.NewServeMux()
	w.Register(mux)
	server := httptest.NewServer(mux)
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
	if code, out := post("/v1/refund", fmt.Sprintf(`{"receipt": %q}`, d["receipt"])); code != 200 ||
		out["units"] != "4" {
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
		{"/v1/refund", `{"receipt": "x"}`, 404, "notfound"}, {"/v1/check-batch", `{}`, 400, "invalidargument"},
		{"/v1/peek", strings.Repeat(" ", 5<<20), 400, "invalidargument"},
	} {
		if code, out := post(bad.path, bad.body); code != bad.status || out["code"] != bad.code ||
			out["message"] == "" {
			t.Errorf("%s %.40s: %d %v", bad.path, bad.body, code, out)
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
	yes, no := &limitsv1.Decision{Allowed: true}, new(limitsv1.Decision)
	for _, c := range []struct {
		response any
		want     bool
	}{
		{&limitsv1.CheckResponse{Decision: no}, true}, {&limitsv1.CheckResponse{Decision: yes}, false},
		{&limitsv1.PeekResponse{Decision: no}, true}, {&limitsv1.PeekResponse{Decision: yes}, false},
		{&limitsv1.CheckBatchResponse{Decisions: []*limitsv1.Decision{yes, no}}, true},
		{&limitsv1.CheckBatchResponse{Decisions: []*limitsv1.Decision{yes}}, false},
		{new(limitsv1.RefundResponse), false},
	} {
		if got := limits.Denies(c.response); got != c.want {
			t.Errorf("%T %v: %t, want %t", c.response, c.response, got, c.want)
		}
	}
}
