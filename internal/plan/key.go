package plan

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
)

// key declares one key of a mapping in a plans file. What reads the key, applies overrides, explains limits and reports
// what a change weakens goes by this declaration, and so does the key's row in docs/plans.md, the reference. S is the
// struct that the mapping is read into.
type key[S any] struct {
	name  string
	kind  string // for the reference: how the value is written; if "", bind takes the text of its kind
	usual string // for the reference: the default; if "" and need is set, the reference says "required"
	doc   string // for the reference: what the key does
	need  string // what a problem says is needed if the key is missing; "": the key is optional

	// Only keys of a limit have these three.
	byForm   bool   // formOf reads the key: only some ways of counting have it, or it must be read before others
	override string // for the reference: the limits in which a tenant may override it; "": none
	notInIP  string // the problem if the key is used in ipLimits; "": it is allowed there

	read    func(r *reader, o object, s *S, layer, need string) // stores the key's value from o in s
	replace func(s, by *S)                                      // copies the value from by to s, if by has the key
	mark    func(s *S) mark                                     // where the key's value in s was written
	into    func(s *S, l *limit.Limit)                          // copies the key's value from s to a limit
	text    func(e *Effective) string                           // the line that explain shows; "": none
	ifSet   bool                                                // explain shows the key only if it was set
	list    func(l *lister)                                     // in place of text, for several lines
	loss    func(old, now *limit.Limit) string                  // how now is weaker than old; "": it is not
}

// kind says how a value is written, and reads it. read returns false if the value is invalid.
type kind[T any] struct {
	text string // for the reference
	read func(*reader, value) (T, bool)
}

var (
	idKind       = kind[string]{"id", (*reader).id}
	tenantKind   = named("tenant id")
	unitsKind    = kind[int64]{"units", (*reader).units}
	durationKind = kind[time.Duration]{"duration", (*reader).duration}
	instantKind  = kind[time.Time]{"time", (*reader).instant}
	booleanKind  = kind[bool]{"true or false", func(r *reader, v value) (bool, bool) { return r.Boolean(v) }}
)

func named(what string) kind[string] {
	return kind[string]{"name", func(r *reader, v value) (string, bool) { return r.name(v, what) }}
}

func between(low, high int64) kind[int] {
	return kind[int]{fmt.Sprintf("%d to %d", low, high), func(r *reader, v value) (int, bool) {
		n, ok := r.Integer(v, low, high)
		return int(n), ok
	}}
}

func oneOf[T any](parse func(string) (T, bool), words ...string) kind[T] {
	return kind[T]{"`" + strings.Join(words, "`, `") + "`", func(r *reader, v value) (T, bool) {
		return choice(r, v, parse, words)
	}}
}

// valueOf reads the value of a key that is present.
func valueOf[T any](r *reader, v value, layer string, as kind[T]) field[T] {
	got, ok := as.read(r, v)
	return field[T]{v: got, set: true, bad: !ok, from: placeOf(v, layer)}
}

// bind returns k with the functions that keep its value in one field of S, which the function of returns.
func bind[S, T any](k key[S], as kind[T], of func(*S) *field[T]) key[S] {
	if k.kind == "" {
		k.kind = as.text
	}
	k.read = func(r *reader, o object, s *S, layer, need string) {
		if v, ok := o.Get(k.name); ok {
			*of(s) = valueOf(r, v, layer, as)
		} else if need != "" {
			r.Required(o, k.name, need)
			*of(s) = field[T]{bad: true, from: placeOf(o.Value, layer)}
		}
	}
	k.replace = func(s, by *S) {
		if f := of(by); f.set {
			*of(s) = *f
		}
	}
	k.mark = func(s *S) mark { return markOf(of(s)) }
	return k
}

// mapping declares the keys of one mapping of a plans file, in the order of the reference and of problems.
type mapping[S any] struct {
	schema
	keys []*key[S]
}

// mappingOf returns a mapping with these keys. Problems call it what. refused has the problems of keys that are not
// supported there.
func mappingOf[S any](what string, refused map[string]string, keys ...key[S]) *mapping[S] {
	m := &mapping[S]{schema: schema{What: what, Refused: refused}}
	for i := range keys {
		m.Keys, m.keys = append(m.Keys, keys[i].name), append(m.keys, &keys[i])
	}
	return m
}

// read reads a mapping into s, except for the keys that formOf reads.
func (m *mapping[S]) read(r *reader, v value, s *S, layer string) (object, bool) {
	o, ok := r.Object(v, &m.schema)
	if ok {
		m.take(r, o, s, layer)
	}
	return o, ok
}

// take reads the named keys; without names, it reads all but those with byForm.
func (m *mapping[S]) take(r *reader, o object, s *S, layer string, names ...string) {
	for _, k := range m.keys {
		if k.read != nil && (slices.Contains(names, k.name) || len(names) == 0 && !k.byForm) {
			k.read(r, o, s, layer, k.need)
		}
	}
}
