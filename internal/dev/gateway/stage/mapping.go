package stage

import (
	"errors"
	"fmt"
	"maps"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// value is an expression, read: what it is for a call, and whether it is there at all.
type value func(*call) (string, bool)

func literal(s string) value { return func(*call) (string, bool) { return s, true } }

var errBody = errors.New("parts of bodies are not supported")

// restValue reads an expression of a REST API: 'literal', method.request.header.X, context.X and the like.
func (d *Description) restValue(s string) (value, error) {
	if text, ok := strings.CutPrefix(s, "'"); ok {
		text, ok = strings.CutSuffix(text, "'")
		if !ok || !sendable(text) {
			return nil, fmt.Errorf("%s is not a value between quotes", shown(s))
		}
		return literal(text), nil
	}
	if rest, ok := strings.CutPrefix(s, "method.request."); ok {
		kind, name, _ := strings.Cut(rest, ".")
		return ofRequest(s, kind, name)
	}
	return d.variable(s, s)
}

// httpValue reads an expression of an HTTP API: $request.header.X, $context.X and the like, one alone or several as
// ${…} in a text; or a static text.
func (d *Description) httpValue(s string) (value, error) {
	if !sendable(s) {
		return nil, fmt.Errorf("%s holds control characters", shown(s))
	}
	if strings.HasPrefix(s, "$") && !strings.Contains(s, "{") {
		return d.httpVariable(s, s[1:])
	}
	var parts []value
	for s != "" {
		before, rest, found := strings.Cut(s, "${")
		parts = append(parts, literal(before))
		if !found {
			break
		}
		name, after, closed := strings.Cut(rest, "}")
		if !closed {
			return nil, fmt.Errorf("%s: ${ is not closed", shown(s))
		}
		v, err := d.httpVariable("${"+name+"}", name)
		if err != nil {
			return nil, err
		}
		parts, s = append(parts, v), after
	}
	return func(c *call) (string, bool) {
		var b strings.Builder
		for _, p := range parts {
			text, _ := p(c)
			b.WriteString(text)
		}
		return b.String(), true
	}, nil
}

func (d *Description) httpVariable(all, name string) (value, error) {
	rest, ok := strings.CutPrefix(name, "request.")
	if !ok {
		return d.variable(all, name)
	}
	if rest == "path" {
		return func(c *call) (string, bool) { return c.path, true }, nil
	}
	kind, name, _ := strings.Cut(rest, ".")
	return ofRequest(all, kind, name)
}

func ofRequest(all, kind, name string) (value, error) {
	switch header, ok := headerName(name); {
	case kind == "header" && ok:
		return func(c *call) (string, bool) { return c.requestHeader(header) }, nil
	case kind == "querystring" && name != "":
		return func(c *call) (string, bool) { return c.queryValue(name) }, nil
	case kind == "path" && name != "":
		return func(c *call) (string, bool) { v, ok := c.parameters[name]; return v, ok }, nil
	case kind == "body":
		return nil, fmt.Errorf("%s: %w", shown(all), errBody)
	}
	return nil, fmt.Errorf("%s is not known", shown(all))
}

// variable reads context.X and stageVariables.X.
func (d *Description) variable(all, name string) (value, error) {
	kind, rest, _ := strings.Cut(name, ".")
	switch {
	case kind == "stageVariables" && rest != "":
		v, ok := d.StageVariables[rest]
		return func(*call) (string, bool) { return v, ok }, nil
	case kind == "context":
		return contextValue(all, rest)
	}
	return nil, fmt.Errorf("%s is not known", shown(all))
}

// contextVariables are those of $context that a stage fills in, beside authorizer.X.
var contextVariables = map[string]value{
	"accountId":              func(c *call) (string, bool) { return c.s.d.Account, true },
	"apiId":                  func(c *call) (string, bool) { return c.s.d.API, true },
	"domainName":             func(c *call) (string, bool) { return c.domainName(), true },
	"domainPrefix":           func(c *call) (string, bool) { return c.domainPrefix(), true },
	"error.message":          func(c *call) (string, bool) { return c.failure.message, c.failure.message != "" },
	"error.messageString":    func(c *call) (string, bool) { return c.failure.quoted(), true },
	"error.responseType":     func(c *call) (string, bool) { return c.failure.name, c.failure.name != "" },
	"extendedRequestId":      func(c *call) (string, bool) { return c.extendedID, true },
	"httpMethod":             func(c *call) (string, bool) { return c.r.Method, true },
	"identity.accessKey":     func(c *call) (string, bool) { return c.signedBy("accessKey") },
	"identity.accountId":     func(c *call) (string, bool) { return c.signedBy("accountId") },
	"identity.caller":        func(c *call) (string, bool) { return c.signedBy("caller") },
	"identity.user":          func(c *call) (string, bool) { return c.signedBy("user") },
	"identity.userArn":       func(c *call) (string, bool) { return c.signedBy("userArn") },
	"identity.sourceIp":      func(c *call) (string, bool) { return c.peer, true },
	"identity.userAgent":     func(c *call) (string, bool) { return c.requestHeader("User-Agent") },
	"path":                   func(c *call) (string, bool) { return c.fullPath, true },
	"protocol":               func(c *call) (string, bool) { return c.r.Proto, true },
	"requestId":              func(c *call) (string, bool) { return c.id, true },
	"requestTime":            func(c *call) (string, bool) { return c.requestTime(), true },
	"requestTimeEpoch":       func(c *call) (string, bool) { return strconv.FormatInt(c.now.UnixMilli(), 10), true },
	"resourcePath":           func(c *call) (string, bool) { return c.resource(), c.route != nil },
	"routeKey":               func(c *call) (string, bool) { return c.routeKey(), c.route != nil },
	"stage":                  func(c *call) (string, bool) { return c.s.d.Stage, true },
	"authorizer.principalId": func(c *call) (string, bool) { return c.granted.principal, c.granted.principal != "" },
}

var authorizerName = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9_-]*$`)

func contextValue(all, name string) (value, error) {
	if v, ok := contextVariables[name]; ok {
		return v, nil
	}
	key, ok := strings.CutPrefix(name, "authorizer.")
	if !ok || !authorizerName.MatchString(key) {
		return nil, fmt.Errorf("%s: this context variable is not supported", shown(all))
	}
	return func(c *call) (string, bool) { v, ok := c.granted.context[key]; return v.text, ok }, nil
}

// change is one mapping: what becomes of a header, a query parameter, a part of the URL, or the status.
type change struct {
	where  string // header, querystring, path, statuscode
	how    string // overwrite, append, remove
	name   string // of a header: in canonical form
	wire   string // of a header of an answer: as the mapping spells it, as API Gateway sends it
	value  value
	source string
}

// setHeader notes which header a mapping is about.
func (m *change) setHeader(name string) error {
	var ok bool
	if m.name, ok = headerName(name); !ok {
		return fmt.Errorf("%s: not the name of a header", shown(m.source))
	}
	if slices.Contains(framing, m.name) {
		return fmt.Errorf("%s: this header belongs to the connection and cannot be mapped", m.source)
	}
	if m.wire = name; m.name == "Content-Type" || m.name == "Date" {
		m.wire = m.name // the server looks for them
	}
	return nil
}

// framing are the headers that say where a message ends, where it goes, or what the connection becomes.
var framing = []string{"Connection", "Content-Length", "Expect", "Host", "Keep-Alive", "Proxy-Connection", "Te",
	"Trailer",
	"Transfer-Encoding", "Upgrade"}

// reservedHeaders cannot be mapped on HTTP APIs.
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

// requestMappings reads an integration's RequestParameters, in the order of their keys.
func (d *Description) requestMappings(g *Integration, t *target) ([]change, error) {
	var out []change
	for _, key := range slices.Sorted(maps.Keys(g.RequestParameters)) {
		c, err := d.requestMapping(key, g.RequestParameters[key])
		switch {
		case err != nil:
			return nil, err
		case g.Type != HTTPProxy && g.Type != Echo:
			return nil, fmt.Errorf("%s: the request of %s cannot be mapped", key, g.Type)
		case d.Kind != HTTP && c.where == "path" && !strings.Contains(g.URL, "{"+c.name+"}"):
			return nil, fmt.Errorf("%s: url has no {%s}", key, c.name)
		}
		out = append(out, c)
	}
	for _, m := range placeholder.FindAllStringSubmatch(g.URL, -1) {
		mapped := slices.ContainsFunc(out, func(c change) bool { return c.where == "path" && c.name == m[1] })
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
		return d.httpMapping(key, text, "header", "path")
	}
	rest, ok := strings.CutPrefix(key, "integration.request.")
	where, name, _ := strings.Cut(rest, ".")
	c := change{where: where, how: "overwrite", name: name, source: key}
	if !ok || name == "" || where != "header" && where != "querystring" && where != "path" {
		return c, fmt.Errorf("%s is not integration.request.header.NAME, .querystring.NAME or .path.NAME", shown(key))
	}
	if where == "header" {
		if err := c.setHeader(name); err != nil {
			return c, err
		}
	}
	var err error
	if c.value, err = d.restValue(text); err != nil {
		return c, fmt.Errorf("%s: %w", key, err)
	}
	return c, nil
}

// httpMapping reads "overwrite:header.x" and the like; places are what may be mapped.
func (d *Description) httpMapping(key, text string, places ...string) (change, error) {
	how, rest, _ := strings.Cut(key, ":")
	where, name, _ := strings.Cut(rest, ".")
	c := change{where: where, how: how, name: name, source: key}
	named := where == "header"
	switch {
	case !slices.Contains([]string{"overwrite", "append", "remove"}, how), !slices.Contains(places, where),
		named != (name != ""), !named && how != "overwrite":
		return c, fmt.Errorf("%s is not known: there are overwrite:, append: and remove:header.NAME, and overwrite:%s",
			shown(key), places[len(places)-1])
	case named && reservedHeader(name):
		return c, fmt.Errorf("%s: this header is reserved and cannot be mapped", shown(key))
	}
	if named {
		if err := c.setHeader(name); err != nil {
			return c, err
		}
	}
	var err error
	if c.value, err = d.httpValue(text); err != nil {
		return c, fmt.Errorf("%s: %w", key, err)
	}
	return c, nil
}

// responseMappings reads an integration's ResponseParameters, by status.
func (d *Description) responseMappings(g *Integration) (map[int][]change, error) {
	out := make(map[int][]change)
	for _, status := range slices.Sorted(maps.Keys(g.ResponseParameters)) {
		code, err := strconv.Atoi(status)
		if err != nil || code < 200 || code > 599 || len(status) != 3 {
			return nil, fmt.Errorf("%s is not a status of 200 to 599", shown(status))
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
		return d.httpMapping(key, text, "header", "statuscode")
	case d.Kind == WebSocket || g.Type != Mock:
		return change{}, fmt.Errorf("%s: what a proxy answers passes as it is; only the answer of %s on a REST API "+
			"can be mapped", key, Mock)
	}
	rest, ok := strings.CutPrefix(key, "method.response.header.")
	c := change{where: "header", how: "overwrite", source: key}
	if !ok {
		return c, fmt.Errorf("%s is not method.response.header.NAME", shown(key))
	}
	if err := c.setHeader(rest); err != nil {
		return c, err
	}
	var err error
	if c.value, err = d.restValue(text); err != nil {
		return c, fmt.Errorf("%s: %w", key, err)
	}
	return c, nil
}

// gatewayHeaders reads a gateway response's parameters.
func (d *Description) gatewayHeaders(parameters map[string]string) ([]change, error) {
	var out []change
	for _, key := range slices.Sorted(maps.Keys(parameters)) {
		rest, ok := strings.CutPrefix(key, "gatewayresponse.header.")
		c := change{where: "header", how: "overwrite", source: key}
		if !ok {
			return nil, fmt.Errorf("%s is not gatewayresponse.header.NAME", shown(key))
		}
		if err := c.setHeader(rest); err != nil {
			return nil, err
		}
		var err error
		if c.value, err = d.restValue(parameters[key]); err != nil {
			return nil, fmt.Errorf("%s: %w", key, err)
		}
		out = append(out, c)
	}
	return out, nil
}

// apply changes headers, those of an answer or of a request. A value that is not there changes nothing, so that what a
// client sent under that name stays: how API Gateway takes it is not documented, and this is the worse case
// (Assumption: absent-values). One with characters that end a line, or other control characters, is left out: no
// authorizer's context can add a header.
func (c *call) apply(changes []change, h http.Header, answer bool) {
	for _, m := range changes {
		if m.where != "header" {
			continue
		}
		name := m.name
		if answer {
			name = m.wire
		}
		v, ok := m.value(c)
		switch {
		case m.how == "remove":
			delete(h, m.name)
			delete(h, name)
		case !ok:
		case !sendable(v):
			c.s.c.Log.Warn("a mapped header is left out: its value holds control characters", "mapping", m.source,
				"request", c.id)
		case m.how == "append":
			lines := h[m.name]
			if name != m.name { // one name in two spellings would have its lines in any order
				lines = append(lines, h[name]...)
				delete(h, m.name)
			}
			h[name] = append(lines, v)
		default:
			delete(h, m.name)
			h[name] = []string{v}
		}
	}
}

// template is a gateway response's: text with variables, and no language.
type template []part

type part struct {
	text string
	v    value // nil: text
}

var (
	variables  = regexp.MustCompile(`\$\{?(?:context|stageVariables|method)[A-Za-z0-9_.-]*\}?`)
	directives = regexp.MustCompile(
		`#(?:set|if|else|elseif|end|foreach|macro|parse|include)\b|\$!?\{?(?:input|util)\b|##`)
)

// parseTemplate reads a template. Those of gateway responses are not run by the template engine that others are for, so
// what only that understands is refused: API Gateway would send it to the client as it stands.
func parseTemplate(s string) (template, error) {
	if found := directives.FindString(s); found != "" {
		return nil, fmt.Errorf("%s: templates of gateway responses are not VTL, only $context.NAME is replaced",
			shown(found))
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
				return nil, fmt.Errorf("%s is not closed", shown(s[at[0]:at[1]]))
			}
			name = inner
		} else {
			// the end of a sentence or of an object is not part of it
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
			err = fmt.Errorf("%s is not supported in a template", shown("$"+name))
		}
		if err != nil {
			return nil, err
		}
		t = append(t, part{text: s[:at[0]]}, part{v: v})
		s = s[at[1]:]
	}
	return t, nil
}

// fill replaces each variable once; one that is absent is nothing. Values are put in as they are: what an authorizer
// writes for a JSON body must be JSON. Assumption: denial-body.
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
