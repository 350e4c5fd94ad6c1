package config

import (
	"errors"
	"reflect"
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
		d = &Deployment{}
		r.fill(value{Doc: document, Node: document.Root}, reflect.ValueOf(d).Elem(), false)
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
