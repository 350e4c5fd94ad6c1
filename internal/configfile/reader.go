package configfile

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"unicode/utf8"
)

// Bounds on what is read. A file beyond them is refused before it can take memory or time without bound.
const (
	MaxFileBytes = 16 << 20  // bytes in one file; 10,000 tenants take about one MiB
	maxNodes     = 2_000_000 // values in all files of one reader together
	maxProblems  = 10_000    // problems that one reader lists
)

// Source is one file's name and content.
type Source struct {
	Name  string
	Data  []byte
	Parse Parser // nil: ParseJSON
}

// ReadFiles reads the files; "-" is stdin. Parse is how they are written. The error is an *Error that names every file
// that cannot be read.
func ReadFiles(parse Parser, stdin io.Reader, files ...string) ([]Source, error) {
	sources := make([]Source, 0, len(files))
	var unread []Problem
	for _, name := range files {
		src, err := readFile(name, stdin)
		src.Parse = parse
		if err == nil {
			sources = append(sources, src)
			continue
		}
		unread = append(unread, Problem{File: src.Name, Message: fmt.Sprintf("cannot be read: %v", Advise(err))})
	}
	if len(unread) > 0 {
		return nil, &Error{unread}
	}
	return sources, nil
}

// Advise returns an error about a file without the file's name. If the file does not exist or is a folder, the error
// says what to do.
func Advise(err error) error {
	var cause *fs.PathError
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return &advised{"there is no such file: correct the name, or create the file", err}
	case errors.Is(err, syscall.EISDIR):
		return &advised{"is a directory: give the names of its files", err}
	case errors.As(err, &cause):
		return cause.Err
	}
	return err
}

// advised is an error with another text.
type advised struct {
	text  string
	cause error
}

func (e *advised) Error() string { return e.text }
func (e *advised) Unwrap() error { return e.cause }

// readFile reads one source, "-" from stdin. It reads at most one byte more than MaxFileBytes, so that a file without
// end (a device, a pipe) cannot fill the memory; Open then refuses it.
func readFile(name string, stdin io.Reader) (Source, error) {
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

const maxSecretBytes = 4096

// ReadSecret returns the bytes of a file, without line breaks at the end, if there are least or more. flag is what the
// command line says of the file, for errors.
func ReadSecret(flag, file string, least int) ([]byte, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", flag, Advise(err))
	}
	defer func() { _ = f.Close() }() // the file was only read
	b, err := io.ReadAll(io.LimitReader(f, maxSecretBytes+1))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", flag, err)
	}
	b = bytes.TrimRight(b, "\r\n")
	if len(b) < least || len(b) > maxSecretBytes {
		return nil, fmt.Errorf("%s: it has %d bytes; want %d..%d", flag, len(b), least, maxSecretBytes)
	}
	return b, nil
}

func readSource(name string, from io.Reader) (Source, error) {
	data, err := io.ReadAll(io.LimitReader(from, MaxFileBytes+1))
	if err != nil {
		return Source{Name: name}, fmt.Errorf("read %s: %w", name, err)
	}
	return Source{Name: name, Data: data}, nil
}

// Reader reads the trees of one or several files, and collects everything that is wrong with them. The zero Reader is
// ready for use.
type Reader struct {
	MaxBytes int // of one file; 0 selects MaxFileBytes

	found     []ordered
	warned    []ordered
	documents int
	nodes     int    // upper bound of the nodes in all documents
	overflow  *Place // where a problem beyond maxProblems was
}

// Document is one source that was opened.
type Document struct {
	Name   string
	Number int   // of the sources of one reader, from 0
	Root   *Node // nil if it could not be parsed. May be set to nil when all is read: no Place needs it
}

// Value is a node and its place in a document.
type Value struct {
	Doc  *Document
	Node *Node
	Path string // as in plans[0].limits[2].rate; "" for the root
}

// Place is where something was written. It does not keep the tree.
type Place struct {
	Doc          *Document
	Line, Column int
	Path         string
}

// Place returns where the value was written.
func (v Value) Place() Place { return Place{v.Doc, v.Node.Line, v.Node.Column, v.Path} }

// IsNumber reports whether the value is written as a number, whatever its size.
func (v Value) IsNumber() bool { return v.Node.Kind == Integer || v.Node.Kind == Float }

func (at Place) says(message string) ordered {
	return ordered{Problem{at.Doc.Name, at.Line, at.Column, at.Path, message}, at.Doc.Number}
}

// Says returns the problem of that message at the place.
func (at Place) Says(format string, args ...any) Problem {
	return at.says(fmt.Sprintf(format, args...)).Problem
}

// Problem reports a problem of the value.
func (r *Reader) Problem(v Value, format string, args ...any) {
	r.ProblemAt(v.Place(), format, args...)
}

// ProblemAt reports a problem of the place.
func (r *Reader) ProblemAt(at Place, format string, args ...any) {
	if len(r.found) >= maxProblems {
		r.overflow = &at
		return
	}
	r.found = append(r.found, at.says(fmt.Sprintf(format, args...)))
}

// WarnAt reports what is valid and probably not meant.
func (r *Reader) WarnAt(at Place, format string, args ...any) {
	r.warned = append(r.warned, at.says(fmt.Sprintf(format, args...)))
}

// Found returns how many problems there are up to now.
func (r *Reader) Found() int { return len(r.found) }

// Err returns every problem as an *Error in file order, or nil.
func (r *Reader) Err() error {
	if len(r.found) == 0 {
		return nil
	}
	problems := inOrder(r.found)
	if r.overflow != nil {
		more := fmt.Sprintf("more than %d problems: the rest is not listed", maxProblems)
		problems = append(problems, Problem{File: r.overflow.Doc.Name, Message: more})
	}
	return &Error{problems}
}

// Warnings returns what WarnAt was told, in file order.
func (r *Reader) Warnings() []Problem { return inOrder(r.warned) }

// Open parses the source. Whatever is wrong with its syntax is one problem, and the Root is nil then. Needs says what
// an empty file lacks, as in "it needs at least one of plans, tenants".
func (r *Reader) Open(src Source, needs string) *Document {
	d := &Document{Name: src.Name, Number: r.documents}
	r.documents++
	whole := Place{Doc: d}
	maxBytes, parse := cmp.Or(r.MaxBytes, MaxFileBytes), src.Parse
	if parse == nil {
		parse = ParseJSON
	}
	if len(src.Data) > maxBytes {
		r.ProblemAt(whole, "the file is larger than %s", sizeText(maxBytes))
		return d
	}
	if r.nodes += countNodes(src.Data); r.nodes > maxNodes {
		r.ProblemAt(whole, "more than %d values: split the configuration", maxNodes)
		return d
	}
	root, problem := parse(src.Data)
	switch {
	case problem != nil:
		r.ProblemAt(Place{d, problem.Line, problem.Column, problem.Path}, "%s", problem.Message)
	case root == nil:
		r.ProblemAt(Place{d, 1, 1, ""}, "the file is empty: %s", needs)
	default:
		d.Root = root
	}
	return d
}

// sizeText writes a number of bytes that is a whole number of KiB.
func sizeText(bytes int) string {
	if bytes%(1<<20) == 0 {
		return strconv.Itoa(bytes>>20) + " MiB"
	}
	return strconv.Itoa(bytes>>10) + " KiB"
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

// Schema names the keys of a mapping.
type Schema struct {
	What    string            // as in "a limit"
	Keys    []string          // nil: any key
	Refused map[string]string // keys that have an answer of their own
}

// Entry is a key of an object and its value.
type Entry struct {
	Key   string
	KeyAt Place
	Value
}

// Object is a mapping whose keys were checked.
type Object struct {
	Value
	Entries []Entry // in file order

	meant []string // keys that unknown keys of the mapping were probably meant to be
}

// Misspelt reports whether an unknown key of the mapping was probably meant to be one of the keys. That was reported,
// so the absence of the key needs no report.
func (o Object) Misspelt(keys ...string) bool {
	return slices.ContainsFunc(o.meant, func(key string) bool { return slices.Contains(keys, key) })
}

// Get returns the value of a key.
func (o Object) Get(key string) (Value, bool) {
	if e := o.entry(key); e != nil {
		return e.Value, true
	}
	return Value{}, false
}

func (o Object) entry(key string) *Entry {
	for i := range o.Entries {
		if o.Entries[i].Key == key {
			return &o.Entries[i]
		}
	}
	return nil
}

// Object reads a mapping strictly. Keys that are not in the schema, and keys that are there twice, are problems and are
// left out.
func (r *Reader) Object(v Value, s *Schema) (Object, bool) {
	o := Object{Value: v}
	if v.Node.Kind != Mapping {
		r.Problem(v, "want %s (a mapping), got %s", s.What, Describe(v.Node))
		return o, false
	}
	o.Entries = make([]Entry, 0, len(v.Node.Content)/2)
	var seen map[string]*Entry // of large mappings, which only a schema of any key allows
	if s.Keys == nil {
		seen = make(map[string]*Entry, len(v.Node.Content)/2)
	}
	for i := 0; i+1 < len(v.Node.Content); i += 2 {
		k := Value{v.Doc, v.Node.Content[i], v.Path}
		switch {
		case !k.Node.IsScalar():
			r.Problem(k, "a key must be a string, got %s", Describe(k.Node))
			continue
		case k.Node.Tag == "!!merge":
			r.Problem(k, "merge keys (<<) are not supported: write the keys out")
			continue
		}
		key := k.Node.Text
		first := seen[key]
		if seen == nil {
			first = o.entry(key)
		}
		if known, meant := r.known(k, key, s); !known {
			if meant != "" {
				o.meant = append(o.meant, meant)
			}
			continue
		}
		if first != nil {
			r.Problem(k, "key %s is there twice, first at line %d", Quote(key), first.Node.Line)
			continue
		}
		path := key
		if v.Path != "" {
			path = v.Path + "." + key
		}
		o.Entries = append(o.Entries, Entry{key, k.Place(), Value{v.Doc, v.Node.Content[i+1], path}})
		if seen != nil {
			seen[key] = &o.Entries[len(o.Entries)-1]
		}
	}
	return o, true
}

// known reports whether the schema has a key. If it has not, meant is the key that was probably meant, or "".
func (r *Reader) known(k Value, key string, s *Schema) (known bool, meant string) {
	if s.Keys == nil || slices.Contains(s.Keys, key) {
		return true, ""
	}
	if why := s.Refused[key]; why != "" {
		r.Problem(k, "%s: %s", key, why)
		return false, ""
	}
	if meant = Nearest(key, s.Keys); meant != "" {
		r.Problem(k, "unknown key %s in %s (did you mean %q?)", Quote(key), s.What, meant)
	} else {
		r.Problem(k, "unknown key %s in %s; known: %s", Quote(key), s.What, strings.Join(s.Keys, ", "))
	}
	return false, meant
}

// List reads a list. What names its items, as in "limits".
func (r *Reader) List(v Value, what string) ([]Value, bool) {
	if v.Node.Kind != List {
		r.Problem(v, "want a list of %s, got %s", what, Describe(v.Node))
		return nil, false
	}
	items := make([]Value, len(v.Node.Content))
	for i, n := range v.Node.Content {
		items[i] = Value{v.Doc, n, v.Path + "[" + strconv.Itoa(i) + "]"}
	}
	return items, true
}

// Required is Get, and a problem if the key is not there. A key that is misspelt was reported already.
func (r *Reader) Required(o Object, key, what string) (Value, bool) {
	v, ok := o.Get(key)
	if !ok && !o.Misspelt(key) {
		r.Problem(o.Value, "%s is missing: %s", key, what)
	}
	return v, ok
}

// Text reads a string.
func (r *Reader) Text(v Value) (string, bool) {
	if v.Node.Kind != String {
		hint := ""
		if v.Node.IsScalar() && v.Node.Kind != Null && v.Node.Tag == "" {
			hint = ": write it in quotes, " + Quote(v.Node.Text)
		}
		r.Problem(v, "want a string, got %s%s", Describe(v.Node), hint)
		return "", false
	}
	return v.Node.Text, true
}

// Boolean reads true or false.
func (r *Reader) Boolean(v Value) (on, ok bool) {
	if v.Node.Kind == Boolean {
		switch v.Node.Text {
		case "true", "True", "TRUE":
			return true, true
		case "false", "False", "FALSE":
			return false, true
		}
	}
	r.Problem(v, "want true or false, got %s", Describe(v.Node))
	return false, false
}

// Integer reads a decimal integer within low..high.
func (r *Reader) Integer(v Value, low, high int64) (int64, bool) {
	if !v.IsNumber() {
		r.Problem(v, "want an integer, got %s", Describe(v.Node))
		return 0, false
	}
	n, err := strconv.ParseInt(strings.ReplaceAll(v.Node.Text, "_", ""), 10, 64)
	switch {
	case !plainInteger(v.Node.Text):
		r.Problem(v, "%s is not a decimal integer", Clip(v.Node.Text))
		return 0, false
	case err != nil:
		r.Problem(v, "%s is past what 64 bits hold", Clip(v.Node.Text))
		return 0, false
	case n < low || n > high:
		r.Problem(v, "%d is outside %d to %d", n, low, high)
		return 0, false
	}
	return n, true
}

// plainInteger refuses what YAML would read as another number than it looks: 010 is eight there, 1e3 a float.
func plainInteger(s string) bool {
	s = strings.TrimLeft(s, "+-")
	if s == "" || (len(s) > 1 && s[0] == '0') || s[0] == '_' {
		return false
	}
	return strings.IndexFunc(s, func(c rune) bool { return (c < '0' || c > '9') && c != '_' }) < 0
}

// Describe says what a node is, for "got …".
func Describe(n *Node) string {
	switch n.Kind {
	case Mapping:
		return "a mapping"
	case List:
		return "a list"
	case Integer:
		return "the integer " + Clip(n.Text)
	case Float:
		return "the number " + Clip(n.Text)
	case Boolean:
		return "the boolean " + Clip(n.Text)
	case Timestamp:
		return "the time " + Clip(n.Text)
	case String:
		return "the string " + Quote(n.Text)
	case Tagged:
		return "a value tagged " + Clip(n.Tag)
	default:
		return "nothing"
	}
}

const clipped = 60 // characters of the file's text in a message

// Clip shortens a part of the file's text for a message.
func Clip(s string) string {
	if utf8.RuneCountInString(s) <= clipped {
		return s
	}
	return string([]rune(s)[:clipped]) + "…"
}

// Quote is Clip in quotes.
func Quote(s string) string { return strconv.Quote(Clip(s)) }
