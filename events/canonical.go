package events

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// Bounds of what has a canonical form.
const (
	MaxDepth       = 64 // levels of nested objects and lists
	MaxNumberBytes = 32 // of one number, as written
)

// ErrNotCanonical is wrapped by the error for data that has no canonical form. The error says where the fault is, and
// repeats no value.
var ErrNotCanonical = errors.New("not canonical JSON")

// Canonical returns the one form of a JSON object that is hashed, stored and compared.
//
// The form is a subset of RFC 8785: members sorted by the UTF-16 code units of their names, no white space, the
// shortest escapes, no repeated name, no lone surrogate. It differs from RFC 8785 in its numbers. RFC 8785 reads them
// as doubles, and so rounds those that a double cannot hold. Here a number stays as it is written, so 1 and 1.0 are two
// canonical numbers that are not equal. A number with an exponent and a negative zero are refused. Integers up to 2^53
// are written as RFC 8785 writes them.
func Canonical(data []byte) ([]byte, error) {
	if !utf8.Valid(data) {
		return nil, fmt.Errorf("%w: not valid UTF-8", ErrNotCanonical)
	}
	w := canonicalWriter{in: json.NewDecoder(bytes.NewReader(data)), out: make([]byte, 0, len(data))}
	w.in.UseNumber()
	t, err := w.token()
	if err == nil && t != json.Delim('{') {
		err = w.errorf("want an object")
	}
	if err == nil {
		err = w.value(t, 0)
	}
	if err != nil {
		return nil, err
	}
	if _, err := w.in.Token(); !errors.Is(err, io.EOF) {
		return nil, w.errorf("something follows the object")
	}
	return w.out, checkSurrogates(data)
}

// CheckCanonical returns an error unless data is a JSON object in canonical form.
func CheckCanonical(data []byte) error {
	want, err := Canonical(data)
	if err == nil && !bytes.Equal(want, data) {
		err = fmt.Errorf("%w: not in canonical form", ErrNotCanonical)
	}
	return err
}

// MarshalCanonical returns the canonical form of the object that json.Marshal makes of v.
func MarshalCanonical(v any) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNotCanonical, err)
	}
	return Canonical(b.Bytes())
}

// ReadString reads a JSON string, which must be all of data. It returns an error for bytes that are not UTF-8 and for
// half of a surrogate pair. encoding/json would replace both by U+FFFD.
func ReadString(data []byte) (s string, err error) {
	switch {
	case !utf8.Valid(data):
		return "", fmt.Errorf("%w: not valid UTF-8", ErrNotCanonical)
	case len(data) < 2 || data[0] != '"' || data[len(data)-1] != '"':
		return "", fmt.Errorf("%w: want a string", ErrNotCanonical)
	}
	if err := json.Unmarshal(data, &s); err != nil {
		return "", fmt.Errorf("%w: %w", ErrNotCanonical, err)
	}
	return s, checkSurrogates(data)
}

// checkSurrogates returns an error if a string of valid JSON has an escape for half of a surrogate pair alone, which
// encoding/json would replace by U+FFFD.
func checkSurrogates(data []byte) error {
	unit := func(at int) rune { // the code unit of an escape \uXXXX; 0 for anything else
		if at+6 > len(data) || data[at] != '\\' || data[at+1] != 'u' {
			return 0
		}
		n, _ := strconv.ParseUint(string(data[at+2:at+6]), 16, 16) // JSON has four hex digits here
		return rune(n)
	}
	for at := bytes.IndexByte(data, '\\'); at >= 0 && at < len(data); at++ {
		switch r := unit(at); {
		case data[at] != '\\':
		case !utf16.IsSurrogate(r):
			at++ // passes the escaped character: it may be a backslash, which begins no escape
		case utf16.DecodeRune(r, unit(at+6)) == utf8.RuneError:
			return fmt.Errorf("%w: byte %d: half of a surrogate pair", ErrNotCanonical, at+1)
		default:
			at += 6
		}
	}
	return nil
}

// AppendString appends s, which is valid UTF-8, as a JSON string to dst.
func AppendString(dst []byte, s string) []byte {
	const hex = "0123456789abcdef"
	dst = append(dst, '"')
	for _, c := range []byte(s) {
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

// canonicalWriter reads JSON from in, and appends its canonical form to out.
type canonicalWriter struct {
	in  *json.Decoder
	out []byte
}

func (w *canonicalWriter) errorf(format string, args ...any) error {
	return fmt.Errorf("%w: byte %d: %s", ErrNotCanonical, w.in.InputOffset(), fmt.Sprintf(format, args...))
}

func (w *canonicalWriter) token() (json.Token, error) {
	t, err := w.in.Token()
	switch {
	case errors.Is(err, io.EOF):
		return nil, w.errorf("the object has no end")
	case err != nil:
		return nil, w.errorf("%v", err)
	}
	return t, nil
}

// value reads the value that begins with a token.
func (w *canonicalWriter) value(t json.Token, depth int) error {
	if depth >= MaxDepth {
		return w.errorf("more than %d levels deep", MaxDepth)
	}
	switch t := t.(type) {
	case json.Delim:
		if t == '{' {
			return w.object(depth)
		}
		return w.list(depth)
	case string:
		w.out = AppendString(w.out, t)
	case json.Number:
		return w.number(string(t))
	case bool:
		w.out = strconv.AppendBool(w.out, t)
	default:
		w.out = append(w.out, "null"...)
	}
	return nil
}

// member is a member of an object. Its canonical form is out[from:to].
type member struct {
	name     string
	from, to int
}

func (w *canonicalWriter) object(depth int) error {
	w.out = append(w.out, '{')
	start := len(w.out)
	var members []member
	for w.in.More() {
		t, err := w.token()
		if err != nil {
			return err
		}
		name, _ := t.(string) // the decoder returns nothing else here
		m := member{name: name, from: len(w.out)}
		w.out = append(AppendString(w.out, name), ':')
		if t, err = w.token(); err == nil {
			err = w.value(t, depth+1)
		}
		if err != nil {
			return err
		}
		m.to = len(w.out)
		members = append(members, m)
		w.out = append(w.out, ',')
	}
	if err := w.sort(start, members); err != nil {
		return err
	}
	return w.end('}', len(members) > 0)
}

// end reads the end of an object or a list. comma says that out ends in a comma.
func (w *canonicalWriter) end(mark byte, comma bool) error {
	if comma {
		w.out = w.out[:len(w.out)-1]
	}
	w.out = append(w.out, mark)
	_, err := w.token()
	return err
}

// sort sorts the members of out[start:]. Most objects that are read were written by this package, and are sorted
// already.
func (w *canonicalWriter) sort(start int, members []member) error {
	order := func(a, b member) int { return compareNames(a.name, b.name) }
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
		if members[i].name == members[i-1].name {
			return w.errorf("the object before has the name %.64q twice", members[i].name)
		}
	}
	return nil
}

func (w *canonicalWriter) list(depth int) error {
	w.out = append(w.out, '[')
	start := len(w.out)
	for w.in.More() {
		t, err := w.token()
		if err == nil {
			err = w.value(t, depth+1)
		}
		if err != nil {
			return err
		}
		w.out = append(w.out, ',')
	}
	return w.end(']', len(w.out) > start)
}

// number appends a number as the input spells it, or refuses it.
func (w *canonicalWriter) number(text string) error {
	switch {
	case strings.ContainsAny(text, "eE"):
		return w.errorf("a number with an exponent: write it out")
	case len(text) > MaxNumberBytes:
		return w.errorf("a number of more than %d characters", MaxNumberBytes)
	case text[0] == '-' && strings.Trim(text, "-0.") == "":
		return w.errorf("a negative zero")
	}
	w.out = append(w.out, text...)
	return nil
}

// compareNames orders names by their UTF-16 code units. This is the order of their runes, but for one thing: the runes
// above U+FFFF, which take two code units, come before those from U+E000 to U+FFFF.
func compareNames(a, b string) int {
	for len(a) > 0 && len(b) > 0 {
		ra, na := utf8.DecodeRuneInString(a)
		rb, nb := utf8.DecodeRuneInString(b)
		if ra != rb {
			return cmp.Or(cmp.Compare(codeUnit(ra), codeUnit(rb)), cmp.Compare(ra, rb))
		}
		a, b = a[na:], b[nb:]
	}
	return cmp.Compare(len(a), len(b))
}

// codeUnit returns the first UTF-16 code unit of r.
func codeUnit(r rune) rune {
	if r < 0x10000 {
		return r
	}
	high, _ := utf16.EncodeRune(r)
	return high
}
