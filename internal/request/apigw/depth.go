package apigw

import "bytes"

// maxDepth bounds the nesting of an event. Events of API Gateway have five levels.
const maxDepth = 32

// maxBrackets is how many opening brackets a text may have without a check of its depth.
const maxBrackets = 1000

// tooDeep reports whether a text is nested too deeply. The validator of gjson is recursive, and its stack might not fit
// into a small function's memory. Few events have enough brackets to be dangerous, so few are checked.
func tooDeep(data []byte) bool {
	if bytes.Count(data, []byte("["))+bytes.Count(data, []byte("{")) <= maxBrackets {
		return false
	}
	depth, quoted := 0, false
	for i := 0; i < len(data); i++ {
		switch c := data[i]; {
		case quoted:
			if c == '\\' {
				i++
			} else if c == '"' {
				quoted = false
			}
		case c == '"':
			quoted = true
		case c == '{' || c == '[':
			if depth++; depth > maxDepth {
				return true
			}
		case c == '}' || c == ']':
			depth--
		}
	}
	return false
}
