//go:build unix

package endtoend_test

import (
	"encoding/json"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/sluicelimits/sluice/internal/request/answer"
	"github.com/sluicelimits/sluice/internal/testkit/apigateway"
	"github.com/sluicelimits/sluice/internal/testkit/apigateway/template"
)

const few = `
plans:
  - { id: pro, limits: [ { id: burst, tiers: [ { period: ` + year + `, threshold: 3 } ] } ] }
tenants:
  - { id: acme, plan: pro }
  - { id: globex, plan: pro }
  - { id: initech, plan: pro }
  - { id: umbrella, plan: pro }
`

// Guarantees that the constructs of infra give working APIs. The local gateway, made from the synthesized template,
// gives with the deployed binary: 429s with headers and body on a REST API; 403s on an HTTP API, and 429s if denials
// are passed on; refused connections on a WebSocket API. Anonymous requests are refused, and an excepted route reveals
// nothing.
func TestAttachedTemplate(t *testing.T) {
	t.Parallel()
	data, err := os.ReadFile("../../../infra/testdata/attach.template.json")
	if err != nil {
		t.Fatal(err)
	}
	id := func(prefix string) string {
		m := regexp.MustCompile(`"(` + prefix + `[0-9A-F]{8})": \{`).FindSubmatch(data)
		if m == nil {
			t.Fatalf("the template has no API %s…", prefix)
		}
		return string(m[1])
	}
	w := newWorld(t, few, "acme", "globex", "initech", "umbrella")
	w.redis()
	w.env["SLUICE_PASS_DENIALS"] = id("Http")
	w.start(2)
	service, orders := w.backend(), w.function(behind)
	read := func(prefix string) *apigateway.Description {
		d, err := template.Parse("attach.template.json", data, template.Options{API: id(prefix),
			Targets: map[string]string{"https://shop.example.com": service}})
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	serve := func(d *apigateway.Description) *api {
		return w.serveAPI(d, map[string]apigateway.Function{"sluice-eu-1-authorizer": w.host, "orders": orders})
	}
	// use sends three requests of a tenant that are admitted, and one that is not.
	use := func(a *api, tenant string, allowed, denied int) (first, last *reply) {
		t.Helper()
		first = a.wantStatus(allowed, "GET", "/product/1", w.key(tenant)...)
		if got := first.seen(t); got.Tenant != tenant || got.Path != "/v1/product/1" {
			t.Errorf("the service saw %+v", got)
		}
		if got := a.wantStatus(allowed, "POST", "/orders", w.key(tenant)...).seen(t); got.Tenant != tenant {
			t.Errorf("the function saw %+v", got)
		}
		a.wantStatus(allowed, "GET", "/product/2", w.key(tenant)...)
		return first, a.wantStatus(denied, "GET", "/product/1", w.key(tenant)...)
	}
	rest := serve(read("Rest"))
	first, denied := use(rest, "acme", 200, 429)
	wantLimits(t, first)
	wantDenial(t, denied)
	if denied.header.Get("Access-Control-Allow-Origin") != "https://app.example.com" {
		t.Errorf("a denial for the page's origin: %s", denied)
	}
	none := rest.wantStatus(401, "GET", "/product/1")
	if !strings.Contains(none.body, "#bad-credential") || none.header.Get("Www-Authenticate") == "" ||
		none.header.Get("Content-Type") != answer.ContentType {
		t.Errorf("no credential: %s", none)
	}
	if got := rest.wantStatus(204, "OPTIONS", "/product/1"); got.header.Get(
		"Access-Control-Allow-Origin") != "https://app.example.com" {
		t.Errorf("a preflight: %s", got)
	}
	forged := []string{"X-Sluice-Caller", "d=allowed;t=acme"}
	if got := rest.wantStatus(403, "GET", "/healthz", forged...); !strings.Contains(got.body, "no-decision") {
		t.Errorf("an excepted route, with a decision that a client wrote: %s", got)
	}
	open := read("Rest")
	for i := range open.Routes {
		delete(open.Routes[i].Integration.RequestParameters, "integration.request.header.x-sluice-caller")
	}
	// so it is that which refuses
	if got := serve(open).wantStatus(200, "GET", "/healthz", forged...).seen(t); got.Tenant != "acme" {
		t.Errorf("without the mapping: %+v", got)
	}

	http := serve(read("Http"))
	_, denied = use(http, "globex", 200, 429)
	if got := denied.problem(t); got.Status != 429 || denied.header.Get("Retry-After") == "" {
		t.Errorf("a denial that is passed on: %s", denied)
	}
	wantDenial(t, denied)
	var made struct {
		Resources map[string]struct {
			Properties struct {
				CorsConfiguration struct{ ExposeHeaders []string }
			}
		}
	}
	if err := json.Unmarshal(data, &made); err != nil {
		t.Fatal(err)
	}
	// API Gateway replaces the headers of CORS that the middleware set by those of the API's setting.
	if cors := made.Resources[id("Http")].Properties.CorsConfiguration; strings.Join(cors.ExposeHeaders, ", ") !=
		answer.ExposeHeaders {
		t.Errorf("the HTTP API exposes %q, want %s", cors.ExposeHeaders, answer.ExposeHeaders)
	}
	http.wantStatus(401, "GET", "/product/1", forged...)
	if got := http.wantStatus(403, "GET", "/healthz", forged...); !strings.Contains(got.body, "no-decision") {
		t.Errorf("an excepted route, with a decision that a client wrote: %s", got)
	}
	other := read("Http") // denials of which are not passed on
	other.API = apiID
	if _, denied := use(serve(other), "initech", 200, 403); !strings.Contains(denied.body, `"Forbidden"`) {
		t.Errorf("a denial: %s", denied)
	}

	socket := serve(read("Socket"))
	for range 3 {
		socket.wantStatus(101, "GET", "", append(w.key("umbrella"), handshake...)...)
	}
	socket.wantStatus(403, "GET", "", append(w.key("umbrella"), handshake...)...)
	socket.wantStatus(401, "GET", "", handshake...)
}
