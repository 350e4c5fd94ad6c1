package config

import (
	"errors"
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/sluicelimits/sluice/internal/configfile"
	"github.com/sluicelimits/sluice/internal/configfile/configyaml"
)

const maxFileBytes = 256 << 10

// Read reads a deployment file, with its defaults filled in. Name is what problems call it by. The error is an
// *[Error], with everything that is wrong.
func Read(name string, data []byte) (*Deployment, error) {
	r := &reader{places: map[string]value{}}
	r.MaxBytes = maxFileBytes
	document := r.Open(configyaml.Source(name, data), "it needs control and cells")
	var d *Deployment
	if document.Root != nil {
		d = r.deployment(value{Doc: document, Node: document.Root})
		r.sense(d.Complete(), document)
	}
	if err := r.Err(); err != nil {
		return nil, err
	}
	return d, nil
}

// value is a node and the way to it.
type value = configfile.Value

type reader struct {
	configfile.Reader
	places map[string]value // of each path
}

// sense adds what makes no sense, with its place: that of the thing itself, or of what it is missing in. Where the file
// has a problem already, what follows from it is left out.
func (r *reader) sense(err error, document *configfile.Document) {
	var all, before *Error
	if !errors.As(err, &all) {
		return
	}
	bad := map[string]bool{}
	if errors.As(r.Err(), &before) {
		for _, p := range before.Problems {
			bad[p.Path] = true
		}
	}
	for _, p := range all.Problems {
		place, follows := configfile.Place{Doc: document, Path: p.Path}, false
		for path := p.Path; ; path = path[:max(0, strings.LastIndexAny(path, ".["))] {
			v, there := r.places[path]
			if there && place.Line == 0 {
				place.Line, place.Column = v.Node.Line, v.Node.Column
			}
			follows = follows || bad[path] && (path == p.Path || there && v.Node.Kind != configfile.Mapping)
			if path == "" {
				break
			}
		}
		if !follows {
			r.ProblemAt(place, "%s", p.Message)
		}
	}
}

// keys are how each key of a mapping is read.
type keys map[string]func(value)

// mapping reads a mapping strictly.
func (r *reader) mapping(v value, what string, known keys) {
	r.places[v.Path] = v
	o, _ := r.Object(v, &configfile.Schema{What: what, Keys: slices.Sorted(maps.Keys(known))})
	for _, e := range o.Entries {
		r.places[e.Path] = e.Value
		known[e.Key](e.Value)
	}
}

// list reads each item of a list.
func (r *reader) list(v value, what string, item func(value)) {
	items, _ := r.List(v, what)
	for _, one := range items {
		r.places[one.Path] = one
		item(one)
	}
}

// number reads a decimal integer other than 0, which would be taken for the default.
func (r *reader) number(to *int) func(value) {
	return func(v value) {
		if r.numberOrZero(to)(v); v.Node.Text == "0" {
			r.Problem(v, "must not be 0")
		}
	}
}

func (r *reader) numberOrZero(to *int) func(value) {
	return func(v value) {
		if n, ok := r.Integer(v, math.MinInt32, math.MaxInt32); ok {
			*to = int(n)
		}
	}
}
