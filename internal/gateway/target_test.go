package gateway_test

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/sluicelimits/sluice/internal/gateway"
)

// sendTarget sends a request whose target is not changed, as http.Client would do, and returns the status of the
// answer.
func sendTarget(t *testing.T, at, target string) int {
	t.Helper()
	return sendRaw(t, at, http.MethodGet, target)
}

func sendRaw(t *testing.T, at, method, target string) int {
	t.Helper()
	c, err := net.Dial("tcp", at)
	if err != nil {
		t.Fatal(err)
	}
	const request = "%s %s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
	if _, err := fmt.Fprintf(c, request, method, target); err != nil {
		t.Fatal(err)
	}
	res, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(res.Body.Close(), c.Close()); err != nil {
		t.Error(err)
	}
	return res.StatusCode
}

// serveBefore serves the plans in front of an upstream, which has a path, and returns the address.
func serveBefore(t *testing.T, plans, path string, upstream http.HandlerFunc) (at string) {
	t.Helper()
	server := httptest.NewServer(upstream)
	t.Cleanup(server.Close)
	to, err := url.Parse(server.URL + path)
	if err != nil {
		t.Fatal(err)
	}
	f := newFixture(t, []byte(plans), func(c *gateway.Config) { c.Upstreams = []gateway.Upstream{{URL: to}} })
	return strings.TrimPrefix(f.serve(t), "http://")
}

// Guarantees that a request target which is a URL inside a URL is refused. Go reads such a target as a URL without a
// path. Only limits without a path would count it, and the reverse proxy would pass the inner URL on unchanged.
func TestOpaqueTargets(t *testing.T) {
	reached := 0
	at := serveBefore(t, `
plans:
  - id: public
    limits: [ { id: product, match: { pathPattern: "/product/**" }, tiers: [ { period: 1h, threshold: 1 } ] } ]
anonymousPlan: public
`, "", func(http.ResponseWriter, *http.Request) { reached++ })
	for _, tt := range []struct {
		target string
		status int
	}{
		{"/product/1", http.StatusOK},
		{"http://other/product/1", http.StatusTooManyRequests},
		{"x:http://other/product/1", http.StatusBadRequest},
		{"http:http://other/product/1", http.StatusBadRequest},
		{"x:y:http://other/product/1", http.StatusBadRequest},
		{"x:product/1", http.StatusBadRequest},
		{"x:http://other/_sluice/admin/apply", http.StatusBadRequest},
	} {
		if status := sendTarget(t, at, tt.target); status != tt.status {
			t.Errorf("target %s: status %d, want %d", tt.target, status, tt.status)
		}
	}
	if reached != 1 {
		t.Errorf("%d requests reached the upstream, want 1", reached)
	}
}

// Guarantees that a method that is not on the list is refused before the upstream, whose handler may do the work of GET
// for it, while a limit on GET does not count it.
func TestMethods(t *testing.T) {
	var served []string
	const plans = `
plans:
  - id: public
    limits:
      - { id: product, match: { methods: [GET], pathPattern: "/product/*" }, tiers: [ { period: 1h, threshold: 1 } ] }
anonymousPlan: public
`
	all := []string{"HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "post", "TRACE", "QUERY", "GETX", "FOO",
		"PROPFIND", "M-SEARCH", "GE", "GET."}
	at := serveBefore(t, plans, "", func(_ http.ResponseWriter, r *http.Request) { served = append(served, r.Method) })
	usual := all[:7]
	for _, method := range all {
		want := http.StatusBadRequest
		if slices.Contains(usual, method) {
			want = http.StatusOK
		}
		if status := sendRaw(t, at, method, "/product/1"); status != want {
			t.Errorf("%s: status %d, want %d", method, status, want)
		}
	}
	if !slices.Equal(served, usual) {
		t.Errorf("the upstream served %q, want %q", served, usual)
	}
}

// Guarantees that no spelling of ".." leads above the path of the upstream and back into it. There, "/../api/product/1"
// would be product 1, although no limit of products has counted the request.
func TestPathsAboveTheRoot(t *testing.T) {
	reached := map[string]int{}
	at := serveBefore(t, `
plans:
  - id: public
    limits: [ { id: product, match: { pathPattern: "/product/*" }, tiers: [ { period: 1h, threshold: 1 } ] } ]
anonymousPlan: public
`, "/api", func(_ http.ResponseWriter, r *http.Request) { reached[r.RequestURI]++ })
	for _, target := range []string{
		"/../api/product/1", "/..//api/product/1", "//../api/product/1", "/./../api/product/1",
		"/x/../../api/product/1",
		"/x//../../api/product/1", "/%2e%2e/api/product/1", "/.%2E/api/product/1", "/%252e%252e/api/product/1",
		"/..%2Fapi/product/1", "/..%2fapi%2fproduct%2f1", "/..%252fapi/product/1", "/..;/api/product/1",
		"/..;x=1/api/product/1", "/..%3bx/api/product/1", `/..\api\product\1`, `/\..\api/product/1`,
		"/..%5capi/product/1",
		"/x/..%2F..%2Fapi/product/1", "/..?x=/api/product/1", "/..%3F/api/product/1", "/..%23/api/product/1",
		"/..%00/api/product/1", "http://other/../api/product/1", "//other/../../api/product/1", "/..", "/../secret",
		"/%2e%2e/secret;" + strings.Repeat("a", 16_500),
	} {
		if status := sendTarget(t, at, target); status != http.StatusBadRequest {
			t.Errorf("target %s: status %d, want 400", target, status)
		}
	}
	if len(reached) > 0 {
		t.Errorf("refused requests reached the upstream: %v", reached)
	}
	for _, tt := range []struct { // a ".." that stays below the root is counted as usual; names may contain dots
		target string
		status int
	}{
		{"/x/../product/1", http.StatusOK}, {"/product/2", http.StatusTooManyRequests},
		{"/x/%2e%2e/product/1", http.StatusTooManyRequests}, {"/..a/.../b..", http.StatusOK},
		{"/a/../b?c=/../../d", http.StatusOK},
	} {
		if status := sendTarget(t, at, tt.target); status != tt.status {
			t.Errorf("target %s: status %d, want %d", tt.target, status, tt.status)
		}
	}
}
