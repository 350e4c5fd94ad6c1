package plan

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
)

// key declares one key of a mapping of a plans file. How the key is read, how an override replaces it, what explain and
// the losses of a change say of it, and its row in docs/plans.md follow from the declaration. S is what the mapping is
// read into.
type key[S any] struct {
	name  string
	kind  string // for the reference: how the value is written; if empty, bind takes it from the kind
	usual string // for the reference: the default; if empty, a key with need is "required"
	doc   string // for the reference
	need  string // what is wanted, if the key must be there

	// Of the keys of a limit.
	byForm   bool   // formOf reads the key: it belongs to some ways of counting, or is wanted first
	override string // for the reference: of which limits a tenant may change it; "": of none
	notInIP  string // what ipLimits answer to the key; "": they have it

	read    func(r *reader, o object, s *S, layer, need string) // stores in s what o has under the key
	replace func(s, by *S)                                      // stores in s what by has, if by has the key
	mark    func(s *S) mark                                     // where the value of s was written
	into    func(s *S, l *limit.Limit)                          // stores the value of s in a limit
	text    func(e *Effective) string                           // what explain shows; "": no line
	ifSet   bool                                                // explain does not show the default
	list    func(l *lister)                                     // shows several lines in place of text
	loss    func(old, now *limit.Limit) string                  // how now protects less than old; "": it does not
}

// kind is how a value is written and read.
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

// valueOf reads a value that is there.
func valueOf[T any](r *reader, v value, layer string, as kind[T]) field[T] {
	got, ok := as.read(r, v)
	return field[T]{v: got, set: true, bad: !ok, from: placeOf(v, layer)}
}

// bind completes the declaration of a key whose value is kept in the field of S that of returns.
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

// mappingOf returns a mapping. what names it in problems, and refused has answers to keys that it does not have.
func mappingOf[S any](what string, refused map[string]string, keys ...key[S]) *mapping[S] {
	m := &mapping[S]{schema: schema{What: what, Refused: refused}}
	for i := range keys {
		m.Keys, m.keys = append(m.Keys, keys[i].name), append(m.keys, &keys[i])
	}
	return m
}

// read reads a mapping into s.
func (m *mapping[S]) read(r *reader, v value, s *S, layer string) (object, bool) {
	o, ok := r.Object(v, &m.schema)
	if ok {
		m.take(r, o, s, layer)
	}
	return o, ok
}

// take reads the keys of those names; without names all but those that formOf reads.
func (m *mapping[S]) take(r *reader, o object, s *S, layer string, names ...string) {
	for _, k := range m.keys {
		if k.read != nil && (slices.Contains(names, k.name) || len(names) == 0 && !k.byForm) {
			k.read(r, o, s, layer, k.need)
		}
	}
}
