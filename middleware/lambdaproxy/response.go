package lambdaproxy

import (
	"bytes"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/tidwall/gjson"

	"github.com/sluicelimits/sluice/internal/request/answer"
	"github.com/sluicelimits/sluice/internal/request/apigw"
)

const (
	exposeName = "Access-Control-Expose-Headers"
	headersKey = "headers"
	multiKey   = "multiValueHeaders"
)

// refusal returns a denial as a response that all kinds of API accept.
func refusal(a *apigw.Answer) []byte {
	h := make(http.Header)
	a.Header.Set(h)
	answer.Describe(h, a.Kind)
	names := make([]string, 0, len(h))
	for name := range h {
		names = append(names, name)
	}
	slices.Sort(names)
	b := append([]byte(`{"statusCode":`), strconv.Itoa(a.Kind.Status())...)
	b = append(b, `,"headers":{`...)
	for i, name := range names {
		if i > 0 {
			b = append(b, ',')
		}
		b = appendMember(b, name, h[name][0])
	}
	b = append(b, `},"isBase64Encoded":false,"body":`...)
	b = gjson.AppendJSONString(b, string(a.Body())+"\n")
	return append(b, '}')
}

func appendMember(b []byte, name, value string) []byte {
	b = gjson.AppendJSONString(b, name)
	b = append(b, ':')
	return gjson.AppendJSONString(b, value)
}

// addHeaders adds the rate-limit headers to a handler's response. It returns a response that it cannot read unchanged,
// because the gateway may have a meaning or an error for it.
func addHeaders(response []byte, h *answer.Header, inferred bool) []byte {
	if !gjson.ValidBytes(response) {
		return response
	}
	root := gjson.ParseBytes(response)
	if !root.IsObject() {
		if inferred && (root.Type == gjson.String || root.IsArray()) {
			return explicit(root, h)
		}
		return response
	}
	var parts parts
	if !parts.read(root) {
		return response
	}
	if !parts.status {
		if inferred {
			return explicit(root, h)
		}
		return response
	}
	return parts.join(h)
}

// explicit returns the complete response that API Gateway, in payload 2.0, makes of a plain value.
func explicit(v gjson.Result, h *answer.Header) []byte {
	body := strings.TrimSpace(v.Raw)
	if v.Type == gjson.String {
		body = v.Str
	}
	b := append([]byte(`{"statusCode":200,"headers":{"content-type":"application/json"`), ""...)
	b = appendHeaders(b, h, answer.ExposeHeaders, true)
	b = append(b, `},"isBase64Encoded":false,"body":`...)
	b = gjson.AppendJSONString(b, body)
	return append(b, '}')
}

// member is a member of a JSON object, as it was written.
type member struct{ key, value gjson.Result }

// parts are the members of a response.
type parts struct {
	members        []member
	headers, multi gjson.Result
	status         bool
}

// read takes the response apart. It returns false if the headers are not of the right type, or occur twice.
func (p *parts) read(root gjson.Result) bool {
	ok := true
	object := func(into *gjson.Result, v gjson.Result) {
		if into.Exists() || !v.IsObject() && v.Type != gjson.Null {
			ok = false
		}
		*into = v
	}
	root.ForEach(func(key, v gjson.Result) bool {
		p.members = append(p.members, member{key, v})
		switch key.Str {
		case "statusCode":
			p.status = true
		case headersKey:
			object(&p.headers, v)
		case multiKey:
			object(&p.multi, v)
		}
		return ok
	})
	return ok
}

// join writes the response with the rate-limit headers.
func (p *parts) join(h *answer.Header) []byte {
	var exposed []string
	collect := func(key, v gjson.Result) bool {
		if strings.EqualFold(key.Str, exposeName) {
			if v.IsArray() {
				for _, line := range v.Array() {
					exposed = append(exposed, line.String())
				}
			} else {
				exposed = append(exposed, v.String())
			}
		}
		return true
	}
	p.headers.ForEach(collect)
	p.multi.ForEach(collect)
	expose := answer.ExposeHeaders
	if all := strings.Join(exposed, ", "); all != "" && !strings.Contains(all, expose) {
		expose = all + ", " + expose
	} else if all != "" {
		expose = all
	}
	var out bytes.Buffer
	out.WriteByte('{')
	for i, m := range p.members {
		if i > 0 {
			out.WriteByte(',')
		}
		out.WriteString(m.key.Raw)
		out.WriteByte(':')
		switch m.key.Str {
		case headersKey:
			out.Write(withHeaders(m.value, h, expose))
		case multiKey: // the gateway prefers these to headers
			out.Write(without(m.value, h))
		default:
			out.WriteString(m.value.Raw)
		}
	}
	if !p.headers.Exists() {
		out.WriteString(`,"` + headersKey + `":`)
		out.Write(withHeaders(gjson.Result{}, h, expose))
	}
	out.WriteByte('}')
	return out.Bytes()
}

// withHeaders returns the object of headers, in which ours replace those of the same names.
func withHeaders(headers gjson.Result, h *answer.Header, expose string) []byte {
	b := without(headers, h)
	if b = b[:len(b)-1]; b[0] == 'n' { // null
		b = []byte("{")
	}
	return append(appendHeaders(b, h, expose, len(b) > 1), '}')
}

func appendHeaders(b []byte, h *answer.Header, expose string, more bool) []byte {
	add := func(name, value string) {
		if more {
			b = append(b, ',')
		}
		more = true
		b = appendMember(b, name, value)
	}
	h.Each(add)
	add(exposeName, expose)
	return b
}

// without returns the object without our headers, in any spelling. It returns null for null, and an empty object if
// there is none.
func without(headers gjson.Result, h *answer.Header) []byte {
	if headers.Exists() && headers.Type == gjson.Null {
		return []byte("null")
	}
	b := []byte("{")
	headers.ForEach(func(key, v gjson.Result) bool {
		if !replaced(key.Str, h) {
			if len(b) > 1 {
				b = append(b, ',')
			}
			b = append(append(append(b, key.Raw...), ':'), v.Raw...)
		}
		return true
	})
	return append(b, '}')
}

// replaced reports whether our headers replace this one. A handler's own Retry-After stays if we have none.
func replaced(name string, h *answer.Header) bool {
	if strings.EqualFold(name, exposeName) {
		return true
	}
	return slices.ContainsFunc(answer.Names[:], func(ours string) bool {
		return strings.EqualFold(name, ours) && (ours != "Retry-After" || h.RetryAfter != "")
	})
}
