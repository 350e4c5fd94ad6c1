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

// signature is what a request says about its signature (SigV4).
type signature struct {
	key, day, region, service, terminator string // the Credential
	headers                               []string
	value                                 string // in hexadecimal digits
	token                                 string // of temporary credentials; "" is none
	at                                    time.Time
	presigned                             bool          // the signature is in the query, and not in a header
	expires                               time.Duration // of one in the query: how long after at it is good for
}

// signature reads the one that the request has, in a header or in the query. Both results are empty where it has none; else one says what is
// wrong, in words of which none is the client's.
func (c *call) signature() (*signature, string) {
	lines := c.r.Header["Authorization"]
	if _, presigned := c.queryValue("X-Amz-Signature"); len(lines) == 0 && presigned {
		return c.presignature()
	}
	switch {
	case len(lines) == 0 || strings.TrimSpace(lines[0]) == "":
		return nil, ""
	case len(lines) > 1:
		return nil, "There is more than one Authorization header."
	}
	s, message := parseAuthorization(lines[0])
	at := requestDate(c.r.Header)
	if at.IsZero() {
		message = strings.TrimSpace(message + " Authorization header requires existence of either a 'X-Amz-Date' or a 'Date' header.")
	}
	if message != "" {
		return nil, message
	}
	s.at, s.token = at, strings.Join(c.r.Header["X-Amz-Security-Token"], ",")
	return s, ""
}

// requestDate is when a request was signed, by its headers; zero where they do not say.
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

// parseAuthorization reads an Authorization header. The text says what is wrong with it; the signature is nil then.
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

// presignature reads the signature in the query.
func (c *call) presignature() (*signature, string) {
	query := c.multiQuery()
	var missing []string
	fields := make(map[string]string)
	for _, name := range []string{"X-Amz-Algorithm", "X-Amz-Credential", "X-Amz-Signature", "X-Amz-SignedHeaders", "X-Amz-Date", "X-Amz-Expires"} {
		values := query[name]
		if len(values) != 1 || values[0] == "" {
			missing = append(missing, "AWS query-string parameters must include '"+name+"' once.")
			continue
		}
		fields[name] = values[0]
	}
	if len(missing) > 0 {
		return nil, strings.Join(missing, " ")
	}
	s := &signature{value: fields["X-Amz-Signature"], headers: signedHeaders(fields["X-Amz-SignedHeaders"]), presigned: true}
	s.token = strings.Join(query["X-Amz-Security-Token"], ",")
	var err error
	if s.at, err = time.Parse(timestamp, fields["X-Amz-Date"]); err != nil {
		return nil, "X-Amz-Date must be in the ISO8601 long format."
	}
	seconds, err := strconv.Atoi(fields["X-Amz-Expires"])
	if err != nil || seconds < 1 || seconds > int(longestPresign/time.Second) {
		return nil, "X-Amz-Expires must be between 1 and 604800 seconds."
	}
	s.expires = time.Duration(seconds) * time.Second
	if fields["X-Amz-Algorithm"] != algorithm {
		return nil, "Unsupported AWS 'algorithm' (only " + algorithm + " for now)."
	}
	if message := s.scope(fields["X-Amz-Credential"]); message != "" {
		return nil, message
	}
	return s, ""
}

// scope reads a Credential; the text says what is wrong with it.
func (s *signature) scope(credential string) string {
	parts := strings.Split(credential, "/")
	if len(parts) != 5 {
		return "Credential must have exactly 5 slash-delimited elements, e.g. keyid/date/region/service/term."
	}
	s.key, s.day, s.region, s.service, s.terminator = parts[0], parts[1], parts[2], parts[3], parts[4]
	return ""
}

// signedHeaders are the names, in the order in which they are signed, however they are listed.
func signedHeaders(list string) []string {
	names := strings.Split(strings.ToLower(list), ";")
	slices.Sort(names)
	return names
}

// sign is the signature of a canonical request, as somebody with the secret makes it.
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

// canonical is the request as it is signed. The body's digest is taken here, whatever X-Amz-Content-Sha256 says.
func (c *call) canonical(s *signature, body []byte) string {
	var b strings.Builder
	b.WriteString(c.r.Method + "\n" + canonicalPath(c.r.URL.EscapedPath()) + "\n" + c.canonicalQuery(s) + "\n")
	for _, name := range s.headers {
		lines := c.r.Header[http.CanonicalHeaderKey(name)]
		switch {
		case name == "host":
			lines = []string{c.r.Host}
		case name == "content-length" && len(lines) == 0 && c.r.ContentLength >= 0: // Go may have taken it out
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

// canonicalPath is a path as execute-api signs it: as it was sent, without what is redundant in it, and encoded once more.
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

func (c *call) canonicalQuery(s *signature) string {
	var all []pair
	for _, p := range c.query {
		if !s.presigned || p.name != "X-Amz-Signature" {
			all = append(all, pair{encoded(p.name), encoded(p.value)})
		}
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

// encoded is a text as signatures encode it: every byte but letters, digits and -._~ in hexadecimal digits.
func encoded(s string) string {
	const digits = "0123456789ABCDEF"
	var b strings.Builder
	for i := range len(s) {
		ch := s[i]
		switch {
		case ch >= 'a' && ch <= 'z', ch >= 'A' && ch <= 'Z', ch >= '0' && ch <= '9', ch == '-', ch == '.', ch == '_', ch == '~':
			b.WriteByte(ch)
		default:
			b.WriteByte('%')
			b.WriteByte(digits[ch>>4])
			b.WriteByte(digits[ch&0xf])
		}
	}
	return b.String()
}
