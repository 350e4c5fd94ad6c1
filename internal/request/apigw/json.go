package apigw

import (
	"math/bits"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// reader reads JSON (RFC 8259) from front to back. It checks all of the text, including values that nobody needs.
// Package apigw has its own reader because each call of a client brings an event: libraries that check in one pass and
// read each level in another took most of an authorizer's time. A fuzz test compares it with encoding/json.
//
// Each method begins at the first byte of what it reads. If it returns true, it has read its text and the white space
// after it. If a method returns false, the text is not JSON, or deep is set.
type reader struct {
	s        string
	i        int
	depth    int
	maxDepth int  // bound of the nesting, because the reader is recursive
	deep     bool // nested more than maxDepth
}

func (r *reader) space() {
	if r.i < len(r.s) && r.s[r.i] <= ' ' { // API Gateway's events have none
		r.spaces()
	}
}

func (r *reader) spaces() {
	for r.i < len(r.s) {
		switch r.s[r.i] {
		case ' ', '\t', '\n', '\r':
			r.i++
		default:
			return
		}
	}
}

// next returns the next byte, or 0 at the end.
func (r *reader) next() byte {
	if r.i < len(r.s) {
		return r.s[r.i]
	}
	return 0
}

// accept reads the byte c.
func (r *reader) accept(c byte) bool {
	if r.next() != c {
		return false
	}
	r.i++
	r.space()
	return true
}

// skip reads a value that nobody needs.
func (r *reader) skip() bool {
	switch r.next() {
	case '"':
		_, _, ok := r.quoted()
		return ok
	case '{':
		_, ok := r.skipObject()
		return ok
	case '[':
		return r.skipArray()
	case 't':
		return r.word("true")
	case 'f':
		return r.word("false")
	case 'n':
		return r.word("null")
	}
	return r.number()
}

// skipObject reads an object that nobody needs, and returns the number of its members. It is [reader.object] without a
// call of a function for each member, because most of an event is skipped. skipArray corresponds to [reader.array].
func (r *reader) skipObject() (members int, ok bool) {
	if !r.enter('{') {
		return 0, false
	}
	if r.next() == '}' {
		return 0, r.closeBracket('}')
	}
	for {
		if _, _, ok := r.quoted(); !ok || !r.accept(':') || !r.skip() {
			return members, false
		}
		members++
		if !r.accept(',') {
			return members, r.closeBracket('}')
		}
	}
}

func (r *reader) skipArray() bool {
	if !r.enter('[') {
		return false
	}
	if r.next() == ']' {
		return r.closeBracket(']')
	}
	for {
		if !r.skip() {
			return false
		}
		if !r.accept(',') {
			return r.closeBracket(']')
		}
	}
}

// object reads an object. It calls f for each member, with the name as it is written and whether the name has escapes.
// f reads the value.
func (r *reader) object(f func(name string, escaped bool) bool) bool {
	return r.nested('{', '}', func() bool {
		name, escaped, ok := r.quoted()
		return ok && r.accept(':') && f(name, escaped)
	})
}

func (r *reader) array(f func() bool) bool { return r.nested('[', ']', f) }

// nested reads the items between two brackets.
func (r *reader) nested(first, last byte, item func() bool) bool {
	if !r.enter(first) {
		return false
	}
	if r.next() == last {
		return r.closeBracket(last)
	}
	for {
		if !item() {
			return false
		}
		if !r.accept(',') {
			return r.closeBracket(last)
		}
	}
}

// enter reads the bracket that opens an object or a list.
func (r *reader) enter(bracket byte) bool {
	if r.depth++; r.depth > r.maxDepth {
		r.deep = true
		return false
	}
	return r.accept(bracket)
}

// closeBracket reads the bracket that ends an object or a list.
func (r *reader) closeBracket(bracket byte) bool {
	r.depth--
	return r.accept(bracket)
}

func (r *reader) word(w string) bool {
	if !strings.HasPrefix(r.s[r.i:], w) {
		return false
	}
	r.i += len(w)
	r.space()
	return true
}

func (r *reader) number() bool {
	if r.next() == '-' {
		r.i++
	}
	switch c := r.next(); {
	case c == '0':
		r.i++
	case !r.digits():
		return false
	}
	if r.next() == '.' {
		r.i++
		if !r.digits() {
			return false
		}
	}
	if c := r.next(); c == 'e' || c == 'E' {
		r.i++
		if c := r.next(); c == '+' || c == '-' {
			r.i++
		}
		if !r.digits() {
			return false
		}
	}
	r.space()
	return true
}

// digits reads one or more digits.
func (r *reader) digits() bool {
	from := r.i
	for c := r.next(); c >= '0' && c <= '9'; c = r.next() {
		r.i++
	}
	return r.i > from
}

// quoted reads a string. It returns the text between its quotes, and whether the text has escapes.
func (r *reader) quoted() (raw string, escaped, ok bool) {
	if r.next() != '"' {
		return "", false, false
	}
	s, from := r.s, r.i+1
	for i := from; ; {
		i = plainUntil(s, i)
		if i >= len(s) {
			return "", false, false
		}
		switch c := s[i]; {
		case c == '"':
			r.i = i + 1
			r.space()
			return s[from:i], escaped, true
		case c != '\\': // a control character
			return "", false, false
		}
		escaped = true
		n := escapeLen(s[i:])
		if n == 0 {
			return "", false, false
		}
		i += n
	}
}

// Constants for looking at the eight bytes of a word at once.
const (
	lows  = 0x0101010101010101
	highs = 0x8080808080808080
)

// plainUntil returns the index of the first byte from i on that is a quote, a backslash or a control character, or the
// length if there is none.
func plainUntil(s string, i int) int {
	for ; i+8 <= len(s); i += 8 {
		b := s[i : i+8]
		w := uint64(b[0]) | uint64(b[1])<<8 | uint64(b[2])<<16 | uint64(b[3])<<24 |
			// the compiler makes one load of these
			uint64(b[4])<<32 | uint64(b[5])<<40 | uint64(b[6])<<48 | uint64(b[7])<<56
		quote, slash := w^(lows*'"'), w^(lows*'\\')
		// Each term has the high bit of the first byte that it looks for, and of no byte before that.
		found := ((quote-lows)&^quote | (slash-lows)&^slash | (w-lows*' ')&^w) & highs
		if found != 0 {
			return i + bits.TrailingZeros64(found)/8
		}
	}
	for ; i < len(s); i++ {
		if c := s[i]; c == '"' || c == '\\' || c < ' ' {
			return i
		}
	}
	return i
}

// escapeLen returns the length of the escape at the beginning of s, or 0 if there is no valid escape.
func escapeLen(s string) int {
	if len(s) < 2 {
		return 0
	}
	switch s[1] {
	case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
		return 2
	case 'u':
		if len(s) >= 6 && hex4(s[2:6]) >= 0 {
			return 6
		}
	}
	return 0
}

// hex4 returns the number that four hex digits write, or -1.
func hex4(s string) rune {
	var n rune
	for i := range 4 {
		d := unhex(s[i])
		if d < 0 {
			return -1
		}
		n = n<<4 | rune(d)
	}
	return n
}

// unescape returns the text of a string that [reader.quoted] read. Half a surrogate pair becomes U+FFFD. Bytes that are
// not UTF-8 stay.
func unescape(raw string) string {
	b := make([]byte, 0, len(raw))
	for {
		at := strings.IndexByte(raw, '\\')
		if at < 0 {
			return string(append(b, raw...))
		}
		b = append(b, raw[:at]...)
		switch c := raw[at+1]; c {
		case 'b':
			b = append(b, '\b')
		case 'f':
			b = append(b, '\f')
		case 'n':
			b = append(b, '\n')
		case 'r':
			b = append(b, '\r')
		case 't':
			b = append(b, '\t')
		case 'u':
			c := hex4(raw[at+2 : at+6])
			raw = raw[at+6:]
			if utf16.IsSurrogate(c) {
				low := rune(-1)
				if strings.HasPrefix(raw, `\u`) {
					low = hex4(raw[2:6])
				}
				if c = utf16.DecodeRune(c, low); c != utf8.RuneError {
					raw = raw[6:]
				}
			}
			b = utf8.AppendRune(b, c)
			continue
		default:
			b = append(b, c)
		}
		raw = raw[at+2:]
	}
}

// text returns the text of a string.
func text(raw string, escaped bool) string {
	if escaped {
		return unescape(raw)
	}
	return raw
}
