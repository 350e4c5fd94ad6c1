package plan

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
)

// reader collects what the sources hold, and everything that is wrong with it.
type reader struct {
	documents []*document
	found     []ordered
	warned    []ordered
	now       time.Time
	draft     bool   // plans and tenants that the sources name may be elsewhere: see Draft
	stored    bool   // a stored document is read: what holds only of the moment of writing is not asked again
	nodes     int    // upper bound of the nodes in all documents
	visited   int    // nodes looked at, aliases followed each time
	exhausted bool   // visited passed its bound: nothing more is read
	overflow  *place // where a problem beyond maxProblems was
}

// value is a node with its place.
type value struct {
	doc  *document
	node *yaml.Node // never an alias
	path string
}

// place is where something was written, without its node, so that the tree can be dropped.
type place struct {
	doc          *document
	line, column int
	path         string
	layer        string // who says so: "plan pro", "override of tenant acme"
}

func (v value) place(layer string) place {
	return place{v.doc, v.node.Line, v.node.Column, v.path, layer}
}

// field is a setting that may be there, and its place.
type field[T any] struct {
	v    T
	set  bool // it is there (and may be bad)
	bad  bool // it is there and unreadable, or missed; v is then a stand-in
	from place
}

func (r *reader) problem(v value, format string, args ...any) {
	r.problemAt(v.place(""), format, args...)
}

func (r *reader) problemAt(at place, format string, args ...any) {
	if len(r.found) >= maxProblems {
		r.overflow = &at
		return
	}
	r.found = append(r.found, at.says(format, args...))
}

func (r *reader) warnAt(at place, format string, args ...any) {
	r.warned = append(r.warned, at.says(format, args...))
}

func (at place) says(format string, args ...any) ordered {
	return ordered{Problem{at.doc.name, at.line, at.column, at.path, fmt.Sprintf(format, args...)}, at.doc.number}
}

// at resolves aliases. The schema has no recursion, so one that contains itself ends where the schema does.
func (r *reader) at(doc *document, n *yaml.Node, path string) value {
	for range 100 {
		if n.Kind != yaml.AliasNode || n.Alias == nil {
			break
		}
		n = n.Alias
	}
	return value{doc, n, path}
}

// spend counts nodes that are looked at; a few lines of aliases can stand for billions.
func (r *reader) spend(v value) bool {
	if r.visited += len(v.node.Content); r.visited <= r.nodes+maxAliased {
		return true
	}
	if !r.exhausted {
		r.exhausted = true
		r.problem(v, "aliases expand to more than %d values", maxAliased)
	}
	return false
}

// schema names the keys of a mapping.
type schema struct {
	what    string // as in "a limit"
	keys    []string
	refused map[string]string // keys that have an answer of their own
}

type entry struct {
	key string
	value
}

type object struct {
	value
	entries []entry
}

func (o object) get(key string) (value, bool) {
	for i := range o.entries {
		if o.entries[i].key == key {
			return o.entries[i].value, true
		}
	}
	return value{}, false
}

// object reads a mapping strictly. Keys that are not in the schema are problems and are left out.
func (r *reader) object(v value, s *schema) (object, bool) {
	o := object{value: v}
	if v.node.Kind != yaml.MappingNode {
		r.problem(v, "want %s (a mapping), got %s", s.what, describe(v.node))
		return o, false
	}
	if !r.spend(v) {
		return o, false
	}
	o.entries = make([]entry, 0, len(v.node.Content)/2)
	for i := 0; i+1 < len(v.node.Content); i += 2 {
		k := r.at(v.doc, v.node.Content[i], v.path)
		if k.node.Kind != yaml.ScalarNode {
			r.problem(k, "a key must be a string, got %s", describe(k.node))
			continue
		}
		if k.node.ShortTag() == "!!merge" {
			r.problem(k, "merge keys (<<) are not supported: write the keys out")
			continue
		}
		if key := k.node.Value; r.knows(k, key, s, &o) {
			path := key
			if v.path != "" {
				path = v.path + "." + key
			}
			o.entries = append(o.entries, entry{key, r.at(v.doc, v.node.Content[i+1], path)})
		}
	}
	return o, true
}

func (r *reader) knows(k value, key string, s *schema, o *object) bool {
	if !slices.Contains(s.keys, key) {
		if why := s.refused[key]; why != "" {
			r.problem(k, "%s: %s", key, why)
		} else if near := nearest(key, s.keys); near != "" {
			r.problem(k, "unknown key %s in %s (did you mean %q?)", quote(key), s.what, near)
		} else {
			r.problem(k, "unknown key %s in %s; known: %s", quote(key), s.what, strings.Join(s.keys, ", "))
		}
		return false
	}
	if first, twice := o.get(key); twice {
		r.problem(k, "key %q is there twice, first at line %d", key, first.node.Line)
		return false
	}
	return true
}

// list reads a sequence.
func (r *reader) list(v value, what string) ([]value, bool) {
	if v.node.Kind != yaml.SequenceNode {
		r.problem(v, "want a list of %s, got %s", what, describe(v.node))
		return nil, false
	}
	if !r.spend(v) {
		return nil, false
	}
	items := make([]value, len(v.node.Content))
	for i, n := range v.node.Content {
		items[i] = r.at(v.doc, n, v.path+"["+strconv.Itoa(i)+"]")
	}
	return items, true
}

// required is get, and a problem where the key is not there.
func (r *reader) required(o object, key, what string) (value, bool) {
	v, ok := o.get(key)
	if !ok {
		r.problem(o.value, "%s is missing: %s", key, what)
	}
	return v, ok
}

func (r *reader) text(v value) (string, bool) {
	if v.node.Kind != yaml.ScalarNode || v.node.ShortTag() != "!!str" {
		hint := ""
		if v.node.Kind == yaml.ScalarNode && v.node.ShortTag() != "!!null" && v.node.Style&yaml.TaggedStyle == 0 {
			hint = fmt.Sprintf(": write it in quotes, %s", quote(v.node.Value))
		}
		r.problem(v, "want a string, got %s%s", describe(v.node), hint)
		return "", false
	}
	return v.node.Value, true
}

// name reads text for people and machines alike: 1 to MaxNameBytes bytes without control characters.
func (r *reader) name(v value, what string) (string, bool) {
	s, ok := r.text(v)
	switch {
	case !ok:
		return s, false
	case s == "":
		r.problem(v, "the %s is empty", what)
	case len(s) > limit.MaxNameBytes:
		r.problem(v, "the %s has %d bytes, want at most %d", what, len(s), limit.MaxNameBytes)
	case !utf8.ValidString(s):
		r.problem(v, "the %s is not valid UTF-8", what)
	case strings.ContainsFunc(s, unicode.IsControl):
		r.problem(v, "the %s %s holds a control character", what, quote(s))
	default:
		return s, true
	}
	return s, false
}

// id reads an id of plans, limits and the like.
func (r *reader) id(v value) (string, bool) {
	s, ok := r.text(v)
	if ok && !limit.ValidID(s) {
		r.problem(v, "id %s is not 1 to 64 of A-Z a-z 0-9 . _ -", quote(s))
		return s, false
	}
	return s, ok
}

func (r *reader) boolean(v value) (on, ok bool) {
	if v.node.Kind == yaml.ScalarNode && v.node.ShortTag() == "!!bool" {
		switch v.node.Value {
		case "true", "True", "TRUE":
			return true, true
		case "false", "False", "FALSE":
			return false, true
		}
	}
	r.problem(v, "want true or false, got %s", describe(v.node))
	return false, false
}

// integer reads a decimal integer within low..high.
func (r *reader) integer(v value, low, high int64) (int64, bool) {
	tag := ""
	if v.node.Kind == yaml.ScalarNode {
		tag = v.node.ShortTag()
	}
	if tag != "!!int" && tag != "!!float" {
		r.problem(v, "want an integer, got %s", describe(v.node))
		return 0, false
	}
	n, err := strconv.ParseInt(strings.ReplaceAll(v.node.Value, "_", ""), 10, 64)
	switch {
	case !plainInteger(v.node.Value):
		r.problem(v, "%s is not a decimal integer", clip(v.node.Value))
		return 0, false
	case err != nil:
		r.problem(v, "%s is past what 64 bits hold", clip(v.node.Value))
		return 0, false
	case n < low || n > high:
		r.problem(v, "%d is outside %d to %d", n, low, high)
		return 0, false
	}
	return n, true
}

// plainInteger refuses what YAML would read as another number than it looks: 010 is eight there, 1e3 a float.
func plainInteger(s string) bool {
	s = strings.TrimLeft(s, "+-")
	if s == "" || (len(s) > 1 && s[0] == '0') || s[0] == '_' {
		return false
	}
	return strings.IndexFunc(s, func(c rune) bool { return (c < '0' || c > '9') && c != '_' }) < 0
}

// units reads a number of units.
func (r *reader) units(v value) (int64, bool) { return r.integer(v, 1, limit.MaxUnits) }

// duration reads 500ms, 10s, 1m, 24h; a bare integer is seconds.
func (r *reader) duration(v value) (time.Duration, bool) {
	if v.node.Kind == yaml.ScalarNode && v.node.ShortTag() == "!!int" {
		n, ok := r.integer(v, math.MinInt64, math.MaxInt64)
		if ok && (n < 1 || n > int64(limit.MaxPeriod/time.Second)) {
			r.problem(v, "%d seconds is not within %s to %s", n, limit.MinPeriod, limit.DurationText(limit.MaxPeriod))
			ok = false
		}
		return time.Duration(n) * time.Second, ok
	}
	if v.node.Kind != yaml.ScalarNode || v.node.ShortTag() != "!!str" {
		r.problem(v, "want a duration such as 500ms, 10s, 1m or 24h, got %s", describe(v.node))
		return 0, false
	}
	d, err := time.ParseDuration(v.node.Value)
	switch {
	case err != nil:
		r.problem(v, "%s is not a duration: write 500ms, 10s, 1m or 24h", quote(v.node.Value))
		return 0, false
	case d < limit.MinPeriod || d > limit.MaxPeriod || d%time.Millisecond != 0:
		r.problem(v, "%s is not whole milliseconds within %s to %s",
			clip(v.node.Value), limit.MinPeriod, limit.DurationText(limit.MaxPeriod))
		return 0, false
	}
	return d, true
}

// instant reads a time of RFC 3339, which names its offset.
func (r *reader) instant(v value) (time.Time, bool) {
	if v.node.Kind == yaml.ScalarNode && (v.node.ShortTag() == "!!timestamp" || v.node.ShortTag() == "!!str") {
		if at, err := time.Parse(time.RFC3339, v.node.Value); err == nil {
			return at.UTC(), true
		}
		r.problem(v, "%s is not a time of RFC 3339: write 2026-12-01T00:00:00Z", quote(v.node.Value))
		return time.Time{}, false
	}
	r.problem(v, "want a time such as 2026-12-01T00:00:00Z, got %s", describe(v.node))
	return time.Time{}, false
}

// choice reads one of a list of words.
func choice[T any](r *reader, v value, parse func(string) (T, bool), words []string) (T, bool) {
	var zero T
	s, ok := r.text(v)
	if !ok {
		return zero, false
	}
	if got, ok := parse(s); ok {
		return got, true
	}
	if near := nearest(s, words); near != "" {
		r.problem(v, "unknown %s (did you mean %q?); want one of %s", quote(s), near, strings.Join(words, ", "))
	} else {
		r.problem(v, "unknown %s; want one of %s", quote(s), strings.Join(words, ", "))
	}
	return zero, false
}

// describe says what a node is, for "got …".
func describe(n *yaml.Node) string {
	switch n.Kind {
	case yaml.MappingNode:
		return "a mapping"
	case yaml.SequenceNode:
		return "a list"
	case yaml.ScalarNode:
	default:
		return "nothing"
	}
	switch n.ShortTag() {
	case "!!null":
		return "nothing"
	case "!!int":
		return "the integer " + clip(n.Value)
	case "!!float":
		return "the number " + clip(n.Value)
	case "!!bool":
		return "the boolean " + clip(n.Value)
	case "!!timestamp":
		return "the time " + clip(n.Value)
	case "!!str":
		return "the string " + quote(n.Value)
	}
	return "a value tagged " + clip(n.ShortTag())
}

const clipped = 60 // characters of the file's text in a message

func clip(s string) string {
	if utf8.RuneCountInString(s) <= clipped {
		return s
	}
	return string([]rune(s)[:clipped]) + "…"
}

func quote(s string) string { return strconv.Quote(clip(s)) }
