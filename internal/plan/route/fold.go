package route

import (
	"unicode"
	"unicode/utf8"
)

// AnyCase returns the pattern with the same text and with literals that match regardless of case.
//
// Servers disagree on what equal letters are, so every one of their definitions counts: a letter equals its upper,
// lower and title case and its simple case foldings in Unicode, and any letter that equals one of these. So "k" also
// equals the Kelvin sign, and "i" the Turkish dotted and dotless letters. Foldings that change the number of letters
// ("ß" and "ss") are not equal, and bytes that are not UTF-8 are compared as they are.
func (p Pattern) AnyCase() Pattern {
	segments := make([]segment, len(p.segments))
	copy(segments, p.segments)
	for i := range segments {
		if s := &segments[i]; s.kind == literal && hasCase(s.text) {
			s.kind, s.folded = anyCaseLiteral, foldCase(s.text)
		}
	}
	return Pattern{text: p.text, segments: segments}
}

// HasCase reports whether a literal of the pattern has letters with an upper and a lower case.
func (p Pattern) HasCase() bool {
	for i := range p.segments {
		if s := &p.segments[i]; s.kind <= anyCaseLiteral && hasCase(s.text) {
			return true
		}
	}
	return false
}

// IsAnyCase reports whether AnyCase made the pattern, and the pattern has letters with an upper and a lower case.
func (p Pattern) IsAnyCase() bool {
	for i := range p.segments {
		if p.segments[i].kind == anyCaseLiteral {
			return true
		}
	}
	return false
}

func hasCase(s string) bool {
	for _, r := range s {
		if unicode.SimpleFold(r) != r || unicode.ToUpper(r) != r || unicode.ToLower(r) != r {
			return true
		}
	}
	return false
}

func foldCase(s string) string { return string(appendFold(nil, s)) }

// appendFold appends s with each letter replaced by its foldRune.
func appendFold(dst []byte, s string) []byte {
	for i := 0; i < len(s); {
		if c := s[i]; c < utf8.RuneSelf {
			if 'A' <= c && c <= 'Z' {
				c += 'a' - 'A'
			}
			dst = append(dst, c)
			i++
			continue
		}
		r, size := utf8.DecodeRuneInString(s[i:])
		if r == utf8.RuneError && size == 1 {
			dst = append(dst, s[i])
		} else {
			dst = utf8.AppendRune(dst, foldRune(r))
		}
		i += size
	}
	return dst
}

// foldRune returns the letter that represents all letters equal to r in [Pattern.AnyCase]: the lower case of the first
// letter of the circle of simple foldings. Converting to upper case first maps the Turkish letters to "i".
func foldRune(r rune) rune {
	r = unicode.ToLower(unicode.ToUpper(r))
	first := r
	for next := unicode.SimpleFold(r); next != r; next = unicode.SimpleFold(next) {
		first = min(first, next)
	}
	return unicode.ToLower(first)
}
