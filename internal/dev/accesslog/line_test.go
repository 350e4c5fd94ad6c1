package accesslog_test

import (
	"bytes"
	"cmp"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/sluicelimits/sluice/internal/dev/accesslog"
)

const stamp = "[17/May/2015:10:05:03 +0000]"

// Guarantees what is read from each field of a line. A field mistaken for its neighbour would charge the wrong counter.
func TestParse(t *testing.T) {
	at := time.Date(2015, 5, 17, 10, 5, 3, 0, time.UTC).UnixMicro()
	long := strings.Repeat("a", 300)
	cases := []struct {
		name, text string
		want       string // host|user|method|target|path
	}{
		{"combined", `198.51.100.7 - ann ` + stamp + ` "GET /a/b?c=d HTTP/1.1" 200 512 "https://x.example/" "curl/8"`,
			"198.51.100.7|ann|GET|/a/b?c=d|/a/b"},
		{"common", `h.example id - ` + stamp + ` "HEAD / HTTP/2.0" 304 -`,
			"h.example||HEAD|/|/"},
		{"IPv6", `2001:db8::1 - - ` + stamp + ` "GET / HTTP/1.1" 200 0 "-" "-"`,
			"2001:db8::1||GET|/|/"},
		{"IPv6 with zone", `fe80::1%eth0 - - ` + stamp + ` "GET / HTTP/1.1" 200 0`,
			"fe80::1%eth0||GET|/|/"},
		{"no protocol", `1.2.3.4 - - ` + stamp + ` "GET /old" 200 1`, "1.2.3.4||GET|/old|/old"},
		{"spaces in the target", `1.2.3.4 - - ` + stamp + ` "GET /a b  c HTTP/1.0" 200 1`,
			"1.2.3.4||GET|/a b  c|/a b  c"},
		{"absolute form", `1.2.3.4 - - ` + stamp + ` "GET HTTP://h:80/p?q HTTP/1.1" 200 1`,
			"1.2.3.4||GET|HTTP://h:80/p?q|/p"},
		{"absolute form, no path", `1.2.3.4 - - ` + stamp + ` "GET http://h HTTP/1.1" 200 1`,
			"1.2.3.4||GET|http://h|/"},
		{"user with spaces", `1.2.3.4 - ann of york ` + stamp + ` "GET / HTTP/1.1" 200 1`,
			"1.2.3.4|ann of york|GET|/|/"},
		{"user who looks like a time", `1.2.3.4 - x [01/Jan/2000:00:00:00 +0000] y ` + stamp +
			` "GET / HTTP/1.1" 200 1`,
			"1.2.3.4|x [01/Jan/2000:00:00:00 +0000] y|GET|/|/"},
		{"user with an escaped quote", `1.2.3.4 - a\"[01/Jan/2000:00:00:00 +0000] \"GET ` + stamp +
			` "GET / HTTP/1.1" 200 1`,
			`1.2.3.4|a\"[01/Jan/2000:00:00:00 +0000] \"GET|GET|/|/`},
		{"escaped quotes", `1.2.3.4 - - ` + stamp + ` "GET /\"x\\" 200 1 "r\"r" "a\\"`,
			`1.2.3.4||GET|/\"x\\|/\"x\\`},
		{"agent cut", `1.2.3.4 - - ` + stamp + ` "GET / HTTP/1.1" 200 1 "-" "Mozilla/5.0 (Maci`,
			"1.2.3.4||GET|/|/"},
		{"cut after the request", `1.2.3.4 - - ` + stamp + ` "GET / HTTP/1.1"`,
			"1.2.3.4||GET|/|/"},
		{"cut in the request", `1.2.3.4 - - ` + stamp + ` "GET /abc`, "1.2.3.4||GET|/abc|/abc"},
		{"no space after the time", `1.2.3.4 - - ` + stamp + `"GET /a HTTP/1.1" 200 255 c6af9ac6-7b61-11e6 JKJa=`,
			"1.2.3.4||GET|/a|/a"},
		{"route key", `1.2.3.4 - - ` + stamp + ` "GET GET /items/{id} HTTP/1.1" 200 5 JKJa=`,
			"1.2.3.4||GET|/items/{id}|/items/{id}"},
		{"route key for any method", `1.2.3.4 - - ` + stamp + `"POST ANY /{proxy+} HTTP/1.1" 200 5`,
			"1.2.3.4||POST|/{proxy+}|/{proxy+}"},
		{"only an address before the time", `1.2.3.4 ` + stamp + ` "GET / HTTP/1.1" 200 1`,
			"1.2.3.4||GET|/|/"},
		{"more fields", `1.2.3.4 - - ` + stamp + ` "GET / HTTP/1.1" 200 1 "r" "a" "203.0.113.9" 0.004 -`,
			"1.2.3.4||GET|/|/"},
		{"odd numbers", `1.2.3.4 - - ` + stamp + ` "GET / HTTP/1.1" 20x 99999999999999999999 "r" "a"`,
			"1.2.3.4||GET|/|/"},
		{"long target", `1.2.3.4 - - ` + stamp + ` "GET /` + long + ` HTTP/1.1" 200 1`, "1.2.3.4||GET|/" + long +
			"|/" + long},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			var p accesslog.Parser
			var l accesslog.Line
			if why := p.Parse([]byte(c.text), &l); why != accesslog.OK {
				t.Fatalf("Parse(%q) = %s, want ok", c.text, why)
			}
			got := fmt.Sprintf("%s|%s|%s|%s|%s", l.Host, l.User, l.Method, l.Target, l.Path)
			if got != c.want {
				t.Errorf("Parse(%q)\n got %s\nwant %s", c.text, got, c.want)
			}
			if l.Time != at {
				t.Errorf("Parse(%q) time = %d, want %d", c.text, l.Time, at)
			}
		})
	}
}

// Guarantees which lines are skipped, and with which reason. If a line were dropped without a report, a limit would
// seem to deny less than it does.
func TestParseSkips(t *testing.T) {
	cases := []struct {
		name, text string
		want       accesslog.Reason
	}{
		{"empty", "", accesslog.Blank},
		{"spaces", " \t ", accesslog.Blank},
		{"one word", "hello", accesslog.BadAddress},
		{"no address", `- - - ` + stamp + ` "GET / HTTP/1.1" 200 1`, accesslog.BadAddress},
		{"forwarded list", `1.2.3.4, 5.6.7.8 - - ` + stamp + ` "GET / HTTP/1.1" 200 1`, accesslog.BadAddress},
		{"binary address", "\x16\x03\x01 - - " + stamp + ` "GET / HTTP/1.1" 200 1`, accesslog.BadAddress},
		{"address too long", strings.Repeat("a", 254) + ` - - ` + stamp + ` "GET / HTTP/1.1" 200 1`,
			accesslog.BadAddress},
		{"route key without a path", `1.2.3.4 - - ` + stamp + ` "GET $default HTTP/1.1" 200 5`, accesslog.BadTarget},
		{"route key of another method", `1.2.3.4 - - ` + stamp + ` "GET POST /items HTTP/1.1" 200 5`,
			accesslog.BadTarget},
		{"comment", "#Fields: date time", accesslog.BadAddress},
		{"words only", "the quick brown fox", accesslog.BadTime},
		{"no time", `1.2.3.4 - - "GET / HTTP/1.1" 200 1`, accesslog.BadTime},
		{"no zone", `1.2.3.4 - - [17/May/2015:10:05:03] "GET / HTTP/1.1" 200 1`, accesslog.BadTime},
		{"31 April", `1.2.3.4 - - [31/Apr/2015:10:05:03 +0000] "GET / HTTP/1.1" 200 1`, accesslog.BadTime},
		{"29 February 2015", `1.2.3.4 - - [29/Feb/2015:10:05:03 +0000] "GET / HTTP/1.1" 200 1`, accesslog.BadTime},
		{"hour 24", `1.2.3.4 - - [17/May/2015:24:05:03 +0000] "GET / HTTP/1.1" 200 1`, accesslog.BadTime},
		{"before 1970", `1.2.3.4 - - [17/May/1969:10:05:03 +0000] "GET / HTTP/1.1" 200 1`, accesslog.BadTime},
		{"cut in the time", `1.2.3.4 - - [17/May/2015:10:`, accesslog.BadTime},
		{"cut after the time", `1.2.3.4 - - ` + stamp, accesslog.BadRequest},
		{"request not quoted", `1.2.3.4 - - ` + stamp + ` GET / HTTP/1.1 200 1`, accesslog.BadRequest},
		{"no request", `1.2.3.4 - - ` + stamp + ` "-" 408 -`, accesslog.BadRequest},
		{"empty request", `1.2.3.4 - - ` + stamp + ` "" 400 0`, accesslog.BadRequest},
		{"TLS greeting", `1.2.3.4 - - ` + stamp + ` "\x16\x03\x01\x02" 400 0`, accesslog.BadRequest},
		{"TLS greeting with a space", `1.2.3.4 - - ` + stamp + ` "\x16\x03 \x01\x02" 400 0`, accesslog.BadRequest},
		{"method only", `1.2.3.4 - - ` + stamp + ` "GET " 400 0`, accesslog.BadRequest},
		{"server-wide", `1.2.3.4 - - ` + stamp + ` "OPTIONS * HTTP/1.0" 200 0`, accesslog.BadTarget},
		{"authority", `1.2.3.4 - - ` + stamp + ` "CONNECT h:443 HTTP/1.1" 405 0`, accesslog.BadTarget},
		{"no slash", `1.2.3.4 - - ` + stamp + ` "GET a/b HTTP/1.1" 400 0`, accesslog.BadTarget},
		{"other scheme", `1.2.3.4 - - ` + stamp + ` "GET ftp://h/a HTTP/1.1" 400 0`, accesslog.BadTarget},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			var p accesslog.Parser
			var l accesslog.Line
			if got := p.Parse([]byte(c.text), &l); got != c.want {
				t.Errorf("Parse(%q) = %s, want %s", c.text, got, c.want)
			}
		})
	}
	if got, want := len(accesslog.Reasons()), 6; got != want {
		t.Errorf("%d reasons, want %d", got, want)
	}
	for _, r := range accesslog.Reasons() {
		if r.String() == "" || r.Explain() == "" {
			t.Errorf("reason %d has no name or no explanation", r)
		}
	}
}

// Guarantees that whatever stands before the client's address is read as what it is, or the line is refused: a prefix
// that is taken for the client makes one client of all, or many of one.
func TestParsePrefixes(t *testing.T) {
	const rest = ` - - ` + stamp + ` "GET /items/1 HTTP/1.1" 200 5 "-" "curl/8"`
	const id = "c6af9ac6-7b61-11e6-9a41-93e8deadbee1"
	cases := []struct{ prefix, host string }{ // host is "" if the line is refused
		{"www.example.test ", "192.0.2.1"},                         // vhost_combined, nginx
		{"shop.example:443 ", "2001:db8::7"},                       // with the port
		{"_ ", "192.0.2.1"},                                        // the default server of nginx
		{"*:80 ", "192.0.2.1"},                                     // of Apache
		{id + " ", "192.0.2.1"},                                    // a request id
		{"0af7651916cd43dd8448eb211c80319c ", "192.0.2.1"},         // of nginx
		{"www.example.test " + id + " ", "192.0.2.1"},              // both
		{"web-1  | ", "192.0.2.1"},                                 // docker compose
		{"\x1b[33mweb-1  |\x1b[0m ", "192.0.2.1"},                  // in colour
		{"nginx.1     | www.example.test ", "192.0.2.1"},           // nginx-proxy
		{"proxy-1  | nginx.1     | www.example.test ", "::1"},      // under docker compose
		{"Oct  1 13:55:36 web1 nginx: ", "192.0.2.1"},              // syslog
		{"<190>Oct 10 13:55:36 nginx: ", "192.0.2.1"},              // as nginx sends it, without a host
		{"Oct 10 13:55:36 web1 apache2[71]: web:80 ", "192.0.2.1"}, // with a virtual host
		{"2025-10-10T13:55:36.123456+00:00 web1 haproxy[7]: ", "192.0.2.1"},
		{"<134>1 2025-10-10T13:55:36Z web1 nginx 71 access - ", "192.0.2.1"}, // RFC 5424
		{"2025-10-10T13:55:36.123456789Z ", "192.0.2.1"},                     // docker logs -t
		{"2025-10-10T13:55:36.1Z stdout F ", "192.0.2.1"},                    // files of Kubernetes
		{"[pod/web-5d/nginx] 2025-10-10T13:55:36.1Z ", "192.0.2.1"},          // kubectl logs --prefix --timestamps

		{"203.0.113.9 ", ""},               // two addresses, as with X-Forwarded-For in front
		{"203.0.113.9, 198.51.100.4 ", ""}, // a list of them
		{"- ", ""},                         // none was forwarded; what follows is the proxy
		{"unix: ", ""},
		{"203.0.113.9:443 ", ""},
		{"one two three ", ""},
		{"{level: info} ", ""},
		{"\"www.example.test\" ", ""},
		{"www.example.test - ", ""},
		{"192.0.2.300 a, ", ""},
		{"[10/Oct/2025:13:55:36 +0000] ", ""},
		{"web-1  | \"x\" ", ""},
	}
	for _, c := range cases {
		client := cmp.Or(c.host, "192.0.2.1")
		var p accesslog.Parser
		var l accesslog.Line
		why := p.Parse([]byte(c.prefix+client+rest), &l)
		read := why == accesslog.OK
		if read != (c.host != "") || (read && (string(l.Host) != c.host || l.User != nil ||
			string(l.Path) != "/items/1")) {
			t.Errorf("after %q: %s, and the line %+v, want the client %q", c.prefix, why, l, c.host)
		}
	}
	for _, head := range []string{id + " - - ", "www.example.test - 192.0.2.1 ", "10.0.0.1 - 192.0.2.1 ",
		"10.0.0.1 - client.example.test - - ", "web ", "web - ann smith ",
		"www.example.test client.example.test - - ", "www.example.test client.example.test - ",
		"web-1  | client.example.test - - ", "web-1  | - - - ", "| 192.0.2.1 - - "} {
		var p accesslog.Parser
		var l accesslog.Line
		if why := p.Parse([]byte(head+stamp+` "GET / HTTP/1.1" 200 1`), &l); why != accesslog.BadAddress {
			t.Errorf("Parse(%q…) = %s with the client %q, want %s", head, why, l.Host, accesslog.BadAddress)
		}
	}
}

// Guarantees that the parser of times agrees with package time, day by day over leap years and centuries, and in
// several zones. One parser reads all of them: it keeps the last date, and a wrong one would move requests to other
// windows.
func TestParseTime(t *testing.T) {
	var p accesslog.Parser
	var l accesslog.Line
	zones := []*time.Location{time.UTC, time.FixedZone("", 5*3600+1800), time.FixedZone("", -9*3600-1800),
		time.FixedZone("", 14*3600)}
	n := 0
	for at := time.Date(1970, 1, 2, 3, 4, 5, 0, time.UTC); at.Year() < 2420; at = at.Add(65*time.Hour +
		59*time.Minute + 37*time.Second) {
		in := at.In(zones[n%len(zones)])
		n++
		for range 2 { // the second time, the date is the one that the parser keeps
			text := `1.2.3.4 - - [` + in.Format("02/Jan/2006:15:04:05 -0700") + `] "GET / HTTP/1.1" 200 1`
			if why := p.Parse([]byte(text), &l); why != accesslog.OK || l.Time != at.UnixMicro() {
				t.Fatalf("Parse(%q) = %s, time %d; want %d", text, why, l.Time, at.UnixMicro())
			}
		}
	}
	for stamp, want := range map[string]time.Time{
		"17/May/2015:10:05:03.250 +0000": time.Date(2015, 5, 17, 10, 5, 3, 250e6, time.UTC),
		"31/Dec/2016:23:59:60 +0000":     time.Date(2017, 1, 1, 0, 0, 0, 0, time.UTC), // a leap second
	} {
		text := `1.2.3.4 - - [` + stamp + `] "GET / HTTP/1.1" 200 1`
		if why := p.Parse([]byte(text), &l); why != accesslog.OK || l.Time != want.UnixMicro() {
			t.Errorf("Parse(%q) = %s, time %d; want %d", text, why, l.Time, want.UnixMicro())
		}
	}
}

// Guarantees that the escapes of servers are replaced with the characters that they stand for.
func TestUnescape(t *testing.T) {
	cases := []struct{ in, want string }{
		{`/plain`, "/plain"},
		{`/\"q\\`, `/"q\`},
		{`\x16\x03\xfF`, "\x16\x03\xff"},
		{`\n\r\t\b\v\f`, "\n\r\t\b\v\f"},
		{`\x1`, `\x1`},
		{`\xzz\q\`, `\xzz\q\`},
	}
	for _, c := range cases {
		if got := string(accesslog.Unescape(nil, []byte(c.in))); got != c.want {
			t.Errorf("Unescape(%q) = %q, want %q", c.in, got, c.want)
		}
	}
}

// FuzzParseLine checks for any bytes that Parse does not panic, that an accepted line has everything that a replay
// needs, and that the line is the same after it is written and read again, so that no field contains a part of another.
func FuzzParseLine(f *testing.F) {
	f.Add([]byte(`198.51.100.7 - ann ` + stamp + ` "GET /a/b?c=d HTTP/1.1" 200 512 "https://x.example/" "curl/8"`))
	f.Add([]byte(`::1 - - ` + stamp + ` "GET http://h HTTP/1.1" 200 -`))
	f.Add([]byte(`1.2.3.4 - x [01/Jan/2000:00:00:00 +0000] "y ` + stamp + ` "GET / HTTP/1.1" 200 1 "r\"" "\\`))
	f.Add([]byte(`1.2.3.4 - - [17/May/2015:10:05:03.250 +0000] "GET /`))
	f.Add([]byte(`1.2.3.4 - - ` + stamp + ` "\x16\x03\x01" 400 0`))
	f.Add([]byte{0xef, 0xbb, 0xbf, 0, '[', ']', '"'})
	f.Fuzz(func(t *testing.T, text []byte) {
		var p accesslog.Parser
		var l, again accesslog.Line
		if p.Parse(text, &l) != accesslog.OK {
			return
		}
		if len(l.Host) == 0 || l.Time <= 0 || len(l.Method) == 0 || len(l.Path) == 0 || l.Path[0] != '/' {
			t.Fatalf("Parse(%q) accepts a line that lacks something: %+v", text, l)
		}
		out := format(&l)
		if why := p.Parse(out, &again); why != accesslog.OK {
			t.Fatalf("Parse(%q) accepts a line which, written again as %q, is refused: %s", text, out, why)
		}
		if !reflect.DeepEqual(l, again) {
			t.Fatalf("Parse(%q)\n gave %+v\nwritten again as %q\n gave %+v", text, l, out, again)
		}
	})
}

// FuzzParsePrefix checks that no text before a line makes another client of the line's own.
func FuzzParsePrefix(f *testing.F) {
	for _, seed := range []string{"", "www.example.test ", "web-1 | x 1-2 ", "<190>Oct 10 13:55:36 web1 nginx[7]: ",
		"10.0.0.1 - ann ", "2025-10-10T13:55:36Z stdout F ", "h - ", "\x1b[33ma |\x1b[0m "} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, prefix string) {
		if strings.Contains(prefix, `"`) {
			return // the prefix could be a whole line
		}
		if prefix != "" {
			prefix += " "
		}
		var p accesslog.Parser
		var l accesslog.Line
		why := p.Parse([]byte(prefix+`192.0.2.1 - - `+stamp+` "GET / HTTP/1.1" 200 1`), &l)
		if why == accesslog.OK && string(l.Host) != "192.0.2.1" {
			t.Fatalf("after %q the client is %q", prefix, l.Host)
		}
	})
}

// format writes a line in the Combined Log Format. It closes the quotes of a line that was cut.
func format(l *accesslog.Line) []byte {
	var b bytes.Buffer
	dash := func(text []byte) []byte {
		if text == nil {
			return []byte("-")
		}
		return text
	}
	at := time.UnixMicro(l.Time).UTC().Format("02/Jan/2006:15:04:05.000000 -0700")
	fmt.Fprintf(&b, `%s - %s [%s] "%s %s HTTP/1.1" 200 1 "-" "-"`, l.Host, dash(l.User), at, l.Method, l.Target)
	return b.Bytes()
}
