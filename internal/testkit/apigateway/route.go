package apigateway

import (
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
)

// target is the parsed key of a route.
type target struct {
	method   string // "" for ANY, and for $default and $connect
	path     string // as in the key; "" for $default and $connect
	segments []segment
}

// segment is one part of a path: a literal, {name}, or, only as the last part, {name+}.
type segment struct {
	literal, name string // one of them is set
	greedy        bool   // {name+}
}

var methods = []string{"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"}

// parseKey parses the key of a route: "METHOD /path", or "$default" or "$connect" if the API is of the kind that has
// it.
func (d *Description) parseKey(key string) (*target, error) {
	switch {
	case d.Kind == WebSocket && key == connectRoute:
		return &target{}, nil
	case d.Kind == WebSocket:
		return nil, fmt.Errorf("%s: of a WebSocket API only %s is served, the only route that an authorizer can have",
			strconv.Quote(key), connectRoute)
	case d.Kind == HTTP && key == defaultStage: // the catch-all route and the default stage have the same name
		return &target{}, nil
	}
	method, path, ok := strings.Cut(key, " ")
	if !ok || !strings.HasPrefix(path, "/") {
		return nil, fmt.Errorf(`%s is not "METHOD /path"`, strconv.Quote(key))
	}
	t := &target{method: method, path: path}
	switch {
	case method == "ANY":
		t.method = ""
	case !slices.Contains(methods, method):
		return nil, fmt.Errorf("%s: the method is none of ANY, %s", strconv.Quote(key), strings.Join(methods, ", "))
	}
	names := make(map[string]bool)
	for i, part := range split(path) {
		s, err := parseSegment(part)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", strconv.Quote(key), err)
		}
		if i > 0 && t.segments[i-1].greedy {
			return nil, fmt.Errorf("%s: {%s+} must be the last segment", strconv.Quote(key), t.segments[i-1].name)
		}
		if s.name != "" && names[s.name] {
			return nil, fmt.Errorf("%s: {%s} is there twice", strconv.Quote(key), s.name)
		}
		names[s.name] = true
		t.segments = append(t.segments, s)
	}
	return t, nil
}

func parseSegment(s string) (segment, error) {
	name, opens := strings.CutPrefix(s, "{")
	if !opens {
		if s == "" || strings.ContainsAny(s, "{}+*?#% ") {
			return segment{}, fmt.Errorf("%s is not a segment of a route", strconv.Quote(s))
		}
		return segment{literal: s}, nil
	}
	name, closes := strings.CutSuffix(name, "}")
	name, greedy := strings.CutSuffix(name, "+")
	if !closes || !plainParameter(name) {
		return segment{}, fmt.Errorf("%s is not {name} or {name+}", strconv.Quote(s))
	}
	return segment{name: name, greedy: greedy}, nil
}

func plainParameter(s string) bool {
	return placeholder.MatchString("{"+s+"}") && !strings.ContainsAny(s, "{}")
}

// split returns the segments of a path; "/" has none.
func split(path string) []string {
	path = strings.TrimPrefix(path, "/")
	if path == "" {
		return nil
	}
	return strings.Split(path, "/")
}

// identity returns a text that is the same for all keys that match the same requests.
func (t *target) identity() string {
	var b strings.Builder
	b.WriteString(t.method + " ")
	if t.path == "" {
		b.WriteString("$")
	}
	for _, s := range t.segments {
		switch {
		case s.greedy:
			b.WriteString("/{+}")
		case s.name != "":
			b.WriteString("/{}")
		default:
			b.WriteString("/" + s.literal)
		}
	}
	return b.String()
}

// matches reports whether a path matches the key, and returns the path parameters, which are not decoded. If the path
// is encoded, a literal also matches a segment that decodes to it: /%70roduct matches /product.
func (t *target) matches(path string, encoded bool) (map[string]string, bool) {
	parts := split(path)
	parameters := make(map[string]string)
	for i, s := range t.segments {
		switch {
		case i >= len(parts):
			return nil, false
		case s.greedy:
			parameters[s.name] = strings.Join(parts[i:], "/")
			return parameters, true
		case s.name != "":
			if parts[i] == "" {
				return nil, false
			}
			parameters[s.name] = parts[i]
		case s.literal != parts[i] && (!encoded || s.literal != unescape(parts[i])):
			return nil, false
		}
	}
	return parameters, len(parts) == len(t.segments)
}

func unescape(s string) string {
	if out, err := url.PathUnescape(s); err == nil {
		return out
	}
	return s
}

// moreSpecific reports whether the key is more specific than another one. Segments are compared from the left: a
// literal is more specific than {name}, which is more specific than {name+}.
func (t *target) moreSpecific(than *target) bool {
	rank := func(s segment) int {
		switch {
		case s.greedy:
			return 2
		case s.name != "":
			return 1
		}
		return 0
	}
	for i := range min(len(t.segments), len(than.segments)) {
		if a, b := rank(t.segments[i]), rank(than.segments[i]); a != b {
			return a < b
		}
	}
	return len(t.segments) > len(than.segments)
}

// find returns the route of a request and the path parameters; nil if there is none. A REST API selects the most
// specific resource first, and then the method of this resource: other resources that have the method are not
// considered. An HTTP API considers only routes that have the method.
func (s *serving) find(method, path string) (*route, map[string]string) {
	var best *route
	var parameters map[string]string
	for _, r := range s.routes {
		if s.d.Kind == HTTP && r.target.method != "" && r.target.method != method {
			continue
		}
		found, ok := r.target.matches(path, s.d.Kind != HTTP)
		if r.target.path == "" {
			found, ok = map[string]string{}, true
		}
		if !ok || best != nil && !r.beats(best, method) {
			continue
		}
		best, parameters = r, found
	}
	if best == nil || best.target.method != "" && best.target.method != method {
		return nil, nil
	}
	return best, parameters
}

// beats reports whether the route is chosen rather than another one that matches the same path. $default is chosen only
// if no other route matches.
func (r *route) beats(other *route, method string) bool {
	switch {
	case other.target.path == "" || r.target.path == "":
		return r.target.path != ""
	case r.target.moreSpecific(other.target):
		return true
	case other.target.moreSpecific(r.target):
		return false
	}
	if (r.target.method == method) != (other.target.method == method) {
		return r.target.method == method
	}
	return r.target.method == "" && other.target.method != ""
}
