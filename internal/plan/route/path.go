package route

import "strings"

// Path is the path of a request, in the forms that are compared with patterns: the path as it came, normalised, and
// every other form that it can be read as. The zero Path is "/". A Path is immutable; it shares memory with the string
// that it was made from.
type Path struct {
	form      string   // as it came, normalised; "": "/"
	more      []string // the other forms, without duplicates
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
	if form, ok := alreadyClean(raw); ok {
		return Path{form: form}
	}
	return readAll(raw)
}

// String returns the path as it came, normalised but not decoded, without a query. It is for display. It may hold any
// byte except "?" and "#", so quote it in output.
func (p *Path) String() string {
	if p.form == "" {
		return "/"
	}
	return p.form
}

// Ambiguous reports whether the path has more readings than Clean follows. Such a path matches every pattern. A caller
// that lets specific patterns displace wider ones must not displace any for such a path.
func (p *Path) Ambiguous() bool { return p.ambiguous }

// Climbs reports whether some reading of the path has more ".." than segments before them, and so leads above the
// root. The forms of such a path stop at the root, but a proxy that puts a base path in front of it does not: behind
// "/api", "/../api/1" is "/api/1" to the server, and no form of the path is "/1". A caller that passes paths to such a
// proxy must refuse these paths. Climbs returns true for an ambiguous path, since not all its readings are known.
func (p *Path) Climbs() bool { return p.climbs || p.ambiguous }

// NumForms returns the number of forms, 1 to twice [MaxReadings].
func (p *Path) NumForms() int { return 1 + len(p.more) }

// Form returns form i of NumForms; form 0 is String. Every form begins with a slash and has no empty segment and no
// trailing slash. Form 0 has no "." and no ".."; other forms may have them as segments: see the package comment.
func (p *Path) Form(i int) string {
	if i == 0 {
		return p.String()
	}
	return p.more[i-1]
}

// Forms returns all forms, String first.
func (p *Path) Forms() []string {
	return append([]string{p.String()}, p.more...)
}

// odd marks the bytes that give a path more than one reading.
var odd = [256]bool{'%': true, ';': true, '\\': true, '?': true, '#': true, 0: true}

// alreadyClean returns the path without its trailing slash, and true, if no rewrite in readings.go changes the path.
// Most paths are clean, so it must not allocate.
func alreadyClean(raw string) (string, bool) {
	if raw == "" || raw[0] != '/' {
		return "", false
	}
	for i := 0; i < len(raw); i++ {
		c := raw[i]
		if odd[c] || c == '/' && dotOrEmptyAt(raw, i+1) {
			return "", false
		}
	}
	return trimSlash(raw), true
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

// trimSlash drops one trailing slash, but not the root's.
func trimSlash(s string) string {
	if len(s) > 1 && s[len(s)-1] == '/' {
		return s[:len(s)-1]
	}
	return s
}

// nextSegment splits rest, which is "" or begins with a slash, into its first segment and what follows.
func nextSegment(rest string) (segment, after string) {
	if i := strings.IndexByte(rest[1:], '/'); i >= 0 {
		return rest[1 : 1+i], rest[1+i:]
	}
	return rest[1:], ""
}

// segmentsOf returns a form as nextSegment expects it: "" for the root, which has no segments.
func segmentsOf(form string) string {
	if form == "/" {
		return ""
	}
	return form
}
