// Package forward knows the headers in which a service learns who calls, and keeps clients from writing them.
package forward

import (
	"net/http"
	"strings"

	"github.com/sluicelimits/sluice/caller"
	"github.com/sluicelimits/sluice/internal/request/apigw"
)

// The headers. Values are percent-encoded (all but A-Z a-z 0-9 - . _ ~), since names may be any UTF-8.
const (
	Tenant      = "X-Sluice-Tenant"
	Subject     = "X-Sluice-Subject"
	Plan        = "X-Sluice-Plan"
	KeyID       = "X-Sluice-Key-Id"
	Anonymous   = "X-Sluice-Anonymous"    // "true" for a call of nobody who is identified
	StoreFailed = "X-Sluice-Store-Failed" // "true" where the limits were checked without their store
)

// Names are all of them.
var Names = [...]string{Tenant, Subject, Plan, KeyID, Anonymous, StoreFailed}

// Write takes out of a request's headers what a service must only believe from us, and writes who calls. A client can
// have any header taken out on the way by naming it in Connection, so ours are taken out of that.
func Write(h http.Header, c *caller.Caller) {
	for name := range h {
		if Ours(name) {
			delete(h, name)
		}
	}
	keepOurs(h)
	set := func(name, value string) {
		if value != "" {
			h[name] = []string{apigw.EncodeName(value)}
		}
	}
	set(Tenant, c.Tenant)
	set(Subject, c.Subject)
	set(Plan, c.Plan)
	set(KeyID, c.KeyID)
	if c.Anonymous {
		h[Anonymous] = []string{"true"}
	}
	if c.StoreFailed {
		h[StoreFailed] = []string{"true"}
	}
}

// keepOurs rewrites Connection without the names of our headers, where it has any.
func keepOurs(h http.Header) {
	lines := h["Connection"]
	found := false
	var kept []string
	for _, line := range lines {
		for option := range strings.SplitSeq(line, ",") {
			if option = strings.TrimSpace(option); Ours(option) {
				found = true
			} else {
				kept = append(kept, option)
			}
		}
	}
	switch {
	case !found:
	case len(kept) == 0:
		delete(h, "Connection")
	default:
		h["Connection"] = []string{strings.Join(kept, ", ")}
	}
}

// Ours reports whether a client may not send the header. Every byte that is no letter and no digit counts as a dash:
// many backends make no difference between a dash and an underscore, and some between a dash and none of them.
func Ours(name string) bool {
	for _, prefix := range [...]string{"x-sluice-", "x-ratelimit-", "ratelimit"} {
		if len(name) >= len(prefix) && sameName(name[:len(prefix)], prefix) {
			return true
		}
	}
	return false
}

func sameName(a, lower string) bool {
	for i := range len(a) {
		c := a[i]
		switch {
		case c >= 'A' && c <= 'Z':
			c += 'a' - 'A'
		case (c < 'a' || c > 'z') && (c < '0' || c > '9'):
			c = '-'
		}
		if c != lower[i] {
			return false
		}
	}
	return true
}
