package plan

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"strconv"
	"strings"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"
)

// Bounds on what is read. A file beyond them is refused before it can take memory or time without bound.
const (
	MaxFileBytes = 16 << 20  // bytes in one file; 10,000 tenants take about one MiB
	maxNodes     = 2_000_000 // values in all files together
	maxAliased   = 250_000   // values that aliases may add
	maxProblems  = 10_000    // problems that one load lists
)

// Source is one file's name and content.
type Source struct {
	Name string
	Data []byte
}

// document is one parsed source.
type document struct {
	name   string
	number int
	root   *yaml.Node // nil where it could not be parsed; dropped when everything is read
}

// ReadFile reads one source, "-" from stdin. It reads at most one byte more than MaxFileBytes, so that a file without
// end (a device, a pipe) cannot fill the memory; Parse then refuses it.
func ReadFile(name string, stdin io.Reader) (Source, error) {
	if name == "-" {
		return readSource("<stdin>", stdin)
	}
	f, err := os.Open(name)
	if err != nil {
		return Source{Name: name}, err
	}
	defer func() { _ = f.Close() }() // it was only read
	return readSource(name, f)
}

func readSource(name string, from io.Reader) (Source, error) {
	data, err := io.ReadAll(io.LimitReader(from, MaxFileBytes+1))
	if err != nil {
		return Source{Name: name}, fmt.Errorf("read %s: %w", name, err)
	}
	return Source{Name: name, Data: data}, nil
}

// open parses the source to a tree of nodes. Whatever is wrong with it as YAML is one problem; the rest of the file
// cannot be read then.
func (r *reader) open(src Source) *document {
	d := &document{name: src.Name, number: len(r.documents)}
	r.documents = append(r.documents, d)
	fail := func(line, column int, format string, args ...any) *document {
		p := Problem{File: d.name, Line: line, Column: column, Message: fmt.Sprintf(format, args...)}
		r.found = append(r.found, ordered{p, d.number})
		return d
	}
	if len(src.Data) > MaxFileBytes {
		return fail(0, 0, "the file is larger than %d MiB", MaxFileBytes>>20)
	}
	if at, why := firstBadByte(src.Data); why != "" {
		line, column := position(src.Data, at)
		return fail(line, column, "%s", why)
	}
	if r.nodes += countNodes(src.Data); r.nodes > maxNodes {
		return fail(0, 0, "more than %d values: split the configuration", maxNodes)
	}
	root, rest, err := parseYAML(bytes.NewReader(src.Data))
	switch {
	case err != nil:
		line, column, message := locate(src.Data, err)
		return fail(line, column, "%s", message)
	case root == nil:
		return fail(1, 1, "the file is empty: it needs at least one of %s", strings.Join(topSchema.keys, ", "))
	case rest != nil:
		return fail(rest.Line, rest.Column, "a second YAML document begins here: one file holds one document")
	}
	d.root = root
	return d
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

// countNodes bounds the number of nodes from above, before any is made: each needs one of these before or after it.
func countNodes(data []byte) int {
	n := 1
	for i, c := range data {
		switch c {
		case '\n', ',', '[', '{', ':':
			n++
		case '-', '?':
			if i+1 < len(data) && (data[i+1] == ' ' || data[i+1] == '\t') {
				n++
			}
		}
	}
	return n
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

// locate finds where a syntax error is. The library names a line only, and for errors of its parser (as against its
// scanner) the line before the one where the enclosing value begins; so those are looked for.
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
	text := lineText(data, line)
	indent := len(text) - len(strings.TrimLeft(text, " \t"))
	if tab := strings.IndexByte(text[:indent], '\t'); tab >= 0 {
		return line, tab + 1, message + ": YAML is indented by spaces, here is a tab"
	}
	return line, indent + 1, "not valid YAML: " + message
}

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
