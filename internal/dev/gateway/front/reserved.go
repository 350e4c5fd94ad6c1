package front

import (
	"fmt"
	"net/http"
	"strings"

	"github.com/sluicelimits/sluice/internal/request/answer"
	"github.com/sluicelimits/sluice/internal/request/loopback"
)

// reservedPrefix is the gateway's own: no limit applies below it and nothing below it reaches the upstream.
const reservedPrefix = "/_sluice/"

// Audience says who may see the live page. It shows tenants' names and what they use.
type Audience uint8

// The audiences.
const (
	Loopback Audience = iota // requests from this machine, to a name of this machine
	All
	Off
)

// ParseAudience reads "loopback", "all" or "off".
func ParseAudience(s string) (Audience, error) {
	switch s {
	case "loopback":
		return Loopback, nil
	case "all":
		return All, nil
	case "off":
		return Off, nil
	}
	return Off, fmt.Errorf("%q is not loopback, all or off", s)
}

func reserved(path string) bool {
	return strings.HasPrefix(path, reservedPrefix) || path == strings.TrimSuffix(reservedPrefix, "/")
}

func (f *Front) serveReserved(w *Response, r *http.Request) {
	switch {
	case r.URL.Path == reservedPrefix+"healthz":
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Cache-Control", "no-store")
		_, _ = w.Write([]byte("{\"status\":\"ok\"}\n")) // the client may be gone
	case f.c.LivePage == nil || f.c.Audience == Off:
		reservedProblem(w, answer.NoRoute)
	case f.c.Audience == Loopback && !loopback.Direct(r):
		reservedProblem(w, answer.LocalOnly)
	case !strings.HasPrefix(r.URL.Path, reservedPrefix):
		http.Redirect(w, r, reservedPrefix, http.StatusMovedPermanently)
	default:
		f.c.LivePage.ServeHTTP(w, r)
	}
}

// reservedProblem is the front's own answer: reserved pages are no part of the API that is served beside them.
func reservedProblem(w *Response, k answer.Kind) {
	var none answer.Header
	none.Set(w.Header()) // exposes what scripts may read
	p := answer.Problem{Kind: k, Instance: answer.NewInstance()}
	answer.Write(w, k, p.Append(nil))
}
