package stage

import (
	"fmt"
	"net/url"
	"slices"
	"strings"
)

// target is a route's key, read.
type target struct {
	method   string // "" is any
	path     string // as in the key; "" is $default or $connect
	segments []segment
}

// segment is one part of a path: a literal, {name}, or as the last one {name+}.
type segment struct {
	literal, name string // one of them
	greedy        bool
}

var methods = []string{"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"}

// parseKey reads "METHOD /path", or the one other key that the API's kind has.
func (d *Description) parseKey(key string) (*target, error) {
	switch {
	case d.Kind == WebSocket && key == connectRoute:
		return &target{}, nil
	case d.Kind == WebSocket:
		return nil, fmt.Errorf("%s: of a WebSocket API only %s is served, the only route that is authorized",
			shown(key), connectRoute)
	case d.Kind == HTTP && key == defaultStage: // the catch-all route is called as the stage is
		return &target{}, nil
	}
	method, path, ok := strings.Cut(key, " ")
	if !ok || !strings.HasPrefix(path, "/") {
		return nil, fmt.Errorf(`%s is not "METHOD /path"`, shown(key))
	}
	t := &target{method: method, path: path}
	switch {
	case method == "ANY":
		t.method = ""
	case !slices.Contains(methods, method):
		return nil, fmt.Errorf("%s: the method is none of ANY, %s", shown(key), strings.Join(methods, ", "))
	}
	names := make(map[string]bool)
	for i, part := range split(path) {
		s, err := parseSegment(part)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", shown(key), err)
		}
		if i > 0 && t.segments[i-1].greedy {
			return nil, fmt.Errorf("%s: {%s+} must be the last segment", shown(key), t.segments[i-1].name)
		}
		if s.name != "" && names[s.name] {
			return nil, fmt.Errorf("%s: {%s} is there twice", shown(key), s.name)
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
			return segment{}, fmt.Errorf("%s is not a segment of a route", shown(s))
		}
		return segment{literal: s}, nil
	}
	name, closes := strings.CutSuffix(name, "}")
	name, greedy := strings.CutSuffix(name, "+")
	if !closes || !plainParameter(name) {
		return segment{}, fmt.Errorf("%s is not {name} or {name+}", shown(s))
	}
	return segment{name: name, greedy: greedy}, nil
}

func plainParameter(s string) bool {
	return placeholder.MatchString("{"+s+"}") && !strings.ContainsAny(s, "{}")
}

// split is the segments of a path; "/" has none.
func split(path string) []string {
	path = strings.TrimPrefix(path, "/")
	if path == "" {
		return nil
	}
	return strings.Split(path, "/")
}

// identity is the same for two keys that match the same requests.
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

// matches reports whether a path matches, and what its parameters are, as they stand in it. In a path that is encoded,
// literals are compared with what the segment decodes to: /%70roduct is /product.
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

// moreSpecific compares segment by segment from the left: a literal beats {name}, which beats {name+}.
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

// find picks the route of a request. A REST API finds the resource first, and then the method on it, so that a method
// that the most specific resource lacks is not looked for on others. An HTTP API looks for a route of the method first.
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

// beats says which of two routes that match a path is the one. $default never is where another matches.
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
