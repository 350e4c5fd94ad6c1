package telemetry

import "strings"

// maxXRayBytes bounds the X-Ray header. Its field Lineage makes it long if many functions call each other.
const maxXRayBytes = 1024

// XRayTrace returns the id of the trace that the header X-Amzn-Trace-Id names, as 32 lower-case hexadecimal digits, not
// all zero, as in W3C Trace Context. It returns "" for a malformed header, because a request must not fail because of
// it. Lambda passes the header also as the variable _X_AMZN_TRACE_ID:
// "Root=1-5759e988-bd862e3fe1be46a994272793;Parent=53995c3f42cd8ad8;Sampled=1". Fields may be in any order.
func XRayTrace(header string) (id string) {
	if len(header) > maxXRayBytes {
		return ""
	}
	for field := range strings.SplitSeq(header, ";") {
		name, root, _ := strings.Cut(strings.Trim(field, " \t"), "=")
		if name != "Root" {
			continue
		}
		version, digits, _ := strings.Cut(root, "-")
		begin, rest, _ := strings.Cut(digits, "-")
		if id != "" || version != "1" || len(begin) != 8 || !isID(begin+rest, 32) {
			return ""
		}
		id = begin + rest
	}
	return id
}

// TraceparentTrace returns the id of the trace that the header traceparent of W3C Trace Context names, or "" for a
// malformed header: "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01". Of versions later than 00, it reads the
// fields of version 00, as the specification asks.
func TraceparentTrace(header string) (id string) {
	fields := strings.SplitN(header, "-", 5)
	if len(fields) < 4 || len(fields) > 4 && fields[0] == "00" {
		return ""
	}
	version, trace, parent, flags := fields[0], fields[1], fields[2], fields[3]
	if !isHex(version, 2) || version == "ff" || !isID(trace, 32) || !isID(parent, 16) || !isHex(flags, 2) {
		return ""
	}
	return trace
}

// xrayForm returns the id of a trace in the form of X-Ray, "1-5759e988-bd862e3fe1be46a994272793", or "" for what is no
// id.
func xrayForm(id string) string {
	if len(id) != 32 {
		return ""
	}
	return "1-" + id[:8] + "-" + id[8:]
}

// isID reports whether s is n lower-case hexadecimal digits, not all of them zero.
func isID(s string, n int) bool { return isHex(s, n) && strings.Trim(s, "0") != "" }

func isHex(s string, n int) bool { return len(s) == n && strings.Trim(s, "0123456789abcdef") == "" }
