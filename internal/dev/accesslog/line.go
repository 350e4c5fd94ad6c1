// Package accesslog reads access logs in the Common and Combined Log Format, as Apache, nginx and many others write
// them, plain or gzip.
//
// A log holds what clients and broken machines wrote, so no line of it is an error: [Parser.Parse] returns a [Reason]
// for a line that cannot be used, and the caller goes on with the next line.
package accesslog

import "bytes"

// Line is one parsed line. The slices point into the text that was parsed and are valid as long as it is. Text in
// quotes is as logged, with its escapes; see [Unescape].
type Line struct {
	Host   []byte // address or name of the client; letters, digits and . - _ : %. After a prefix: an address
	User   []byte // the authenticated user; nil if it is "-"
	Time   int64  // µs since 1970
	Method []byte // a token of RFC 9110
	Target []byte // the request target, with its query
	Path   []byte // the part of Target without query, scheme and authority; begins with "/"
}

// Reason says why a line cannot be used; OK says that it can.
type Reason uint8

// The reasons, in the order in which they are checked.
const (
	OK           Reason = iota
	TooLong             // more than MaxLineBytes
	Blank               // nothing but white space
	BadAddress          // no valid address or name at the start or after a known prefix, or several addresses
	BadTime             // no [day/month/year:hour:minute:second zone], or one before 1970
	BadRequest          // no quoted request line, or one without a method and a target: "-", "", a TLS greeting
	BadTarget           // the request target has no path: "*", an authority
	reasonsCount        // the number of reasons
)

var reasonNames = [reasonsCount]string{"ok", "too_long", "blank", "bad_address", "bad_time", "bad_request",
	"bad_target"}

var reasonTexts = [reasonsCount]string{
	"can be used", "line is longer than 64 KiB", "line is blank",
	"no usable client address at the start, or it is not certain which word is the address",
	"no usable [time] field", "no quoted \"METHOD target\" request", "request target has no path",
}

// Reasons lists every reason to skip a line.
func Reasons() []Reason { return []Reason{TooLong, Blank, BadAddress, BadTime, BadRequest, BadTarget} }

// String returns the name that reports use.
func (r Reason) String() string { return reasonNames[min(r, reasonsCount-1)] }

// Explain returns the reason in a few words.
func (r Reason) Explain() string { return reasonTexts[min(r, reasonsCount-1)] }

// Parser parses lines. It remembers the last time stamp, so that lines of one second are parsed faster. The zero Parser
// is ready. It is not safe for concurrent use.
type Parser struct {
	stamp string
	us    int64
}

// Parse reads one line, without its line end, into out. Fields after the request are ignored. If the
// reason is not OK, the content of out is undefined.
func (p *Parser) Parse(text []byte, out *Line) Reason {
	*out = Line{}
	if len(bytes.TrimSpace(text)) == 0 {
		return Blank
	}
	rest, why := p.head(text, out)
	if why != OK {
		return why
	}
	return splitRequest(quoted(rest), out)
}

// head reads host, ident, user and time, and returns what follows the request's opening quote.
func (p *Parser) head(text []byte, out *Line) (rest []byte, why Reason) {
	host := bytes.IndexByte(text, ' ')
	if host < 1 || !bytes.HasPrefix(text[host:], []byte(" - ")) {
		return p.oddHead(text, out)
	}
	user := bytes.IndexByte(text[host+3:], ' ') + host + 3
	if user > host+3 && user+1 < len(text) && text[user+1] == '[' {
		us, n, ok := p.parseTime(text[user+2:])
		after, found := bytes.CutPrefix(bytes.TrimPrefix(text[user+2+n:], []byte(" ")), []byte{'"'})
		if ok && found {
			out.Time = us
			return after, readCaller(text[:user], out)
		}
	}
	return p.oddHead(text, out)
}

// oddHead does what head does for lines with a prefix, and for lines whose user name contains spaces. A server escapes
// quotes in a user name, but not brackets. Therefore the time is expected right before the first quote that is not
// escaped, so that a user name such as "[17/May/2015:…]" is not taken for the time.
func (p *Parser) oddHead(text []byte, out *Line) (rest []byte, why Reason) {
	quote := closing(text)
	head := text
	if quote >= 0 {
		head = text[:quote]
	}
	open := bytes.LastIndexByte(head, '[')
	if open < 0 {
		return nil, withoutTime(text)
	}
	us, n, ok := p.parseTime(head[open+1:])
	if !ok {
		return nil, withoutTime(text)
	}
	if why := readCaller(skipPrefix(bytes.TrimRight(head[:open], " ")), out); why != OK {
		return nil, why
	}
	if after := head[open+1+n:]; quote < 0 || len(after) > 0 && string(after) != " " {
		return nil, BadRequest
	}
	out.Time = us
	return text[quote+1:], OK
}

// withoutTime returns the reason for a line that has no time: BadAddress if the line has no client either.
func withoutTime(text []byte) Reason {
	if host, _, _ := bytes.Cut(text, []byte{' '}); !validHost(host) || len(host) == len(text) {
		return BadAddress
	}
	return BadTime
}

// readCaller reads host, ident and user. It refuses words of which it is not certain that the first is the client:
// "www.example.com 192.0.2.1 - -" would charge the requests of everybody to one client.
func readCaller(words []byte, out *Line) Reason {
	host, rest, _ := bytes.Cut(words, []byte{' '})
	ident, user, _ := bytes.Cut(rest, []byte{' '})
	spaces := bytes.IndexByte(user, ' ') >= 0
	switch {
	case len(host) == 0, !validHost(host), hasAddress(rest):
		return BadAddress
	case !isAddress(host) && (len(user) == 0 || spaces || isID(host) || bytes.IndexByte(ident, '.') >= 0):
		return BadAddress
	case spaces && (string(ident) != "-" || bytes.HasSuffix(user, []byte(" -"))):
		return BadAddress
	}
	out.Host, out.User = host, field(user)
	return OK
}

// splitRequest splits a request line into method and target. A target may contain spaces. The last word is the protocol
// if it has the form of one; otherwise it is a part of the target. In place of the target, an HTTP API of
// API Gateway may write the key of the route, "GET /items/{id}" or "ANY /items/{id}": its path is then the target.
func splitRequest(request []byte, out *Line) Reason {
	method := bytes.IndexByte(request, ' ')
	if method < 1 || !validMethod(request[:method]) {
		return BadRequest
	}
	out.Method = request[:method]
	target := bytes.Trim(request[method+1:], " ")
	if last := bytes.LastIndexByte(target, ' '); last > 0 && bytes.HasPrefix(target[last+1:], []byte("HTTP/")) {
		target = bytes.TrimRight(target[:last], " ")
	}
	if len(target) == 0 {
		return BadRequest
	}
	if m, path, found := bytes.Cut(target, []byte(" ")); found && len(path) > 0 && path[0] == '/' &&
		(bytes.Equal(m, out.Method) || string(m) == "ANY") {
		target = path
	}
	out.Target = target
	if out.Path = pathOf(target); out.Path == nil {
		return BadTarget
	}
	return OK
}

// pathOf returns the path of a target in origin or absolute form (RFC 9112 §3.2), or nil if the target has none.
func pathOf(target []byte) []byte {
	if i := bytes.IndexByte(target, '?'); i >= 0 {
		target = target[:i]
	}
	if len(target) > 0 && target[0] == '/' {
		return target
	}
	colon := bytes.Index(target, []byte("://"))
	if colon < 1 || !bytes.EqualFold(target[:colon], []byte("http")) && !bytes.EqualFold(target[:colon],
		[]byte("https")) {
		return nil
	}
	authority := target[colon+3:]
	if slash := bytes.IndexByte(authority, '/'); slash > 0 {
		return authority[slash:]
	}
	if len(authority) == 0 || authority[0] == '/' {
		return nil
	}
	return rootPath
}

var rootPath = []byte("/")

// quoted returns the text up to the closing quote. If there is no closing quote, it drops an incomplete escape at the
// end of the text.
func quoted(text []byte) []byte {
	end := closing(text)
	if end < 0 {
		end = len(text) - slashesBefore(text, len(text))%2
	}
	return text[:end]
}

// closing returns the index of the first quote that is not escaped by a backslash, or -1.
func closing(text []byte) int {
	for from := 0; ; {
		i := bytes.IndexByte(text[from:], '"')
		if i < 0 {
			return -1
		}
		i += from
		if slashesBefore(text, i)%2 == 0 {
			return i
		}
		from = i + 1
	}
}

// slashesBefore counts the backslashes right before text[end].
func slashesBefore(text []byte, end int) (n int) {
	for n < end && text[end-n-1] == '\\' {
		n++
	}
	return n
}

func word(text []byte) (first, rest []byte) {
	for len(text) > 0 && text[0] == ' ' {
		text = text[1:]
	}
	if i := bytes.IndexByte(text, ' '); i >= 0 {
		return text[:i], text[i:]
	}
	return text, nil
}

// number reads decimal digits, at most 18 of them.
func number(text []byte) (n int64, ok bool) {
	if len(text) == 0 || len(text) > 18 {
		return 0, false
	}
	for _, c := range text {
		if c < '0' || c > '9' {
			return 0, false
		}
		n = n*10 + int64(c-'0')
	}
	return n, true
}

func field(text []byte) []byte {
	if len(text) == 0 || (len(text) == 1 && text[0] == '-') {
		return nil
	}
	return text
}
