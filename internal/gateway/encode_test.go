package gateway

import (
	"net/url"
	"strings"
	"testing"
)

// FuzzEncode holds that any name goes through a header and comes back, and brings no character with it that means
// something there. If it did, a tenant could add headers that backends believe.
func FuzzEncode(f *testing.F) {
	f.Add("acme")
	f.Add("a\r\nX-Evil: 1\x1b[31m<script>é\u2028\x00")
	f.Add("%41 +/")
	f.Add("\xff\xfe")
	f.Fuzz(func(t *testing.T, name string) {
		got := encode(name)
		if strings.Trim(got, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~%") != "" {
			t.Fatalf("encode(%q) = %q", name, got)
		}
		if back, err := url.PathUnescape(got); err != nil || back != name {
			t.Fatalf("encode(%q) = %q, which decodes to %q, %v", name, got, back, err)
		}
	})
}

func TestOurs(t *testing.T) {
	for name, want := range map[string]bool{
		"X-Sluice-Tenant": true, "x_sluice_tenant": true, "X-SLUICE_ANY": true, "Ratelimit": true, "Ratelimit-Policy": true,
		"X-Ratelimit-Limit": true, "X_RateLimit_Limit": true, "X-Sluic": false, "X-Own": false, "Rate": false,
	} {
		if got := ours(name); got != want {
			t.Errorf("ours(%q) = %v, want %v", name, got, want)
		}
	}
}

func TestRedact(t *testing.T) {
	for in, want := range map[string]string{
		"http: TLS handshake error from 203.0.113.7:1234: EOF":        "http: TLS handshake error from [address]: EOF",
		"read tcp 10.0.0.1:80->[2001:db8::1]:5: reset":                "read tcp [address]->[address]: reset",
		"from [fe80::1%eth0]:5":                                       "from [address]",
		"superfluous WriteHeader call from a.b (server.go:12)":        "superfluous WriteHeader call from a.b (server.go:12)",
		"Go 1.26.8 at 12:30:45, index out of range [3] with length 3": "Go 1.26.8 at 12:30:45, index out of range [3] with length 3",
	} {
		if got := redact(in); got != want {
			t.Errorf("redact(%q) = %q, want %q", in, got, want)
		}
	}
}
