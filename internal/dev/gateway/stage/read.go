package stage

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// The bounds of a description's text. A few lines of aliases can stand for billions of values.
const (
	maxDescriptionBytes = 1 << 20
	maxValues           = 100_000
	maxProblems         = 50
)

// Problem is one thing that is wrong with a description.
type Problem struct {
	File         string
	Line, Column int    // from 1; 0 where the description was not read from a file, or the file as a whole is meant
	Path         string // as in routes[0].integration.url
	Message      string
}

// String is "file:line:column: path: message". What is not known is left out.
func (p Problem) String() string {
	var b strings.Builder
	if p.File != "" {
		b.WriteString(p.File)
		if p.Line > 0 {
			b.WriteString(":" + strconv.Itoa(p.Line) + ":" + strconv.Itoa(p.Column))
		}
		b.WriteString(": ")
	}
	if p.Path != "" {
		b.WriteString(p.Path + ": ")
	}
	b.WriteString(p.Message)
	return b.String()
}

// Error is every problem of one description.
type Error struct{ Problems []Problem }

// Error joins the problems, a line each.
func (e *Error) Error() string {
	lines := make([]string, len(e.Problems))
	for i, p := range e.Problems {
		lines[i] = p.String()
	}
	return strings.Join(lines, "\n")
}

// Parse reads a description, YAML or JSON, and checks it. name is the file's, for the *[Error] that it returns. Keys that it
// does not know are problems: a setting that is ignored would make the stand-in lie.
func Parse(name string, data []byte) (*Description, error) {
	r := &reader{file: name, at: make(map[string]*yaml.Node)}
	if len(data) > maxDescriptionBytes {
		return nil, r.whole("%d bytes, at most %d are read", len(data), maxDescriptionBytes)
	}
	decoder := yaml.NewDecoder(bytes.NewReader(data))
	var root, more yaml.Node
	switch err := decoder.Decode(&root); {
	case errors.Is(err, io.EOF):
		return nil, r.whole("the file is empty")
	case err != nil:
		return nil, r.whole("%s", strings.TrimPrefix(err.Error(), "yaml: "))
	}
	if err := decoder.Decode(&more); !errors.Is(err, io.EOF) {
		return nil, r.whole("want one document, got more")
	}
	d := new(Description)
	r.read(root.Content[0], "", reflect.ValueOf(d).Elem())
	if len(r.problems) > 0 {
		return nil, &Error{r.problems}
	}
	if err := d.Check(); err != nil {
		var e *Error
		if !errors.As(err, &e) {
			return nil, err
		}
		r.place(e.Problems)
		return nil, e
	}
	return d, nil
}

// reader fills a description from a tree.
type reader struct {
	file     string
	at       map[string]*yaml.Node // by path
	problems []Problem
	values   int
}

func (r *reader) whole(format string, args ...any) error {
	return &Error{[]Problem{{File: r.file, Message: fmt.Sprintf(format, args...)}}}
}

func (r *reader) problem(n *yaml.Node, path, format string, args ...any) {
	if len(r.problems) < maxProblems {
		r.problems = append(r.problems, Problem{r.file, n.Line, n.Column, path, fmt.Sprintf(format, args...)})
	}
}

// place puts the place of each problem beside its path: the one of the nearest value that is there.
func (r *reader) place(problems []Problem) {
	for i := range problems {
		p := &problems[i]
		p.File = r.file
		for path := p.Path; ; path = path[:max(strings.LastIndexAny(path, ".["), 0)] {
			if n := r.at[path]; n != nil {
				p.Line, p.Column = n.Line, n.Column
				break
			}
			if path == "" {
				break
			}
		}
	}
	slices.SortStableFunc(problems, func(a, b Problem) int { return a.Line - b.Line })
}

// read fills one value. Which kinds there are, the types of [Description] say.
func (r *reader) read(n *yaml.Node, path string, into reflect.Value) {
	for n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	if r.values++; r.values > maxValues {
		if r.values == maxValues+1 {
			r.problem(n, path, "aliases expand to more than %d values", maxValues)
		}
		return
	}
	r.at[path] = n
	switch into.Kind() {
	case reflect.Pointer:
		into.Set(reflect.New(into.Type().Elem()))
		r.read(n, path, into.Elem())
	case reflect.Struct:
		r.readStruct(n, path, into)
	case reflect.Map:
		into.Set(reflect.MakeMap(into.Type()))
		r.each(n, path, func(key, value *yaml.Node, at string) {
			v := reflect.New(into.Type().Elem()).Elem()
			r.read(value, at, v)
			into.SetMapIndex(reflect.ValueOf(key.Value).Convert(into.Type().Key()), v)
		})
	case reflect.Slice:
		if n.Kind != yaml.SequenceNode {
			r.problem(n, path, "want a list, got %s", describe(n))
			return
		}
		for i, item := range n.Content {
			v := reflect.New(into.Type().Elem()).Elem()
			r.read(item, path+"["+strconv.Itoa(i)+"]", v)
			into.Set(reflect.Append(into, v))
		}
	default:
		r.readScalar(n, path, into)
	}
}

func (r *reader) readScalar(n *yaml.Node, path string, into reflect.Value) {
	switch into.Kind() {
	case reflect.String:
		if n.Kind != yaml.ScalarNode || n.ShortTag() != "!!str" {
			r.problem(n, path, "want a string, got %s", describe(n))
			return
		}
		into.SetString(n.Value)
	case reflect.Int:
		i, err := strconv.Atoi(n.Value)
		if n.Kind != yaml.ScalarNode || n.ShortTag() != "!!int" || err != nil {
			r.problem(n, path, "want a whole number, got %s", describe(n))
			return
		}
		into.SetInt(int64(i))
	case reflect.Bool:
		if n.Kind != yaml.ScalarNode || n.ShortTag() != "!!bool" {
			r.problem(n, path, "want true or false, got %s", describe(n))
			return
		}
		into.SetBool(strings.EqualFold(n.Value, "true"))
	default:
		panic("stage: a description holds a " + into.Kind().String())
	}
}

func (r *reader) readStruct(n *yaml.Node, path string, into reflect.Value) {
	fields := make(map[string]reflect.Value)
	var names []string
	for i := range into.NumField() {
		name := into.Type().Field(i).Tag.Get("yaml")
		fields[name] = into.Field(i)
		names = append(names, name)
	}
	r.each(n, path, func(key, value *yaml.Node, at string) {
		field, ok := fields[key.Value]
		if !ok {
			r.problem(key, at, "not known; there are %s", strings.Join(names, ", "))
			return
		}
		r.read(value, at, field)
	})
}

// each goes through a mapping whose keys are strings, each there once.
func (r *reader) each(n *yaml.Node, path string, do func(key, value *yaml.Node, at string)) {
	if n.Kind != yaml.MappingNode {
		r.problem(n, path, "want a mapping, got %s", describe(n))
		return
	}
	seen := make(map[string]bool)
	for i := 0; i+1 < len(n.Content); i += 2 {
		key := n.Content[i]
		at := key.Value
		if path != "" {
			at = path + "." + key.Value
		}
		switch tag := key.ShortTag(); {
		case key.Kind != yaml.ScalarNode || tag == "!!merge":
			r.problem(key, path, "a key must be a string")
		case seen[key.Value]:
			r.problem(key, at, "stands here twice")
		default:
			seen[key.Value] = true
			do(key, n.Content[i+1], at)
		}
	}
}

func describe(n *yaml.Node) string {
	switch {
	case n.Kind == yaml.MappingNode:
		return "a mapping"
	case n.Kind == yaml.SequenceNode:
		return "a list"
	case n.ShortTag() == "!!null":
		return "nothing"
	}
	return shown(n.Value)
}

// shown is a part of a description for a message.
func shown(s string) string {
	const most = 60
	if r := []rune(s); len(r) > most {
		s = string(r[:most]) + "…"
	}
	return strconv.Quote(s)
}
