package apigw

import "strings"

// charset holds the bytes that are not escaped.
type charset [256]bool

// unreserved and visible are the bytes that encode and ascii leave as they are; unescaped those that need no escape in
// JSON.
var unreserved, visible, unescaped = func() (u, v, j charset) {
	for c := byte(' '); c <= '~'; c++ {
		v[c] = true
		j[c] = !strings.ContainsRune(`"\<>&`, rune(c))
		u[c] = c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '-' || c == '.' ||
			c == '_' || c == '~'
	}
	return u, v, j
}()

// EncodeName returns the form in which chosen names are written to a context, a header or a log line. All bytes but A-Z
// a-z 0-9 - . _ ~ are percent-encoded, so that each name has one spelling and none can end a line.
func EncodeName(name string) string { return encode(name) }

func encode(s string) string { return escape(s, &unreserved) }

// ascii percent-encodes all bytes but printable ASCII.
func ascii(s string) string { return escape(s, &visible) }

func escape(s string, plain *charset) string {
	first := 0
	for first < len(s) && plain[s[first]] {
		first++
	}
	if first == len(s) {
		return s
	}
	const hex = "0123456789ABCDEF"
	var b strings.Builder
	b.WriteString(s[:first])
	for i := first; i < len(s); i++ {
		if c := s[i]; plain[c] {
			b.WriteByte(c)
		} else {
			b.WriteByte('%')
			b.WriteByte(hex[c>>4])
			b.WriteByte(hex[c&15])
		}
	}
	return b.String()
}
