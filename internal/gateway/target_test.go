package gateway_test

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/sluicelimits/sluice/internal/gateway"
)

// Guarantees that a request target which is a URL inside a URL is refused. Go reads such a target without a path, so
// only limits without a path counted it, and the reverse proxy handed the inner URL on as it was.
func TestOpaqueTargets(t *testing.T) {
	reached := 0
	upstream := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { reached++ }))
	defer upstream.Close()
	to, err := url.Parse(upstream.URL)
	if err != nil {
		t.Fatal(err)
	}
	f := newFixture(t, []byte(`
plans:
  - id: public
    limits: [ { id: product, match: { pathPattern: "/product/**" }, tiers: [ { period: 1h, threshold: 1 } ] } ]
anonymousPlan: public
`), func(c *gateway.Config) { c.Upstream = to })
	at := strings.TrimPrefix(f.serve(t), "http://")
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
		c, err := net.Dial("tcp", at)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := fmt.Fprintf(c, "GET %s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", tt.target); err != nil {
			t.Fatal(err)
		}
		res, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil {
			t.Fatal(err)
		}
		if res.StatusCode != tt.status {
			t.Errorf("%s: %d, want %d", tt.target, res.StatusCode, tt.status)
		}
		if err := errors.Join(res.Body.Close(), c.Close()); err != nil {
			t.Error(err)
		}
	}
	if reached != 1 {
		t.Errorf("%d requests reached the upstream, want 1", reached)
	}
}
