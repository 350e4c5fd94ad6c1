//go:build unix

package endtoend_test

import (
	"os"
	"testing"

	"github.com/sluicelimits/sluice/internal/testkit/apigateway"
	"github.com/sluicelimits/sluice/internal/testkit/apigateway/template"
)

// Guarantees that the sample of infra works: every method leads to the correct path of the service, with the decision
// in its headers; denials are 429s with all headers, which browsers may read; and anonymous requests are refused if no
// plan admits them.
func TestSampleTemplate(t *testing.T) {
	t.Parallel()
	const page = "https://app.example.com"
	data, err := os.ReadFile("../../../infra/sample/testdata/sample.template.json")
	if err != nil {
		t.Fatal(err)
	}
	w := newWorld(t, `
plans: [ { id: pro, limits: [ { id: burst, tiers: [ { period: `+year+`, threshold: 5 } ] } ] } ]
tenants: [ { id: acme, plan: pro } ]
`, "acme")
	w.redis()
	w.start(2)
	d, err := template.Parse("sample.template.json", data,
		template.Options{Targets: map[string]string{"https://backend.example.com": w.backend()}})
	if err != nil {
		t.Fatal(err)
	}
	a := w.serveAPI(d, map[string]apigateway.Function{"acme-eu-1-authorizer": w.host})
	for _, c := range []struct{ method, path string }{
		{"GET", "/product/1"}, {"PUT", "/product/1"}, {"GET", "/orders"}, {"POST", "/orders"},
		{"PATCH", "/v1/organizations/o1/product/7"},
	} {
		got := a.wantStatus(200, c.method, c.path, w.key("acme")...)
		if s := got.seen(t); s.Tenant != "acme" || s.Path != c.path {
			t.Errorf("%s %s: the service got %+v", c.method, c.path, s)
		}
		wantLimits(t, got)
	}
	denied := a.wantStatus(429, "GET", "/product/1", append(w.key("acme"), "Origin", page)...)
	wantDenial(t, denied)
	none := a.wantStatus(401, "GET", "/orders", "X-Sluice-Caller", "d=allowed;t=acme", "Origin", page)
	preflight := a.wantStatus(204, "OPTIONS", "/v1/anything", "Origin", page, "Access-Control-Request-Method", "GET")
	for _, got := range []*reply{denied, none, preflight} {
		if got.header.Get("Access-Control-Allow-Origin") != page {
			t.Errorf("for the page: %s", got)
		}
	}
	a.wantStatus(403, "DELETE", "/orders", w.key("acme")...)
}
