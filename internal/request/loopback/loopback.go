// Package loopback recognises requests that programs on this machine send directly, without a proxy in between.
package loopback

import (
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
)

// forwarded are the headers that proxies add, in canonical form.
var forwarded = [...]string{
	"Forwarded", "Via", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto", "X-Forwarded-Port", "X-Real-Ip",
}

// Direct reports whether a request seems to come from a program on this machine without a proxy in between. The peer
// and the Host must be loopback addresses; the Host may also be "localhost". A request with a header that proxies add
// is not direct. Neither is a request in HTTP/1.0: browsers and curl send HTTP/1.1, and nginx before 1.29.7 sends
// HTTP/1.0.
//
// The check of the Host stops DNS rebinding: a web page whose name was pointed at this machine makes a local browser
// send requests, which have the name of the page as their Host.
//
// Direct does not prove who calls. A proxy that adds no header, sets a loopback Host and uses HTTP/1.1 looks like a
// local program, and so does a TCP forwarder. What must stay secret, or changes state, needs a credential, too.
func Direct(r *http.Request) bool {
	peer, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil || !peer.Addr().Unmap().IsLoopback() || !r.ProtoAtLeast(1, 1) {
		return false
	}
	for _, name := range forwarded {
		if len(r.Header[name]) > 0 {
			return false
		}
	}
	return Host(hostName(r))
}

// ByPage reports whether a web page made a browser send a request: it has an Origin, or a Sec-Fetch-Site other than
// "none" (its user typed the address) and "same-origin". A page cannot leave these out: every browser sends an Origin
// with whatever is not GET or HEAD, and Sec-Fetch-Site with all that it sends to a loopback address. Programs send
// neither.
func ByPage(r *http.Request) bool {
	return len(r.Header["Origin"]) > 0 || slices.ContainsFunc(r.Header["Sec-Fetch-Site"], func(site string) bool {
		return site != "none" && site != "same-origin"
	})
}

// NamesHost reports whether the Host of a request is a name other than "localhost". On a loopback address it may be the
// name of a web page that was pointed at this machine; see [Direct]. Only programs send no Host at all.
func NamesHost(r *http.Request) bool {
	name := hostName(r)
	_, err := netip.ParseAddr(name)
	return name != "" && err != nil && !Host(name)
}

// hostName returns the Host of a request without its port and without the brackets of an IPv6 address.
func hostName(r *http.Request) string {
	host := r.Host
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	return strings.Trim(host, "[]")
}

// Host reports whether a host name without port names this machine: it is "localhost" or a loopback address. An IPv6
// address must have no brackets.
func Host(name string) bool {
	addr, err := netip.ParseAddr(name)
	return strings.EqualFold(name, "localhost") || err == nil && addr.Unmap().IsLoopback()
}
