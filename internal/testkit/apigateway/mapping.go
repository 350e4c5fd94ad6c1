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
		return nil, fmt.Errorf("the local gateway does not know %s; it knows $context.NAME and a static text",
			strconv.Quote(s))
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

// framing lists the headers that describe the length of a message, its destination or the connection: they cannot be
// mapped.
var framing = []string{"Connection", "Content-Length", "Expect", "Host", "Keep-Alive", "Proxy-Connection", "Te",
	"Trailer", "Transfer-Encoding", "Upgrade"}

// mappings parses mappings, in the order of their keys. A key that begins with header sets a header, and one that
// begins with path a placeholder in the URL of an integration.
func mappings(from map[string]string, header, path string, parse func(string) (value, error)) ([]change, error) {
	var out []change
	for _, key := range slices.Sorted(maps.Keys(from)) {
		c := change{source: key}
		var err error
		if c.value, err = parse(from[key]); err != nil {
			return nil, fmt.Errorf("%s: %w", key, err)
		}
		name, ok := strings.CutPrefix(key, header)
		if c.path = !ok && path != "" && strings.HasPrefix(key, path); c.path {
			c.name = strings.TrimPrefix(key, path)
		} else if c.name, c.wire = http.CanonicalHeaderKey(name), name; !ok || slices.Contains(framing, c.name) {
			return nil, fmt.Errorf("%s cannot be mapped", strconv.Quote(key))
		}
		if c.name == "Content-Type" || c.name == "Date" {
			c.wire = c.name // net/http looks for these headers by their canonical names
		}
		out = append(out, c)
	}
	return out, nil
}

// requestMappings parses an integration's RequestParameters.
func (d *Description) requestMappings(g *Integration) ([]change, error) {
	if d.Kind == HTTP {
		return mappings(g.RequestParameters, "overwrite:header.", "", httpValue)
	}
	return mappings(g.RequestParameters, "integration.request.header.", "integration.request.path.", restValue)
}

// responseMappings parses an integration's ResponseParameters, by status.
func (d *Description) responseMappings(g *Integration) (map[int][]change, error) {
	out := make(map[int][]change)
	for status, from := range g.ResponseParameters {
		code, err := strconv.Atoi(status)
		if err == nil && d.Kind == HTTP {
			out[code], err = mappings(from, "overwrite:header.", "", httpValue)
		} else if err == nil {
			out[code], err = mappings(from, "method.response.header.", "", restValue)
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", status, err)
		}
	}
	return out, nil
}

// gatewayHeaders parses a gateway response's parameters.
func gatewayHeaders(parameters map[string]string) ([]change, error) {
	return mappings(parameters, "gatewayresponse.header.", "", restValue)
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

var variables = regexp.MustCompile(`\$\{?(?:context|stageVariables|method)[A-Za-z0-9_.-]*\}?`)

// parseTemplate parses the template of a gateway response. API Gateway only replaces variables in it. It does not run
// the template engine VTL, which it runs for other templates.
func parseTemplate(s string) (template, error) {
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
