package configfile

import (
	"bytes"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// maxDepth bounds how deep the values of a JSON text nest, so that parsing needs a bounded stack.
const maxDepth = 1000

// ParseJSON makes the tree of a JSON text (RFC 8259). Keys that are there twice are left to [Reader.Object]. The text
// "null", like an empty one, has no value.
func ParseJSON(data []byte) (*Node, *Problem) {
	p := &jsonParser{data: data, line: 1, column: 1}
	p.space()
	if p.at == len(data) {
		return nil, nil
	}
	root := p.value(0)
	if p.problem == nil {
		if p.space(); p.at < len(data) {
			p.fail("more text follows the value")
		}
	}
	if p.problem != nil {
		return nil, p.problem
	}
	if root.Kind == Null {
		return nil, nil
	}
	return root, nil
}

// jsonParser is at the byte data[at]. After a problem it is at the end of the text.
type jsonParser struct {
	data    []byte
	at      int
	problem *Problem

	// The place of data[counted]. Places are asked for in the order of the text, so each byte is counted once.
	counted, line, column int
}

// place moves counted to at and returns its line and column.
func (p *jsonParser) place() (line, column int) {
	passed := p.data[p.counted:p.at]
	if n := bytes.Count(passed, []byte("\n")); n > 0 {
		p.line, p.column = p.line+n, 1
		passed = passed[bytes.LastIndexByte(passed, '\n')+1:]
	}
	p.column += utf8.RuneCount(passed)
	p.counted = p.at
	return p.line, p.column
}

func (p *jsonParser) fail(format string, args ...any) {
	if p.problem == nil {
		line, column := p.place()
		p.problem = &Problem{Line: line, Column: column, Message: "not valid JSON: " + fmt.Sprintf(format, args...)}
		p.at = len(p.data)
	}
}

func (p *jsonParser) space() {
	for p.at < len(p.data) {
		switch p.data[p.at] {
		case ' ', '\t', '\n', '\r':
			p.at++
		default:
			return
		}
	}
}

// peek is the next byte after white space, or 0 at the end.
func (p *jsonParser) peek() byte {
	p.space()
	if p.at == len(p.data) {
		return 0
	}
	return p.data[p.at]
}

// got describes the next character for a message.
func (p *jsonParser) got() string {
	if p.at == len(p.data) {
		return "the end"
	}
	c, n := utf8.DecodeRune(p.data[p.at:])
	if c == utf8.RuneError && n == 1 {
		return fmt.Sprintf("the byte 0x%02x", p.data[p.at])
	}
	return strconv.QuoteRune(c)
}

func (p *jsonParser) value(depth int) *Node {
	c := p.peek()
	n := new(Node)
	n.Line, n.Column = p.place()
	switch {
	case depth > maxDepth:
		p.fail("values nest deeper than %d", maxDepth)
	case c == '{':
		n.Kind = Mapping
		p.members('}', func() {
			if p.peek() != '"' {
				p.fail("want a key in quotes, got %s", p.got())
				return
			}
			n.Content = append(n.Content, p.value(depth+1))
			if p.peek() != ':' {
				p.fail("want a colon after the key, got %s", p.got())
				return
			}
			p.at++
			n.Content = append(n.Content, p.value(depth+1))
		})
	case c == '[':
		n.Kind = List
		p.members(']', func() { n.Content = append(n.Content, p.value(depth+1)) })
	case c == '"':
		n.Kind, n.Text = String, p.text()
	case c == '-' || c >= '0' && c <= '9':
		p.number(n)
	default:
		p.literal(n)
	}
	return n
}

// members reads what stands between brackets.
func (p *jsonParser) members(end byte, member func()) {
	p.at++
	if p.peek() == end {
		p.at++
		return
	}
	for p.problem == nil {
		member()
		switch p.peek() {
		case ',':
			p.at++
		case end:
			p.at++
			return
		default:
			p.fail("want a comma or %q, got %s", end, p.got())
		}
	}
}

func (p *jsonParser) literal(n *Node) {
	for text, kind := range map[string]Kind{"true": Boolean, "false": Boolean, "null": Null} {
		if bytes.HasPrefix(p.data[p.at:], []byte(text)) {
			n.Kind, n.Text = kind, text
			p.at += len(text)
			return
		}
	}
	p.fail("want a value, got %s", p.got())
}

// number reads -?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?
func (p *jsonParser) number(n *Node) {
	start := p.at
	digits := func() {
		from := p.at
		for p.at < len(p.data) && p.data[p.at] >= '0' && p.data[p.at] <= '9' {
			p.at++
		}
		if p.at == from {
			p.fail("want a digit, got %s", p.got())
		}
	}
	next := func(oneOf string) bool {
		if p.at < len(p.data) && strings.IndexByte(oneOf, p.data[p.at]) >= 0 {
			p.at++
			return true
		}
		return false
	}
	n.Kind = Integer
	next("-")
	if !next("0") {
		digits()
	}
	if next(".") {
		n.Kind = Float
		digits()
	}
	if next("eE") {
		n.Kind = Float
		next("+-")
		digits()
	}
	if p.problem == nil {
		n.Text = string(p.data[start:p.at])
	}
}

// text reads a string.
func (p *jsonParser) text() string {
	p.at++
	start, escaped := p.at, []byte(nil)
	for p.at < len(p.data) {
		switch c := p.data[p.at]; {
		case c == '"':
			text := append(escaped, p.data[start:p.at]...)
			p.at++
			return string(text)
		case c == '\\':
			escaped = append(escaped, p.data[start:p.at]...)
			escaped = p.escape(escaped)
			start = p.at
		case c < ' ':
			p.fail("the control character 0x%02x in a string", c)
		case c < utf8.RuneSelf:
			p.at++
		default:
			r, size := utf8.DecodeRune(p.data[p.at:])
			if r == utf8.RuneError && size == 1 {
				p.fail("byte 0x%02x is not UTF-8 text", c)
				return ""
			}
			p.at += size
		}
	}
	p.fail("a string does not end")
	return ""
}

const hexDigits = 4 // of an escape such as \u00e9

// escape reads one escape and appends what it stands for.
func (p *jsonParser) escape(to []byte) []byte {
	if p.at+1 == len(p.data) {
		p.at++
		return to // the string does not end
	}
	const from, into = `"\/bfnrt`, "\"\\/\b\f\n\r\t"
	c := p.data[p.at+1]
	if i := bytes.IndexByte([]byte(from), c); i >= 0 {
		p.at += 2
		return append(to, into[i])
	}
	if c != 'u' {
		p.fail("the escape \\%c is not known", c)
		return to
	}
	r, ok := p.codeUnit()
	if ok && utf16.IsSurrogate(r) {
		low, both := p.codeUnit()
		if r = utf16.DecodeRune(r, low); !both || r == utf8.RuneError {
			ok = false
		}
	}
	if !ok {
		p.fail("the escape \\u is not followed by the hexadecimal digits of a character")
		return to
	}
	return utf8.AppendRune(to, r)
}

// codeUnit reads \uXXXX.
func (p *jsonParser) codeUnit() (rune, bool) {
	end := p.at + 2 + hexDigits
	if end > len(p.data) || p.data[p.at] != '\\' || p.data[p.at+1] != 'u' {
		return 0, false
	}
	n, err := strconv.ParseUint(string(p.data[p.at+2:end]), 16, 16)
	if err != nil {
		return 0, false
	}
	p.at = end
	return rune(n), true
}
