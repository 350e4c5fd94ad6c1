// Package forward writes the headers that tell a service who calls, and keeps clients from forging them.
package forward

import (
	"net/http"
	"strings"

	"github.com/sluicelimits/sluice/caller"
	"github.com/sluicelimits/sluice/internal/request/apigw"
)

// The headers. Values are percent-encoded (all characters but A-Z a-z 0-9 - . _ ~), because names may be any UTF-8
// text.
const (
	Tenant      = "X-Sluice-Tenant"
	Subject     = "X-Sluice-Subject"
	Plan        = "X-Sluice-Plan"
	KeyID       = "X-Sluice-Key-Id"
	Anonymous   = "X-Sluice-Anonymous"    // "true" if the caller is not identified
	StoreFailed = "X-Sluice-Store-Failed" // "true" if a store did not answer and onStoreFailure applied
)

// Names are the names of all these headers.
var Names = [...]string{Tenant, Subject, Plan, KeyID, Anonymous, StoreFailed}

// Write removes the headers that a service must accept only from us, and writes the caller. By naming a header in
// Connection, a client can make a later proxy remove it, so our headers are removed from Connection. Write calls
// [DropUpgrades], too.
func Write(h http.Header, c *caller.Caller) {
	for name := range h {
		if Ours(name) {
			delete(h, name)
		}
	}
	DropUpgrades(h)
	dropOptions(h, Ours)
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

// DropUpgrades removes a client's request to change the protocol of its connection, unless it is for WebSocket alone.
// A connection with another protocol, such as h2c, would carry requests that no limit counts.
func DropUpgrades(h http.Header) {
	if lines := h["Upgrade"]; len(lines) == 1 && strings.EqualFold(strings.TrimSpace(lines[0]), "websocket") {
		return
	}
	delete(h, "Upgrade")
	delete(h, "Http2-Settings")
	dropOptions(h, func(option string) bool {
		return strings.EqualFold(option, "Upgrade") || strings.EqualFold(option, "HTTP2-Settings")
	})
}

// dropOptions removes from Connection the names of headers for which drop returns true.
func dropOptions(h http.Header, drop func(option string) bool) {
	lines := h["Connection"]
	found := false
	var kept []string
	for _, line := range lines {
		for option := range strings.SplitSeq(line, ",") {
			if option = strings.TrimSpace(option); drop(option) {
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

// Ours reports whether a client may not send the header. Every byte that is not a letter or a digit counts as a dash,
// because many backends do not distinguish dashes from underscores, and some ignore dashes.
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
