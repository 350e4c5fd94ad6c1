package config

import (
	"fmt"
	"slices"
	"strings"

	"github.com/sluicelimits/sluice/internal/configfile"
)

// Attachment is an API that is there already, in the cell's account and region, and gets the cell's authorizer. One of
// REST, HTTP and WebSocket is its id. Its routes are elsewhere: they get the authorizer by the commands of
// docs/attach.md. Where an API is made by CDK, attach to it there, by infra.AttachREST and its like, which covers its
// routes, too.
type Attachment struct {
	REST, HTTP, WebSocket string

	// Of a REST API alone.
	// in Access-Control-Allow-Origin of the gateway's own answers: one origin, or "*"; default: no such header
	AllowOrigin        string
	NoDefaultResponses bool // leaves the gateway responses DEFAULT_4XX and DEFAULT_5XX as they are
}

// maxAttached is how many APIs a cell's authorizer may be invoked by: each is a statement of up to 490 bytes in the
// function's own policy, of which Lambda takes 20 KB.
const maxAttached = 40

// ID is the API's.
func (a *Attachment) ID() string { return a.REST + a.HTTP + a.WebSocket }

func (r *reader) attach(to *[]Attachment) func(value) {
	return func(v value) {
		r.list(v, "APIs", func(v value) {
			*to = append(*to, Attachment{})
			a := &(*to)[len(*to)-1]
			r.mapping(v, "an API", keys{
				"rest": r.text(&a.REST), "http": r.text(&a.HTTP), "webSocket": r.text(&a.WebSocket),
				"allowOrigin":      r.text(&a.AllowOrigin),
				"defaultResponses": r.not(&a.NoDefaultResponses),
			})
		})
	}
}

// attached checks what cells are attached to: an API has one authorizer of ours, and so one cell.
func (d *Deployment) attached(c *checks) {
	first := map[string]string{}
	for i := range d.Cells {
		cell := &d.Cells[i]
		if n := len(cell.Attach); n > maxAttached {
			c.problem(fmt.Sprintf("cells[%d].attach", i), "there are %d, want at most %d: Lambda takes no longer "+
				"policy on one function", n, maxAttached)
			continue
		}
		for j := range cell.Attach {
			a, path := &cell.Attach[j], fmt.Sprintf("cells[%d].attach[%d]", i, j)
			a.check(c, path)
			if before := first[a.ID()]; before != "" {
				c.problem(path, "the API %s is attached twice, first as %s, and asks one cell only",
					configfile.Quote(a.ID()), before)
			}
			first[a.ID()] = path
			if a.REST != "" && slices.Contains(cell.PassDenials, a.REST) {
				c.problem(path+".rest", "is in passDenials: a REST API gives true 429s by itself, and denials are "+
					"not to pass it")
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
		c.problem(path, "say one of rest, http and webSocket: the API's id")
	}
	if a.REST == "" && (a.AllowOrigin != "" || a.NoDefaultResponses) {
		c.problem(path, "allowOrigin and defaultResponses are of a REST API alone, which has gateway responses")
	}
	if strings.ContainsAny(a.AllowOrigin, "', \t\r\n") {
		c.problem(path+".allowOrigin", "%s is neither one origin nor \"*\"", configfile.Quote(a.AllowOrigin))
	}
}
