package accesslog

// MaxHostBytes bounds the client's address: no name of the DNS is longer.
const MaxHostBytes = 253

const (
	inName  = 1 << iota // letters, digits, . - _
	inIPv6              // characters of an IPv6 address without its zone
	inToken             // RFC 9110 §5.6.2
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
	set("abcdefABCDEF"+digits+":.", inIPv6)
	set(letters+digits+"!#$%&'*+-.^_`|~", inToken)
	return table
}()

// validHost reports whether a text can be an IPv4 or IPv6 address or a host name, by its characters. A text with a
// colon must be an IPv6 address, so that "shop.example:443", a virtual host that some formats put first, is not taken
// for the client.
func validHost(host []byte) bool {
	if len(host) > MaxHostBytes || (len(host) == 1 && host[0] == '-') {
		return false
	}
	all, colons := uint8(inName|inIPv6), 0
	for i, c := range host {
		if c == '%' && i > 0 && colons >= 2 { // the zone of a link-local address
			return all&inIPv6 != 0 && i+1 < len(host) && allIn(host[i+1:], inName)
		}
		if c == ':' {
			colons++
		}
		all &= classes[c]
	}
	if colons > 0 {
		return all&inIPv6 != 0 && colons >= 2
	}
	return all&inName != 0
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

// Unescape appends src to dst, and replaces the escapes that servers write inside quotes: \xHH, \", \\, \n, \r, \t, \b,
// \v, \f. Any other text after a backslash is kept, with the backslash.
func Unescape(dst, src []byte) []byte {
	for i := 0; i < len(src); i++ {
		if src[i] != '\\' || i+1 == len(src) {
			dst = append(dst, src[i])
			continue
		}
		i++
		switch c := src[i]; c {
		case '"', '\\':
			dst = append(dst, c)
		case 'n':
			dst = append(dst, '\n')
		case 'r':
			dst = append(dst, '\r')
		case 't':
			dst = append(dst, '\t')
		case 'b':
			dst = append(dst, '\b')
		case 'v':
			dst = append(dst, '\v')
		case 'f':
			dst = append(dst, '\f')
		case 'x':
			if i+2 < len(src) {
				hi, lo := hexDigit(src[i+1]), hexDigit(src[i+2])
				if hi < 16 && lo < 16 {
					dst = append(dst, hi<<4|lo)
					i += 2
					continue
				}
			}
			dst = append(dst, '\\', 'x')
		default:
			dst = append(dst, '\\', c)
		}
	}
	return dst
}

// hexDigit returns the value of a hexadecimal digit, or 16 if c is none.
func hexDigit(c byte) byte {
	switch {
	case c >= '0' && c <= '9':
		return c - '0'
	case c >= 'a' && c <= 'f':
		return c - 'a' + 10
	case c >= 'A' && c <= 'F':
		return c - 'A' + 10
	}
	return 16
}
