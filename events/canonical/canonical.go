// Package canonical writes a JSON object in the one form that is hashed, stored and compared.
//
// The form is a subset of RFC 8785: members sorted by the UTF-16 code units of their names, no white space, the
// shortest escapes, no repeated name, no lone surrogate. Numbers differ. RFC 8785 reads them as doubles, which rounds
// numbers that a double cannot hold. Here numbers stay as they are written, and a number that could be spelled in two
// ways is refused: one with an exponent, and a negative zero. Integers up to 2^53 are written as RFC 8785 writes them.
package canonical

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"unicode/utf16"
	"unicode/utf8"
)

// Bounds.
const (
	MaxDepth       = 64 // levels of nested objects and lists
	MaxNumberBytes = 32 // of one number, as written
)

// ErrInvalid is wrapped by the error for data that has no canonical form. The error says where the fault is, and
// repeats no value.
var ErrInvalid = errors.New("not canonical JSON")

// Object returns the canonical form of data, which is a JSON object.
func Object(data []byte) ([]byte, error) {
	if !utf8.Valid(data) {
		return nil, fmt.Errorf("%w: not valid UTF-8", ErrInvalid)
	}
	w := writer{in: data, out: make([]byte, 0, len(data))}
	w.space()
	if w.at >= len(data) || data[w.at] != '{' {
		return nil, w.errorf("want an object")
	}
	if err := w.value(0); err != nil {
		return nil, err
	}
	if w.space(); w.at < len(data) {
		return nil, w.errorf("something follows the object")
	}
	return w.out, nil
}

// Check returns an error unless data is a JSON object in canonical form.
func Check(data []byte) error {
	want, err := Object(data)
	if err == nil && !bytes.Equal(want, data) {
		err = fmt.Errorf("%w: not in canonical form", ErrInvalid)
	}
	return err
}

// Marshal returns the canonical form of the object that json.Marshal makes of v.
func Marshal(v any) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	return Object(b.Bytes())
}

// String reads a JSON string, which must be all of data. It returns an error for bytes that are not UTF-8 and for lone
// surrogates, where encoding/json puts U+FFFD.
func String(data []byte) (string, error) {
	if !utf8.Valid(data) {
		return "", fmt.Errorf("%w: not valid UTF-8", ErrInvalid)
	}
	w := writer{in: data}
	if len(data) == 0 || data[0] != '"' {
		return "", w.errorf("want a string")
	}
	s, err := w.text()
	if err == nil && w.at < len(data) {
		err = w.errorf("something follows the string")
	}
	return string(s), err
}

// AppendString appends s, which is valid UTF-8, as a JSON string to dst.
func AppendString(dst []byte, s string) []byte { return appendString(dst, []byte(s)) }

func appendString(dst, s []byte) []byte {
	const hex = "0123456789abcdef"
	dst = append(dst, '"')
	for _, c := range s {
		switch {
		case c == '"' || c == '\\':
			dst = append(dst, '\\', c)
		case c >= ' ':
			dst = append(dst, c)
		case c == '\b':
			dst = append(dst, '\\', 'b')
		case c == '\f':
			dst = append(dst, '\\', 'f')
		case c == '\n':
			dst = append(dst, '\\', 'n')
		case c == '\r':
			dst = append(dst, '\\', 'r')
		case c == '\t':
			dst = append(dst, '\\', 't')
		default:
			dst = append(dst, '\\', 'u', '0', '0', hex[c>>4], hex[c&15])
		}
	}
	return append(dst, '"')
}

// writer reads in from position at, and appends the canonical form to out.
type writer struct {
	in  []byte
	at  int
	out []byte
}

func (w *writer) errorf(format string, args ...any) error {
	return fmt.Errorf("%w: byte %d: %s", ErrInvalid, w.at+1, fmt.Sprintf(format, args...))
}

func (w *writer) space() {
	for w.at < len(w.in) {
		switch w.in[w.at] {
		case ' ', '\t', '\n', '\r':
			w.at++
		default:
			return
		}
	}
}

// next skips white space and returns the byte after it, or 0 at the end.
func (w *writer) next() byte {
	if w.space(); w.at < len(w.in) {
		return w.in[w.at]
	}
	return 0
}

func (w *writer) value(depth int) error {
	if depth >= MaxDepth {
		return w.errorf("more than %d levels deep", MaxDepth)
	}
	switch c := w.next(); {
	case c == '{':
		return w.object(depth)
	case c == '[':
		return w.list(depth)
	case c == '"':
		s, err := w.text()
		if err == nil {
			w.out = appendString(w.out, s)
		}
		return err
	case c == '-' || '0' <= c && c <= '9':
		return w.number()
	}
	for _, word := range []string{"true", "false", "null"} {
		if bytes.HasPrefix(w.in[w.at:], []byte(word)) {
			w.at += len(word)
			w.out = append(w.out, word...)
			return nil
		}
	}
	return w.errorf("want a value")
}

// member is a member of an object. Its canonical form is out[from:to].
type member struct {
	name     []byte
	from, to int
}

func (w *writer) object(depth int) error {
	w.at++
	w.out = append(w.out, '{')
	start := len(w.out)
	var members []member
	for c := w.next(); c != '}'; c = w.next() {
		if len(members) > 0 {
			if c != ',' {
				return w.errorf("want , or }")
			}
			w.at++
			w.next()
		}
		m, err := w.member(depth)
		if err != nil {
			return err
		}
		members = append(members, m)
		w.out = append(w.out, ',')
	}
	w.at++
	if len(members) > 0 {
		w.out = w.out[:len(w.out)-1]
	}
	if err := w.sort(start, members); err != nil {
		return err
	}
	w.out = append(w.out, '}')
	return nil
}

func (w *writer) member(depth int) (member, error) {
	if w.at >= len(w.in) || w.in[w.at] != '"' {
		return member{}, w.errorf("want a name")
	}
	name, err := w.text()
	if err != nil {
		return member{}, err
	}
	m := member{name: name, from: len(w.out)}
	w.out = appendString(w.out, name)
	if w.next() != ':' {
		return member{}, w.errorf("want :")
	}
	w.at++
	w.out = append(w.out, ':')
	err = w.value(depth + 1)
	m.to = len(w.out)
	return m, err
}

// sort sorts the members of out[start:]. Most objects that are read were written by this package, and are sorted
// already.
func (w *writer) sort(start int, members []member) error {
	order := func(a, b member) int { return compare(a.name, b.name) }
	if !slices.IsSortedFunc(members, order) {
		slices.SortFunc(members, order)
		sorted := make([]byte, 0, len(w.out)-start)
		for i, m := range members {
			if i > 0 {
				sorted = append(sorted, ',')
			}
			sorted = append(sorted, w.out[m.from:m.to]...)
		}
		copy(w.out[start:], sorted)
	}
	for i := 1; i < len(members); i++ {
		if bytes.Equal(members[i].name, members[i-1].name) {
			return w.errorf("the object before has the name %.64q twice", members[i].name)
		}
	}
	return nil
}

func (w *writer) list(depth int) error {
	w.at++
	w.out = append(w.out, '[')
	for first := true; w.next() != ']'; first = false {
		if !first {
			if w.next() != ',' {
				return w.errorf("want , or ]")
			}
			w.at++
			w.out = append(w.out, ',')
		}
		if err := w.value(depth + 1); err != nil {
			return err
		}
	}
	w.at++
	w.out = append(w.out, ']')
	return nil
}

func (w *writer) digits() (n int) {
	for w.at < len(w.in) && '0' <= w.in[w.at] && w.in[w.at] <= '9' {
		w.at++
		n++
	}
	return n
}

// number reads a JSON number without an exponent.
func (w *writer) number() error {
	start := w.at
	if w.in[w.at] == '-' {
		w.at++
	}
	whole := w.at
	if n := w.digits(); n == 0 || n > 1 && w.in[whole] == '0' {
		return w.errorf("want a number")
	}
	if w.at < len(w.in) && w.in[w.at] == '.' {
		w.at++
		if w.digits() == 0 {
			return w.errorf("want a digit")
		}
	}
	text := w.in[start:w.at]
	switch {
	case w.at < len(w.in) && (w.in[w.at] == 'e' || w.in[w.at] == 'E'):
		return w.errorf("a number with an exponent: write it out")
	case len(text) > MaxNumberBytes:
		return w.errorf("a number of more than %d characters", MaxNumberBytes)
	case text[0] == '-' && len(bytes.Trim(text, "-0.")) == 0:
		return w.errorf("a negative zero")
	}
	w.out = append(w.out, text...)
	return nil
}

// text reads a string. The result may share memory with in.
func (w *writer) text() ([]byte, error) {
	w.at++
	start := w.at
	var s []byte // what was read up to the last escape; nil if there was none
	for w.at < len(w.in) {
		switch c := w.in[w.at]; {
		case c == '"':
			s = append(s[:len(s):len(s)], w.in[start:w.at]...)
			w.at++
			return s, nil
		case c < ' ':
			return nil, w.errorf("a control character in a string")
		case c == '\\':
			s = append(s, w.in[start:w.at]...)
			r, err := w.escape()
			if err != nil {
				return nil, err
			}
			s = utf8.AppendRune(s, r)
			start = w.at
		default:
			w.at++
		}
	}
	return nil, w.errorf("a string without an end")
}

func (w *writer) escape() (rune, error) {
	if w.at++; w.at >= len(w.in) {
		return 0, w.errorf("a string without an end")
	}
	c := w.in[w.at]
	w.at++
	switch c {
	case '"', '\\', '/':
		return rune(c), nil
	case 'b':
		return '\b', nil
	case 'f':
		return '\f', nil
	case 'n':
		return '\n', nil
	case 'r':
		return '\r', nil
	case 't':
		return '\t', nil
	case 'u':
		r, ok := w.hex()
		if !ok {
			return 0, w.errorf("want four hex digits")
		}
		if !utf16.IsSurrogate(r) {
			return r, nil
		}
		if bytes.HasPrefix(w.in[w.at:], []byte(`\u`)) {
			w.at += 2
			if low, ok := w.hex(); ok {
				if both := utf16.DecodeRune(r, low); both != utf8.RuneError {
					return both, nil
				}
			}
		}
		return 0, w.errorf("half of a surrogate pair")
	}
	return 0, w.errorf("an unknown escape")
}

func (w *writer) hex() (r rune, ok bool) {
	if w.at+4 > len(w.in) {
		return 0, false
	}
	for _, c := range w.in[w.at : w.at+4] {
		switch {
		case '0' <= c && c <= '9':
			c -= '0'
		case 'a' <= c && c <= 'f':
			c -= 'a' - 10
		case 'A' <= c && c <= 'F':
			c -= 'A' - 10
		default:
			return 0, false
		}
		r = r<<4 | rune(c)
	}
	w.at += 4
	return r, true
}

// compare orders names by their UTF-16 code units. A rune that takes two code units comes before the runes from U+E000
// on that take one.
func compare(a, b []byte) int {
	for len(a) > 0 && len(b) > 0 {
		ra, na := utf8.DecodeRune(a)
		rb, nb := utf8.DecodeRune(b)
		if ra != rb {
			return cmp.Or(cmp.Compare(unit(ra), unit(rb)), cmp.Compare(ra, rb))
		}
		a, b = a[na:], b[nb:]
	}
	return cmp.Compare(len(a), len(b))
}

// unit returns the first UTF-16 code unit of r.
func unit(r rune) rune {
	if r < 0x10000 {
		return r
	}
	high, _ := utf16.EncodeRune(r)
	return high
}
