package stage

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

// Guarantees that signatures equal those of AWS's published examples, in its documentation and its test suite. No
// signer of this repository is used.
func TestPublishedSignatures(t *testing.T) {
	const secret, scope = "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY", "AKIDEXAMPLE/20150830/us-east-1/"
	for _, tt := range []struct {
		name, method, target, host, contentType, service, signed, want string
	}{
		{"IAM's ListUsers", "GET", "/?Action=ListUsers&Version=2010-05-08", "iam.amazonaws.com",
			"application/x-www-form-urlencoded; charset=utf-8", "iam",
			"content-type;host;x-amz-date", "5d672d79c15b13162d9279b0855cfba6789a8edb4c82c400e06b5924a6f2b5d7"},
		{"get-vanilla", "GET", "/", "example.amazonaws.com", "", "service", "host;x-amz-date",
			"5fa00fa31553b73ebf1942676e86291e8372ff2a2260956d9b8aae1d763fbf31"},
		{"get-slash, get-relative", "GET", "/example/..", "example.amazonaws.com", "", "service", "host;x-amz-date",
			"5fa00fa31553b73ebf1942676e86291e8372ff2a2260956d9b8aae1d763fbf31"},
		{"get-slash", "GET", "//", "example.amazonaws.com", "", "service", "host;x-amz-date",
			"5fa00fa31553b73ebf1942676e86291e8372ff2a2260956d9b8aae1d763fbf31"},
		{"post-vanilla", "POST", "/", "example.amazonaws.com", "", "service", "host;x-amz-date",
			"5da7c1a2acd57cee7505fc6676e4e544621c30862966e37dddb68e92efbe5d6b"},
	} {
		r := httptest.NewRequestWithContext(t.Context(), tt.method, "http://"+tt.host+tt.target, nil)
		r.Header["X-Amz-Date"] = []string{"20150830T123600Z"}
		r.Header["Authorization"] = []string{"AWS4-HMAC-SHA256 Credential=" + scope + tt.service +
			"/aws4_request, SignedHeaders=" + tt.signed + ", Signature=" + tt.want}
		if tt.contentType != "" {
			r.Header["Content-Type"] = []string{tt.contentType}
		}
		c := &call{r: r, query: parseQuery(r.URL.RawQuery)}
		s, message := c.readSignature()
		if s == nil || message != "" {
			t.Fatalf("%s: %s", tt.name, message)
		}
		if got := s.sign(secret, c.canonical(s, nil)); got != s.value || got != tt.want {
			t.Errorf("%s: the signature is %s, want %s\n%s", tt.name, got, tt.want, c.canonical(s, nil))
		}
	}
}

// Guarantees that the date may be in either header, and that X-Amz-Date is used if both are there.
func TestDate(t *testing.T) {
	const long, usual = "20150830T123600Z", "Sun, 30 Aug 2015 12:36:00 GMT"
	want := time.Date(2015, 8, 30, 12, 36, 0, 0, time.UTC)
	for _, h := range []http.Header{{"X-Amz-Date": {long}}, {"Date": {usual}},
		{"X-Amz-Date": {long}, "Date": {"Mon, 31 Aug 2015 12:36:00 GMT"}}} {
		if at := requestDate(h); !at.Equal(want) || at.Location() != time.UTC {
			t.Errorf("headers %v: the date is %s", h, at)
		}
	}
	for _, h := range []http.Header{{}, {"Date": {long}}, {"X-Amz-Date": {usual}}, {"X-Amz-Date": {long, long}},
		{"X-Amz-Date": {"x"}, "Date": {usual}}} {
		if at := requestDate(h); !at.IsZero() {
			t.Errorf("headers %v: the date is %s, want none", h, at)
		}
	}
}

// Guarantees that a path is signed as execute-api was observed to do it: as sent, encoded once more (including %2F),
// and normalised as the documentation says.
func TestCanonicalPath(t *testing.T) {
	for sent, want := range map[string]string{
		"":                                     "/",
		"/":                                    "/",
		"/v1/plans/get":                        "/v1/plans/get",
		"/v1/plans/":                           "/v1/plans/",
		"/$default/%40connections/L0SM9cOF%3D": "/%24default/%2540connections/L0SM9cOF%253D",
		"/a%2Fb/c:d":                           "/a%252Fb/c%3Ad",
		"/a+b/é~-._":                           "/a%2Bb/%C3%A9~-._",
		"//a//b/./c/../d":                      "/a/b/d",
		"/../..":                               "/",
		"/a/..":                                "/",
	} {
		if got := canonicalPath(sent); got != want {
			t.Errorf("%s is signed as %s, want %s", sent, got, want)
		}
	}
}

// FuzzAuthorization checks that any header gives either a signature, which is the same after it is written and read
// again, or an error text that contains nothing the client wrote.
func FuzzAuthorization(f *testing.F) {
	for _, seed := range []string{
		"", "Bearer eyJhbGciOi.e30.x", "Basic dXNlcjpwYXNz=", "AWS4-HMAC-SHA256", "AWS4-ECDSA-P256-SHA256 a=b",
		"AWS4-HMAC-SHA256 ,,=,",
		"AWS4-HMAC-SHA256 Credential=A/20150830/us-east-1/execute-api/aws4_request, SignedHeaders=host;x-amz-date, " +
			"Signature=00",
		"AWS4-HMAC-SHA256 Signature=0=0,SignedHeaders=;;HOST,Credential=////",
		"AWS4-HMAC-SHA256 Credential=A/B, SignedHeaders=host, Signature=0",
		"AWS4-HMAC-SHA256 Credential=A, Credential=B",
	} {
		f.Add(seed)
	}
	texts := regexp.MustCompile(`^[A-Za-z0-9 .,'=()/-]+$`)
	f.Fuzz(func(t *testing.T, header string) {
		s, message := parseAuthorization(header)
		switch {
		case (s == nil) == (message == ""):
			t.Fatalf("%q: %v, %q", header, s, message)
		case s == nil:
			for _, word := range regexp.MustCompile(`[A-Za-z0-9._-]{40,}`).FindAllString(header, -1) {
				if strings.Contains(message, word) {
					t.Fatalf("%q: the text has %s: %s", header, word, message)
				}
			}
			if !texts.MatchString(message) || len(message) > 300 {
				t.Fatalf("%q: %q", header, message)
			}
			return
		case !slices.IsSorted(s.headers):
			t.Fatalf("%q: the headers are %q", header, s.headers)
		}
		written := fmt.Sprintf("AWS4-HMAC-SHA256 Credential=%s/%s/%s/%s/%s, SignedHeaders=%s, Signature=%s", s.key,
			s.day, s.region, s.service, s.terminator, strings.Join(s.headers, ";"), s.value)
		again, message := parseAuthorization(written)
		if message != "" || fmt.Sprintf("%+v", again) != fmt.Sprintf("%+v", s) {
			t.Fatalf("%q: %+v, then %+v %s", header, s, again, message)
		}
		s.at = time.Unix(0, 0)
		if one := s.sign("secret", "request"); len(one) != 64 || one == s.sign("other", "request") ||
			one == s.sign("secret", "requests") {
			t.Fatalf("%q: the signature is %s", header, one)
		}
	})
}
