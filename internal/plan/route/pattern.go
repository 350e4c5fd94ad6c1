package route

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Bounds of a pattern.
const (
	MaxPatternBytes    = 1024
	MaxPatternSegments = 64
)

type kind uint8

// The kinds of segments, from the most specific.
const (
	literal        kind = iota
	anyCaseLiteral      // a literal with letters, matched regardless of case
	wildcard            // "*" or "{name}": one segment
	tail                // "**": any number of segments, including none
)

type segment struct {
	kind   kind
	text   string // of a literal: its decoded text; of "{name}": the name; of "*" and "**": ""
	folded string // of an anyCaseLiteral: foldCase of text
}

// matches reports whether the segment, which must not be a tail, matches a segment of a path.
func (s *segment) matches(got string) bool {
	switch s.kind {
	case literal:
		return got == s.text
	case anyCaseLiteral:
		return foldCase(got) == s.folded
	default:
		return true
	}
}

// Pattern is a parsed pathPattern. The zero Pattern stands for any path.
//
//	/product/1      these segments
//	/product/*      any one segment; also an empty one, since some servers read "/product/" so
//	/product/{id}   the same, with a name for the reader
//	/product/**     /product and all paths below it; "**" is the last segment
//	/               only the root
//
// "*" and braces stand for whole segments. Literals are written as in a URL and are percent-decoded: "/a%20b",
// "/100%25", "/%2A" for a star. A trailing slash is ignored.
type Pattern struct {
	text     string
	segments []segment
}

// SyntaxError describes the first error in a pattern.
type SyntaxError struct {
	Pattern  string
	Position int // in characters, from 1
	Message  string
}

// Error returns the pattern, the position and the message.
func (e *SyntaxError) Error() string {
	const shown = 80
	text := e.Pattern
	if len(text) > shown {
		text = strings.ToValidUTF8(text[:shown], "") + "…"
	}
	return fmt.Sprintf("path pattern %q, character %d: %s", text, e.Position, e.Message)
}

// ParsePattern reads a pattern. The error is a *[SyntaxError] for the first mistake.
func ParsePattern(s string) (Pattern, error) {
	p := parser{text: s}
	segments, err := p.parse()
	if err != nil {
		return Pattern{}, err
	}
	return Pattern{text: render(segments), segments: segments}, nil
}

// String returns the pattern in its normal form: no trailing slash, and only necessary escapes. ParsePattern reads it
// back. String returns "" for the zero Pattern.
func (p Pattern) String() string { return p.text }

// IsZero reports whether p is the zero Pattern, which matches any path. The root's pattern "/" is not zero.
func (p Pattern) IsZero() bool { return p.text == "" }

// Matches reports whether any form of the path matches the pattern. An ambiguous path matches every pattern.
func (p Pattern) Matches(path *Path) bool {
	if p.IsZero() || path.ambiguous {
		return true
	}
	for i := range path.NumForms() {
		if p.matchesForm(path.segments(i)) {
			return true
		}
	}
	return false
}

func (p Pattern) matchesForm(rest string) bool {
	for i := range p.segments {
		want := &p.segments[i]
		if want.kind == tail {
			return true
		}
		if rest == "" {
			return false
		}
		var got string
		if got, rest = nextSegment(rest); !want.matches(got) {
			return false
		}
	}
	return rest == ""
}

// parser reads one pattern. Its offsets are in bytes from the start of text.
type parser struct {
	text  string
	names map[string]bool
}

func (p *parser) errorAt(offset int, format string, args ...any) error {
	position := utf8.RuneCountInString(p.text[:offset]) + 1
	return &SyntaxError{Pattern: p.text, Position: position, Message: fmt.Sprintf(format, args...)}
}

func (p *parser) parse() ([]segment, error) {
	if err := p.checkWhole(); err != nil {
		return nil, err
	}
	if p.text == "/" {
		return nil, nil
	}
	var segments []segment
	parts := strings.Split(strings.TrimSuffix(p.text, "/")[1:], "/")
	for i, offset := 0, 1; i < len(parts); i++ {
		if len(segments) == MaxPatternSegments {
			return nil, p.errorAt(offset, "more than %d segments", MaxPatternSegments)
		}
		s, err := p.segment(parts[i], offset, i == len(parts)-1)
		if err != nil {
			return nil, err
		}
		segments = append(segments, s)
		offset += len(parts[i]) + 1
	}
	return segments, nil
}

// checkWhole checks what does not depend on the segments.
func (p *parser) checkWhole() error {
	if !strings.HasPrefix(p.text, "/") {
		return p.errorAt(0, "a path pattern begins with a slash; /** is any path")
	}
	if len(p.text) > MaxPatternBytes {
		return p.errorAt(MaxPatternBytes, "longer than %d bytes", MaxPatternBytes)
	}
	for i, r := range p.text {
		switch {
		case r == utf8.RuneError && !strings.HasPrefix(p.text[i:], string(utf8.RuneError)):
			return p.errorAt(i, "not valid UTF-8; write other bytes as %%XX")
		case r == '?' || r == '#':
			return p.errorAt(i, "%q ends the path: a pattern has no query and no fragment (as a literal: %%%02X)", r, r)
		case r == '\\':
			return p.errorAt(i, "a backslash is no separator (as a literal: %%5C)")
		case r == ' ':
			return p.errorAt(i, "a space is written as %%20")
		case !unicode.IsPrint(r):
			return p.errorAt(i, "%U is not a printable character", r)
		}
	}
	return nil
}

func (p *parser) segment(s string, offset int, last bool) (segment, error) {
	switch {
	case s == "":
		return segment{}, p.errorAt(offset, "empty segment")
	case s == "*":
		return segment{kind: wildcard}, nil
	case s == "**" && last:
		return segment{kind: tail}, nil
	case s == "**":
		return segment{}, p.errorAt(offset, `"**" is the last segment or none; use "*" for one segment`)
	case s[0] == '{':
		return p.named(s, offset)
	}
	return p.literal(s, offset)
}

// named reads "{name}".
func (p *parser) named(s string, offset int) (segment, error) {
	end := strings.IndexByte(s, '}')
	switch {
	case end < 0:
		return segment{}, p.errorAt(offset, "the brace is not closed in this segment")
	case end == 1:
		return segment{}, p.errorAt(offset, "the braces hold no name")
	case end != len(s)-1:
		return segment{}, p.errorAt(offset+end+1, "a {name} is a whole segment")
	}
	name := s[1:end]
	for i, r := range name {
		switch {
		case r == '+' && i == len(name)-1:
			return segment{}, p.errorAt(offset+1+i, "a {name} is one segment; /** is any tail")
		case !nameChar(r):
			return segment{}, p.errorAt(offset+1+i, "%q in a name; letters, digits, '.', '_' and '-' are allowed", r)
		}
	}
	if p.names[name] {
		return segment{}, p.errorAt(offset, "the name %q is used twice", name)
	}
	if p.names == nil {
		p.names = map[string]bool{}
	}
	p.names[name] = true
	return segment{kind: wildcard, text: name}, nil
}

func nameChar(r rune) bool {
	return 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' || '0' <= r && r <= '9' || r == '.' || r == '_' || r == '-'
}

// literal reads and decodes a literal. It refuses text that no form of a path can have in one segment, because such a
// limit would never apply.
func (p *parser) literal(s string, offset int) (segment, error) {
	if i := strings.IndexAny(s, "*{}"); i >= 0 {
		return segment{}, p.errorAt(offset+i,
			"%q inside a longer segment; it stands for a whole one (as a literal: %%%02X)", s[i], s[i])
	}
	for i := strings.IndexByte(s, '%'); i >= 0 && i < len(s); i++ {
		c, ok := escapeAt(s, i)
		switch {
		case s[i] != '%':
			continue
		case !ok:
			return segment{}, p.errorAt(offset+i, "%% is not followed by two hexadecimal digits (as a literal: %%25)")
		case c == '/':
			return segment{}, p.errorAt(offset+i, "an encoded slash; paths are matched decoded too, so write /")
		case c < ' ' || c == 0x7f:
			return segment{}, p.errorAt(offset+i, "an encoded control character")
		}
		i += escapeBytes - 1
	}
	decoded, changed := decode(nil, s, func(byte) bool { return true })
	text := string(decoded)
	if !changed {
		text = s
	}
	if text == "." || text == ".." {
		return segment{}, p.errorAt(offset, "a segment %q is resolved before matching", text)
	}
	return segment{kind: literal, text: text}, nil
}

// render writes segments as text that ParsePattern reads as the same segments.
func render(segments []segment) string {
	if len(segments) == 0 {
		return "/"
	}
	var b strings.Builder
	for _, s := range segments {
		b.WriteByte('/')
		switch {
		case s.kind == tail:
			b.WriteString("**")
		case s.kind == literal || s.kind == anyCaseLiteral:
			writeLiteral(&b, s.text)
		case s.text == "":
			b.WriteByte('*')
		default:
			b.WriteString("{" + s.text + "}")
		}
	}
	return b.String()
}

func writeLiteral(b *strings.Builder, text string) {
	for i := 0; i < len(text); {
		r, size := utf8.DecodeRuneInString(text[i:])
		if r == utf8.RuneError && size == 1 || !unicode.IsPrint(r) || strings.ContainsRune(` %?#\*{}`, r) {
			for _, c := range []byte(text[i : i+size]) {
				fmt.Fprintf(b, "%%%02X", c)
			}
		} else {
			b.WriteString(text[i : i+size])
		}
		i += size
	}
}
