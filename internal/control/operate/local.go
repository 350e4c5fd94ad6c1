package operate

import (
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"io"
	"net/http"
	"os"
	"os/user"
	"strings"

	"github.com/sluicelimits/sluice/internal/request/loopback"
)

// LocalActor returns the user who runs this process, as in "alice@local".
func LocalActor() string {
	if u, err := user.Current(); err == nil && u.Username != "" {
		return u.Username + "@local"
	}
	if name := os.Getenv("USER"); name != "" {
		return name + "@local"
	}
	return "unknown@local"
}

// Local returns a handler for calls from this machine. It expects that the path at which it is mounted has been
// stripped. The actor is the one given here, see [LocalActor]; a call cannot name another.
//
// Any process on this machine can call it, and so can any client of a proxy on this machine that does not mark its
// requests as forwarded: put [RequireToken] around it. It refuses requests of web pages, with a Host that is not
// this machine's, or that were forwarded, so that a web page cannot call it through a browser on this machine.
func Local(m *Mux, actor string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		in := &input{actor: actor, method: r.Method, path: r.URL.EscapedPath(), mediaType: r.Header.Get("Content-Type")}
		if !loopback.Direct(r) || loopback.ByPage(r) {
			in.actor = "" // refused without reading the body
		} else if body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, MaxBodyBytes+1)); err == nil {
			in.body = body
		} else if tooLarge := new(http.MaxBytesError); errors.As(err, &tooLarge) {
			in.body = make([]byte, MaxBodyBytes+1)
		} else {
			return // the caller went away
		}
		status, body := m.do(r.Context(), in)
		write(w, status, body)
	})
}

// RequireToken passes on the calls that carry the token, as in "Authorization: Bearer TOKEN". It refuses all others
// before it reads their bodies. The token must not be "".
func RequireToken(token string, next http.Handler) http.Handler {
	want := sha256.Sum256([]byte(token))
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if values := r.Header["Authorization"]; len(values) == 1 {
			scheme, credential, _ := strings.Cut(values[0], " ")
			// hashes have equal lengths, so the time of the comparison does not depend on what was sent
			have := sha256.Sum256([]byte(credential))
			if strings.EqualFold(scheme, "Bearer") && subtle.ConstantTimeCompare(have[:], want[:]) == 1 {
				next.ServeHTTP(w, r)
				return
			}
		}
		w.Header().Set("WWW-Authenticate", "Bearer")
		Deny(w, Refuse(Unauthorized, "the token of this 'sluice dev' is missing or wrong: send 'Authorization: "+
			"Bearer TOKEN', where TOKEN is the first line of the file that 'sluice dev' names at its start"))
	})
}

// Deny answers a call with an error.
func Deny(w http.ResponseWriter, e *Error) {
	status, body := e.answer()
	write(w, status, body)
}

func write(w http.ResponseWriter, status int, body []byte) {
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Cache-Control", "no-store")
	h.Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(status)
	_, _ = w.Write(body) // if the client has gone, nobody can be told
}
