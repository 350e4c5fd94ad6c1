package apigateway

import (
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

func literal(s string) value { return func(*call) (string, bool) { return s, true } }

// restValue parses an expression of a REST API: 'literal', method.request.path.X, or context.X.
func restValue(s string) (value, error) {
	if text, ok := strings.CutPrefix(s, "'"); ok {
		text, ok = strings.CutSuffix(text, "'")
		if !ok || !sendable(text) {
			return nil, fmt.Errorf("%s is not a value between quotes", strconv.Quote(s))
		}
		return literal(text), nil
	}
	if name, ok := strings.CutPrefix(s, "method.request.path."); ok && name != "" {
		return func(c *call) (string, bool) { v, ok := c.parameters[name]; return v, ok }, nil
	}
	if name, ok := strings.CutPrefix(s, "context."); ok {
		return contextValue(s, name)
	}
	return nil, fmt.Errorf("the local gateway does not know %s; it knows 'TEXT', method.request.path.NAME and "+
		"context.NAME", strconv.Quote(s))
}

// httpValue parses an expression of an HTTP API: $context.X, or a static text.
func httpValue(s string) (value, error) {
	switch name, ok := strings.CutPrefix(s, "$context."); {
	case ok && !strings.Contains(name, "$"):
		return contextValue(s, name)
	case strings.Contains(s, "$"):
		return nil, fmt.Errorf("the local gateway does not know %s; it knows $context.NAME and a static text", strconv.Quote(s))
	case !sendable(s):
		return nil, fmt.Errorf("%s holds control characters", strconv.Quote(s))
	}
	return literal(s), nil
}

// contextVariables are the variables of $context that a stage supports in addition to authorizer.NAME: those that the
// gateway responses and mappings of Sluice's templates use, the signer's identity, and ids of the request.
var contextVariables = map[string]value{
	"error.message":          func(c *call) (string, bool) { return c.failure.message, c.failure.message != "" },
	"error.messageString":    func(c *call) (string, bool) { return c.failure.quoted(), true },
	"error.responseType":     func(c *call) (string, bool) { return c.failure.name, c.failure.name != "" },
	"extendedRequestId":      func(c *call) (string, bool) { return c.extendedID, true },
	"httpMethod":             func(c *call) (string, bool) { return c.r.Method, true },
	"identity.userArn":       func(c *call) (string, bool) { return c.userARN, c.userARN != "" },
	"identity.sourceIp":      func(c *call) (string, bool) { return c.peer, true },
	"path":                   func(c *call) (string, bool) { return c.fullPath, true },
	"requestId":              func(c *call) (string, bool) { return c.id, true },
	"authorizer.principalId": func(c *call) (string, bool) { return c.granted.principal, c.granted.principal != "" },
}

var authorizerName = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9_-]*$`)

// contextValue returns the value of $context.NAME. expression is how the description spells it, for the error.
func contextValue(expression, name string) (value, error) {
	if v, ok := contextVariables[name]; ok {
		return v, nil
	}
	key, ok := strings.CutPrefix(name, "authorizer.")
	if !ok || !authorizerName.MatchString(key) {
		return nil, fmt.Errorf("the local gateway does not know the context variable %s; it knows authorizer.NAME, %s",
			strconv.Quote(expression), strings.Join(slices.Sorted(maps.Keys(contextVariables)), ", "))
	}
	return func(c *call) (string, bool) { v, ok := c.granted.context[key]; return v.text, ok }, nil
}

// change is one mapping: it sets a header, or a placeholder in the URL of an integration, to a value.
type change struct {
	path   bool   // the mapping sets a placeholder of the URL, not a header
	name   string // name of the placeholder, or of the header in canonical form
	wire   string // name of a header of an answer as the mapping spells it, because API Gateway sends it so
	value  value
	source string // the key of the mapping
}

// setHeader sets the header that a mapping changes.
func (m *change) setHeader(name string) error {
	var ok bool
	if m.name, ok = headerName(name); !ok {
		return fmt.Errorf("%s: not the name of a header", strconv.Quote(m.source))
	}
	if slices.Contains(framing, m.name) {
		return fmt.Errorf("%s: this header belongs to the connection and cannot be mapped", m.source)
	}
	if m.wire = name; m.name == "Content-Type" || m.name == "Date" {
		m.wire = m.name // net/http looks for these headers by their canonical names
	}
	return nil
}

// framing lists the headers that describe the length of a message, its destination or the connection.
var framing = []string{"Connection", "Content-Length", "Expect", "Host", "Keep-Alive", "Proxy-Connection", "Te",
	"Trailer",
	"Transfer-Encoding", "Upgrade"}

// reservedHeaders lists headers that API Gateway does not let an HTTP API map.
var reservedHeaders = []string{"authorization", "connection", "content-encoding", "content-length", "content-location",
	"forwarded",
	"keep-alive", "origin", "proxy-authenticate", "proxy-authorization", "te", "trailers", "transfer-encoding",
	"upgrade",
	"x-forwarded-for", "x-forwarded-host", "x-forwarded-proto", "via"}

func reservedHeader(name string) bool {
	name = strings.ToLower(name)
	for _, prefix := range []string{"access-control-", "apigw-", "x-amz-", "x-amzn-"} {
		if strings.HasPrefix(name, prefix) {
			return true
		}
	}
	return slices.Contains(reservedHeaders, name)
}

// requestMappings parses an integration's RequestParameters, in the order of their keys.
func (d *Description) requestMappings(g *Integration, t *target) ([]change, error) {
	var out []change
	for _, key := range slices.Sorted(maps.Keys(g.RequestParameters)) {
		c, err := d.requestMapping(key, g.RequestParameters[key])
		switch {
		case err != nil:
			return nil, err
		case g.Type != HTTPProxy && g.Type != Echo:
			return nil, fmt.Errorf("%s: the request of %s cannot be mapped", key, g.Type)
		case c.path && !strings.Contains(g.URL, "{"+c.name+"}"):
			return nil, fmt.Errorf("%s: url has no {%s}", key, c.name)
		}
		out = append(out, c)
	}
	for _, m := range placeholder.FindAllStringSubmatch(g.URL, -1) {
		mapped := slices.ContainsFunc(out, func(c change) bool { return c.path && c.name == m[1] })
		ofRoute := t != nil && slices.ContainsFunc(t.segments, func(s segment) bool { return s.name == m[1] })
		if d.Kind == REST && !mapped {
			return nil, fmt.Errorf("url has {%s}: map integration.request.path.%s", m[1], m[1])
		}
		if d.Kind == HTTP && !ofRoute {
			return nil, fmt.Errorf("url has {%s}, and the route does not", m[1])
		}
	}
	return out, nil
}

func (d *Description) requestMapping(key, text string) (change, error) {
	if d.Kind == HTTP {
		return httpMapping(key, text)
	}
	if header, ok := strings.CutPrefix(key, "integration.request.header."); ok {
		return headerMapping(key, header, text, restValue)
	}
	name, ok := strings.CutPrefix(key, "integration.request.path.")
	if !ok || name == "" {
		return change{}, fmt.Errorf("the local gateway does not know %s; it knows integration.request.header.NAME and "+
			"integration.request.path.NAME", strconv.Quote(key))
	}
	v, err := restValue(text)
	if err != nil {
		return change{}, fmt.Errorf("%s: %w", key, err)
	}
	return change{path: true, name: name, value: v, source: key}, nil
}

// headerMapping returns the mapping of an expression to a header. key is the mapping's key, for errors.
func headerMapping(key, header, text string, parse func(string) (value, error)) (change, error) {
	c := change{source: key}
	if err := c.setHeader(header); err != nil {
		return c, err
	}
	var err error
	if c.value, err = parse(text); err != nil {
		return c, fmt.Errorf("%s: %w", key, err)
	}
	return c, nil
}

// httpMapping parses a mapping of an HTTP API, of a request or of an answer.
func httpMapping(key, text string) (change, error) {
	header, ok := strings.CutPrefix(key, "overwrite:header.")
	switch {
	case !ok:
		return change{}, fmt.Errorf("the local gateway does not know %s; it knows overwrite:header.NAME", strconv.Quote(key))
	case reservedHeader(header):
		return change{}, fmt.Errorf("%s: this header is reserved and cannot be mapped", strconv.Quote(key))
	}
	return headerMapping(key, header, text, httpValue)
}

// responseMappings reads an integration's ResponseParameters, by status.
func (d *Description) responseMappings(g *Integration) (map[int][]change, error) {
	out := make(map[int][]change)
	for _, status := range slices.Sorted(maps.Keys(g.ResponseParameters)) {
		code, err := strconv.Atoi(status)
		if err != nil || code < 200 || code > 599 || len(status) != 3 {
			return nil, fmt.Errorf("%s is not a status of 200 to 599", strconv.Quote(status))
		}
		from := g.ResponseParameters[status]
		for _, key := range slices.Sorted(maps.Keys(from)) {
			c, err := d.responseMapping(g, key, from[key])
			if err != nil {
				return nil, fmt.Errorf("%s: %w", status, err)
			}
			out[code] = append(out[code], c)
		}
	}
	return out, nil
}

func (d *Description) responseMapping(g *Integration, key, text string) (change, error) {
	switch {
	case d.Kind == HTTP:
		return httpMapping(key, text)
	case d.Kind == WebSocket || g.Type != Mock:
		return change{}, fmt.Errorf("%s: the answer of a proxy is passed on unchanged; only that of %s on a REST API "+
			"can be mapped", key, Mock)
	}
	header, ok := strings.CutPrefix(key, "method.response.header.")
	if !ok {
		return change{}, fmt.Errorf("%s is not method.response.header.NAME", strconv.Quote(key))
	}
	return headerMapping(key, header, text, restValue)
}

// gatewayHeaders parses a gateway response's parameters.
func gatewayHeaders(parameters map[string]string) ([]change, error) {
	var out []change
	for _, key := range slices.Sorted(maps.Keys(parameters)) {
		header, ok := strings.CutPrefix(key, "gatewayresponse.header.")
		if !ok {
			return nil, fmt.Errorf("%s is not gatewayresponse.header.NAME", strconv.Quote(key))
		}
		c, err := headerMapping(key, header, parameters[key], restValue)
		if err != nil {
			return nil, err
		}
		out = append(out, c)
	}
	return out, nil
}

// apply sets the mapped headers of an answer or of a request. If a value is absent, its header is not changed, so it
// keeps the value that the client sent. API Gateway's behaviour is not documented, and this is the worse case.
// Assumption: absent-values. A value with a line end or another control character is left out, so that an authorizer's
// context cannot add a header.
func (c *call) apply(changes []change, h http.Header, answer bool) {
	for _, m := range changes {
		if m.path {
			continue
		}
		name := m.name
		if answer {
			name = m.wire
		}
		v, ok := m.value(c)
		switch {
		case !ok:
		case !sendable(v):
			c.s.c.Log.Warn("a mapped header is left out: its value holds control characters", "mapping", m.source,
				"request", c.id)
		default:
			delete(h, m.name)
			h[name] = []string{v}
		}
	}
}

// template is the template of a gateway response: text with variables.
type template []part

// part is a text or, if v is not nil, a variable.
type part struct {
	text string
	v    value
}

var (
	variables  = regexp.MustCompile(`\$\{?(?:context|stageVariables|method)[A-Za-z0-9_.-]*\}?`)
	directives = regexp.MustCompile(
		`#(?:set|if|else|elseif|end|foreach|macro|parse|include)\b|\$!?\{?(?:input|util)\b|##`)
)

// parseTemplate parses the template of a gateway response. API Gateway only replaces variables in it. It does not run
// the template engine VTL, which it runs for other templates. Directives of VTL are refused, because API Gateway would
// send them to the client unchanged.
func parseTemplate(s string) (template, error) {
	if found := directives.FindString(s); found != "" {
		return nil, fmt.Errorf("%s: templates of gateway responses are not VTL, only $context.NAME is replaced",
			strconv.Quote(found))
	}
	var t template
	for s != "" {
		at := variables.FindStringIndex(s)
		if at == nil {
			return append(t, part{text: s}), nil
		}
		name := s[at[0]+1 : at[1]]
		if name[0] == '{' {
			inner, ok := strings.CutSuffix(name[1:], "}")
			if !ok {
				return nil, fmt.Errorf("%s is not closed", strconv.Quote(s[at[0]:at[1]]))
			}
			name = inner
		} else {
			// A brace, full stop or hyphen at the end is not part of the name: it ends an object or a sentence.
			name = strings.TrimRight(strings.TrimSuffix(name, "}"), ".-")
			at[1] = at[0] + 1 + len(name)
		}
		kind, rest, _ := strings.Cut(name, ".")
		var v value
		var err error
		switch {
		case kind == "context":
			v, err = contextValue("$"+name, rest)
		default:
			err = fmt.Errorf("%s is not supported in a template", strconv.Quote("$"+name))
		}
		if err != nil {
			return nil, err
		}
		t = append(t, part{text: s[:at[0]]}, part{v: v})
		s = s[at[1]:]
	}
	return t, nil
}

// fill returns the text with each variable replaced by its value, or by nothing if the variable has no value. Values
// are inserted unchanged, so a value that an authorizer writes for a JSON body must be JSON. Assumption: denial-body.
func (t template) fill(c *call) []byte {
	var b []byte
	for _, p := range t {
		if p.v != nil {
			p.text, _ = p.v(c)
		}
		b = append(b, p.text...)
	}
	return b
}
