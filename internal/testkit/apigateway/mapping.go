package apigateway

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// value returns what an expression stands for in a call; false if the call has no such value.
type value func(*call) (string, bool)

// value parses an expression. Those of a REST API are 'literal', method.request.path.X and context.X, and those of an
// HTTP API $context.X and a static text.
func (d *Description) value(expression string) (value, error) {
	dollar := map[bool]string{true: "$", false: ""}[d.Kind == HTTP]
	name, isVariable := strings.CutPrefix(expression, dollar+"context.")
	parameter, isParameter := strings.CutPrefix(expression, "method.request.path.")
	text, isText := expression, !strings.Contains(expression, "$")
	if d.Kind != HTTP {
		text = strings.Trim(expression, "'")
		isText = len(text) == len(expression)-2
	}
	switch {
	case isVariable:
		return variable(name)
	case isParameter && d.Kind != HTTP:
		return func(c *call) (string, bool) { v, ok := c.parameters[parameter]; return v, ok }, nil
	case isText:
		return func(*call) (string, bool) { return text, true }, nil
	}
	return nil, fmt.Errorf("this model does not know the expression %q", expression)
}

// variables are the variables of $context that a stage supports in addition to authorizer.NAME.
var variables = map[string]value{
	"error.message":       func(c *call) (string, bool) { return c.failure.message, c.failure.message != "" },
	"error.messageString": func(c *call) (string, bool) { return c.failure.quoted(), true },
	"error.responseType":  func(c *call) (string, bool) { return c.failure.name, true },
	"requestId":           func(c *call) (string, bool) { return c.id, true },
}

// variable returns the value of $context.NAME.
func variable(name string) (value, error) {
	if v := variables[name]; v != nil {
		return v, nil
	}
	switch key, ok := strings.CutPrefix(name, "authorizer."); {
	case !ok:
		return nil, fmt.Errorf("this model does not know $context.%s", name)
	case key == "principalId":
		return func(c *call) (string, bool) { return c.granted.principal, c.granted.principal != "" }, nil
	default:
		return func(c *call) (string, bool) { v, ok := c.granted.context[key]; return v.text, ok }, nil
	}
}

// change is one mapping: it sets a header, or a placeholder in the URL of an integration, to a value.
type change struct {
	path  bool   // the mapping sets a placeholder of the URL, not a header
	name  string // name of the placeholder, or of the header in canonical form
	value value
}

// changes parses mappings. A key that begins with header sets a header, and one that begins with path a placeholder in
// the URL of an integration.
func (d *Description) changes(from map[string]string, header, path string) (out []change, err error) {
	for _, key := range slices.Sorted(maps.Keys(from)) {
		m := change{}
		if m.value, err = d.value(from[key]); err != nil {
			return nil, fmt.Errorf("%s: %w", key, err)
		}
		name, isHeader := strings.CutPrefix(key, header)
		if m.name = http.CanonicalHeaderKey(name); !isHeader {
			if m.name, m.path = strings.CutPrefix(key, path); !m.path || path == "" {
				return nil, fmt.Errorf("%q cannot be mapped", key)
			}
		}
		out = append(out, m)
	}
	return out, nil
}

// apply sets the mapped headers of an answer or of a request. If a value is absent, its header is not changed, so it
// keeps the value that the client sent. API Gateway's behaviour is not documented, and this is the worse case.
// Assumption: absent-values. A value with a line end or another control character is left out, so that an authorizer's
// context cannot add a header.
func (c *call) apply(changes []change, h http.Header) {
	for _, m := range changes {
		if v, ok := m.value(c); ok && !m.path && !strings.ContainsFunc(v, isControl) {
			h[m.name] = []string{v}
		}
	}
}

func isControl(r rune) bool { return r < ' ' && r != '\t' || r == 0x7f }

// failure is an answer that the gateway makes itself, because a request does not get an answer of an integration.
type failure struct {
	name    string // type of gateway response
	typ     string // value of the header x-amzn-ErrorType
	status  int    // on a REST API
	message string // on a REST API; "" becomes null
	plain   int    // the status on an HTTP or WebSocket API, whose message is the text of the status
}

// Statuses, types and the messages of HTTP APIs are as API Gateway documents them. The messages of REST APIs are as
// observed.
var (
	accessDenied = failure{"ACCESS_DENIED", "AccessDeniedException", 403,
		"User is not authorized to access this resource with an explicit deny", 403}
	unauthorized            = failure{"UNAUTHORIZED", "UnauthorizedException", 401, "Unauthorized", 401}
	authorizerFailure       = failure{"AUTHORIZER_FAILURE", "AuthorizerFailureException", 500, "", 500}
	authorizerConfiguration = failure{"AUTHORIZER_CONFIGURATION_ERROR", "AuthorizerConfigurationException", 500, "",
		500}
	missingToken = failure{"MISSING_AUTHENTICATION_TOKEN", "MissingAuthenticationTokenException", 403,
		"Missing Authentication Token", 404}
	integrationFailure = failure{"INTEGRATION_FAILURE", "IntegrationFailureException", 504,
		"Network error communicating with endpoint", 503}
	badAnswer = failure{"", "InternalServerErrorException", 502, "Internal server error", 500} // of a function
	tooLarge  = failure{"", "BadRequestException", 431, "Request Header Fields Too Large", 431}
)

// quoted returns the message as a JSON value.
func (f *failure) quoted() string {
	if f.message == "" {
		return "null"
	}
	return strconv.Quote(f.message) // the messages have only letters and spaces
}

// gatewayResponse is a gateway response of the description, with its mappings parsed.
type gatewayResponse struct {
	status  int // 0 selects the status of the failure
	headers []change
	body    string // "" selects the usual one
}

// inTemplate matches the variables in the template of a gateway response. API Gateway only replaces variables in it: it
// does not run VTL, which it runs for other templates.
var inTemplate = regexp.MustCompile(`\$context\.([A-Za-z0-9_-]+(?:\.[A-Za-z0-9_-]+)*)`)

// responses parses the gateway responses.
func (d *Description) responses() (map[string]*gatewayResponse, error) {
	out := make(map[string]*gatewayResponse, len(d.Responses))
	for name, from := range d.Responses {
		g := &gatewayResponse{body: from.Templates["application/json"]}
		var err error
		if g.headers, err = d.changes(from.Parameters, "gatewayresponse.header.", ""); err == nil {
			g.status, err = statusOf(from.StatusCode, 0)
		}
		for _, m := range inTemplate.FindAllStringSubmatch(g.body, -1) {
			if err == nil {
				_, err = variable(m[1])
			}
		}
		if err != nil {
			return nil, fmt.Errorf("gateway response %s: %w", name, err)
		}
		out[name] = g
	}
	return out, nil
}

// fail answers with a failure, in the form that the kind of the API has.
func (c *call) fail(w http.ResponseWriter, f failure) {
	c.failure = f
	h := w.Header()
	h["Content-Type"] = []string{"application/json"}
	c.addIDs(h)
	if c.s.d.Kind != REST {
		body, _ := json.Marshal(map[string]string{"message": http.StatusText(f.plain)}) // a string always marshals
		c.send(w, f.plain, body)
		return
	}
	status, body := f.status, `{"message":`+f.quoted()+`}`
	if f.name == accessDenied.name {
		body = `{"Message":` + f.quoted() + `}` // API Gateway uses a capital letter only here
	}
	h["X-Amzn-Errortype"] = []string{f.typ}
	g := c.s.responses[f.name]
	if g == nil {
		g = c.s.responses[map[bool]string{true: "DEFAULT_4XX", false: "DEFAULT_5XX"}[f.status < 500]]
	}
	if g != nil {
		if g.status != 0 {
			status = g.status
		}
		if g.body != "" {
			body = c.fill(g.body)
		}
		c.apply(g.headers, h)
	}
	c.send(w, status, []byte(body))
}

// fill replaces each variable of a template by its value, or by nothing if the variable has no value. Values are
// inserted unchanged, so a value that an authorizer writes for a JSON body must be JSON. Assumption: denial-body.
func (c *call) fill(template string) string {
	return inTemplate.ReplaceAllStringFunc(template, func(s string) (text string) {
		if v, err := variable(strings.TrimPrefix(s, "$context.")); err == nil {
			text, _ = v(c)
		}
		return text
	})
}

// addIDs adds the headers in which an API returns the id of the request.
func (c *call) addIDs(h http.Header) {
	if c.s.d.Kind == REST {
		h["X-Amzn-Requestid"], h["X-Amz-Apigw-Id"] = []string{c.id}, []string{c.id}
	} else {
		h["Apigw-Requestid"] = []string{c.id}
	}
}

func (c *call) send(w http.ResponseWriter, status int, body []byte) {
	w.WriteHeader(status)
	if status != http.StatusNoContent {
		_, _ = w.Write(body) //nolint:gosec // tests read it, not browsers; it fails if the client has gone
	}
}
