package audit

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Field is a difference between two bodies: a value that is new, removed, or changed.
type Field struct {
	Path   string `json:"path"`             // as in limits[burst].rate; unusual names of members are quoted
	Before string `json:"before,omitempty"` // JSON; empty if there was no value
	After  string `json:"after,omitempty"`  // JSON; empty if there is no value
}

// Diff lists the differences between two bodies, field by field: first the paths of the old body, then those that only
// the new one has. A body may be empty. Elements of a list with ids are compared by id, so that moving one is not a
// change; others are compared by index.
func Diff(old, now json.RawMessage) []Field {
	before, after := flat(old), flat(now)
	var all []Field
	for _, path := range before.paths {
		if b, a := before.values[path], after.values[path]; a != b {
			all = append(all, Field{path, b, a})
		}
	}
	for _, path := range after.paths {
		if _, was := before.values[path]; !was {
			all = append(all, Field{path, "", after.values[path]})
		}
	}
	return all
}

// values holds the leaves of a body by path.
type values struct {
	paths  []string
	values map[string]string
}

func flat(body json.RawMessage) *values {
	v := &values{values: make(map[string]string)}
	if len(body) == 0 {
		return v
	}
	var tree any
	d := json.NewDecoder(bytes.NewReader(body))
	d.UseNumber() // keeps numbers as they are written
	if err := d.Decode(&tree); err != nil {
		v.put("", string(body)) // not reached: bodies are canonical JSON
		return v
	}
	v.add("", tree)
	return v
}

func (v *values) put(path, value string) {
	if _, there := v.values[path]; !there {
		v.paths = append(v.paths, path)
	}
	v.values[path] = value
}

func (v *values) add(path string, tree any) {
	switch tree := tree.(type) {
	case map[string]any:
		if len(tree) == 0 && path != "" { // a body without members has no fields
			v.put(path, "{}")
		}
		for _, name := range ordered(tree) {
			at := member(name)
			if path != "" && !strings.HasPrefix(at, "[") {
				at = "." + at
			}
			v.add(path+at, tree[name])
		}
	case []any:
		if len(tree) == 0 {
			v.put(path, "[]")
		}
		seen := make(map[string]bool)
		for i, e := range tree {
			at := fmt.Sprintf("[%d]", i)
			if id := idOf(e); id != "" && !seen[id] {
				seen[id] = true
				at = "[" + word(id) + "]"
			}
			v.add(path+at, e)
		}
	default:
		text, err := json.Marshal(tree)
		if err != nil { // not reached: tree was decoded from JSON
			text = []byte("?")
		}
		v.put(path, string(text))
	}
}

// ordered returns the names of an object's members, id first.
func ordered(o map[string]any) []string {
	return slices.SortedFunc(maps.Keys(o), func(x, y string) int {
		switch "id" {
		case x:
			return -1
		case y:
			return 1
		}
		return strings.Compare(x, y)
	})
}

func idOf(e any) string {
	o, _ := e.(map[string]any)
	id, _ := o["id"].(string)
	return id
}

func member(name string) string {
	if w := word(name); w != name {
		return "[" + w + "]"
	}
	return name
}

// word returns a name as it is, or quoted if it could be mistaken for something else; an id that is a number could be
// an index.
func word(s string) string {
	plain := s != "" && (s[0] < '0' || s[0] > '9')
	for _, c := range []byte(s) {
		plain = plain && (c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '-' || c == '_')
	}
	if plain {
		return s
	}
	return fmt.Sprintf("%q", s)
}
