package config

import (
	"fmt"
	"slices"
	"strings"

	"github.com/sluicelimits/sluice/internal/configfile"
)

// Attachment is an existing API, in the cell's account and region, that gets the cell's authorizer. Exactly one of
// REST, HTTP and WebSocket is set, to the API's id. Put the authorizer on the API's routes with the commands in
// docs/attach.md. If CDK makes the API, use infra.AttachREST, AttachHTTP or AttachWebSocket there instead: they cover
// the routes, too.
type Attachment struct {
	REST, HTTP, WebSocket string

	// The remaining fields are for REST APIs only.

	// AllowOrigin is the value of Access-Control-Allow-Origin in the answers that API Gateway gives by itself: one
	// origin, or "*". If empty, these answers have no such header.
	AllowOrigin        string
	NoDefaultResponses bool // leaves the gateway responses DEFAULT_4XX and DEFAULT_5XX as they are
}

// maxAttached is how many APIs may invoke a cell's authorizer. Each needs a statement of up to 490 bytes in the
// function's resource policy, which Lambda limits to 20 KB.
const maxAttached = 40

// ID returns the API's id.
func (a *Attachment) ID() string { return a.REST + a.HTTP + a.WebSocket }

// checkAttachments checks the APIs of all cells. An API may be attached only once, because it has one authorizer of
// Sluice and therefore belongs to one cell.
func (d *Deployment) checkAttachments(c *checks) {
	first := map[string]string{}
	for i := range d.Cells {
		cell := &d.Cells[i]
		if n := len(cell.Attach); n > maxAttached {
			c.problem(fmt.Sprintf("cells[%d].attach", i),
				"there are %d, want at most %d: Lambda accepts no longer "+"policy on one function", n, maxAttached)
			continue
		}
		for j := range cell.Attach {
			a, path := &cell.Attach[j], fmt.Sprintf("cells[%d].attach[%d]", i, j)
			a.check(c, path)
			if before := first[a.ID()]; before != "" {
				c.problem(path, "the API %s is attached twice, first as %s, but an API can have the authorizer of "+
					"one cell only",
					configfile.Quote(a.ID()), before)
			}
			first[a.ID()] = path
			if a.REST != "" && slices.Contains(cell.PassDenials, a.REST) {
				c.problem(path+".rest", "is in passDenials, which is for HTTP and WebSocket APIs: a REST API "+
					"answers denials with 429 by itself")
			}
		}
	}
}

func (a *Attachment) check(c *checks, path string) {
	kinds := 0
	for _, kind := range []struct{ key, id string }{{"rest", a.REST}, {"http", a.HTTP}, {"webSocket", a.WebSocket}} {
		if kind.id != "" {
			kinds++
			c.text(path+"."+kind.key, kind.id, "an API's id", apiIDs.MatchString)
		}
	}
	if kinds != 1 {
		c.problem(path, "want exactly one of rest, http and webSocket, with the API's id")
	}
	if a.REST == "" && (a.AllowOrigin != "" || a.NoDefaultResponses) {
		c.problem(path, "allowOrigin and defaultResponses are for REST APIs only: other APIs have no gateway responses")
	}
	if strings.ContainsAny(a.AllowOrigin, "', \t\r\n") {
		c.problem(path+".allowOrigin", "%s is neither one origin nor \"*\"", configfile.Quote(a.AllowOrigin))
	}
}
