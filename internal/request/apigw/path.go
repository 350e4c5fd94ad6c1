package apigw

import "strings"

// arn holds the parts of the ARN of a method or route: arn:aws:execute-api:REGION:ACCOUNT:API/STAGE/METHOD/PATH.
type arn struct{ api, stage, method, path string }

func splitARN(s string, shape Shape) (a arn, ok bool) {
	arnWord, rest, _ := strings.Cut(s, ":")
	_, rest, _ = strings.Cut(rest, ":")
	service, rest, _ := strings.Cut(rest, ":")
	_, rest, _ = strings.Cut(rest, ":")
	_, rest, whole := strings.Cut(rest, ":") // a path may hold colons
	if !whole || arnWord != "arn" || service != "execute-api" {
		return a, false
	}
	var more bool
	if a.api, rest, more = strings.Cut(rest, "/"); !more {
		return a, false
	}
	if a.stage, rest, more = strings.Cut(rest, "/"); !more {
		return a, false
	}
	a.method, _, _ = strings.Cut(rest, "/")
	if a.path = rest[len(a.method):]; a.path == "" {
		a.path = "/"
	}
	if shape == WebSocket && a.method != "$connect" {
		return a, false
	}
	return a, a.api != "" && a.stage != "" && a.method != ""
}

// maxCuts bounds how many segments a base path may have.
const maxCuts = 16

// requestPath removes stage and base path from a path as it was sent. The ARN has neither, so it shows how much to
// remove: REST APIs leave the base path of a custom domain in the path. HTTP APIs do so, too, and leave the stage in
// the path on their own domain, unless it is $default.
//
// The path in the ARN may be decoded where the sent path is not. If the two do not match, the ARN's path counts for a
// REST API, because the gateway itself uses it. For an HTTP API, only the stage is removed.
func requestPath(e *Event, sent string, a arn) string {
	if a.method == e.Method {
		if strings.TrimSuffix(sent, "/") == strings.TrimSuffix(a.path, "/") {
			return slashed(sent)
		}
		if tail, ok := tailLike(sent, a.path); ok {
			return tail
		}
		if e.Shape == RESTRequest {
			return a.path
		}
	}
	if e.Shape != RESTRequest && e.Stage != "$default" {
		if rest, ok := strings.CutPrefix(sent, "/"+e.Stage); ok && (rest == "" || rest[0] == '/') {
			return slashed(rest)
		}
	}
	return slashed(sent)
}

// tailLike returns the longest end of sent, from a slash on, that is equal to path after decoding.
func tailLike(sent, path string) (string, bool) {
	asIs, decoded := squeeze(path), squeeze(decode(path))
	for cuts, i := 0, 0; cuts <= maxCuts && i <= len(sent); i++ {
		if i < len(sent) && sent[i] != '/' {
			continue
		}
		cuts++
		if tail := squeeze(decode(sent[i:])); tail == decoded || tail == asIs {
			return slashed(sent[i:]), true
		}
	}
	return "", false
}

func slashed(path string) string {
	if path == "" || path[0] != '/' {
		return "/" + path
	}
	return path
}

// decode decodes percent-encoding once. Text that is not a valid escape stays.
func decode(s string) string {
	if !strings.Contains(s, "%") {
		return s
	}
	b := make([]byte, 0, len(s))
	for i := 0; i < len(s); i++ {
		if s[i] == '%' && i+2 < len(s) {
			hi, lo := unhex(s[i+1]), unhex(s[i+2])
			if hi >= 0 && lo >= 0 {
				b = append(b, byte(hi<<4|lo))
				i += 2
				continue
			}
		}
		b = append(b, s[i])
	}
	return string(b)
}

func unhex(c byte) int {
	switch {
	case c >= '0' && c <= '9':
		return int(c - '0')
	case c >= 'a' && c <= 'f':
		return int(c-'a') + 10
	case c >= 'A' && c <= 'F':
		return int(c-'A') + 10
	}
	return -1
}

// squeeze replaces each run of slashes by one slash, and removes a slash at the end.
func squeeze(s string) string {
	for strings.Contains(s, "//") {
		s = strings.ReplaceAll(s, "//", "/")
	}
	return strings.TrimSuffix(s, "/")
}
