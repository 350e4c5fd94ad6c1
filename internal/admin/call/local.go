package call

import (
	"errors"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/user"
	"strings"
)

// LocalActor is who operates a process on this machine: its user, as in "alice@local".
func LocalActor() string {
	if u, err := user.Current(); err == nil && u.Username != "" {
		return u.Username + "@local"
	}
	if name := os.Getenv("USER"); name != "" {
		return name + "@local"
	}
	return "unknown@local"
}

// Local answers calls that come from this machine, below the path that it is mounted at, which is already stripped. The
// actor is the one given here, see [LocalActor]; there is no way to say another.
//
// Anyone with a process on this machine can call it. A web page cannot, though a browser here would carry its call: what
// has an Origin, a Host that is not this machine's, or was forwarded, is refused.
func Local(m *Mux, actor string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		in := &input{actor: actor, method: r.Method, path: r.URL.Path, mediaType: r.Header.Get("Content-Type")}
		if !fromHere(r) {
			in.actor = "" // and what it brings is not even read
		} else if body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, MaxBodyBytes+1)); err == nil {
			in.body = body
		} else if tooLarge := new(http.MaxBytesError); errors.As(err, &tooLarge) {
			in.body = make([]byte, MaxBodyBytes+1)
		} else {
			return // the caller went away
		}
		status, answer := m.do(r.Context(), in)
		h := w.Header()
		h.Set("Content-Type", "application/json")
		h.Set("Cache-Control", "no-store")
		h.Set("X-Content-Type-Options", "nosniff")
		w.WriteHeader(status)
		_, _ = w.Write(answer) // nobody is left to be told
	})
}

// fromHere reports whether a request comes from a process of this machine that is no web page.
func fromHere(r *http.Request) bool {
	peer, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil || !peer.Addr().Unmap().IsLoopback() {
		return false
	}
	for _, name := range []string{"Origin", "Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "Via"} {
		if len(r.Header.Values(name)) > 0 {
			return false
		}
	}
	host := r.Host
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	if strings.EqualFold(host, "localhost") {
		return true
	}
	addr, err := netip.ParseAddr(strings.Trim(host, "[]"))
	return err == nil && addr.Unmap().IsLoopback()
}
