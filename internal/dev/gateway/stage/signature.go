package stage

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

const (
	algorithm  = "AWS4-HMAC-SHA256"
	terminator = "aws4_request"
	timestamp  = "20060102T150405Z"
)

// signature holds the parts of a request's signature (SigV4).
type signature struct {
	key, day, region, service, terminator string // the parts of Credential
	headers                               []string
	value                                 string // in hexadecimal digits
	token                                 string // session token of temporary credentials; "" if there is none
	at                                    time.Time
}

// signature reads the signature in the request's Authorization header. Both results are empty if the request has none.
// If the signature is not valid, the text says what is wrong. The text contains nothing that the client wrote.
func (c *call) signature() (*signature, string) {
	lines := c.r.Header["Authorization"]
	switch _, presigned := c.queryValue("X-Amz-Signature"); {
	case presigned && len(lines) == 0:
		return nil, "The local gateway reads a signature in the Authorization header only, and this one is in the " +
			"query."
	case len(lines) == 0 || strings.TrimSpace(lines[0]) == "":
		return nil, ""
	case len(lines) > 1:
		return nil, "There is more than one Authorization header."
	}
	s, message := parseAuthorization(lines[0])
	at := requestDate(c.r.Header)
	if at.IsZero() {
		message = strings.TrimSpace(message + " Authorization header requires existence of either a 'X-Amz-Date' or " +
			"a 'Date' header.")
	}
	if message != "" {
		return nil, message
	}
	s.at, s.token = at, strings.Join(c.r.Header["X-Amz-Security-Token"], ",")
	return s, ""
}

// requestDate returns the time at which a request was signed, by its headers. It returns the zero Time if they do not
// name one.
func requestDate(h http.Header) time.Time {
	if lines := h["X-Amz-Date"]; len(lines) > 0 {
		at, err := time.Parse(timestamp, lines[0])
		if err != nil || len(lines) > 1 {
			return time.Time{}
		}
		return at
	}
	at, err := http.ParseTime(h.Get("Date"))
	if err != nil {
		return time.Time{}
	}
	return at.UTC()
}

// parseAuthorization parses an Authorization header. If the header is not valid, it returns nil and a text that says
// what is wrong.
func parseAuthorization(header string) (*signature, string) {
	name, rest, _ := strings.Cut(strings.TrimSpace(header), " ")
	if name != algorithm && strings.HasPrefix(name, "AWS4-") {
		return nil, "Unsupported AWS 'algorithm' (only " + algorithm + " for now)."
	}
	fields := make(map[string]string)
	for one := range strings.SplitSeq(rest, ",") {
		if one = strings.TrimSpace(one); one == "" {
			continue
		}
		name, value, ok := strings.Cut(one, "=")
		if !ok {
			return nil, "Invalid key=value pair (missing equal-sign) in Authorization header."
		}
		if _, twice := fields[name]; twice {
			return nil, "Authorization header has a parameter twice."
		}
		fields[name] = value
	}
	var missing []string
	for _, name := range []string{"Credential", "Signature", "SignedHeaders"} {
		if fields[name] == "" {
			missing = append(missing, "Authorization header requires '"+name+"' parameter.")
		}
	}
	if name != algorithm && len(missing) == 0 {
		missing = append(missing, "Authorization header requires the algorithm "+algorithm+".")
	}
	if len(missing) > 0 {
		return nil, strings.Join(missing, " ")
	}
	s := &signature{value: fields["Signature"], headers: signedHeaders(fields["SignedHeaders"])}
	if message := s.scope(fields["Credential"]); message != "" {
		return nil, message
	}
	return s, ""
}

// scope parses a Credential. It returns "", or a text that says what is wrong.
func (s *signature) scope(credential string) string {
	parts := strings.Split(credential, "/")
	if len(parts) != 5 {
		return "Credential must have exactly 5 slash-delimited elements, e.g. keyid/date/region/service/term."
	}
	s.key, s.day, s.region, s.service, s.terminator = parts[0], parts[1], parts[2], parts[3], parts[4]
	return ""
}

// signedHeaders returns the names of the signed headers in lower case, and sorted as they are signed.
func signedHeaders(list string) []string {
	names := strings.Split(strings.ToLower(list), ";")
	slices.Sort(names)
	return names
}

// sign returns the signature that the secret makes of a canonical request.
func (s *signature) sign(secret, canonical string) string {
	key := []byte("AWS4" + secret)
	for _, part := range []string{s.day, s.region, s.service, s.terminator} {
		key = mac(key, part)
	}
	scope := strings.Join([]string{s.day, s.region, s.service, s.terminator}, "/")
	return hex.EncodeToString(mac(key, algorithm+"\n"+s.at.Format(timestamp)+"\n"+scope+"\n"+digest([]byte(canonical))))
}

func mac(key []byte, text string) []byte {
	h := hmac.New(sha256.New, key)
	_, _ = h.Write([]byte(text)) // never fails
	return h.Sum(nil)
}

func digest(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}

var spaces = regexp.MustCompile(` +`)

// canonical returns the canonical request, which is the text that is signed. The digest of the body is always
// calculated: the header X-Amz-Content-Sha256 is not trusted.
func (c *call) canonical(s *signature, body []byte) string {
	var b strings.Builder
	b.WriteString(c.r.Method + "\n" + canonicalPath(c.r.URL.EscapedPath()) + "\n" + c.canonicalQuery() + "\n")
	for _, name := range s.headers {
		lines := c.r.Header[http.CanonicalHeaderKey(name)]
		switch {
		case name == "host":
			lines = []string{c.r.Host}
		case name == "content-length" && len(lines) == 0 && c.r.ContentLength >= 0: // net/http removed the header
			lines = []string{strconv.FormatInt(c.r.ContentLength, 10)}
		}
		values := make([]string, len(lines))
		for i, l := range lines {
			values[i] = spaces.ReplaceAllString(strings.Trim(l, " "), " ")
		}
		b.WriteString(name + ":" + strings.Join(values, ",") + "\n")
	}
	b.WriteString("\n" + strings.Join(s.headers, ";") + "\n" + digest(body))
	return b.String()
}

// canonicalPath returns a path as the service execute-api signs it: the path as it was sent, without ".", ".." and
// empty segments, and encoded once more.
func canonicalPath(sent string) string {
	var out []string
	for part := range strings.SplitSeq(sent, "/") {
		switch {
		case part == "" || part == ".":
		case part == "..":
			out = out[:max(len(out)-1, 0)]
		default:
			out = append(out, encoded(part))
		}
	}
	path := "/" + strings.Join(out, "/")
	if len(out) > 0 && strings.HasSuffix(sent, "/") {
		path += "/"
	}
	return path
}

func (c *call) canonicalQuery() string {
	var all []pair
	for _, p := range c.query {
		all = append(all, pair{encoded(p.name), encoded(p.value)})
	}
	slices.SortFunc(all, func(a, b pair) int {
		if a.name != b.name {
			return strings.Compare(a.name, b.name)
		}
		return strings.Compare(a.value, b.value)
	})
	parts := make([]string, len(all))
	for i, p := range all {
		parts[i] = p.name + "=" + p.value
	}
	return strings.Join(parts, "&")
}

// encoded returns a text in the encoding of signatures: every byte except letters, digits and -._~ is percent-encoded.
func encoded(s string) string {
	const digits = "0123456789ABCDEF"
	var b strings.Builder
	for i := range len(s) {
		ch := s[i]
		switch {
		case ch >= 'a' && ch <= 'z', ch >= 'A' && ch <= 'Z', ch >= '0' && ch <= '9', ch == '-', ch == '.', ch == '_',
			ch == '~':
			b.WriteByte(ch)
		default:
			b.WriteByte('%')
			b.WriteByte(digits[ch>>4])
			b.WriteByte(digits[ch&0xf])
		}
	}
	return b.String()
}
