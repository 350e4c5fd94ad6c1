package route

import "strings"

// Path is a request's path in the forms that are matched: normalised as it came, and every other way it can be read
// where that differs. The zero Path is "/". It is immutable; it shares memory with the string it was cleaned from.
type Path struct {
	form      string   // as it came, normalised; "" is "/"
	more      []string // the other forms, without duplicates
	ambiguous bool     // too many to list: matches every pattern
	climbs    bool     // a reading leads above the root
}

// Clean normalises a raw request path ("//", ".", "..", trailing slash, percent-encoding). It never fails: any bytes
// have a defined form. It allocates only where the path is not already clean.
//
// The path should come as it was sent, undecoded, without its query. Where a query is there all the same, the path is
// read both without it and with it, because after a gateway that decodes first a "?" may be part of the path. A missing
// leading slash is added.
func Clean(raw string) Path {
	if form, ok := alreadyClean(raw); ok {
		return Path{form: form}
	}
	return readAll(raw)
}

// String is the path as it came, normalised but not decoded, without a query. It is for display; it may hold any byte
// but "?" and "#", so quote it where it is written.
func (p *Path) String() string {
	if p.form == "" {
		return "/"
	}
	return p.form
}

// Ambiguous reports whether the path can be read in more ways than are worth following. It then matches every pattern,
// and a caller that lets specific patterns displace wider ones must let none be displaced.
func (p *Path) Ambiguous() bool { return p.ambiguous }

// Climbs reports whether a reading of the path has more ".." than segments before them, and so leads above the root.
// The forms of such a path stop at the root. A proxy that puts a base path in front of it does not: "/../api/1" behind
// "/api" is "/api/1" to the server, and no form is "/1". A caller that hands paths to such a proxy must refuse these.
// Of an ambiguous path not every reading is looked at, so it is taken to lead there.
func (p *Path) Climbs() bool { return p.climbs || p.ambiguous }

// NumForms is the number of forms, from 1 to twice [MaxReadings].
func (p *Path) NumForms() int { return 1 + len(p.more) }

// Form returns form i of NumForms; form 0 is String. Every form begins with a slash and has no empty segment and no
// trailing slash. String has no "." and no ".."; another form may have them as segments, see the package comment.
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

// alreadyClean returns the path without its trailing slash if nothing else needs doing. It is the usual case and must
// neither allocate nor miss anything that a rewrite in readings.go would change.
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

// dotOrEmptyAt reports whether the segment that starts at i is ".", ".." or empty with more behind it.
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

// segmentsOf prepares a form for nextSegment: the root has no segments.
func segmentsOf(form string) string {
	if form == "/" {
		return ""
	}
	return form
}
