package apigateway

import (
	"fmt"
	"net/url"
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

// parseKey parses the key of a route: "METHOD /path", or "$default" or "$connect".
func parseKey(key string) (*target, error) {
	if key == connectRoute || key == defaultStage { // the catch-all route and the default stage have the same name
		return &target{}, nil
	}
	method, path, ok := strings.Cut(key, " ")
	if !ok || !strings.HasPrefix(path, "/") {
		return nil, fmt.Errorf(`%q is not "METHOD /path"`, key)
	}
	t := &target{method: method, path: path}
	if method == "ANY" {
		t.method = ""
	}
	for _, part := range split(path) {
		s := segment{literal: part}
		if name, ok := strings.CutPrefix(part, "{"); ok {
			name, s.greedy = strings.CutSuffix(strings.TrimSuffix(name, "}"), "+")
			s.name, s.literal = name, ""
		}
		t.segments = append(t.segments, s)
	}
	return t, nil
}

// split returns the segments of a path; "/" has none.
func split(path string) []string {
	path = strings.TrimPrefix(path, "/")
	if path == "" {
		return nil
	}
	return strings.Split(path, "/")
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
