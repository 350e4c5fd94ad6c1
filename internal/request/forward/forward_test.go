package forward_test

import (
	"net/http"
	"net/url"
	"reflect"
	"strings"
	"testing"

	"github.com/sluicelimits/sluice/caller"
	"github.com/sluicelimits/sluice/internal/request/forward"
)

// Guarantees that headers with our names that a client has sent are removed, and that a client cannot make a proxy
// remove our own headers afterwards.
func TestWrite(t *testing.T) {
	h := http.Header{"X-Sluice-Tenant": {"evil", "worse"}, "X_sluice_tenant": {"evil"},
		"x-sluice-caller": {"d=allowed;t=evil"}, "Ratelimit": {"x"},
		"X-Sluice-Anonymous": {"true"}, "X-Own": {"1"},
		"Connection": {"close, X-Sluice-Tenant", "x-sluice-subject , keep-alive"}}
	forward.Write(h, &caller.Caller{Tenant: "a\r\nb", Subject: "é", StoreFailed: true})
	want := http.Header{"X-Sluice-Tenant": {"a%0D%0Ab"}, "X-Sluice-Subject": {"%C3%A9"},
		"X-Sluice-Store-Failed": {"true"}, "X-Own": {"1"},
		"Connection": {"close, keep-alive"}}
	if !reflect.DeepEqual(h, want) {
		t.Errorf("got  %v\nwant %v", h, want)
	}
	h = http.Header{"Connection": {"X-Sluice-Plan"}}
	forward.Write(h, &caller.Caller{Anonymous: true, Plan: "public"})
	if want := (http.Header{"X-Sluice-Plan": {"public"}, "X-Sluice-Anonymous": {"true"}}); !reflect.DeepEqual(h, want) {
		t.Errorf("got  %v\nwant %v", h, want)
	}
}

// Guarantees that a client cannot change the protocol of its connection to anything but WebSocket, in any spelling: one
// counted request would otherwise carry any number of others.
func TestUpgrades(t *testing.T) {
	for _, upgrade := range [][]string{{"h2c"}, {"H2C"}, {"websocket, h2c"}, {"websocket", "h2c"}, {"TLS/1.0"}, {""},
		nil} {
		h := http.Header{"Http2-Settings": {"AAMAAABk"}, "X-Own": {"1"},
			"Connection": {"keep-alive, UPGRADE", "http2-settings"}}
		if upgrade != nil {
			h["Upgrade"] = upgrade
		}
		forward.Write(h, &caller.Caller{})
		if want := (http.Header{"X-Own": {"1"}, "Connection": {"keep-alive"}}); !reflect.DeepEqual(h, want) {
			t.Errorf("%q: got %v, want %v", upgrade, h, want)
		}
	}
	for _, upgrade := range []string{"websocket", " WebSocket "} {
		h := http.Header{"Upgrade": {upgrade}, "Connection": {"Upgrade"}}
		want := h.Clone()
		if forward.Write(h, &caller.Caller{}); !reflect.DeepEqual(h, want) {
			t.Errorf("%q: got %v, want %v", upgrade, h, want)
		}
	}
}

// FuzzWrite guarantees that any name can be written into a header and read back, without a character that has a meaning
// in headers. Otherwise a tenant could add headers that backends trust.
func FuzzWrite(f *testing.F) {
	f.Add("acme")
	f.Add("a\r\nX-Evil: 1\x1b[31m<script>é\u2028\x00")
	f.Add("%41 +/")
	f.Add("\xff\xfe")
	f.Fuzz(func(t *testing.T, name string) {
		if name == "" {
			return
		}
		h := make(http.Header)
		forward.Write(h, &caller.Caller{Tenant: name})
		got := h.Get(forward.Tenant)
		if len(h) != 1 || strings.Trim(got,
			"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~%") != "" {
			t.Fatalf("%q: %v", name, h)
		}
		if back, err := url.PathUnescape(got); err != nil || back != name {
			t.Fatalf("%q is written %q, which decodes to %q, %v", name, got, back, err)
		}
	})
}

func TestOurs(t *testing.T) {
	for name, want := range map[string]bool{
		"X-Sluice-Tenant": true, "x_sluice_tenant": true, "X.Sluice.Tenant": true, "x~sluice!tenant": true,
		"X-SLUICE_ANY": true, "Ratelimit": true, "Ratelimit-Policy": true,
		"X-Ratelimit-Limit": true, "X_RateLimit_Limit": true, "X-Sluic": false, "X-Own": false, "Rate": false,
	} {
		if got := forward.Ours(name); got != want {
			t.Errorf("Ours(%q) = %v, want %v", name, got, want)
		}
	}
}
