package main

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/sluicelimits/sluice/internal/request/identity"
)

// A body that does not arrive keeps a connection open no longer than --body-timeout, whatever the request is for. The
// client gets an answer.
func TestDevSlowBody(t *testing.T) {
	t.Parallel()
	upstream := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body) // ends when the gateway gives up
	}))
	defer upstream.Close()
	credential := "X-API-Key: " + identity.ExampleKey("acme") + "\r\n"
	for _, c := range []struct {
		name, path, header string
		args               []string
		want               int
	}{
		{"the echo", "/product/1", credential, nil, 408},
		{"an upstream", "/product/1", credential, []string{"--upstream", upstream.URL}, 408},
		{"no credential", "/product/1", "", nil, 401},
		{"the page", "/_sluice/data.json", "", nil, 405},
		{"operators", "/_sluice/admin/cells/list", "", nil, 401},
	} {
		r := startDev(t, append([]string{"--body-timeout", "100ms"}, c.args...)...)
		conn, err := net.Dial("tcp", strings.TrimPrefix(r.base, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		header := "Host: localhost\r\nContent-Length: 200000\r\n" + c.header
		fmt.Fprintf(conn, "POST %s HTTP/1.1\r\n%s\r\nx", c.path, header)
		answers := bufio.NewReader(conn)
		res, err := http.ReadResponse(answers, nil)
		if err != nil || res.StatusCode != c.want {
			t.Fatalf("%s: answer %v, %v; want status %d", c.name, res, err, c.want)
		}
		defer res.Body.Close()
		body, err := io.ReadAll(res.Body)
		if err != nil || c.want == 408 && !strings.Contains(string(body), "slow-body") {
			t.Errorf("%s: body %s, %v", c.name, body, err)
		}
		if _, err := answers.ReadByte(); err == nil {
			t.Errorf("%s: the connection stays open", c.name)
		}
		if err := r.finish(t); err != nil {
			t.Error(err)
		}
	}
	negative := sluice(t, "", "dev", "--body-timeout", "-1s")
	wantError(t, "a negative time", negative, exitUsage,
		`invalid argument "-1s" for "--body-timeout" flag: want 0s or more`)
}

// The methods of --methods are served, in any case, and no others; a list that names nothing is refused.
func TestDevMethods(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		args   []string
		method string
		want   int
	}{
		{nil, "FOO", 400},
		{nil, "DELETE", 200},
		{[]string{"--methods", "get,propfind"}, "PROPFIND", 200},
		{[]string{"--methods", "get,propfind"}, "DELETE", 400},
		{[]string{"--methods", "any"}, "FOO", 200},
	} {
		r := startDev(t, c.args...)
		request, err := http.NewRequestWithContext(t.Context(), c.method, r.base+"/product/1", http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		request.Header.Set("X-Api-Key", identity.ExampleKey("acme"))
		res, err := http.DefaultClient.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		if res.Body.Close(); res.StatusCode != c.want {
			t.Errorf("%q, %s: status %d, want %d", c.args, c.method, res.StatusCode, c.want)
		}
		if err := r.finish(t); err != nil {
			t.Error(err)
		}
	}
	for list, want := range map[string]string{"": "--methods is empty", "GET,P/T": `"P/T" is not a method`} {
		wantError(t, "methods", sluice(t, "", "dev", "--methods", list), exitUsage, want)
	}
}
