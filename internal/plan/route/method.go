package route

import "slices"

// UsualMethods returns the methods that a gateway serves unless it is told otherwise. Many handlers do the work of GET
// for a method that they do not know, such as GETX or TRACE, but a limit on GET does not count it.
func UsualMethods() []string {
	return []string{"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"}
}

// IsOneOf reports whether the method is in the list, in any case; the list is in upper case.
func IsOneOf(methods []string, method string) bool {
	return slices.Contains(methods, CanonicalMethod(method))
}

// CanonicalMethod returns the method with its ASCII letters in upper case. Rules and requests are compared in this
// form: HTTP's methods are case-sensitive, but some servers ignore case, and "get" must not avoid a limit on GET. Use
// it also where a method names a counter; otherwise each spelling gets a counter of its own. It allocates only if the
// method has lower-case letters.
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
