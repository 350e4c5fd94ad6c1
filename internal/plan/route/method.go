package route

// CanonicalMethod is the method with its ASCII letters in upper case, as rules are loaded and requests are matched.
// HTTP's methods are case-sensitive, but some servers fold them, and "get" must not escape a limit on GET. Use it where
// a method names a counter, or each spelling gets a counter of its own. It allocates only where something changes.
func CanonicalMethod(method string) string {
	for i := 0; i < len(method); i++ {
		if isLower(method[i]) {
			return upper(method)
		}
	}
	return method
}

func isLower(c byte) bool { return 'a' <= c && c <= 'z' }

func upper(s string) string {
	b := []byte(s)
	for i, c := range b {
		if isLower(c) {
			b[i] = c - 'a' + 'A'
		}
	}
	return string(b)
}
