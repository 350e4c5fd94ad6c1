package livepage_test

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/sluicelimits/sluice/internal/dev/livepage"
	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/testkit/golden"
)

// mounted returns a handler that serves the page at the same path as the gateway.
func mounted(r *livepage.Recorder, s livepage.Status) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("/_sluice/", http.StripPrefix("/_sluice", livepage.Handler(r, func() livepage.Status { return s })))
	return mux
}

func get(h http.Handler, method, target string) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(method, target, nil))
	return w
}

// read returns the data.json that the handler serves.
func read(t *testing.T, r *livepage.Recorder, s livepage.Status) livepage.Data {
	t.Helper()
	w := get(mounted(r, s), "GET", "/_sluice/data.json")
	var d livepage.Data
	if err := json.Unmarshal(w.Body.Bytes(), &d); err != nil {
		t.Fatalf("data.json: %v in %.300s", err, w.Body)
	}
	return d
}

// Guarantees the status and the headers of each answer. The page is served beside an API that strangers call: the
// headers forbid that a stranger's text becomes a script or is framed, and that a secret is cached.
func TestHandlerAnswers(t *testing.T) {
	tests := []struct {
		name, method, target string
		status               int
		contentType, cache   string
	}{
		{"page", "GET", "/_sluice/", 200, "text/html; charset=utf-8", "no-store"},
		{"page with a query", "GET", "/_sluice/?x=</script>", 200, "text/html; charset=utf-8", "no-store"},
		{"style", "GET", "/_sluice/page.css", 200, "text/css; charset=utf-8", "no-store"},
		{"script", "GET", "/_sluice/page.js", 200, "text/javascript; charset=utf-8", "no-store"},
		{"common script", "GET", "/_sluice/common.js", 200, "text/javascript; charset=utf-8", "no-store"},
		{"icon", "GET", "/_sluice/icon.svg", 200, "image/svg+xml", "no-store"},
		{"data", "GET", "/_sluice/data.json", 200, "application/json", "no-store"},
		{"head of the page", "HEAD", "/_sluice/", 200, "text/html; charset=utf-8", "no-store"},
		{"unknown", "GET", "/_sluice/plans.yaml", 404, "text/plain; charset=utf-8", "no-store"},
		{"the file by its own name", "GET", "/_sluice/page/index.html", 404, "text/plain; charset=utf-8", "no-store"},
		{"encoded way out", "GET", "/_sluice/%2e%2e%2fhandler.go", 404, "text/plain; charset=utf-8", "no-store"},
		{"post", "POST", "/_sluice/data.json", 405, "text/plain; charset=utf-8", ""},
		{"delete", "DELETE", "/_sluice/", 405, "text/plain; charset=utf-8", ""},
		{"options", "OPTIONS", "/_sluice/data.json", 405, "text/plain; charset=utf-8", ""},
	}
	h := mounted(livepage.NewRecorder(), livepage.Status{Now: noon})
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			w := get(h, tt.method, tt.target)
			header := w.Result().Header
			if w.Code != tt.status || header.Get("Content-Type") != tt.contentType ||
				header.Get("Cache-Control") != tt.cache {
				t.Errorf("%s %s: %d, %q, %q, want %d, %q, %q", tt.method, tt.target, w.Code, header.Get("Content-Type"),
					header.Get("Cache-Control"), tt.status, tt.contentType, tt.cache)
			}
			policy := header.Get("Content-Security-Policy")
			for _, want := range []string{"default-src 'none'", "script-src 'self'", "style-src 'self'",
				"connect-src 'self'", "frame-ancestors 'none'"} {
				if !strings.Contains(policy, want) {
					t.Errorf("%s %s: policy %q lacks %q", tt.method, tt.target, policy, want)
				}
			}
			if strings.Contains(policy, "unsafe") || strings.Contains(policy, "*") {
				t.Errorf("%s %s: policy %q allows what it should forbid", tt.method, tt.target, policy)
			}
			if got := header.Get("X-Content-Type-Options"); got != "nosniff" {
				t.Errorf("%s %s: X-Content-Type-Options is %q, want nosniff", tt.method, tt.target, got)
			}
			if tt.status == 405 && header.Get("Allow") != "GET, HEAD" {
				t.Errorf("%s %s: Allow is %q, want GET, HEAD", tt.method, tt.target, header.Get("Allow"))
			}
		})
	}
}

// Guarantees that the name of a tenant cannot end the HTML document that data.json is read into, even if a browser is
// made to read data.json as HTML.
func TestDataEscapesMarkup(t *testing.T) {
	const name = "</script><img src=x onerror=alert(1)>\u2028"
	r := livepage.NewRecorder()
	r.Observe(&livepage.Observation{At: noon, Outcome: livepage.Limited, Tenant: name, Method: "GET", Path: "/<b>\xff"})
	s := livepage.Status{Now: noon, Tenants: []livepage.TenantRow{{ID: name, Plan: "free"}}}
	body := get(mounted(r, s), "GET", "/_sluice/data.json").Body.String()
	if i := strings.IndexAny(body, "<>&\u2028"); i >= 0 {
		t.Errorf("data.json contains unescaped markup: %.80s", body[i:])
	}
	d := read(t, r, s)
	if len(d.Tenants) != 1 || d.Tenants[0].ID != name || d.Denials[0].Tenant != name ||
		d.Denials[0].Path != "/<b>\ufffd" {
		t.Errorf("after decoding: tenant %q, denial %+v; want the original name", d.Tenants[0].ID, d.Denials[0])
	}
}

// Guarantees that the page is small, loads nothing from other hosts, and needs no looser policy. Operators look at it
// during an incident.
func TestPageIsSmallAndPlain(t *testing.T) {
	h := mounted(livepage.NewRecorder(), livepage.Status{})
	total := 0
	for _, file := range []string{"", "page.css", "common.js", "page.js", "icon.svg"} {
		body := get(h, "GET", "/_sluice/"+file).Body.String()
		total += len(body)
		// the name of the namespace, which is not loaded
		body = strings.ReplaceAll(body, "http://www.w3.org/2000/svg", "")
		for what, pattern := range map[string]string{
			"an address of another host": `(?:https?:)?//[a-z0-9-]+\.[a-z]`,
			"an inline style or handler": `<[^>]+\s(style|on[a-z]+)=`,
			"markup made of text":        `innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|new Function`,
			"an inline script":           `<script(?:>|[^>]*[^"]>)`,
		} {
			if found := regexp.MustCompile(pattern).FindString(body); found != "" {
				t.Errorf("%q holds %s: %s", file, what, found)
			}
		}
	}
	if total == 0 || total > 38<<10 {
		t.Errorf("the page is %d bytes, want 1 to %d", total, 38<<10)
	}
}

// Guarantees that the format of data.json does not change unnoticed: a browser may still show the page of an earlier
// build.
func TestDataGolden(t *testing.T) {
	s := newStore(t)
	burst := newLimit(t, "burst", limit.Enforce, limit.Tier{Algorithm: limit.TokenBucket, Threshold: 1,
		Period: time.Second, Burst: 2})
	trial := newLimit(t, "trial", limit.Shadow, window(1, time.Minute))
	address := newLimit(t, "per-address", limit.Enforce, window(50, time.Second))
	acme := limit.Owner{Kind: limit.Tenant, Name: "acme"}
	r := livepage.NewRecorder()
	for i := range 4 {
		at := afterNoon(time.Duration(i) * 250 * time.Millisecond)
		o := livepage.Observation{At: at, Outcome: livepage.Allowed, Tenant: "acme", Method: "GET", Path: "/product/*"}
		o.IPDecision = decided(t, s, limit.Owner{Kind: limit.Address, Name: "h"}, at, address)
		if o.Decision = decided(t, s, acme, at, burst, trial); !o.Decision.Allowed {
			o.Outcome = livepage.Limited
		}
		r.Observe(&o)
	}
	r.Observe(&livepage.Observation{At: afterNoon(time.Second), Outcome: livepage.Unauthorized, Method: "GET",
		Path: "/"})
	now := afterNoon(1500 * time.Millisecond)
	var peek limit.Decision
	req := limit.Request{Owner: acme, Charges: []limit.Charge{{Limit: burst, Cost: 1}, {Limit: trial, Cost: 1}}}
	if err := s.Peek(t.Context(), &req, now, &peek); err != nil {
		t.Fatal(err)
	}
	status := livepage.Status{
		Now: now,
		Gateway: livepage.Gateway{PlansFile: "plans.yaml", LoadedMs: noon.Add(-time.Hour).UnixMilli(),
			LastError: "plans.yaml:3:5: plans[0].id: missing", Upstream: "http://127.0.0.1:9000",
			Listen: "127.0.0.1:8080", StoreBytes: 4096, Routes: 3, Tenants: 12,
			TryCommands: []string{"curl -i http://127.0.0.1:8080/"}},
		Away: []string{"Redis"},
		Tenants: []livepage.TenantRow{
			{ID: "acme", Plan: "pro", Limits: []livepage.LimitStatus{
				livepage.StatusOf(&burst.Tiers[0], &peek.Results[0], now, "every route"),
				livepage.StatusOf(&trial.Tiers[0], &peek.Results[1], now, "GET /product/*"),
				{ID: "lent", Tier: "1m", Mode: "enforce", Per: "tenant", Unit: "bytes", Capacity: 50, Used: 3,
					Leased: 20},
			}},
			{ID: "globex", Plan: "free", Suspended: true},
		},
		IPLimits: []livepage.LimitStatus{livepage.StatusOf(&address.Tiers[0], nil, now, "every route")},
		Cells: []livepage.CellStatus{
			{Name: "cell-1", URL: "http://127.0.0.1:8080", Here: true, State: "active", Weight: 2, Epoch: 3,
				Phase: "grow", Head: 9, Behind: 1,
				Limits: []livepage.CellLimit{{Tenant: "acme", ID: "burst", Tier: "1s", Capacity: 3, Share: 2}}},
			{Name: "cell-2", State: "waiting", Await: true},
		},
	}
	checkJSON(t, "data.json", get(mounted(r, status), "GET", "/_sluice/data.json").Body.Bytes())
}

func checkJSON(t *testing.T, name string, got []byte) {
	t.Helper()
	var value any
	if err := json.Unmarshal(got, &value); err != nil {
		t.Fatal(err)
	}
	got, err := json.MarshalIndent(value, "", " ")
	if err != nil {
		t.Fatal(err)
	}
	golden.Check(t, name, string(got)+"\n")
}
