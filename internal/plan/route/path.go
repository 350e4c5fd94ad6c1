package route

import (
	"slices"
	"strings"
	"unicode/utf8"
)

// Path is the path of a request, in the forms that are compared with patterns: the path as it came, normalised, and
// every other form that it can be read as. The zero Path is "/". A Path is immutable; it shares memory with the string
// that it was made from.
type Path struct {
	form      string   // as it came, normalised, in the form of segments
	more      []string // the other forms, without duplicates
	slash     bool     // form ends with a slash: form 0 is form without it, and form 1 is form
	ambiguous bool     // too many readings to list: matches every pattern
	climbs    bool     // in some reading ".." leads above the root
}

// Clean normalises a raw request path (slashes, ".", "..", trailing slash, percent-encoding). It never fails: any
// bytes have a defined form. It allocates only if the path is not already clean.
//
// The path should come as it was sent: not decoded, and without its query. If there is a "?" in it, the path is read
// both up to the "?" and as a whole, because behind a gateway that decodes first a "?" may be part of the path. A
// missing leading slash is added.
func Clean(raw string) Path {
	if alreadyClean(raw) {
		return Path{form: raw, slash: raw[len(raw)-1] == '/'}
	}
	return readAll(raw)
}

// String returns the path as it came, normalised but not decoded, without a query. It is for display. It may hold any
// byte except "?" and "#", so quote it in output.
func (p *Path) String() string { return p.Form(0) }

// Ambiguous reports whether the path has more readings than Clean follows. Such a path matches every pattern. A caller
// that lets specific patterns displace wider ones must not displace any for such a path.
func (p *Path) Ambiguous() bool { return p.ambiguous }

// Climbs reports whether some reading of the path has more ".." than segments before them, and so leads above the
// root. The forms of such a path stop at the root, but a proxy that puts a base path in front of it does not: behind
// "/api", "/../api/1" is "/api/1" to the server, and no form of the path is "/1". A caller that passes paths to such a
// proxy must refuse these paths. Climbs returns true for an ambiguous path, since not all its readings are known.
func (p *Path) Climbs() bool { return p.climbs || p.ambiguous }

// NumForms returns the number of forms, 1 to four times [MaxReadings].
func (p *Path) NumForms() int {
	if p.slash {
		return 2
	}
	return 1 + len(p.more)
}

// Form returns form i of NumForms; form 0 is String. Every form begins with a slash. Form 0 has no ".", no ".." and no
// empty segment, so it ends with a slash only if it is "/"; other forms may have them: see the package comment.
func (p *Path) Form(i int) string {
	if s := p.segments(i); s != "" {
		return s
	}
	return "/"
}

// Forms returns the distinct texts of all forms, String first.
func (p *Path) Forms() []string {
	out := make([]string, 0, p.NumForms())
	for i := range p.NumForms() {
		if form := p.Form(i); !slices.Contains(out, form) {
			out = append(out, form)
		}
	}
	return out
}

// segments returns form i as a sequence of segments, each with a slash before it: "" has none, and "/" has one, which
// is empty. The path "/" can be read in both ways.
func (p *Path) segments(i int) string {
	switch {
	case p.slash && i == 0:
		return p.form[:len(p.form)-1]
	case i == 0 || p.slash:
		return p.form
	}
	return p.more[i-1]
}

// odd marks the bytes that can give a path more than one reading.
var odd = func() (odd [256]bool) {
	for c := range odd {
		odd[c] = c <= ' ' || c >= utf8.RuneSelf
	}
	for _, c := range []byte(`%;\?#`) {
		odd[c] = true
	}
	return odd
}()

// alreadyClean reports whether no rewrite in readings.go changes the path. Most paths are clean, so it must not
// allocate.
func alreadyClean(raw string) bool {
	if raw == "" || raw[0] != '/' {
		return false
	}
	for i := 0; i < len(raw); i++ {
		c := raw[i]
		if odd[c] || c == '/' && dotOrEmptyAt(raw, i+1) {
			return false
		}
	}
	return true
}

// dotOrEmptyAt reports whether the segment that starts at i is ".", "..", or empty and followed by another segment.
func dotOrEmptyAt(s string, i int) bool {
	if i >= len(s) || s[i] != '.' {
		return i < len(s) && s[i] == '/'
	}
	if i++; i < len(s) && s[i] == '.' {
		i++
	}
	return i == len(s) || s[i] == '/'
}

// hasEmpty reports whether a sequence of segments has an empty one.
func hasEmpty(segments string) bool {
	return strings.HasSuffix(segments, "/") || strings.Contains(segments, "//")
}

// nextSegment splits rest, which is "" or begins with a slash, into its first segment and what follows.
func nextSegment(rest string) (segment, after string) {
	if i := strings.IndexByte(rest[1:], '/'); i >= 0 {
		return rest[1 : 1+i], rest[1+i:]
	}
	return rest[1:], ""
}
