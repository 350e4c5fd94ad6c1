package stage

import (
	"errors"
	"math"
	"reflect"
	"strings"

	"github.com/sluicelimits/sluice/internal/configfile"
	"github.com/sluicelimits/sluice/internal/configfile/configyaml"
)

const (
	maxDescriptionBytes = 1 << 20
	maxProblems         = 50 // Check reports no more problems than this
)

// nouns maps the names of the struct types of a description to the nouns that messages use for them.
var nouns = map[string]string{
	"Description": "a description", "Authorizer": "an authorizer", "Route": "a route",
	"Integration": "an integration", "GatewayResponse": "a gateway response", "CORS": "a CORS setting",
	"Denial": "a statement of the resource policy",
}

// Problem is one thing that is wrong with a description. It has no Line if the description was not read from a file.
type Problem = configfile.Problem

// Error is every problem of one description.
type Error = configfile.Error

// Parse reads a description, YAML or JSON, and checks it. name is the name of the file in the *[Error] that it returns.
// An unknown key is a problem: if a setting were ignored, the local gateway would behave differently from API Gateway.
func Parse(name string, data []byte) (*Description, error) {
	r := &reader{at: make(map[string]configfile.Place)}
	r.MaxBytes = maxDescriptionBytes
	document := r.Open(configyaml.Source(name, data), "it needs kind, stage and routes")
	d := new(Description)
	if document.Root != nil {
		r.read(configfile.Value{Doc: document, Node: document.Root}, reflect.ValueOf(d).Elem())
	}
	if r.Found() == 0 {
		r.place(d.Check(), document)
	}
	if err := r.Err(); err != nil {
		return nil, err
	}
	return d, nil
}

// reader fills a description from a tree.
type reader struct {
	configfile.Reader
	at map[string]configfile.Place // the places of all values by their paths
}

// place reports the problems of a description, each with its place in the file. The place of a missing value is that of
// the innermost value around it.
func (r *reader) place(err error, document *configfile.Document) {
	var all *Error
	if !errors.As(err, &all) {
		return
	}
	for _, p := range all.Problems {
		place := configfile.Place{Doc: document, Path: p.Path}
		for path := p.Path; ; path = path[:max(strings.LastIndexAny(path, ".["), 0)] {
			if at, ok := r.at[path]; ok {
				place.Line, place.Column = at.Line, at.Column
				break
			}
			if path == "" {
				break
			}
		}
		r.ProblemAt(place, "%s", p.Message)
	}
}

// read sets into to a value of the file. It supports the kinds of types that occur in [Description].
func (r *reader) read(v configfile.Value, into reflect.Value) {
	r.at[v.Path] = v.Place()
	switch into.Kind() {
	case reflect.Pointer:
		into.Set(reflect.New(into.Type().Elem()))
		r.read(v, into.Elem())
	case reflect.Struct:
		r.readStruct(v, into)
	case reflect.Map:
		into.Set(reflect.MakeMap(into.Type()))
		o, _ := r.Object(v, &configfile.Schema{What: "entries by name"})
		for _, e := range o.Entries {
			one := reflect.New(into.Type().Elem()).Elem()
			r.read(e.Value, one)
			into.SetMapIndex(reflect.ValueOf(e.Key).Convert(into.Type().Key()), one)
		}
	case reflect.Slice:
		items, _ := r.List(v, "values")
		for _, item := range items {
			one := reflect.New(into.Type().Elem()).Elem()
			r.read(item, one)
			into.Set(reflect.Append(into, one))
		}
	case reflect.String:
		text, _ := r.Text(v)
		into.SetString(text)
	case reflect.Int:
		n, _ := r.Integer(v, math.MinInt32, math.MaxInt32)
		into.SetInt(n)
	case reflect.Bool:
		on, _ := r.Boolean(v)
		into.SetBool(on)
	default:
		panic("stage: a description holds a " + into.Kind().String())
	}
}

func (r *reader) readStruct(v configfile.Value, into reflect.Value) {
	fields := make(map[string]reflect.Value)
	schema := &configfile.Schema{What: nouns[into.Type().Name()]}
	for i := range into.NumField() {
		name := into.Type().Field(i).Tag.Get("yaml")
		fields[name] = into.Field(i)
		schema.Keys = append(schema.Keys, name)
	}
	o, _ := r.Object(v, schema)
	for _, e := range o.Entries {
		r.read(e.Value, fields[e.Key])
	}
}

// shown quotes a part of a description for a message.
func shown(s string) string { return configfile.Quote(s) }
