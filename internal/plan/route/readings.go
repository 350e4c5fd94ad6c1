package route

import (
	"bytes"
	"slices"
	"strings"
	"unicode/utf8"
)

// Bounds on the readings of one path; beyond them the path is ambiguous. They are far above what ordinary clients
// send: a path that contains an encoded URL, itself with escapes, parameters, a query and a fragment, stays within
// them.
const (
	MaxReadings  = 96       // readings that are followed; each has up to four forms
	maxReadBytes = 32 << 10 // bytes of all readings together; keeps the work well below a millisecond
	escapeBytes  = 3        // of "%41"
)

// A rewrite is one change that a proxy or server may make to a path before using it. It appends to dst the changed
// form of s; s and the result begin with a slash. If the rewrite changes nothing, it returns dst unchanged and false.
type rewrite func(dst []byte, s string) (out []byte, changed bool)

// rewrites are the rewrites of the package comment. None of them makes a path longer, so following them in every order
// ends.
var rewrites = [...]rewrite{
	mergeSlashes,
	removeDots,
	func(dst []byte, s string) ([]byte, bool) {
		return decode(dst, s, func(c byte) bool { return c != '/' })
	},
	func(dst []byte, s string) ([]byte, bool) {
		return decode(dst, s, func(c byte) bool { return c == '/' || c == '\\' })
	},
	dropParams,
	turnBackslashes,
	func(dst []byte, s string) ([]byte, bool) { return cutAt(dst, s, '?') },
	func(dst []byte, s string) ([]byte, bool) { return cutAt(dst, s, '#') },
	func(dst []byte, s string) ([]byte, bool) { return cutAt(dst, s, 0) },
	func(dst []byte, s string) ([]byte, bool) { return cutAt(dst, s, ';') },
	dropLineBreak,
	dropInvalid,
	dropAuthority,
}

// reader collects the readings of one path.
type reader struct {
	path    Path
	seen    []string // readings; each is rewritten in turn
	left    int      // bytes that further readings may have together
	scratch []byte   // for a result that may have been seen already
}

// readAll applies every rewrite, starting from the raw path, and keeps the distinct normalised results.
func readAll(raw string) Path {
	r := reader{seen: make([]string, 0, 4), left: maxReadBytes, scratch: make([]byte, 0, len(raw)+1)}
	r.start(raw)
	for i := 0; i < len(r.seen) && !r.path.ambiguous; i++ {
		r.addForms(r.seen[i])
		for _, rewrite := range rewrites {
			if out, changed := rewrite(r.scratch[:0], r.seen[i]); changed {
				r.add(out)
			}
		}
	}
	return r.path
}

// start sets form 0 and the first readings: the raw path with a leading slash; the same without white space around it,
// which some servers drop from the request line; and of a whole URL ("absolute form") what follows its scheme.
func (r *reader) start(raw string) {
	shown := r.addStart(raw)
	raw = trimLatin1(raw)
	r.addStart(raw)
	scheme, rest, absolute := strings.Cut(raw, ":")
	if absolute && scheme != "" && !strings.ContainsAny(scheme, "/?#%") {
		rest = r.addStart(rest)
		shown = rest
		if out, changed := dropAuthority(r.scratch[:0], rest); changed {
			shown = string(out)
		}
	}
	if i := strings.IndexAny(shown, "?#"); i >= 0 {
		shown = shown[:i]
	}
	r.path.form = r.normalise(shown)
}

// addStart adds the reading of a path that may lack its leading slash, and returns it. If the path begins with another
// form of a slash, a server may read that one as the leading slash, and need no other.
func (r *reader) addStart(raw string) string {
	if strings.HasPrefix(raw, "/") {
		r.add([]byte(raw))
		return raw
	}
	r.add([]byte("/" + raw))
	if rest, ok := afterSlash(raw); ok {
		r.add([]byte("/" + rest))
	}
	return "/" + raw
}

// afterSlash returns what follows a backslash, or a slash or backslash that is encoded any number of times.
func afterSlash(raw string) (rest string, ok bool) {
	if rest, ok = strings.CutPrefix(raw, `\`); ok {
		return rest, true
	}
	if rest, ok = strings.CutPrefix(raw, "%"); !ok {
		return "", false
	}
	for strings.HasPrefix(rest, "25") {
		rest = rest[2:]
	}
	c, ok := escapeAt("%"+rest[:min(len(rest), 2)], 0)
	if !ok || c != '/' && c != '\\' {
		return "", false
	}
	return rest[2:], true
}

// trimLatin1 drops what is white space in Latin-1, and control characters, from both ends. Python's servers split the
// request line in this way, before they take its bytes for UTF-8.
func trimLatin1(s string) string {
	white := func(c byte) bool { return c <= ' ' || c == 0x85 || c == 0xa0 }
	for s != "" && white(s[0]) {
		s = s[1:]
	}
	for s != "" && white(s[len(s)-1]) {
		s = s[:len(s)-1]
	}
	return s
}

// add keeps a reading if it is new. If there is no room for it, the path becomes ambiguous.
func (r *reader) add(reading []byte) {
	for _, s := range r.seen {
		if s == string(reading) {
			return
		}
	}
	if r.left -= len(reading); r.left < 0 || len(r.seen) == MaxReadings {
		r.path.ambiguous = true
		return
	}
	r.seen = append(r.seen, string(reading))
}

// addForms keeps the new forms of a reading: the normalised one, and those in which dots and empty segments are
// ordinary segments: with the slashes at its end, without one of them and without all of them.
func (r *reader) addForms(reading string) {
	r.addForm(r.normalise(reading))
	r.addForm(strings.TrimRight(reading, "/"))
	r.addForm(strings.TrimSuffix(reading, "/"))
	r.addForm(reading)
	r.path.climbs = r.path.climbs || hasDots(reading) && climbs(reading)
}

func (r *reader) addForm(form string) {
	if form != r.path.form && !slices.Contains(r.path.more, form) {
		r.path.more = append(r.path.more, form)
	}
}

// hasDots reports whether a segment of s is "." or "..".
func hasDots(s string) bool {
	for i := 0; i < len(s); i++ {
		if s[i] == '/' && i+1 < len(s) && s[i+1] == '.' && dotOrEmptyAt(s, i+1) {
			return true
		}
	}
	return false
}

// climbs reports whether ".." leads above the root in s. Empty segments do not count, since some servers merge them.
func climbs(s string) bool {
	depth := 0
	for rest := s; rest != "" && depth >= 0; {
		var segment string
		segment, rest = nextSegment(rest)
		switch segment {
		case "", ".":
		case "..":
			depth--
		default:
			depth++
		}
	}
	return depth < 0
}

// normalise returns the form of a reading in which slashes are merged, dots resolved and a trailing slash dropped. It
// allocates only if the form is not a substring of the reading.
func (r *reader) normalise(s string) string {
	for i := 0; i < len(s); i++ {
		if s[i] == '/' && dotOrEmptyAt(s, i+1) {
			return string(appendNormal(r.scratch[:0], s))
		}
	}
	return strings.TrimSuffix(s, "/")
}

func appendNormal(dst []byte, s string) []byte {
	for rest := s; rest != ""; {
		var segment string
		segment, rest = nextSegment(rest)
		switch segment {
		case "", ".":
		case "..":
			dst = dst[:max(0, bytes.LastIndexByte(dst, '/'))]
		default:
			dst = append(append(dst, '/'), segment...)
		}
	}
	return dst
}

// mergeSlashes replaces several adjacent slashes with one.
func mergeSlashes(dst []byte, s string) ([]byte, bool) {
	if !strings.Contains(s, "//") {
		return dst, false
	}
	for i := 0; i < len(s); i++ {
		if s[i] != '/' || i == 0 || s[i-1] != '/' {
			dst = append(dst, s[i])
		}
	}
	return dst, true
}

// removeDots resolves "." and "..", never above the root. An empty segment counts as a segment, so "/a//.." becomes
// "/a/".
func removeDots(dst []byte, s string) ([]byte, bool) {
	if !strings.Contains(s, "/.") {
		return dst, false
	}
	changed := false
	for rest := s; rest != ""; {
		segment, after := nextSegment(rest)
		dots := segment == "." || segment == ".."
		switch {
		case !dots:
			dst = append(append(dst, '/'), segment...)
		case segment == "..":
			dst = dst[:max(0, bytes.LastIndexByte(dst, '/'))]
		}
		if dots && after == "" { // "/a/." and "/a/b/.." name the folder "/a/"
			dst = append(dst, '/')
		}
		changed, rest = changed || dots, after
	}
	return dst, changed
}

// decode replaces the escapes of the bytes that want accepts, once and from the left. Invalid escapes stay as they
// are.
func decode(dst []byte, s string, want func(byte) bool) ([]byte, bool) {
	kept := 0 // s[:kept] is in dst
	for i := 0; ; {
		next := strings.IndexByte(s[i:], '%')
		if next < 0 {
			break
		}
		if i += next; i+escapeBytes > len(s) {
			break
		}
		if c, ok := escapeAt(s, i); ok && want(c) {
			dst = append(append(dst, s[kept:i]...), c)
			i += escapeBytes
			kept = i
		} else {
			i++
		}
	}
	if kept == 0 {
		return dst, false
	}
	return append(dst, s[kept:]...), true
}

// escapeAt returns the byte that the escape at i stands for, and whether the escape is valid.
func escapeAt(s string, i int) (byte, bool) {
	if s[i] != '%' || len(s)-i < escapeBytes {
		return 0, false
	}
	high, ok1 := hexDigit(s[i+1])
	low, ok2 := hexDigit(s[i+2])
	return high<<4 | low, ok1 && ok2
}

func hexDigit(c byte) (byte, bool) {
	switch {
	case '0' <= c && c <= '9':
		return c - '0', true
	case 'a' <= c && c <= 'f':
		return c - 'a' + 10, true
	case 'A' <= c && c <= 'F':
		return c - 'A' + 10, true
	}
	return 0, false
}

// dropParams drops everything from a ";" to the end of its segment.
func dropParams(dst []byte, s string) ([]byte, bool) {
	if strings.IndexByte(s, ';') < 0 {
		return dst, false
	}
	inParams := false
	for i := 0; i < len(s); i++ {
		switch s[i] {
		case '/':
			inParams = false
		case ';':
			inParams = true
		}
		if !inParams {
			dst = append(dst, s[i])
		}
	}
	return dst, true
}

func turnBackslashes(dst []byte, s string) ([]byte, bool) {
	if strings.IndexByte(s, '\\') < 0 {
		return dst, false
	}
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' {
			dst = append(dst, '/')
		} else {
			dst = append(dst, s[i])
		}
	}
	return dst, true
}

// cutAt drops everything from the first occurrence of c.
func cutAt(dst []byte, s string, c byte) ([]byte, bool) {
	i := strings.IndexByte(s, c)
	if i < 0 {
		return dst, false
	}
	return append(dst, s[:i]...), true
}

// dropLineBreak drops a line break at the end, with slashes behind it. The expressions of many routers end with "$",
// which also matches before a line break.
func dropLineBreak(dst []byte, s string) ([]byte, bool) {
	s = strings.TrimRight(s, "/")
	if !strings.HasSuffix(s, "\n") {
		return dst, false
	}
	return append(dst, s[:len(s)-1]...), true
}

// dropInvalid drops the bytes that are not UTF-8.
func dropInvalid(dst []byte, s string) ([]byte, bool) {
	if utf8.ValidString(s) {
		return dst, false
	}
	return append(dst, strings.ToValidUTF8(s, "")...), true
}

// dropAuthority turns "//authority/path", with two or more slashes in front, into "/path".
func dropAuthority(dst []byte, s string) ([]byte, bool) {
	if !strings.HasPrefix(s, "//") {
		return dst, false
	}
	rest := strings.TrimLeft(s, "/")
	if i := strings.IndexByte(rest, '/'); i >= 0 {
		return append(dst, rest[i:]...), true
	}
	return append(dst, '/'), true
}
