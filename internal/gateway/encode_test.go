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
