package apigateway_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"
)

// seen is the request that the upstream received.
type seen struct {
	Method, URI, Host, Body string
	Header                  http.Header
}

// newUpstream starts an upstream that answers with the request it received, and with headers of its own.
func newUpstream(t *testing.T) *httptest.Server {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		h := w.Header()
		h["WWW-Authenticate"], h["Server"], h["X-Own"] = []string{"Bearer"}, []string{"own"}, []string{"1"}
		if r.URL.Query().Get("status") == "404" {
			w.WriteHeader(404)
		}
		_ = json.NewEncoder(w).Encode(seen{r.Method, r.RequestURI, r.Host, string(body), r.Header})
	}))
	t.Cleanup(s.Close)
	return s
}

func (r reply) seen(t *testing.T) seen {
	t.Helper()
	var s seen
	if err := json.Unmarshal([]byte(r.body), &s); err != nil {
		t.Fatalf("decode the upstream's answer: %v in %s", err, r.body)
	}
	return s
}

// Guarantees that the HTTP proxy of a REST API passes on what API Gateway passes on, and that mapped headers have the
// authorizer's values only: a client can neither set them nor remove them by naming them in Connection.
func TestRESTProxy(t *testing.T) {
	up := newUpstream(t)
	base, log := serve(t, describe(t, `
kind: REST
authorizers: { a: { function: authorizer, resultTtlInSeconds: 0 } }
routes:
  - route: "ANY /shop/{id}/{proxy+}"
    authorizer: a
    integration:
      type: HTTP_PROXY
      url: `+up.URL+`/backend/{item}/{rest}
      requestParameters:
        integration.request.path.item: method.request.path.id
        integration.request.path.rest: method.request.path.proxy
        integration.request.header.X-Tenant: context.authorizer.tenant
        integration.request.header.X-Cost: context.authorizer.cost
        integration.request.header.X-Literal: "'here'"
`), &answers{out: policy("Allow", all, `{"tenant":"acme & co","cost":3}`)}, nil, nil)
	got := send(t, "PUT", base+"/dev/shop/a%20b/c/d?q=1", "hello", "X-Tenant", "evil", "Connection",
		"X-Tenant, X-Cost", "X-Forwarded-For", "192.0.2.1")
	if got.status != 200 {
		t.Fatalf("status %d, body %s\n%s", got.status, got.body, log)
	}
	s := got.seen(t)
	if s.Method != "PUT" || s.URI != "/backend/a%20b/c/d?q=1" || s.Body != "hello" ||
		s.Host != strings.TrimPrefix(up.URL, "http://") {
		t.Errorf("upstream saw %s %s at %s with %q", s.Method, s.URI, s.Host, s.Body)
	}
	for name, want := range map[string]string{"X-Tenant": "acme & co", "X-Cost": "3", "X-Literal": "here",
		"X-Forwarded-For": "192.0.2.1, 127.0.0.1", "X-Forwarded-Proto": "https"} {
		if v := s.Header[name]; len(v) != 1 || v[0] != want {
			t.Errorf("upstream saw %s: %q, want %q", name, v, want)
		}
	}
	if h := got.header; h.Get("Www-Authenticate") != "" || h.Get("X-Amzn-Remapped-Www-Authenticate") != "Bearer" ||
		h.Get("X-Amzn-Remapped-Server") != "own" || h.Get("X-Own") != "1" || h.Get("X-Amzn-Requestid") == "" {
		t.Errorf("the answer has headers %v", h)
	}
}

// Guarantees the parameter mapping of an HTTP API, for requests and, by status, for answers.
func TestHTTPProxy(t *testing.T) {
	up := newUpstream(t)
	base, log := serve(t, describe(t, `
kind: HTTP
authorizers: { a: { function: authorizer, payloadFormatVersion: "2.0", enableSimpleResponses: true,
  resultTtlInSeconds: 0 } }
routes:
  - route: "ANY /shop/{proxy+}"
    authorizer: a
    integration:
      type: HTTP_PROXY
      url: `+up.URL+`/backend/{proxy}
      requestParameters:
        overwrite:header.x-tenant: $context.authorizer.tenant
        overwrite:header.x-cost: $context.authorizer.cost
        overwrite:header.x-literal: here
      responseParameters:
        "200": { "overwrite:header.X-Tenant": $context.authorizer.tenant }
`), &answers{out: `{"isAuthorized":true,"context":{"tenant":"acme","cost":3}}`}, nil, nil)
	got := send(t, "GET", base+"/shop/a%20b?q=1&q=2", "", "X-Tenant", "evil", "X-Literal", "evil")
	if got.status != 200 {
		t.Fatalf("status %d, body %s\n%s", got.status, got.body, log)
	}
	s := got.seen(t)
	if s.URI != "/backend/a%20b?q=1&q=2" || s.Header.Get("X-Tenant") != "acme" ||
		s.Header.Get("X-Cost") != "3" || !slices.Equal(s.Header["X-Literal"], []string{"here"}) {
		t.Errorf("the upstream got %s with headers %v", s.URI, s.Header)
	}
	if h := got.header; h.Get("X-Tenant") != "acme" || h.Get("X-Own") != "1" || h.Get("Www-Authenticate") != "Bearer" {
		t.Errorf("the answer has headers %v", h)
	}
	if got := send(t, "GET", base+"/shop/a?status=404", ""); got.status != 404 || got.header.Get("X-Tenant") != "" {
		t.Errorf("status %d with headers %v, want 404 without the mapping for 200", got.status, got.header)
	}
}

// Guarantees what a client gets if the upstream cannot be reached or is too slow.
func TestUpstreamsThatFail(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	gone := "http://" + listener.Addr().String()
	_ = listener.Close()
	release := make(chan struct{})
	slow := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		select {
		case <-release:
		case <-r.Context().Done():
		}
	}))
	defer slow.Close()
	defer close(release)
	for _, c := range []struct {
		kind, url, body string
		status          int
	}{
		{"REST", gone, `{"message":"Network error communicating with endpoint"}`, 504},
		{"REST", slow.URL, `{"message":"Endpoint request timed out"}`, 504},
		{"HTTP", gone, `{"message":"Service Unavailable"}`, 503},
		{"HTTP", slow.URL, `{"message":"Service Unavailable"}`, 503},
	} {
		base, log := serve(t, describe(t, fmt.Sprintf("kind: %s\nstage: dev\nroutes: [ { route: GET /a, "+
			"integration: { type: HTTP_PROXY, url: %q, timeoutInMillis: 50 } } ]", c.kind, c.url)), nil, nil, nil)
		if got := send(t, "GET", base+"/dev/a", ""); got.status != c.status || got.body != c.body {
			t.Errorf("%s, %s: %d %s, want %d %s", c.kind, c.url, got.status, got.body, c.status, c.body)
		}
		if strings.Contains(log.String(), "127.0.0.1") || !strings.Contains(log.String(),
			"the upstream did not answer") {
			t.Errorf("%s: the log is %s", c.kind, log)
		}
	}
	block := make(chan struct{})
	base, _ := serve(t, describe(t, `{kind: REST, routes: [{route: GET /a, integration: {type: AWS_PROXY, function: `+
		`backend, timeoutInMillis: 50}}]}`), nil, function(func(context.Context, []byte) ([]byte, error) {
		<-block
		return nil, nil
	}), nil)
	if got := send(t, "GET", base+"/dev/a", ""); got.status != 504 {
		t.Errorf("a function that does not answer gives status %d, want 504", got.status)
	}
	close(block)
}

// Guarantees that a MOCK answers with mapped headers. No other integration of a REST API has answers that can be
// mapped.
func TestMock(t *testing.T) {
	base, _ := serve(t, describe(t, `
kind: REST
authorizers: { a: { function: authorizer, resultTtlInSeconds: 0 } }
routes:
  - route: GET /a
    authorizer: a
    integration: { type: MOCK,
      responseParameters: { "200": { method.response.header.X-Tenant: context.authorizer.tenant } } }
`), &answers{out: policy("Allow", all, `{"tenant":"acme"}`)}, nil, nil)
	if got := send(t, "GET", base+"/dev/a", ""); got.status != 200 || got.header.Get("X-Tenant") != "acme" ||
		got.body != "" {
		t.Errorf("the MOCK answers with status %d, headers %v, body %q", got.status, got.header, got.body)
	}
}

// Guarantees that the handshake of a WebSocket is answered as RFC 6455 says, and that the connection is then closed
// with a close frame.
func TestWebSocket(t *testing.T) {
	base, _ := serve(t, builtin(t, "websocket"), &answers{out: policy("Allow", all, "{}")}, nil, nil)
	conn, err := net.Dial("tcp", strings.TrimPrefix(base, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(10 * time.Second)); err != nil {
		t.Fatal(err)
	}
	fmt.Fprint(conn, "GET /dev HTTP/1.1\r\nHost: x\r\nConnection: keep-alive, Upgrade\r\nUpgrade: "+
		"WebSocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n")
	r := bufio.NewReader(conn)
	resp, err := http.ReadResponse(r, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	// The key and the accept value are those of the RFC, section 1.3.
	if resp.StatusCode != 101 || resp.Header.Get("Sec-Websocket-Accept") != "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=" {
		t.Errorf("the handshake is answered with status %d, headers %v", resp.StatusCode, resp.Header)
	}
	frame, err := io.ReadAll(r)
	if err != nil || len(frame) < 4 || frame[0] != 0x88 || int(frame[1]) != len(frame)-2 || frame[2] != 1013>>8 ||
		frame[3] != 1013&0xff {
		t.Errorf("frame %q, %v; want one that closes with 1013", frame, err)
	}
	if got := send(t, "GET", base+"/dev", ""); got.status != 426 {
		t.Errorf("a request without a handshake gets status %d, want 426", got.status)
	}
}
