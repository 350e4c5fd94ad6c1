package gateway

import (
	"net/http"
	"strings"

	"github.com/sluicelimits/sluice/authorizer"
	"github.com/sluicelimits/sluice/internal/gateway/front"
	"github.com/sluicelimits/sluice/internal/identity"
)

// The headers in which a backend learns who calls. Values are percent-encoded (all but A-Z a-z 0-9 - . _ ~), since names
// may be any UTF-8.
const (
	tenantHeader      = front.TenantHeader
	subjectHeader     = "X-Sluice-Subject"
	planHeader        = "X-Sluice-Plan"
	keyHeader         = "X-Sluice-Key-Id"
	anonymousHeader   = "X-Sluice-Anonymous"    // "true" for a call without a credential
	storeFailedHeader = "X-Sluice-Store-Failed" // "true" where the limits were checked without their store
)

var identityHeaders = [...]string{tenantHeader, subjectHeader, planHeader, keyHeader, anonymousHeader, storeFailedHeader}

// cleanHeaders takes out of a request what the backend must only believe from us, and the credential, which it does not
// need; then it writes who calls.
func cleanHeaders(h http.Header, a *authorizer.Answer) {
	for name := range h {
		if ours(name) {
			delete(h, name)
		}
	}
	if !a.Anonymous {
		delete(h, identity.APIKeyHeader)
		delete(h, "Authorization")
	}
	set := func(name, value string) {
		if value != "" {
			h[name] = []string{encode(value)}
		}
	}
	set(tenantHeader, a.Tenant)
	set(subjectHeader, a.Subject)
	set(planHeader, a.Plan)
	set(keyHeader, a.KeyID)
	if a.Anonymous {
		h[anonymousHeader] = []string{"true"}
	}
	if a.StoreFailed {
		h[storeFailedHeader] = []string{"true"}
	}
}

// ours reports whether a client may not send the header. Underscores count as dashes: many backends make no difference.
func ours(name string) bool {
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
		case c == '_':
			c = '-'
		case c >= 'A' && c <= 'Z':
			c += 'a' - 'A'
		}
		if c != lower[i] {
			return false
		}
	}
	return true
}

// encode is percent-encoding of everything but unreserved characters: one spelling for each text, safe in any header.
func encode(s string) string {
	plain := true
	for i := range len(s) {
		plain = plain && unreserved(s[i])
	}
	if plain {
		return s
	}
	const hex = "0123456789ABCDEF"
	var b strings.Builder
	for i := range len(s) {
		if c := s[i]; unreserved(c) {
			b.WriteByte(c)
		} else {
			b.WriteByte('%')
			b.WriteByte(hex[c>>4])
			b.WriteByte(hex[c&15])
		}
	}
	return b.String()
}

func unreserved(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '-' || c == '.' || c == '_' || c == '~'
}
