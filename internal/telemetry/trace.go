package telemetry

import (
	"errors"
	"strings"
)

// Trace says to which trace a request belongs. The zero value is none.
type Trace struct {
	ID      string // 32 lower-case hexadecimal digits, not all zero, as W3C Trace Context has it; "" none
	Parent  string // who called: 16 lower-case hexadecimal digits, not all zero; "" not said
	Sampled bool
}

// maxXRayBytes bounds the header of X-Ray; a lineage of many functions makes it longest.
const maxXRayBytes = 1024

// ParseXRay reads the header X-Amzn-Trace-Id, which in Lambda is also the variable _X_AMZN_TRACE_ID:
// "Root=1-5759e988-bd862e3fe1be46a994272793;Parent=53995c3f42cd8ad8;Sampled=1", in any order, with fields that it does
// not know. A Parent that is malformed is left out. The error does not repeat the header.
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

// rootID is the id in "1-5759e988-bd862e3fe1be46a994272793" without its dashes, or "".
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
// "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01". Of a later version than 00 it reads what 00 has, as that
// specification asks. The error does not repeat the header.
func ParseTraceparent(header string) (Trace, error) {
	const size = len("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
	if len(header) < size || header[2] != '-' || header[35] != '-' || header[52] != '-' {
		return Trace{}, errors.New("traceparent: not VERSION-TRACE-PARENT-FLAGS with 2, 32, 16 and 2 digits")
	}
	version, flags := header[:2], header[53:55]
	t := Trace{ID: header[3:35], Parent: header[36:52]}
	switch {
	case !isHex(version) || version == "ff":
		return Trace{}, errors.New("traceparent: no such version")
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

// FindTrace reads the headers of a request, "" where there is none. X-Ray's comes first: the gateway sets it, the other
// is the client's. A header that is malformed counts as absent, for a request must not fail on it.
func FindTrace(xray, traceparent string) Trace {
	if t, err := ParseXRay(xray); err == nil {
		return t
	}
	if t, err := ParseTraceparent(traceparent); err == nil {
		return t
	}
	return Trace{}
}

// XRay is the id as X-Ray writes it, "1-5759e988-bd862e3fe1be46a994272793"; "" for none.
func (t Trace) XRay() string {
	if len(t.ID) != 32 {
		return ""
	}
	return "1-" + t.ID[:8] + "-" + t.ID[8:]
}

// isID reports whether s is n digits, not all of them zero.
func isID(s string, n int) bool { return len(s) == n && isHex(s) && strings.Trim(s, "0") != "" }

func isHex(s string) bool {
	for i := range len(s) {
		if digit(s[i]) > 15 {
			return false
		}
	}
	return true
}

// digit is the value of a lower-case hexadecimal digit; above 15 for anything else.
func digit(c byte) byte {
	switch {
	case '0' <= c && c <= '9':
		return c - '0'
	case 'a' <= c && c <= 'f':
		return c - 'a' + 10
	}
	return 16
}
