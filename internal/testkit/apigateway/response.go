package apigateway

import (
	"encoding/json"
	"fmt"
	"maps"
	"mime"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/sluicelimits/sluice/internal/dev/gateway/front"
	"github.com/sluicelimits/sluice/internal/request/answer"
)

// failure is an answer that the gateway makes itself, because a request does not get an answer of an integration.
type failure struct {
	name    string // type of gateway response
	status  int
	message string // "" becomes null
	typ     string // value of the header x-amzn-ErrorType

	// Status and message on an HTTP or WebSocket API.
	httpStatus  int
	httpMessage string
}

// Types of gateway responses that a stage can answer with.
const (
	accessDenied            = "ACCESS_DENIED"
	unauthorized            = "UNAUTHORIZED"
	authorizerFailure       = "AUTHORIZER_FAILURE"
	authorizerConfiguration = "AUTHORIZER_CONFIGURATION_ERROR"
	missingToken            = "MISSING_AUTHENTICATION_TOKEN"
	requestTooLarge         = "REQUEST_TOO_LARGE"
	integrationFailure      = "INTEGRATION_FAILURE"
	integrationTimeout      = "INTEGRATION_TIMEOUT"
	badRequest              = "BAD_REQUEST_PARAMETERS"
	apiConfiguration        = "API_CONFIGURATION_ERROR"
	default4XX              = "DEFAULT_4XX"
	default5XX              = "DEFAULT_5XX"
)

// failures maps each type of gateway response to its answer. Statuses, types and the messages of HTTP APIs are as API
// Gateway documents them. The messages of REST APIs are as observed.
var failures = map[string]failure{
	accessDenied: {status: 403, message: "User is not authorized to access this resource with an explicit deny",
		typ: "AccessDeniedException", httpStatus: 403, httpMessage: "Forbidden"},
	unauthorized: {status: 401, message: "Unauthorized", typ: "UnauthorizedException", httpStatus: 401,
		httpMessage: "Unauthorized"},
	authorizerFailure: {status: 500, typ: "AuthorizerFailureException", httpStatus: 500,
		httpMessage: "Internal Server Error"},
	authorizerConfiguration: {status: 500, typ: "AuthorizerConfigurationException", httpStatus: 500,
		httpMessage: "Internal Server Error"},
	missingToken: {status: 403, message: "Missing Authentication Token",
		typ: "MissingAuthenticationTokenException", httpStatus: 404, httpMessage: "Not Found"},
	requestTooLarge: {status: 413, message: "Request Too Long", typ: "RequestTooLargeException",
		httpStatus: 413, httpMessage: "Request Entity Too Large"},
	integrationFailure: {status: 504, message: "Network error communicating with endpoint",
		typ: "IntegrationFailureException", httpStatus: 503, httpMessage: "Service Unavailable"},
	integrationTimeout: {status: 504, message: "Endpoint request timed out", typ: "InternalServerErrorException",
		httpStatus: 503, httpMessage: "Service Unavailable"},
	badRequest: {status: 400, message: "Bad Request", typ: "BadRequestException", httpStatus: 400,
		httpMessage: "Bad Request"},
	apiConfiguration: {status: 500, message: "Internal server error", typ: "InternalServerErrorException",
		httpStatus: 500, httpMessage: "Internal Server Error"},
}

// failureOf returns the failure of a type of gateway response.
func failureOf(name string) failure {
	f := failures[name]
	f.name = name
	return f
}

// quoted returns the message as a JSON value.
func (f *failure) quoted() string {
	if f.message == "" {
		return "null"
	}
	b, err := json.Marshal(f.message)
	if err != nil { // not reached: strings always marshal
		panic(fmt.Sprintf("failure: %v", err))
	}
	return string(b)
}

// gatewayResponse is a gateway response of the description, with its mappings and templates parsed.
type gatewayResponse struct {
	status    int // 0 selects the status of the failure
	headers   []change
	templates map[string]template // by content type
}

func (s *serving) prepareResponses() error {
	s.responses = make(map[string]*gatewayResponse, len(s.d.Responses))
	for name, from := range s.d.Responses {
		g := &gatewayResponse{templates: make(map[string]template, len(from.Templates))}
		var err error
		if g.headers, err = gatewayHeaders(from.Parameters); err != nil {
			return err
		}
		if from.StatusCode != "" {
			if g.status, err = strconv.Atoi(from.StatusCode); err != nil {
				return err
			}
		}
		for contentType, text := range from.Templates {
			if g.templates[contentType], err = parseTemplate(text); err != nil {
				return err
			}
		}
		s.responses[name] = g
	}
	return nil
}

// responseFor returns the gateway response for a failure: the one for its type, or else the default for 4xx or 5xx. It
// returns nil if the description has neither.
func (s *serving) responseFor(f *failure) *gatewayResponse {
	if g := s.responses[f.name]; g != nil {
		return g
	}
	if f.status < 500 {
		return s.responses[default4XX]
	}
	return s.responses[default5XX]
}

// fail answers with a failure, in the form that the kind of the API has.
func (c *call) fail(w *front.Response, f failure) {
	c.failure = f
	h := w.Header()
	if c.s.d.Kind != REST {
		h["Content-Type"] = []string{"application/json"}
		h[c.requestIDHeader()] = []string{c.extendedID}
		body, _ := json.Marshal(map[string]string{"message": f.httpMessage}) // a string always marshals
		c.send(w, f.httpStatus, body)
		return
	}
	status, body, contentType := f.status, []byte(`{"message":`+f.quoted()+`}`), "application/json"
	if f.name == accessDenied {
		body = []byte(`{"Message":` + f.quoted() + `}`) // API Gateway uses a capital letter only here
	}
	h["X-Amzn-Requestid"], h["X-Amz-Apigw-Id"], h["X-Amzn-Errortype"] = []string{c.id}, []string{c.extendedID},
		[]string{f.typ}
	if g := c.s.responseFor(&f); g != nil {
		if g.status != 0 {
			status = g.status
		}
		if name, t := g.pick(c.r.Header["Accept"]); t != nil {
			contentType, body = name, t.fill(c)
		}
		h["Content-Type"] = []string{contentType}
		c.apply(g.headers, h, true)
	} else {
		h["Content-Type"] = []string{contentType}
	}
	c.send(w, status, body)
}

// pick returns the template to use, and its content type: the first that Accept names, or else the one for
// application/json, or else the first by name.
func (g *gatewayResponse) pick(accept []string) (string, template) {
	for one := range strings.SplitSeq(strings.Join(accept, ","), ",") {
		name, _, err := mime.ParseMediaType(one)
		if t, ok := g.templates[name]; ok && err == nil {
			return name, t
		}
	}
	const usual = "application/json"
	if t, ok := g.templates[usual]; ok {
		return usual, t
	}
	for _, name := range slices.Sorted(maps.Keys(g.templates)) {
		return name, g.templates[name]
	}
	return "", nil
}

func (c *call) send(w *front.Response, status int, body []byte) {
	if status == http.StatusNoContent || status == http.StatusNotModified {
		delete(w.Header(), "Content-Type")
		w.WriteHeader(status)
		return
	}
	w.Header()["Content-Length"] = []string{strconv.Itoa(len(body))}
	w.WriteHeader(status)
	_, _ = w.Write(body) // the client may be gone
}

// requestIDHeader returns the header in which HTTP and WebSocket APIs return the id of the request.
func (c *call) requestIDHeader() string { return "Apigw-Requestid" }

// failureFor returns the failure for a kind of answer that package front or its proxy asks for.
func failureFor(k answer.Kind) failure {
	switch k {
	case answer.TooLarge:
		return failureOf(requestTooLarge)
	case answer.BadRequest, answer.SlowBody:
		return failureOf(badRequest)
	case answer.UpstreamDown:
		return failureOf(integrationFailure)
	case answer.UpstreamTimeout:
		return failureOf(integrationTimeout)
	default:
		return failureOf(apiConfiguration)
	}
}

// remapped lists the headers of an integration's answer that a REST API renames, with the prefix X-Amzn-Remapped-.
var remapped = []string{"Authorization", "Connection", "Content-Md5", "Date", "Host", "Server", "User-Agent",
	"Www-Authenticate"}

// finish changes the headers of an integration's answer to those that the client gets.
func (c *call) finish(status int, h http.Header) {
	if c.s.d.Kind == REST {
		for _, name := range remapped {
			if v := h[name]; v != nil {
				delete(h, name)
				h["X-Amzn-Remapped-"+name] = v
			}
		}
		h["X-Amzn-Requestid"], h["X-Amz-Apigw-Id"] = []string{c.id}, []string{c.extendedID}
		h["X-Amzn-Trace-Id"] = []string{c.trace}
	} else {
		h[c.requestIDHeader()] = []string{c.extendedID}
	}
	c.apply(c.route.responseChanges[status], h, true)
}
