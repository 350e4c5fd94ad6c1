// Package apigateway serves one stage of an API as API Gateway would, for tests: routes, the events of three kinds of
// APIs, authorizers, gateway responses and mapped headers.
//
// A [Description] says what to serve; package template reads one from a CloudFormation template. Unlike other
// emulators, this package answers an authorizer's Deny with the gateway response that is configured for it, with
// status, headers and body from the authorizer's context.
//
// The package follows AWS's documentation, and otherwise what others have observed. It has not been compared with API
// Gateway itself. It differs from it in what no test here needs: IAM policies and signatures are not checked (see
// [Config.Callers]), preflights and usage plans are not known, answers are never cached, and of a WebSocket API only
// $connect is served: an authorized connection gets its 101, and is then closed.
package apigateway

import (
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/sluicelimits/sluice/internal/dev/gateway/front"
	"github.com/sluicelimits/sluice/internal/request/answer"
)

// Config sets up a [Stage].
type Config struct {
	Description *Description        // required
	Functions   map[string]Function // by the names in the description; each of these must be present
	// Callers maps the ids of access keys to the ARNs of their users. A request to a route with AWS_IAM is taken for
	// one of the user whose access key it names; its signature is not checked. Other requests are refused.
	Callers map[string]string
	Now     func() time.Time // default time.Now
	Log     *slog.Logger     // default slog.Default()
}

// Stage is an http.Handler. It is safe for concurrent use. Make it with [New].
type Stage struct {
	*front.Front
	serving
}

// serving is the front.Handler of a stage: it answers the requests that are not for reserved pages.
type serving struct {
	c         Config
	d         *Description
	routes    []*route
	responses map[string]*gatewayResponse // by type
}

// route is a route of the description, with its key and mappings parsed.
type route struct {
	Route
	id              string
	target          *target
	authorizer      *authorizer // nil if there is none
	function        Function    // only for AWS_PROXY
	backend         http.Handler
	mockStatus      int
	requestChanges  []change
	responseChanges map[int][]change // by status
}

// New makes a stage. The error is an *[Error] about the description, or names another field of the configuration that
// is missing or not valid.
func New(c Config) (*Stage, error) {
	if c.Description == nil {
		return nil, errors.New("apigateway: Description is missing")
	}
	if err := c.Description.Check(); err != nil {
		return nil, err
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.Log == nil {
		c.Log = slog.Default()
	}
	s := &Stage{serving: serving{c: c, d: c.Description}}
	if err := s.prepare(); err != nil {
		return nil, err
	}
	s.Front = front.New(front.Config{Handler: &s.serving, Methods: []string{}, Log: c.Log}) // routes name the methods
	return s, nil
}

func (s *serving) prepare() error {
	authorizers := make(map[string]*authorizer, len(s.d.Authorizers))
	for name, from := range s.d.Authorizers {
		a := &authorizer{Authorizer: from, function: s.c.Functions[from.Function]}
		if a.function == nil {
			return fmt.Errorf("apigateway: there is no function %q, which authorizer %s names", from.Function, name)
		}
		authorizers[name] = a
	}
	for i := range s.d.Routes {
		r := &route{Route: s.d.Routes[i], id: fmt.Sprintf("r%05d", i+1),
			authorizer: authorizers[s.d.Routes[i].Authorizer]}
		var err error
		if r.target, err = parseKey(r.Key); err != nil {
			return err
		}
		if r.requestChanges, err = s.d.requestMappings(&r.Integration); err != nil {
			return err
		}
		if r.responseChanges, err = s.d.responseMappings(&r.Integration); err != nil {
			return err
		}
		switch r.Integration.Type {
		case Mock:
			if r.mockStatus, err = strconv.Atoi(r.Integration.StatusCode); err != nil {
				return err
			}
		case AWSProxy:
			if r.function = s.c.Functions[r.Integration.Function]; r.function == nil {
				return fmt.Errorf("apigateway: there is no function %q, which route %q names",
					r.Integration.Function, r.Key)
			}
		case HTTPProxy, Echo:
			s.prepareProxy(r)
		}
		s.routes = append(s.routes, r)
	}
	return s.prepareResponses()
}

// Serve implements [front.Handler].
func (s *serving) Serve(w *front.Response, r *http.Request) {
	c, below := s.newCall(r)
	switch {
	case c.tooLarge():
		f := failureOf(badRequest)
		f.name, f.status, f.message = "", http.StatusRequestHeaderFieldsTooLarge, "Request Header Fields Too Large"
		f.httpStatus, f.httpMessage = f.status, f.message
		c.fail(w, f)
		return
	case !below:
		c.outside(w)
		return
	}
	method := r.Method
	if s.d.Kind == WebSocket {
		if !upgrades(r) {
			f := failureOf(badRequest)
			f.httpStatus, f.httpMessage = http.StatusUpgradeRequired, "Upgrade Required"
			c.fail(w, f)
			return
		}
		method = ""
	}
	c.route, c.parameters = s.find(method, c.path)
	switch {
	case c.route == nil:
		c.fail(w, failureOf(missingToken))
		return
	case !c.authorized(w):
		return
	}
	if s.d.Kind == WebSocket {
		c.connect(w)
		return
	}
	c.integrate(w)
}

// outside answers a request whose path is not below the stage. API Gateway has no stage for such a path. It answers
// 403, except on an HTTP API, where the request belongs to the stage $default, which has no route for it: 404.
func (c *call) outside(w *front.Response) {
	w.Header()["X-Amzn-Errortype"] = []string{"ForbiddenException"}
	w.Header()["Content-Type"] = []string{"application/json"}
	if c.s.d.Kind == HTTP {
		c.send(w, http.StatusNotFound, []byte(`{"message":"Not Found"}`))
		return
	}
	c.send(w, http.StatusForbidden, []byte(`{"message":"Forbidden"}`))
}

// authorized reports whether the request may pass. If it may not, authorized has answered the request.
func (c *call) authorized(w *front.Response) bool {
	refused := c.authorize(c.r.Context())
	if refused == nil {
		return true
	}
	if refused.cause != nil {
		c.s.c.Log.Warn("the authorizer failed", "failure", refused.failure.name, "authorizer", c.route.Authorizer,
			"request", c.id, "error", refused.cause)
	}
	c.fail(w, refused.failure)
	return false
}

// Refuse implements [front.Handler].
func (s *serving) Refuse(w *front.Response, r *http.Request, kind answer.Kind, _ string) {
	c := callOf(r.Context())
	if c == nil {
		c, _ = s.newCall(r)
	}
	c.fail(w, failureFor(kind))
}

func hasToken(lines []string, token string) bool {
	for one := range strings.SplitSeq(strings.Join(lines, ","), ",") {
		if strings.EqualFold(strings.TrimSpace(one), token) {
			return true
		}
	}
	return false
}
