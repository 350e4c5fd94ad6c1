package gateway

import (
	"net/http"
	"strings"

	"github.com/sluicelimits/sluice/internal/request/answer"
	"github.com/sluicelimits/sluice/internal/request/loopback"
)

// reservedPrefix begins the paths that the gateway answers itself: no limit applies to them, and no such request
// reaches the upstream.
const reservedPrefix = "/_sluice/"

// HealthPath is the path at which a gateway says that it runs.
const HealthPath = reservedPrefix + "healthz"

// Audience says who may see the live page. It shows tenants' names and what they use.
type Audience uint8

// The audiences.
const (
	Loopback Audience = iota // only requests from this machine, to a name of this machine
	All                      // everybody
	Off                      // nobody
)

func reserved(path string) bool {
	return strings.HasPrefix(path, reservedPrefix) || path == strings.TrimSuffix(reservedPrefix, "/")
}

func (g *Gateway) serveReserved(w *response, r *http.Request) {
	switch {
	case r.URL.Path == HealthPath:
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Cache-Control", "no-store")
		_, _ = w.Write([]byte("{\"status\":\"ok\"}\n")) // fails only if the client has gone
	case g.c.LivePage == nil || g.c.Audience == Off:
		reservedProblem(w, answer.NoRoute)
	case g.c.Audience == Loopback && !loopback.Direct(r):
		reservedProblem(w, answer.LocalOnly)
	case !strings.HasPrefix(r.URL.Path, reservedPrefix):
		http.Redirect(w, r, reservedPrefix, http.StatusMovedPermanently)
	default:
		g.c.LivePage.ServeHTTP(w, r)
	}
}

// reservedProblem answers a request for a reserved page with a problem. It does not use refuse, since
// reserved pages are no part of the API that the gateway serves.
func reservedProblem(w *response, k answer.Kind) {
	var none answer.Header
	none.Set(w.Header()) // also an answer without limits lists the headers that scripts may read
	p := answer.Problem{Kind: k, Instance: answer.NewInstance()}
	answer.Write(w, k, p.Append(nil))
}
