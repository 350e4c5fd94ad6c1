// Package apigateway serves one stage of an API as API Gateway would, for tests: routes, the events of three kinds of
// APIs, authorizers, gateway responses and mapped headers.
//
// A [Description] says what to serve; package template reads one from a CloudFormation template. The model answers an
// authorizer's Deny with the gateway response that is configured for it, with status, headers and body from the
// authorizer's context.
//
// The package follows AWS's documentation, and otherwise what others have observed. It has not been compared with API
// Gateway itself. It differs from it in what no test here needs: signatures are not checked (see [Config.Callers]), of
// policies only the effect, the action and the resource are read, preflights and usage plans are not known, answers are
// never cached, headers of backends are not renamed, and of a WebSocket API only $connect is served.
package apigateway

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Function is a Lambda function, such as a *lambdahost.Host, or an authorizer.Handler in this process.
type Function interface {
	Invoke(ctx context.Context, payload []byte) ([]byte, error)
}

// Config sets up a [Stage].
type Config struct {
	Description *Description        // required
	Functions   map[string]Function // by the names in the description; each of these must be present
	// Callers maps the ids of access keys to the ARNs of their users. A request to a route with AWS_IAM is taken for
	// one of the user whose access key it names; its signature is not checked. Other requests are refused.
	Callers map[string]string
	Log     *slog.Logger // default slog.Default()
}

// Stage is an http.Handler. It is safe for concurrent use. Make it with [New].
type Stage struct {
	c         Config
	d         *Description
	routes    []*route                    // the most specific first
	responses map[string]*gatewayResponse // by type
}

// route is a route of the description, with its key and mappings parsed.
type route struct {
	Route
	id              string
	method          string // "" for ANY, and for $default and $connect
	resource        string // the path of the key; "" for $default and $connect
	rank            string // orders routes: the more specific one comes first
	pattern         *regexp.Regexp
	parameters      []string // the names of the pattern's groups
	status          int      // of a MOCK
	requestChanges  []change
	responseChanges map[int][]change // by status
}

// New makes a stage. The error is about the description, or names another field of the configuration that is missing.
func New(c Config) (*Stage, error) {
	if c.Description == nil {
		return nil, errors.New("apigateway: Description is missing")
	}
	if err := c.Description.Check(); err != nil {
		return nil, err
	}
	if c.Log == nil {
		c.Log = slog.Default()
	}
	s := &Stage{c: c, d: c.Description}
	authorizers, integrations := s.d.Functions()
	for _, name := range append(authorizers, integrations...) {
		if c.Functions[name] == nil {
			return nil, fmt.Errorf("apigateway: there is no function %q", name)
		}
	}
	for i := range s.d.Routes {
		r, err := s.d.route(&s.d.Routes[i])
		if err != nil {
			return nil, fmt.Errorf("route %s: %w", s.d.Routes[i].Key, err)
		}
		r.id = fmt.Sprintf("r%05d", i+1)
		s.routes = append(s.routes, r)
	}
	slices.SortFunc(s.routes, func(a, b *route) int { return strings.Compare(a.rank, b.rank) })
	var err error
	s.responses, err = s.d.responses()
	return s, err
}

// route parses the key and the mappings of a route.
func (d *Description) route(from *Route) (r *route, err error) {
	r = &route{Route: *from}
	if err = r.parseKey(); err != nil {
		return nil, err
	}
	g := &r.Integration
	if g.Type == Mock {
		if r.status, err = statusOf(g.StatusCode, http.StatusOK); err != nil {
			return nil, err
		}
	}
	header := map[bool]string{true: "overwrite:header.", false: "integration.request.header."}[d.Kind == HTTP]
	if r.requestChanges, err = d.changes(g.RequestParameters, header, "integration.request.path."); err != nil {
		return nil, err
	}
	header = map[bool]string{true: "overwrite:header.", false: "method.response.header."}[d.Kind == HTTP]
	r.responseChanges = make(map[int][]change)
	for text, parameters := range g.ResponseParameters {
		status, err := statusOf(text, 0)
		if err == nil {
			r.responseChanges[status], err = d.changes(parameters, header, "")
		}
		if err != nil {
			return nil, err
		}
	}
	return r, nil
}

// statusOf reads a status of a description; usual if it is "".
func statusOf(text string, usual int) (int, error) {
	if text == "" {
		return usual, nil
	}
	return strconv.Atoi(text)
}

var placeholder = regexp.MustCompile(`\{([A-Za-z0-9._-]+)(\+?)\}`)

// parseKey parses the key of a route: "METHOD /path", or "$default" or "$connect". Segments are compared from the left:
// a literal is more specific than {name}, which is more specific than {name+}. $default comes last. Of the same
// resource, ANY comes after all methods.
func (r *route) parseKey() error {
	if r.Key == connectRoute || r.Key == defaultStage { // the catch-all route and the default stage have the same name
		r.rank, r.pattern = "4", regexp.MustCompile("")
		return nil
	}
	var ok bool
	if r.method, r.resource, ok = strings.Cut(r.Key, " "); !ok || !strings.HasPrefix(r.resource, "/") {
		return errors.New(`the key is not "METHOD /path"`)
	}
	if r.method == "ANY" {
		r.method = ""
	}
	expression := ""
	for part := range strings.SplitSeq(r.resource[1:], "/") {
		kind, one := "1", regexp.QuoteMeta(part)
		if m := placeholder.FindStringSubmatch(part); m != nil {
			r.parameters = append(r.parameters, m[1])
			if kind, one = "2", "([^/]+)"; m[2] != "" {
				kind, one = "3", "(.+)"
			}
		}
		r.rank += kind
		expression += "/" + one
	}
	if r.rank += "0"; r.method == "" {
		r.rank += "0"
	}
	var err error
	r.pattern, err = regexp.Compile("^" + expression + "$")
	return err
}

// find returns the route of a request and the path parameters, which are not decoded; nil if there is none. A REST API
// selects the most specific resource first, and then the method of this resource: other resources that have the method
// are not considered. An HTTP API considers only routes that have the method.
func (s *Stage) find(method, path string) (*route, map[string]string) {
	var resource *route
	for _, r := range s.routes {
		m := r.pattern.FindStringSubmatch(path)
		if m == nil {
			continue
		}
		if s.d.Kind == REST && resource != nil && r.resource != resource.resource {
			break
		}
		if resource = r; r.method == "" || r.method == method {
			parameters := make(map[string]string, len(r.parameters))
			for i, name := range r.parameters {
				parameters[name] = m[i+1]
			}
			return r, parameters
		}
	}
	return nil, nil
}

const connectRoute = "$connect"

// ServeHTTP implements http.Handler.
func (s *Stage) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	c, below := s.newCall(r)
	switch {
	case c.headerBytes() > maxHeaderBytes:
		c.fail(w, tooLarge)
		return
	case below:
		c.route, c.parameters = s.find(r.Method, c.path)
	}
	if c.route == nil {
		c.fail(w, missingToken)
		return
	}
	if refused, err := c.authorize(); refused != nil {
		if err != nil {
			s.c.Log.Warn("the authorizer failed", "failure", refused.name, "authorizer", c.route.Authorizer,
				"request", c.id, "error", err)
		}
		c.fail(w, *refused)
		return
	}
	c.integrate(w)
}
