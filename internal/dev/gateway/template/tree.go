package template

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
)

// Bounds of a template.
const (
	maxBytes    = 1 << 20 // CloudFormation's own bound
	maxDepth    = 64      // levels of values inside each other; templates of `cdk synth` have fewer than 20
	maxProblems = 50      // more are not reported
)

type form uint8

const (
	null form = iota
	text
	number
	boolean
	list
	object
)

// node is a value of the template, with its place in the file.
type node struct {
	form   form
	text   string // of texts, numbers and booleans
	items  []*node
	names  []string // of an object, in order
	fields map[string]*node
	offset int64 // in the file: after the value's first token
}

// readTree reads JSON. Unlike encoding/json, it returns an error for an object that has two members of one name.
func readTree(data []byte) (*node, error) {
	if len(data) > maxBytes {
		return nil, fmt.Errorf("the template has %d bytes; want at most %d", len(data), maxBytes)
	}
	d := json.NewDecoder(bytes.NewReader(data))
	d.UseNumber()
	root, err := readNode(d, 0)
	if err != nil {
		line, column := place(data, d.InputOffset())
		if errors.Is(err, io.EOF) {
			err = errors.New("the file ends too early")
		}
		return nil, fmt.Errorf("line %d, column %d: %w", line, column, err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("want one JSON value, and the file goes on after it")
	}
	return root, nil
}

func readNode(d *json.Decoder, depth int) (*node, error) {
	if depth > maxDepth {
		return nil, fmt.Errorf("more than %d values are inside each other", maxDepth)
	}
	token, err := d.Token()
	if err != nil {
		return nil, err
	}
	n := &node{offset: d.InputOffset()}
	switch v := token.(type) {
	case nil:
	case string:
		n.form, n.text = text, v
	case json.Number:
		n.form, n.text = number, v.String()
	case bool:
		n.form, n.text = boolean, strconv.FormatBool(v)
	case json.Delim:
		if v == '[' {
			n.form = list
			err = n.readItems(d, depth)
		} else {
			n.form = object
			err = n.readFields(d, depth)
		}
	}
	return n, err
}

func (n *node) readItems(d *json.Decoder, depth int) error {
	for d.More() {
		item, err := readNode(d, depth+1)
		if err != nil {
			return err
		}
		n.items = append(n.items, item)
	}
	_, err := d.Token() // the closing bracket
	return err
}

func (n *node) readFields(d *json.Decoder, depth int) error {
	n.fields = make(map[string]*node)
	for d.More() {
		token, err := d.Token()
		if err != nil {
			return err
		}
		name, ok := token.(string)
		if !ok { // not reached: the decoder refuses anything else here
			return errors.New("a name must be a string")
		}
		if n.fields[name] != nil {
			return fmt.Errorf("the object has two members %s", shown(name))
		}
		value, err := readNode(d, depth+1)
		if err != nil {
			return err
		}
		n.names = append(n.names, name)
		n.fields[name] = value
	}
	_, err := d.Token() // the closing brace
	return err
}

// field returns a member of an object; nil if there is none.
func (n *node) field(name string) *node {
	if n == nil {
		return nil
	}
	return n.fields[name]
}

func (n *node) describe() string {
	switch {
	case n == nil || n.form == null:
		return "nothing"
	case n.form == list:
		return "a list"
	case n.form == object:
		return "an object"
	}
	return shown(n.text)
}

// place returns the line and the column, counted from 1, of the byte before an offset.
func place(data []byte, offset int64) (line, column int) {
	before := data[:max(min(int(offset), len(data))-1, 0)]
	return bytes.Count(before, []byte("\n")) + 1, len(before) - bytes.LastIndexByte(before, '\n')
}

// shown quotes a part of a template for a message, and cuts it to 100 characters.
func shown(s string) string {
	const most = 100
	if r := []rune(s); len(r) > most {
		s = string(r[:most]) + "…"
	}
	return strconv.Quote(s)
}
