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

// Read reads a deployment file and fills in its defaults. name is the file's name in problems. The error is an *[Error]
// with all problems.
func Read(name string, data []byte) (*Deployment, error) {
	r := &reader{places: map[string]value{}}
	r.MaxBytes = maxFileBytes
	document := r.Open(configyaml.Source(name, data), "it needs control and cells")
	var d *Deployment
	if document.Root != nil {
		d = r.deployment(value{Doc: document, Node: document.Root})
		r.addCheckProblems(d.Complete(), document)
	}
	if err := r.Err(); err != nil {
		return nil, err
	}
	return d, nil
}

// value is a node of the file, with its path.
type value = configfile.Value

type reader struct {
	configfile.Reader
	places map[string]value // the values that were read, by path
}

// addCheckProblems adds the problems that Deployment.Complete found, with their positions in the file. The position of
// a missing key is that of the mapping that lacks it. A problem that follows from one that reading has already found is
// left out.
func (r *reader) addCheckProblems(err error, document *configfile.Document) {
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

// keys maps the keys of a mapping to the functions that read their values.
type keys map[string]func(value)

// mapping reads a mapping and reports unknown keys.
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

// number reads a decimal integer and refuses 0, which would be taken for "use the default".
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
