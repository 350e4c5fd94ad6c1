package loopback_test

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/sluicelimits/sluice/internal/request/loopback"
)

// Guarantees that a request counts as direct only if nothing in it points to another machine or to a proxy.
func TestDirect(t *testing.T) {
	header := func(name, value string) func(*http.Request) {
		return func(r *http.Request) { r.Header.Set(name, value) }
	}
	host := func(host, peer string) func(*http.Request) {
		return func(r *http.Request) { r.Host, r.RemoteAddr = host, peer }
	}
	for _, c := range []struct {
		name   string
		change func(*http.Request)
		want   bool
	}{
		{"an address", host("127.0.0.1:8080", "127.0.0.1:40000"), true},
		{"an address without port", host("127.0.0.1", "127.0.0.1:40000"), true},
		{"IPv6", host("[::1]:8080", "[::1]:40000"), true},
		{"IPv6 without port", host("[::1]", "[::1]:40000"), true},
		{"IPv4 in IPv6", host("[::ffff:127.0.0.1]:8080", "[::ffff:127.0.0.1]:40000"), true},
		{"localhost", host("LOCALHOST:8080", "127.0.0.1:40000"), true},
		{"another peer", host("127.0.0.1:8080", "192.0.2.1:40000"), false},
		{"no peer", host("127.0.0.1:8080", "@"), false},
		{"another host", host("evil.example:8080", "127.0.0.1:40000"), false},
		{"a host that begins like this one", host("127.0.0.1.evil.example", "127.0.0.1:40000"), false},
		{"no host", host("", "127.0.0.1:40000"), false},
		{"X-Forwarded-For", header("X-Forwarded-For", "127.0.0.1"), false},
		{"an empty X-Forwarded-For", header("X-Forwarded-For", ""), false},
		{"X-Forwarded-Host", header("X-Forwarded-Host", "localhost"), false},
		{"X-Forwarded-Proto", header("X-Forwarded-Proto", "https"), false},
		{"X-Real-IP", header("X-Real-IP", "203.0.113.7"), false},
		{"Forwarded", header("Forwarded", "for=203.0.113.7"), false},
		{"Via", header("Via", "1.1 proxy"), false},
		{"HTTP/1.0", func(r *http.Request) { r.Proto, r.ProtoMinor = "HTTP/1.0", 0 }, false},
	} {
		r := httptest.NewRequest(http.MethodGet, "http://localhost:8080/", http.NoBody)
		r.RemoteAddr = "127.0.0.1:40000"
		if c.change(r); loopback.Direct(r) != c.want {
			t.Errorf("%s: %t, want %t", c.name, !c.want, c.want)
		}
	}
}
