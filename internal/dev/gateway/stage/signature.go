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

// This file parses signatures (SigV4) and computes them. iam.go checks them: the time, the scope, the credential.
//
// The texts for the client follow AWS's, without the parts in which AWS repeats what the client wrote. Four texts are
// Sluice's own: about a signature in the query, several Authorization headers, a parameter that is there twice, and a
// scheme that does not begin with AWS4-.

const (
	algorithm  = "AWS4-HMAC-SHA256"
	terminator = "aws4_request" // the last part of a Credential
	timestamp  = "20060102T150405Z"
)

// signature holds the parts of a request's signature.
type signature struct {
	key                              string   // the id of the access key: the first part of Credential
	day, region, service, terminator string   // the scope: the other parts of Credential
	headers                          []string // the names of the signed headers
	value                            string   // in hexadecimal digits
	token                            string   // session token of temporary credentials; "" if there is none
	at                               time.Time
}

// readSignature reads the signature in the request's Authorization header. It returns nil and "" if the request has
// none. If the signature is not valid, it returns nil and a text that says what is wrong. The text contains nothing
// that the client wrote. If there is an Authorization header, a signature in the query is a part of the query like any
// other.
func (c *call) readSignature() (*signature, string) {
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
	// Several tokens are joined: no credential has a session token with a comma, so the request is refused.
	s.at, s.token = at, strings.Join(c.r.Header["X-Amz-Security-Token"], ",")
	return s, ""
}

// requestDate returns the time at which a request was signed, by its X-Amz-Date, or by its Date if there is no
// X-Amz-Date. It returns the zero Time if the header is missing or malformed, or if there are several X-Amz-Date. The
// client is told in each of these cases that the header is required.
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
// what is wrong. A scheme that begins with AWS4- and is not supported is reported before anything else. Any other wrong
// scheme, such as Bearer, is reported only if no parameter is missing.
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
	if message := s.parseCredential(fields["Credential"]); message != "" {
		return nil, message
	}
	return s, ""
}

// parseCredential stores the parts of a Credential: the key's id and the scope. It returns a text that says what is
// wrong, or "". It only counts the parts; outOfScope and identify check their values.
func (s *signature) parseCredential(credential string) string {
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

// mac returns the HMAC-SHA256 of a text.
func mac(key []byte, text string) []byte {
	h := hmac.New(sha256.New, key)
	_, _ = h.Write([]byte(text)) // never fails
	return h.Sum(nil)
}

// digest returns the SHA-256 of data in hexadecimal digits.
func digest(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}

var spaces = regexp.MustCompile(` +`) // a run of spaces, which counts as one space in a canonical request

// canonical returns the canonical request, which is the text that is signed. body is the request's whole body. Its
// digest is always calculated. The header X-Amz-Content-Sha256 is ignored: a request that was signed with
// UNSIGNED-PAYLOAD is therefore refused.
func (c *call) canonical(s *signature, body []byte) string {
	var b strings.Builder
	b.WriteString(c.r.Method + "\n" + canonicalPath(c.r.URL.EscapedPath()) + "\n" + c.canonicalQuery() + "\n")
	for _, name := range s.headers {
		lines := c.r.Header[http.CanonicalHeaderKey(name)]
		switch {
		case name == "host": // net/http moved it from the header to the field Host
			lines = []string{c.r.Host}
		case name == "content-length" && len(lines) == 0 && c.r.ContentLength >= 0: // net/http moved it, too
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

// canonicalPath returns a path as the service execute-api signs it. "." and empty segments are removed, ".." removes
// the segment before it, and the other segments are encoded. Segments that the client has escaped in the path that it
// sent are thereby escaped twice.
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

// canonicalQuery returns the query as it is signed: encoded, and sorted by name and value.
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
