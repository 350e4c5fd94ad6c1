package apigw

import "bytes"

// maxDepth bounds how deep an event is nested. Those of API Gateway have five levels.
const maxDepth = 32

// maxBrackets is how many brackets a text opens at most that is not looked through for how deep they are.
const maxBrackets = 1000

// tooDeep is what keeps the validator, which recurses, from a stack that a small function's memory does not hold. Few
// events open as many brackets as could be a danger, so few are looked through.
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
