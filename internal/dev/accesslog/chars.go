package accesslog

import (
	"bytes"
	"strconv"
)

// MaxHostBytes bounds the client's address: no name of the DNS is longer.
const MaxHostBytes = 253

const (
	inName  = 1 << iota // letters, digits, . - _
	inToken             // RFC 9110 §5.6.2
	inHex               // hexadecimal digits
)

var classes = func() (table [256]uint8) {
	set := func(chars string, class uint8) {
		for i := range len(chars) {
			table[chars[i]] |= class
		}
	}
	const digits = "0123456789"
	const letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
	set(letters+digits+".-_", inName)
	set("abcdefABCDEF"+digits, inHex)
	set(letters+digits+"!#$%&'*+-.^_`|~", inToken)
	return table
}()

// validHost reports whether a text is an IPv4 or IPv6 address, or has only the characters of a host name. A text with a
// colon must be an IPv6 address, so that "shop.example:443", a virtual host that some formats put first, is not taken
// for the client.
func validHost(host []byte) bool {
	if len(host) > MaxHostBytes || string(host) == "-" {
		return false
	}
	return allIn(host, inName) || isAddress(host)
}

func validMethod(method []byte) bool { return len(method) <= 64 && allIn(method, inToken) }

func allIn(text []byte, class uint8) bool {
	for _, c := range text {
		if classes[c]&class == 0 {
			return false
		}
	}
	return true
}

// escapes are the letters after a backslash that stand for one character each.
var escapes = map[byte]byte{
	'"': '"', '\\': '\\', 'n': '\n', 'r': '\r', 't': '\t', 'b': '\b', 'v': '\v', 'f': '\f',
}

// Unescape appends src to dst, and replaces the escapes that servers write inside quotes: \xHH, \", \\, \n, \r, \t, \b,
// \v, \f. Any other text after a backslash is kept, with the backslash.
func Unescape(dst, src []byte) []byte {
	for {
		i := bytes.IndexByte(src, '\\')
		if i < 0 || i+1 == len(src) {
			return append(dst, src...)
		}
		dst = append(dst, src[:i]...)
		c, known := escapes[src[i+1]]
		code, err := strconv.ParseUint(string(src[i+2:min(i+4, len(src))]), 16, 8)
		switch {
		case known:
			dst, src = append(dst, c), src[i+2:]
		case src[i+1] == 'x' && i+4 <= len(src) && err == nil:
			dst, src = append(dst, byte(code)), src[i+4:]
		default:
			dst, src = append(dst, '\\'), src[i+1:]
		}
	}
}
