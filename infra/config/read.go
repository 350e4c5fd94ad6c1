package config

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Bounds of a file.
const (
	maxFileBytes = 256 << 10
	maxProblems  = 50 // that are told
	maxShown     = 60 // characters of a value that a problem repeats
)

// Read reads a deployment file, with its defaults filled in. Name is what problems call it by. The error is an *[Error], with
// everything that is wrong.
func Read(name string, data []byte) (*Deployment, error) {
	r := &reader{file: name, places: map[string]*yaml.Node{}}
	var d *Deployment
	if root, ok := r.root(data); ok {
		d = r.deployment(root)
		r.sense(d.Complete())
	}
	if len(r.found) == 0 {
		return d, nil
	}
	slices.SortStableFunc(r.found, func(a, b Problem) int {
		return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column))
	})
	return nil, &Error{r.found[:min(len(r.found), maxProblems)]}
}

type reader struct {
	file   string
	found  []Problem
	places map[string]*yaml.Node // of each path
}

// sense adds what makes no sense, with its place: that of the thing itself, or of what it is missing in. Where the file has a
// problem already, what follows from it is left out.
func (r *reader) sense(err error) {
	var all *Error
	if !errors.As(err, &all) {
		return
	}
	bad := map[string]bool{}
	for _, p := range r.found {
		bad[p.Path] = true
	}
	for _, p := range all.Problems {
		place, follows := (*yaml.Node)(nil), false
		for path := p.Path; ; path = path[:max(0, strings.LastIndexAny(path, ".["))] {
			n := r.places[path]
			if n != nil && place == nil {
				place = n
			}
			follows = follows || bad[path] && (path == p.Path || n != nil && n.Kind != yaml.MappingNode)
			if path == "" {
				break
			}
		}
		if follows {
			continue
		}
		p.File = r.file
		if place != nil {
			p.Line, p.Column = place.Line, place.Column
		}
		r.found = append(r.found, p)
	}
}

// value is a node and the way to it.
type value struct {
	node *yaml.Node
	path string
}

func (r *reader) problem(v value, format string, args ...any) {
	r.found = append(r.found, Problem{r.file, v.node.Line, v.node.Column, v.path, fmt.Sprintf(format, args...)})
}

// root is the one document of a file.
func (r *reader) root(data []byte) (value, bool) {
	whole := value{node: &yaml.Node{}}
	if len(data) > maxFileBytes {
		r.problem(whole, "has %d bytes, want at most %d", len(data), maxFileBytes)
		return value{}, false
	}
	decoder := yaml.NewDecoder(bytes.NewReader(data))
	var document, second yaml.Node
	err := decoder.Decode(&document)
	if err == nil && !errors.Is(decoder.Decode(&second), io.EOF) {
		r.problem(value{node: &second}, "a second document: want one")
		return value{}, false
	}
	switch {
	case errors.Is(err, io.EOF) || err == nil && len(document.Content) == 0:
		r.problem(whole, "is empty")
	case err != nil:
		r.syntax(err)
	default:
		return value{node: document.Content[0]}, true
	}
	return value{}, false
}

var yamlLine = regexp.MustCompile(`^yaml: (?:line (\d+): )?(.*)`)

// syntax has the line of an error of the YAML library where it should be.
func (r *reader) syntax(err error) {
	p := Problem{File: r.file, Message: strings.ReplaceAll(err.Error(), "\n", "; ")}
	if m := yamlLine.FindStringSubmatch(p.Message); m != nil {
		p.Message = "not YAML: " + m[2]
		if n, err := strconv.Atoi(m[1]); err == nil {
			p.Line, p.Column = n, 1
		}
	}
	r.found = append(r.found, p)
}

// keys are how each key of a mapping is read.
type keys map[string]func(value)

// mapping reads a mapping strictly.
func (r *reader) mapping(v value, what string, known keys) {
	r.places[v.path] = v.node
	if v.node.Kind != yaml.MappingNode {
		r.problem(v, "want %s (a mapping), got %s", what, describe(v.node))
		return
	}
	lines := map[string]int{}
	for i := 0; i+1 < len(v.node.Content); i += 2 {
		k := value{v.node.Content[i], v.path}
		key := k.node.Value
		read, ok := known[key]
		switch {
		case k.node.Kind != yaml.ScalarNode:
			r.problem(k, "a key must be a string, got %s", describe(k.node))
		case !ok:
			r.problem(k, "unknown key %s in %s; known: %s", shown(key), what, strings.Join(sorted(known), ", "))
		case lines[key] > 0:
			r.problem(k, "key %q is there twice, first at line %d", key, lines[key])
		default:
			lines[key] = k.node.Line
			inside := value{v.node.Content[i+1], strings.TrimPrefix(v.path+"."+key, ".")}
			r.places[inside.path] = inside.node
			read(inside)
		}
	}
}

func sorted(known keys) []string {
	var all []string
	for key := range known {
		all = append(all, key)
	}
	slices.Sort(all)
	return all
}

// list reads each item of a sequence.
func (r *reader) list(v value, what string, item func(value)) {
	if v.node.Kind != yaml.SequenceNode {
		r.problem(v, "want a list of %s, got %s", what, describe(v.node))
		return
	}
	for i, n := range v.node.Content {
		one := value{n, v.path + "[" + strconv.Itoa(i) + "]"}
		r.places[one.path] = n
		item(one)
	}
}

// number reads a decimal integer other than 0, which would be taken for the default.
func (r *reader) number(to *int) func(value) {
	return func(v value) {
		if r.numberOrZero(to)(v); v.node.Value == "0" {
			r.problem(v, "must not be 0")
		}
	}
}

func (r *reader) numberOrZero(to *int) func(value) {
	return func(v value) {
		n, err := strconv.Atoi(v.node.Value)
		if v.node.Kind != yaml.ScalarNode || v.node.ShortTag() != "!!int" || err != nil || strconv.Itoa(n) != v.node.Value {
			r.problem(v, "want a whole number, got %s", describe(v.node))
			return
		}
		*to = n
	}
}

func describe(n *yaml.Node) string {
	switch {
	case n.Kind == yaml.MappingNode:
		return "a mapping"
	case n.Kind == yaml.SequenceNode:
		return "a list"
	case n.Kind == yaml.AliasNode:
		return "an alias (*), which is not supported here"
	case n.ShortTag() == "!!null":
		return "nothing"
	default:
		return shown(n.Value)
	}
}

func shown(s string) string {
	if r := []rune(s); len(r) > maxShown {
		s = string(r[:maxShown]) + "…"
	}
	return strconv.Quote(s)
}
