// Package configyaml is the front end of package configfile for YAML, of which JSON is a part. It is the only package
// that parses YAML; what runs in a Lambda function must not link it.
package configyaml

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strconv"
	"strings"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"

	"github.com/sluicelimits/sluice/internal/configfile"
)

// maxAliased bounds the values that aliases may add: a few lines of them can stand for billions.
const maxAliased = 250_000

// Source is a source that is written in YAML.
func Source(name string, data []byte) configfile.Source {
	return configfile.Source{Name: name, Data: data, Parse: Parse}
}

// ReadFiles reads files that are written in YAML; "-" is stdin. The error is an *[configfile.Error] that names every
// file that cannot be read.
func ReadFiles(stdin io.Reader, files ...string) ([]configfile.Source, error) {
	return configfile.ReadFiles(Parse, stdin, files...)
}

// Parse makes the tree of a YAML document. It is a [configfile.Parser]. Aliases are resolved: the nodes that they name
// are shared, at the place of the anchor.
func Parse(data []byte) (*configfile.Node, *configfile.Problem) {
	problem := func(line, column int, format string, args ...any) *configfile.Problem {
		return &configfile.Problem{Line: line, Column: column, Message: fmt.Sprintf(format, args...)}
	}
	if at, why := firstBadByte(data); why != "" {
		line, column := position(data, at)
		return nil, problem(line, column, "%s", why)
	}
	root, rest, err := parseYAML(bytes.NewReader(data))
	switch {
	case err != nil:
		line, column, message := locate(data, err)
		return nil, problem(line, column, "%s", message)
	case root == nil:
		return nil, nil
	case rest != nil:
		return nil, problem(rest.Line, rest.Column, "a second YAML document begins here: one file holds one document")
	}
	b := &builder{made: map[*yaml.Node]*built{}}
	n := b.node(root).node
	if b.bad != nil {
		return nil, problem(b.bad.Line, b.bad.Column, "%s", b.why)
	}
	return n, nil
}

// builder makes the tree of configfile from that of the YAML library.
type builder struct {
	made    map[*yaml.Node]*built // nodes with an anchor; one whose node is nil is not finished
	aliased int                   // values that aliases added
	bad     *yaml.Node            // the first alias that cannot be resolved
	why     string                // what is wrong with bad
}

// built is a node with the number of values in it, those of aliases included.
type built struct {
	node   *configfile.Node
	values int
}

func (b *builder) node(n *yaml.Node) *built {
	if n.Kind == yaml.AliasNode {
		return b.alias(n)
	}
	out := &built{values: 1}
	if n.Anchor != "" {
		b.made[n] = out
	}
	node := &configfile.Node{Line: n.Line, Column: n.Column}
	switch n.Kind {
	case yaml.MappingNode:
		node.Kind = configfile.Mapping
	case yaml.SequenceNode:
		node.Kind = configfile.List
	default:
		scalar(n, node)
	}
	if len(n.Content) > 0 {
		node.Content = make([]*configfile.Node, len(n.Content))
	}
	for i, inner := range n.Content {
		child := b.node(inner)
		node.Content[i] = child.node
		out.values += child.values
	}
	out.node = node
	return out
}

func (b *builder) alias(n *yaml.Node) *built {
	target := b.made[n.Alias]
	switch {
	case b.bad != nil:
	case target == nil || target.node == nil:
		b.bad, b.why = n, fmt.Sprintf("alias *%s stands inside what &%s names", n.Value, n.Value)
	default:
		if b.aliased += target.values; b.aliased <= maxAliased {
			return target
		}
		b.bad, b.why = n, fmt.Sprintf("aliases expand to more than %d values", maxAliased)
	}
	return &built{node: &configfile.Node{Line: n.Line, Column: n.Column}, values: 1}
}

var kinds = map[string]configfile.Kind{
	"!!null": configfile.Null, "!!str": configfile.String, "!!int": configfile.Integer, "!!float": configfile.Float,
	"!!bool": configfile.Boolean, "!!timestamp": configfile.Timestamp,
}

func scalar(n *yaml.Node, to *configfile.Node) {
	tag := n.ShortTag()
	kind, known := kinds[tag]
	if !known {
		kind = configfile.Tagged
	}
	if kind == configfile.Float && strings.Trim(n.Value, "+-0123456789_") == "" {
		kind = configfile.Integer // one past 64 bits, which the library calls a float
	}
	to.Kind, to.Text = kind, n.Value
	if !known || n.Style&yaml.TaggedStyle != 0 {
		to.Tag = tag
	}
}

// parseYAML returns the first document's value and the second's, if there is one.
func parseYAML(from io.Reader) (first, second *yaml.Node, err error) {
	defer func() { // the library reports by panics inside; one that it does not catch must not end the program
		if p := recover(); p != nil {
			err = fmt.Errorf("yaml: cannot be read as YAML: %v", p)
		}
	}()
	dec := yaml.NewDecoder(from)
	var one, two yaml.Node
	if err := dec.Decode(&one); errors.Is(err, io.EOF) {
		return nil, nil, nil
	} else if err != nil {
		return nil, nil, err
	}
	if err := dec.Decode(&two); err == nil {
		second = &two
		if two.Kind == yaml.DocumentNode && len(two.Content) > 0 {
			second = two.Content[0]
		}
	} else if !errors.Is(err, io.EOF) {
		return nil, nil, err
	}
	if one.Kind != yaml.DocumentNode || len(one.Content) != 1 {
		return nil, nil, nil
	}
	if root := one.Content[0]; root.Kind != yaml.ScalarNode || root.ShortTag() != "!!null" {
		return root, second, nil
	}
	return nil, second, nil
}

// firstBadByte finds what is not text. The library would report it without a place.
func firstBadByte(data []byte) (at int, why string) {
	for i := 0; i < len(data); {
		c := data[i]
		if c >= utf8.RuneSelf {
			c, n := utf8.DecodeRune(data[i:])
			if c == utf8.RuneError && n == 1 {
				return i, fmt.Sprintf("byte 0x%02x is not UTF-8 text", data[i])
			}
			i += n
			continue
		}
		if (c < ' ' && c != '\n' && c != '\r' && c != '\t') || c == 0x7f {
			return i, fmt.Sprintf("control character 0x%02x is not allowed", c)
		}
		i++
	}
	return 0, ""
}

// position is the line and column of an offset, from 1, the column in characters.
func position(data []byte, at int) (line, column int) {
	before := data[:at]
	start := bytes.LastIndexByte(before, '\n') + 1
	return bytes.Count(before, []byte("\n")) + 1, utf8.RuneCount(before[start:]) + 1
}

var (
	syntaxMessage = regexp.MustCompile(`^yaml: (?:line ([0-9]+): )?(.*)$`)
	unknownAnchor = regexp.MustCompile(`^unknown anchor '(.*)' referenced$`)
)

// locate finds where a syntax error is. The library names a line only. For errors of its parser (as against its
// scanner) this is the line before the one where the enclosing value begins, and for a tab it may be the line before
// the tab, so locate looks for the place.
func locate(data []byte, err error) (line, column int, message string) {
	m := syntaxMessage.FindStringSubmatch(strings.ReplaceAll(err.Error(), "\n", " "))
	if m == nil {
		return 1, 1, err.Error()
	}
	said, _ := strconv.Atoi(m[1])
	line, message = max(said, 1), m[2]
	if name := unknownAnchor.FindStringSubmatch(message); name != nil {
		if at := bytes.Index(data, []byte("*"+name[1])); at >= 0 {
			line, column = position(data, at)
		}
		return line, max(column, 1), fmt.Sprintf("alias *%s has no anchor &%s before it", name[1], name[1])
	}
	if strings.HasPrefix(message, "did not find expected ") || strings.HasPrefix(message, "exceeded max depth") {
		line = searchLine(data, m[2])
		if said > 0 && said+1 < line {
			message += fmt.Sprintf(" (in what begins at line %d)", said+1)
		}
	}
	if message == "found incompatible YAML document" {
		message = "leave the %YAML directive out"
	}
	for at := line; at == line || at == line+1 && strings.Contains(message, "tab character"); at++ {
		text := lineText(data, at)
		if tab := strings.IndexByte(text[:indent(text)], '\t'); tab >= 0 {
			return at, tab + 1, "a tab indents this line: indent it by spaces, as YAML wants"
		}
	}
	return line, indent(lineText(data, line)) + 1, "not valid YAML: " + message
}

// indent returns how many spaces and tabs begin a line.
func indent(line string) int { return len(line) - len(strings.TrimLeft(line, " \t")) }

// searchLine is the first of the last lines that the parser looked at which gives the same error without those after.
func searchLine(data []byte, message string) int {
	tell := &byteReader{data: data}
	_, _, _ = parseYAML(tell)
	read := bytes.TrimRight(data[:tell.n], " \t\r\n")
	line, _ := position(data, len(read))
	for range 3 { // its lookahead is a token or two
		start := bytes.LastIndexByte(read, '\n') + 1
		_, _, err := parseYAML(bytes.NewReader(data[:start]))
		if err == nil || !strings.HasSuffix(err.Error(), message) || start == 0 {
			break
		}
		read = bytes.TrimRight(read[:start], " \t\r\n")
		line, _ = position(data, len(read))
	}
	return line
}

func lineText(data []byte, line int) string {
	for range line - 1 {
		_, data, _ = bytes.Cut(data, []byte("\n"))
	}
	text, _, _ := bytes.Cut(data, []byte("\n"))
	return string(text)
}

// byteReader gives one byte at a time, so that n tells how far the parser came.
type byteReader struct {
	data []byte
	n    int
}

func (b *byteReader) Read(p []byte) (int, error) {
	if b.n >= len(b.data) {
		return 0, io.EOF
	}
	p[0] = b.data[b.n]
	b.n++
	return 1, nil
}
