package configfile

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// maxDepth bounds how deep the values of a JSON text nest, so that parsing needs a bounded stack.
const maxDepth = 1000

// ParseJSON makes the tree of a JSON text (RFC 8259). Keys that are there twice are left to [Reader.Object]. The text
// "null", like an empty one, has no value.
func ParseJSON(data []byte) (*Node, *Problem) {
	p := &jsonParser{data: data, in: json.NewDecoder(bytes.NewReader(data)), line: 1, column: 1}
	p.in.UseNumber()
	if len(bytes.TrimLeft(data, jsonSpace)) == 0 {
		return nil, nil
	}
	if rest := afterCharacters(data); len(rest) > 0 { // encoding/json would replace what is not a character
		return nil, p.problem(len(data)-len(rest), "byte 0x%02x is not UTF-8 text", rest[0])
	}
	var syntax *json.SyntaxError
	if err := json.Unmarshal(data, new(json.RawMessage)); errors.As(err, &syntax) {
		at := int(syntax.Offset) - 1 // of the character that does not belong there
		if strings.Contains(err.Error(), "unexpected end") {
			at = len(data)
		}
		return nil, p.problem(at, "%v", err)
	}
	root := p.value(0)
	if p.bad != nil || root.Kind == Null {
		return nil, p.bad
	}
	return root, nil
}

// afterCharacters returns the data from the first byte on that is not a part of a character of UTF-8.
func afterCharacters(data []byte) []byte {
	for len(data) > 0 {
		r, size := utf8.DecodeRune(data)
		if r == utf8.RuneError && size == 1 {
			break
		}
		data = data[size:]
	}
	return data
}

const jsonSpace = " \t\r\n"

// jsonParser makes a tree of the tokens of valid JSON.
type jsonParser struct {
	data []byte
	in   *json.Decoder
	bad  *Problem // the first problem

	// The place of data[counted]. Places are asked for in the order of the text, so each byte is counted once.
	counted, line, column int
}

// next returns the offset of the next token, which encoding/json does not say.
func (p *jsonParser) next() int {
	return len(p.data) - len(bytes.TrimLeft(p.data[p.in.InputOffset():], jsonSpace+",:"))
}

// place returns the line and column of an offset.
func (p *jsonParser) place(at int) (line, column int) {
	passed := p.data[p.counted:at]
	if n := bytes.Count(passed, []byte("\n")); n > 0 {
		p.line, p.column = p.line+n, 1
		passed = passed[bytes.LastIndexByte(passed, '\n')+1:]
	}
	p.column += utf8.RuneCount(passed)
	p.counted = at
	return p.line, p.column
}

func (p *jsonParser) problem(at int, format string, args ...any) *Problem {
	line, column := p.place(at)
	return &Problem{Line: line, Column: column, Message: "not valid JSON: " + fmt.Sprintf(format, args...)}
}

// value reads the next value. After a problem, the tree is not complete.
func (p *jsonParser) value(depth int) *Node {
	at := p.next()
	n := new(Node)
	n.Line, n.Column = p.place(at)
	if depth > maxDepth {
		p.bad = p.problem(at, "values nest deeper than %d", maxDepth)
		return n
	}
	token, _ := p.in.Token() // the text is valid
	switch t := token.(type) {
	case json.Delim:
		n.Kind = map[json.Delim]Kind{'{': Mapping, '[': List}[t]
		for p.bad == nil && p.in.More() {
			n.Content = append(n.Content, p.value(depth+1))
		}
		_, _ = p.in.Token() // the bracket at the end
	case string:
		n.Kind, n.Text = String, t
		if half := halfPair(p.data[at:p.in.InputOffset()]); half >= 0 {
			p.bad = p.problem(at+half, "half of a surrogate pair is not a character")
		}
	case json.Number:
		n.Kind, n.Text = Integer, t.String()
		if strings.ContainsAny(n.Text, ".eE") {
			n.Kind = Float
		}
	case bool:
		n.Kind, n.Text = Boolean, strconv.FormatBool(t)
	default:
		n.Kind, n.Text = Null, "null"
	}
	return n
}

var escapes = regexp.MustCompile(`\\(u[0-9a-fA-F]{4}|.)`)

// halfPair returns the offset of the first escape in a JSON string that is half of a surrogate pair without the other
// half, or -1 if there is none. Such an escape stands for no character. encoding/json reads it as U+FFFD, without an
// error. Package events/canonical has the same check; this package imports only the standard library.
func halfPair(text []byte) int {
	unit := func(escape []int) rune { // the code unit of an escape \uXXXX, or 0
		n, _ := strconv.ParseUint(strings.TrimPrefix(string(text[escape[2]:escape[3]]), "u"), 16, 16)
		if escape[3]-escape[2] == 1 {
			return 0
		}
		return rune(n)
	}
	all := escapes.FindAllSubmatchIndex(text, -1)
	for i := 0; i < len(all); i++ {
		high, low := unit(all[i]), rune(0)
		if i+1 < len(all) && all[i+1][0] == all[i][1] {
			low = unit(all[i+1])
		}
		switch {
		case !utf16.IsSurrogate(high):
		case utf16.DecodeRune(high, low) == utf8.RuneError:
			return all[i][0]
		default:
			i++
		}
	}
	return -1
}
