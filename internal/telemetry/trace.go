package telemetry

import (
	"errors"
	"strings"
)

// Trace says which trace a request belongs to. The zero value means no trace.
type Trace struct {
	ID      string // 32 lower-case hexadecimal digits, not all zero, as in W3C Trace Context; "" if there is none
	Parent  string // id of the caller's span: 16 lower-case hexadecimal digits, not all zero; "" if unknown
	Sampled bool
}

// maxXRayBytes bounds the X-Ray header. Its field Lineage makes it long if many functions call each other.
const maxXRayBytes = 1024

// ParseXRay reads the header X-Amzn-Trace-Id, which Lambda also passes as the variable _X_AMZN_TRACE_ID:
// "Root=1-5759e988-bd862e3fe1be46a994272793;Parent=53995c3f42cd8ad8;Sampled=1". Fields may be in any order, and unknown
// fields are ignored. A malformed Parent is left out. The error does not repeat the header.
func ParseXRay(header string) (Trace, error) {
	if len(header) > maxXRayBytes {
		return Trace{}, errors.New("X-Ray trace header: longer than 1024 bytes")
	}
	var t Trace
	for field := range strings.SplitSeq(header, ";") {
		name, value, _ := strings.Cut(strings.Trim(field, " \t"), "=")
		switch name {
		case "Root":
			if t.ID != "" {
				return Trace{}, errors.New("X-Ray trace header: two Root fields")
			}
			if t.ID = rootID(value); t.ID == "" {
				return Trace{}, errors.New("X-Ray trace header: Root is not 1-, 8 and 24 hexadecimal digits")
			}
		case "Parent":
			if t.Parent = ""; isID(value, 16) {
				t.Parent = value
			}
		case "Sampled":
			t.Sampled = value == "1"
		}
	}
	if t.ID == "" {
		return Trace{}, errors.New("X-Ray trace header: no Root field")
	}
	return t, nil
}

// rootID returns the id in "1-5759e988-bd862e3fe1be46a994272793" without its dashes, or "" if root has another form.
func rootID(root string) string {
	const digits = len("5759e988-bd862e3fe1be46a994272793")
	root, ok := strings.CutPrefix(root, "1-")
	if !ok || len(root) != digits || root[8] != '-' {
		return ""
	}
	if id := root[:8] + root[9:]; isID(id, 32) {
		return id
	}
	return ""
}

// ParseTraceparent reads the header traceparent of W3C Trace Context:
// "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01". Of versions later than 00, it reads the fields of version
// 00, as the specification asks. The error does not repeat the header.
func ParseTraceparent(header string) (Trace, error) {
	const size = len("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
	if len(header) < size || header[2] != '-' || header[35] != '-' || header[52] != '-' {
		return Trace{}, errors.New("traceparent: not VERSION-TRACE-PARENT-FLAGS with 2, 32, 16 and 2 digits")
	}
	version, flags := header[:2], header[53:55]
	t := Trace{ID: header[3:35], Parent: header[36:52]}
	switch {
	case !isHex(version) || version == "ff":
		return Trace{}, errors.New("traceparent: the version is not 2 lower-case hexadecimal digits other than ff")
	case version == "00" && len(header) > size, len(header) > size && header[size] != '-':
		return Trace{}, errors.New("traceparent: too long")
	case !isID(t.ID, 32):
		return Trace{}, errors.New("traceparent: the trace's id is not 32 lower-case hexadecimal digits, or all zero")
	case !isID(t.Parent, 16):
		return Trace{}, errors.New("traceparent: the parent's id is not 16 lower-case hexadecimal digits, or all zero")
	case !isHex(flags):
		return Trace{}, errors.New("traceparent: the flags are not 2 lower-case hexadecimal digits")
	}
	t.Sampled = digit(flags[1])&1 == 1
	return t, nil
}

// FindTrace reads both trace headers of a request; "" means that a header is missing. The X-Ray header is preferred,
// because the gateway sets it and the client sets the other. A malformed header counts as missing: a request must not
// fail because of it.
func FindTrace(xray, traceparent string) Trace {
	if t, err := ParseXRay(xray); err == nil {
		return t
	}
	if t, err := ParseTraceparent(traceparent); err == nil {
		return t
	}
	return Trace{}
}

// XRay returns the id in the form of X-Ray, "1-5759e988-bd862e3fe1be46a994272793", or "" if there is no trace.
func (t Trace) XRay() string {
	if len(t.ID) != 32 {
		return ""
	}
	return "1-" + t.ID[:8] + "-" + t.ID[8:]
}

// isID reports whether s is n lower-case hexadecimal digits, not all of them zero.
func isID(s string, n int) bool { return len(s) == n && isHex(s) && strings.Trim(s, "0") != "" }

func isHex(s string) bool {
	for i := range len(s) {
		if digit(s[i]) > 15 {
			return false
		}
	}
	return true
}

// digit returns the value of a lower-case hexadecimal digit, and more than 15 for any other byte.
func digit(c byte) byte {
	switch {
	case '0' <= c && c <= '9':
		return c - '0'
	case 'a' <= c && c <= 'f':
		return c - 'a' + 10
	}
	return 16
}
