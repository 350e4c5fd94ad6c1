// Package stage serves one stage of an API as API Gateway would: routes, authorizers, gateway responses and mappings.
//
// A [Description] says what to serve. Unlike other emulators, this package answers an authorizer's Deny with the
// gateway response that is configured for it, with status, headers and body from the authorizer's context. A setting
// that a description cannot contain is refused when the description is read, and not ignored.
//
// Each part is here because somebody needs it:
//
//	part                                        needed by
//	routes, events of three kinds of APIs       every decision: limits are matched by method, route and path
//	gateway responses, their templates          what a denied client of a REST API gets
//	policies and simple responses               the two forms of the authorizer's answer
//	mapped headers                              the decision, for the middleware of a service behind an API
//	integration.request.path, URLs with {NAME}  services behind HTTP_PROXY, as in infra/sample
//	AWS_PROXY, payloads 1.0 and 2.0             lambdaproxy.Wrap, for a function behind an API
//	MOCK, CORS of an HTTP API                   preflight requests, which the authorizer is not to see
//	AWS_IAM, signatures, resource policies      the operators' APIs of the control plane and of cells
//	ECHO                                        an API whose services do not run on this machine
//
// Everything else is refused: stage variables, custom domains, mappings to or from query strings and of a client's
// headers, and mappings of an HTTP API that do more than overwrite a header.
//
// The package follows AWS's documentation, and otherwise what others have observed. It has not been compared with API
// Gateway itself. These differences are known:
//
//   - Names of headers are in canonical form. On a REST API, API Gateway passes them on as the client wrote them.
//   - An HTTP API's path is decoded and cut at an encoded question mark, as observed.
//   - The status of a request whose headers are too large is not documented. It is 431 here, with DEFAULT_4XX for a
//     REST API.
//   - Requests seem to come by https on port 443, as with API Gateway, whatever this process listens on.
//   - For a WebSocket API, only $connect is served: an authorized connection gets its 101, and is then closed.
//   - A request that is signed with the credentials of [Config] may call every route with AWS_IAM: the signature is
//     checked, but no IAM policy is evaluated. Only signature version 4 in the Authorization header is known. The
//     digest of the body is always calculated, so UNSIGNED-PAYLOAD is a wrong signature. The answer to a wrong
//     signature does not show what should have been signed.
//   - A policy with conditions is refused as an invalid answer, since only IAM can evaluate it.
//   - A path that leads above the root is a bad request for an ECHO integration with Config.Upstream. Other
//     integrations get ".." unchanged, since API Gateway is not documented to resolve or refuse it.
//   - Authorizers are of type REQUEST and have no identity sources, since Sluice must also see requests without a
//     credential.
//   - Results of authorizers are never cached, binary media types are not known, and nothing is throttled.
package stage

import (
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
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
	// Credentials maps the ids of access keys that may sign requests. It is required if a route has AWS_IAM.
	Credentials  map[string]Credential
	Upstream     *url.URL          // gets the requests of ECHO integrations; if nil, the built-in echo answers them
	Observe      func(Observation) // called for every request that an authorizer was asked about; may be nil
	LivePage     http.Handler      // gets requests below /_sluice/, with that prefix removed; may be nil
	Audience     front.Audience    // who may see the live page; default Loopback
	MaxBodyBytes int64             // bound of a request's body; 0: front.DefaultMaxBodyBytes; below 0: no bound
	Now          func() time.Time  // default time.Now
	Log          *slog.Logger      // default slog.Default()
}

// Observation describes a request that an authorizer was asked about, and the outcome.
type Observation struct {
	At     time.Time
	Method string
	Path   string // without stage and base path
	// Status is 200 if the request may pass to its integration. Otherwise it is the status of the failure, before a
	// gateway response changes it.
	Status  int
	Context map[string]string // the context in the authorizer's answer; nil if there was none
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
		return nil, errors.New("stage: Description is missing")
	}
	if c.Upstream != nil {
		if err := front.CheckUpstream(c.Upstream); err != nil {
			return nil, err
		}
	}
	if err := c.Description.Check(); err != nil {
		return nil, err
	}
	if err := checkCredentials(c.Credentials); err != nil {
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
	s.Front = front.New(front.Config{Handler: &s.serving, LivePage: c.LivePage, Audience: c.Audience,
		MaxBodyBytes: c.MaxBodyBytes, Methods: []string{}, Log: c.Log}) // routes name the methods
	return s, nil
}

func (s *serving) prepare() error {
	authorizers := make(map[string]*authorizer, len(s.d.Authorizers))
	for name, from := range s.d.Authorizers {
		a := &authorizer{Authorizer: from, function: s.c.Functions[from.Function]}
		if a.function == nil {
			return fmt.Errorf("stage: there is no function %s, which authorizer %s names", shown(from.Function), name)
		}
		authorizers[name] = a
	}
	for i := range s.d.Routes {
		r := &route{Route: s.d.Routes[i], id: fmt.Sprintf("r%05d", i+1),
			authorizer: authorizers[s.d.Routes[i].Authorizer]}
		if r.Authorization == AWSIAM && len(s.c.Credentials) == 0 {
			return fmt.Errorf("stage: route %s has authorization %s, and there are no Credentials: nobody could "+
				"call it", shown(r.Key), AWSIAM)
		}
		var err error
		if r.target, err = s.d.parseKey(r.Key); err != nil {
			return err
		}
		if r.requestChanges, err = s.d.requestMappings(&r.Integration, r.target); err != nil {
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
				return fmt.Errorf("stage: there is no function %s, which route %s names",
					shown(r.Integration.Function), shown(r.Key))
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
	case c.route == nil && c.preflight():
	case c.route == nil:
		c.fail(w, failureOf(missingToken))
		return
	case !c.authorized(w):
		return
	}
	if c.preflight() {
		s.d.CORS.share(w.Header(), c.r.Header.Get("Origin"), true)
		c.send(w, http.StatusNoContent, nil)
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
	f := failure{status: http.StatusOK, httpStatus: http.StatusOK}
	if refused != nil {
		f = refused.failure
		if refused.cause != nil {
			c.s.c.Log.Warn("the authorizer failed", "failure", f.name, "authorizer", c.route.Authorizer, "request",
				c.id, "error", refused.cause)
		}
	}
	if c.s.c.Observe != nil && c.route.authorizer != nil {
		o := Observation{At: c.now, Method: c.r.Method, Path: c.path, Status: f.status}
		for name, v := range c.granted.context {
			if o.Context == nil {
				o.Context = make(map[string]string, len(c.granted.context))
			}
			o.Context[name] = v.text
		}
		c.s.c.Observe(o)
	}
	if refused != nil {
		c.fail(w, f)
	}
	return refused == nil
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
