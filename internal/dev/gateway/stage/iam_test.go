package stage_test

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"

	"github.com/sluicelimits/sluice/internal/dev/gateway/stage"
	"github.com/sluicelimits/sluice/internal/testkit/logtest"
)

// operators describes an API like the operators' APIs of package infra, with two more routes: one without
// authorization, and one to an HTTP service.
const operators = `{kind: REST, stage: v1, region: eu-west-1, routes: [
	{route: "POST /{proxy+}", authorization: AWS_IAM, integration: {type: AWS_PROXY, function: backend}},
	{route: "GET /{proxy+}", authorization: AWS_IAM, integration: {type: AWS_PROXY, function: backend}},
	{route: "PUT /echo", authorization: AWS_IAM, integration: {type: ECHO,
	  requestParameters: {integration.request.header.X-Actor: context.identity.userArn}}},
	{route: "GET /open", integration: {type: AWS_PROXY, function: backend}}],
	gatewayResponses: {INVALID_SIGNATURE: {responseParameters: {gatewayresponse.header.X-Why: "'signature'"}}}}`

var (
	ann = stage.Credential{Secret: "s3cr3t/ann", Account: "123456789012", Caller: "AIDAANN",
		UserARN: "arn:aws:iam::123456789012:user/ann"}
	ops = stage.Credential{Secret: "s3cr3t/ops", SessionToken: "t0ken/of+ops==", Account: "123456789012",
		Caller: "AROAOPS:eve", User: "AROAOPS:eve",
		UserARN: "arn:aws:sts::123456789012:assumed-role/ops/eve"}
)

const (
	annKey = "AKIAANN"
	opsKey = "ASIAOPS"
)

// signing describes one request and how it is signed.
type signing struct {
	method, path, body string
	header             []string // name, value and so on; all are signed
	key                string
	as                 stage.Credential
	service, region    string
	at                 time.Time
	presign            bool
	host, hash         string              // the values that are signed, if they differ from those that are sent
	then               func(*http.Request) // changes the request after it is signed
}

func (s signing) with(change func(*signing)) signing {
	change(&s)
	return s
}

// of returns a correct call of an operator.
func of() signing {
	return signing{method: "POST", path: "/v1/plans/get", body: `{"id":"pro"}`, key: annKey, as: ann,
		service: "execute-api", region: "eu-west-1", at: noon}
}

// request makes the request and signs it with the SDK's signer, as the command line does.
func (s signing) request(t testing.TB, base string) *http.Request {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), s.method, base+s.path, strings.NewReader(s.body))
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(s.header); i += 2 {
		r.Header[s.header[i]] = append(r.Header[s.header[i]], s.header[i+1])
	}
	sent := r.Host
	if s.host != "" {
		r.Host = s.host
	}
	sum := sha256.Sum256([]byte(s.body))
	hash := cmp.Or(s.hash, hex.EncodeToString(sum[:]))
	credentials := aws.Credentials{AccessKeyID: s.key, SecretAccessKey: s.as.Secret, SessionToken: s.as.SessionToken}
	if s.presign {
		q := r.URL.Query()
		q.Set("X-Amz-Expires", "60")
		r.URL.RawQuery = q.Encode()
		signed, header, err := v4.NewSigner().PresignHTTP(t.Context(), credentials, r, hash, s.service, s.region, s.at)
		if err != nil {
			t.Fatal(err)
		}
		if r.URL, err = url.Parse(signed); err != nil {
			t.Fatal(err)
		}
		for name, lines := range header {
			if name != "Host" {
				r.Header[name] = lines
			}
		}
	} else if err := v4.NewSigner().SignHTTP(t.Context(), credentials, r, hash, s.service, s.region, s.at); err != nil {
		t.Fatal(err)
	}
	r.Host = sent
	if s.then != nil {
		s.then(r)
	}
	return r
}

func (s signing) send(t testing.TB, base string) reply {
	t.Helper()
	resp, err := http.DefaultTransport.RoundTrip(s.request(t, base))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return reply{resp.StatusCode, resp.Header, string(text)}
}

// served starts an operators' API.
func served(t testing.TB) (base string, f *answers, log *logtest.Buffer) {
	t.Helper()
	f = &answers{out: `{"statusCode":200,"body":"done"}`}
	base, log = serve(t, describe(t, operators), nil, f, func(c *stage.Config) {
		c.Credentials = map[string]stage.Credential{annKey: ann, opsKey: ops}
		c.MaxBodyBytes = 1 << 10
	})
	return base, f, log
}

// Guarantees that a correctly signed request is let through, whatever form the signature has, and that the function
// gets the identity of the signer in the fields that API Gateway documents and nowhere else. Nothing that a client
// writes gets into these fields.
func TestSigned(t *testing.T) {
	authorization := func(change func(string) string) func(*http.Request) {
		return func(r *http.Request) { r.Header["Authorization"] = []string{change(r.Header.Get("Authorization"))} }
	}
	for _, tt := range []struct {
		name string
		s    signing
	}{
		{"as the command line signs", of()},
		{"temporary credentials", of().with(func(s *signing) { s.key, s.as = opsKey, ops })},
		{"a query", of().with(func(s *signing) {
			s.method, s.path, s.body = "GET",
				"/v1/a?b=2&b=1&a=x%20y%2Fz&flag&%C3%A9=%2B", ""
		})},
		{"a path that is encoded", of().with(func(s *signing) { s.path = "/v1/a%20b/c%2Fd/$e/f:g@h" })},
		{"a slash at the end", of().with(func(s *signing) { s.path = "/v1/a/" })},
		{"headers of several lines, and with spaces", of().with(func(s *signing) {
			s.header = []string{"Content-Type", "application/json", "X-Amz-Meta", "a   b ", "X-Amz-Meta", "c",
				"Accept-Language", "de"}
		})},
		{"names of headers in another order, and no spaces", of().with(func(s *signing) {
			s.then = authorization(func(a string) string {
				_, rest, _ := strings.Cut(a, " ")
				parts := strings.Split(rest, ", ")
				names := strings.Split(strings.TrimPrefix(parts[1], "SignedHeaders="), ";")
				for i, j := 0, len(names)-1; i < j; i, j = i+1, j-1 {
					names[i], names[j] = names[j], names[i]
				}
				return "AWS4-HMAC-SHA256 " + parts[2] + "," + "SignedHeaders=" + strings.Join(names, ";") + "," +
					parts[0]
			})
		})},
		{"headers beside that are not signed", of().with(func(s *signing) {
			s.then = func(r *http.Request) {
				r.Header["X-Forwarded-For"], r.Header["X-Extra"] = []string{"192.0.2.1"}, []string{"1"}
			}
		})},
		{"five minutes ago", of().with(func(s *signing) { s.at = noon.Add(-5 * time.Minute) })},
		{"in five minutes", of().with(func(s *signing) { s.at = noon.Add(5 * time.Minute).Truncate(time.Second) })},
		{"no body", of().with(func(s *signing) { s.body = "" })},
		{"what a client says of itself", of().with(func(s *signing) {
			s.header = []string{"Userarn", "arn:aws:iam::123456789012:root", "X-Amzn-Caller", "x"}
		})},
	} {
		base, f, log := served(t)
		if got := tt.s.send(t, base); got.status != 200 || got.body != "done" {
			t.Errorf("%s: status %d, body %s, headers %s\n%s", tt.name, got.status, got.body, got.header, log)
			continue
		}
		e := f.onlyEvent(t)
		id := e["requestContext"].(map[string]any)["identity"].(map[string]any)
		want := map[string]any{"accountId": tt.s.as.Account, "accessKey": tt.s.key, "caller": tt.s.as.Caller,
			"user": tt.s.as.Caller, "userArn": tt.s.as.UserARN}
		for name, v := range want {
			if id[name] != v {
				t.Errorf("%s: identity field %s is %v, want %v", tt.name, name, id[name], v)
			}
		}
		if _, there := e["requestContext"].(map[string]any)["authorizer"]; there {
			t.Errorf("%s: there is an authorizer in the event, although the route has none", tt.name)
		}
		if _, there := e["headers"].(map[string]any)["Authorization"]; there {
			t.Errorf("%s: the function gets the signature", tt.name)
		}
		if body := e["body"]; body != tt.s.body && (body != nil || tt.s.body != "") {
			t.Errorf("%s: the function got the body %v", tt.name, body)
		}
	}
}

// Guarantees that a request is refused before any function is called, with the documented answer, unless a known caller
// signed exactly this request, for this API, at about this time. Otherwise a change could be recorded under another
// operator's name.
func TestNotSigned(t *testing.T) {
	const (
		mismatch   = "The request signature we calculated does not match the signature you provided."
		unknown    = "The security token included in the request is invalid."
		sound      = "InvalidSignatureException"
		incomplete = "IncompleteSignatureException"
		nobody     = "UnrecognizedClientException"
	)
	after := func(change func(*http.Request)) signing { return of().with(func(s *signing) { s.then = change }) }
	header := func(name string, lines ...string) signing {
		return after(func(r *http.Request) {
			delete(r.Header, name)
			if len(lines) > 0 {
				r.Header[name] = lines
			}
		})
	}
	replaced := func(old, by string) signing {
		return after(func(r *http.Request) {
			a := r.Header.Get("Authorization")
			if !strings.Contains(a, old) {
				t.Errorf("the header has no %s: %s", old, a)
			}
			r.Header["Authorization"] = []string{strings.Replace(a, old, by, 1)}
		})
	}
	body := func(text string) signing {
		return after(func(r *http.Request) {
			r.Body, r.ContentLength = io.NopCloser(strings.NewReader(text)), int64(len(text))
		})
	}
	for _, tt := range []struct {
		name       string
		s          signing
		typ, text  string
		statusCode int // 0 selects 403
	}{
		{"unsigned", header("Authorization"), "MissingAuthenticationTokenException",
			`{"message":"Missing Authentication Token"}`, 0},
		{"an empty header", header("Authorization", " "), "MissingAuthenticationTokenException",
			`{"message":"Missing Authentication Token"}`, 0},
		{"another secret", of().with(func(s *signing) { s.as.Secret = "other" }), sound, mismatch, 0},
		{"another's secret", of().with(func(s *signing) { s.key, s.as.SessionToken = opsKey, ops.SessionToken }),
			sound, mismatch, 0},
		{"another body", body(`{"id":"max"}`), sound, mismatch, 0},
		{"a longer body", body(`{"id":"pro"} `), sound, mismatch, 0},
		{"a body that is not signed", of().with(func(s *signing) {
			s.hash, s.header = "UNSIGNED-PAYLOAD", []string{"X-Amz-Content-Sha256", "UNSIGNED-PAYLOAD"}
		}), sound, mismatch, 0},
		{"another query", after(func(r *http.Request) { r.URL.RawQuery = "force=1" }), sound, mismatch, 0},
		{"another path", after(func(r *http.Request) { r.URL.Path = "/v1/plans/put" }), sound, mismatch, 0},
		{"another encoding of the path", after(func(r *http.Request) { r.URL.RawPath = "/v1/plans%2Fget" }).with(
			func(s *signing) {
				before := s.then
				s.then = func(r *http.Request) { before(r); r.URL.Path = "/v1/plans/get" }
			}), sound, mismatch, 0},
		{"another method", after(func(r *http.Request) { r.Method = "GET" }), sound, mismatch, 0},
		{"a signed header that is another", header("X-Amz-Meta",
			"2").with(func(s *signing) { s.header = []string{"X-Amz-Meta", "1"} }), sound, mismatch, 0},
		{"a signed header that is gone", header("X-Amz-Meta").with(func(s *signing) {
			s.header = []string{"X-Amz-Meta",
				"1"}
		}), sound, mismatch, 0},
		{"a signed header that is there again",
			header("X-Amz-Meta", "1", "2").with(func(s *signing) { s.header = []string{"X-Amz-Meta", "1"} }), sound,
			mismatch, 0},
		{"another date", header("X-Amz-Date", noon.Add(time.Second).Format("20060102T150405Z")), sound, mismatch, 0},
		{"for another host", of().with(func(s *signing) { s.host = "abcde12345.execute-api.eu-west-1.amazonaws.com" }),
			sound, mismatch, 0},
		{"a signature of nothing", replaced("Signature=", "Signature=00"), sound, mismatch, 0},
		{"old", of().with(func(s *signing) { s.at = noon.Add(-5*time.Minute - time.Second) }), sound,
			"Signature expired: 20261121T091027Z is now earlier than 20261121T091028Z (20261121T091528Z - 5 min.)", 0},
		{"to come", of().with(func(s *signing) { s.at = noon.Add(5*time.Minute + time.Second) }), sound,
			"Signature not yet current: 20261121T092029Z is still later than 20261121T092028Z (20261121T091528Z + 5 " +
				"min.)", 0},
		{"for another region", of().with(func(s *signing) { s.region = "us-east-1" }), sound,
			"Credential should be scoped to a valid region.", 0},
		{"for another service", of().with(func(s *signing) { s.service = "lambda" }), sound,
			"Credential should be scoped to correct service: 'execute-api'.", 0},
		{"for neither", of().with(func(s *signing) { s.service, s.region = "lambda", "us-east-1" }), sound,
			"valid region. Credential should be scoped to correct service", 0},
		{"for another version", replaced("aws4_request", "aws5_request"), sound,
			"Credential should be scoped with a valid terminator: 'aws4_request'.", 0},
		{"for another day", replaced("/20261121/", "/20261120/"), sound, "Date in Credential scope does not match", 0},
		{"for a day that is none", replaced("/20261121/", "/20261121T000000Z0000/"), sound,
			"Date in Credential scope does not match", 0},
		{"without the host", replaced("host;", ""), sound, "'Host' or ':authority' must be a 'SignedHeader'", 0},
		{"an unknown key", of().with(func(s *signing) { s.key = "AKIAOTHER" }), nobody, unknown, 0},
		{"another's token", of().with(func(s *signing) { s.key, s.as = opsKey, ops; s.as.SessionToken = "other" }),
			nobody, unknown, 0},
		{"no token", of().with(func(s *signing) { s.key, s.as = opsKey, ops; s.as.SessionToken = "" }), nobody,
			unknown, 0},
		{"a token too many", of().with(func(s *signing) { s.as.SessionToken = "t0ken" }), nobody, unknown, 0},
		{"a JWT", header("Authorization", "Bearer s3cr3t.s3cr3t"), incomplete,
			"Invalid key=value pair (missing equal-sign) in Authorization header.", 0},
		{"two headers", after(func(r *http.Request) {
			r.Header["Authorization"] = append(r.Header["Authorization"], "AWS4-HMAC-SHA256 a=b")
		}), incomplete, "more than one", 0},
		{"no parameters", header("Authorization", "AWS4-HMAC-SHA256"), incomplete,
			"Authorization header requires 'Credential' parameter. Authorization header requires 'Signature' " +
				"parameter. Authorization header requires 'SignedHeaders' parameter.", 0},
		{"a parameter twice", replaced("Signature=", "Signature=0, Signature="), incomplete, "twice", 0},
		{"another algorithm", replaced("AWS4-HMAC-SHA256", "AWS4-ECDSA-P256-SHA256"), incomplete,
			"Unsupported AWS 'algorithm'", 0},
		{"another scheme", replaced("AWS4-HMAC-SHA256", "Bearer"), incomplete, "requires the algorithm", 0},
		{"a Credential of four parts", replaced("/aws4_request", ""), incomplete, "exactly 5 slash-delimited elements",
			0},
		{"no date", header("X-Amz-Date"), incomplete,
			"requires existence of either a 'X-Amz-Date' or a 'Date' header.", 0},
		{"two dates", header("X-Amz-Date", "20261121T091528Z", "20261121T091528Z"), incomplete,
			"requires existence of either", 0},
		{"a date that is none", header("X-Amz-Date", "yesterday"), incomplete, "requires existence of either", 0},
		{"in the query", of().with(func(s *signing) { s.presign = true }), incomplete,
			"The local gateway reads a signature in the Authorization header only, and this one is in the query.", 0},
		{"a body above the bound", of().with(func(s *signing) {
			s.body = strings.Repeat("x", 1<<10+1)
			s.then = func(r *http.Request) { r.ContentLength = -1 } // otherwise reading the body would change it
		}), "RequestTooLargeException", "Request Too Long", 413},
	} {
		base, f, log := served(t)
		got := tt.s.send(t, base)
		want := 403
		if tt.statusCode != 0 {
			want = tt.statusCode
		}
		if got.status != want || got.header.Get("X-Amzn-Errortype") != tt.typ ||
			!strings.Contains(got.body, tt.text) || f.calls() != 0 {
			t.Errorf("%s: status %d, error type %s, body %s after %d calls; want %d, %s, %s", tt.name, got.status,
				got.header.Get("X-Amzn-Errortype"), got.body, f.calls(), want, tt.typ, tt.text)
		}
		if (got.header.Get("X-Why") == "signature") != (tt.typ == sound) { // the gateway response of that type
			t.Errorf("%s: the headers are %v", tt.name, got.header)
		}
		if told := got.body + log.String(); strings.Contains(told, "s3cr3t") || strings.Contains(told, "AKIA") ||
			strings.Contains(told, "t0ken") {
			t.Errorf("%s: the answer or the log holds a secret or a key: %s", tt.name, told)
		}
	}
}

// Guarantees that the two tests above can fail: the same calls pass on a route without authorization, and its function
// gets no identity.
func TestWithoutAuthorization(t *testing.T) {
	f := &answers{out: `{"statusCode":200,"body":"done"}`}
	base, _ := serve(t, describe(t, strings.ReplaceAll(operators, "authorization: AWS_IAM, ", "")), nil, f, nil)
	for _, s := range []signing{of().with(func(s *signing) { s.as.Secret = "other" }),
		of().with(func(s *signing) { s.then = func(r *http.Request) { delete(r.Header, "Authorization") } })} {
		if got := s.send(t, base); got.status != 200 {
			t.Errorf("a signed call: status %d, body %s", got.status, got.body)
		}
	}
	base, open, _ := served(t)
	if got := send(t, "GET", base+"/v1/open", "", "Authorization", "Bearer x"); got.status != 200 {
		t.Errorf("the route without authorization: status %d, body %s", got.status, got.body)
	}
	e := open.onlyEvent(t)
	if id := e["requestContext"].(map[string]any)["identity"].(map[string]any); id["userArn"] != nil ||
		id["accessKey"] != nil || e["headers"].(map[string]any)["Authorization"] != "Bearer x" {
		t.Errorf("the route without authorization passes on the identity %v", e)
	}
}

// Guarantees that an HTTP service behind a route gets the signer's identity through a parameter mapping, and gets the
// body that was signed.
func TestSignedToService(t *testing.T) {
	base, _, _ := served(t)
	got := of().with(func(s *signing) {
		s.method, s.path, s.header = "PUT", "/v1/echo",
			[]string{"X-Actor", "forged"}
	}).send(t, base)
	if got.status != 200 || !strings.Contains(got.body, ann.UserARN) || strings.Contains(got.body, "forged") ||
		strings.Contains(got.body, "AWS4-HMAC") || !strings.Contains(got.body, `"bodyBytes": 12`) {
		t.Errorf("status %d, body %s", got.status, got.body)
	}
}

// Guarantees that credentials and descriptions that cannot be correct are refused, with the name of the wrong field and
// without a secret in the error.
func TestCredentialsChecked(t *testing.T) {
	d := describe(t, `{kind: REST, routes: [{route: GET /a, authorization: AWS_IAM, integration: {type: MOCK}}]}`)
	with := func(key string, change func(*stage.Credential)) map[string]stage.Credential {
		c := ann
		change(&c)
		return map[string]stage.Credential{key: c}
	}
	for want, all := range map[string]map[string]stage.Credential{
		`route "GET /a" has authorization AWS_IAM, and there are no Credentials`: nil,
		"is empty or contains a character that no id has": with("A/B",
			func(*stage.Credential) {}),
		`the credential of "arn:aws:iam::123456789012:user/ann" has no Secret`: with("A",
			func(c *stage.Credential) { c.Secret = "" }),
		`the credential of "arn:aws:iam::123456789012:user/ann" has no Account of 12 digits`: with("A",
			func(c *stage.Credential) { c.Account = "1" }),
		`the credential of "arn:aws:iam::123456789012:user/ann" has no Caller`: with("A",
			func(c *stage.Credential) { c.Caller = "" }),
		`the credential of "ann" has no UserARN`: with("A",
			func(c *stage.Credential) { c.UserARN = "ann" }),
	} {
		if _, err := stage.New(stage.Config{Description: d, Credentials: all}); err == nil ||
			!strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "s3cr3t") {
			t.Errorf("New gives error %v, want one that names %s and no secret", err, want)
		}
	}
	if _, err := stage.New(stage.Config{Description: d,
		Credentials: with("A", func(*stage.Credential) {})}); err != nil {
		t.Errorf("the credential that these are variants of is refused: %v", err)
	}
	for text, want := range map[string]string{
		`{kind: REST, routes: [{route: GET /a, authorization: JWT, integration: {type: MOCK}}]}` +
			"": `routes[0].authorization: "JWT" is not known; there is AWS_IAM`,
		`{kind: HTTP, routes: [{route: GET /a, authorization: AWS_IAM, integration: {type: ECHO}}]}` +
			"": "AWS_IAM is served for REST APIs only",
		`{kind: WebSocket, routes: [{route: $connect, authorization: AWS_IAM, integration: {type: MOCK}}]}` +
			"": "AWS_IAM is served for REST APIs only",
		`{kind: REST, authorizers: {a: {function: f, resultTtlInSeconds: 0}}, routes: [{route: GET /a, authorizer: ` +
			`a, authorization: AWS_IAM, integration: {type: MOCK}}]}`: "a route with an authorizer has no AWS_IAM " +
			"beside it",
	} {
		_, err := stage.Parse("a.yaml", []byte(text))
		var e *stage.Error
		if !errors.As(err, &e) || !strings.Contains(err.Error(), want) {
			t.Errorf("Parse gives error %v, want one that names %s", err, want)
		}
	}
}

// Guarantees that printing a credential prints no secret.
func TestCredentialPrinted(t *testing.T) {
	for _, format := range []string{"%v", "%+v", "%#v", "%s"} {
		if got := fmt.Sprintf(format,
			stage.Config{Credentials: map[string]stage.Credential{opsKey: ops}}); strings.Contains(got, "s3cr3t") ||
			strings.Contains(got, "t0ken") {
			t.Errorf("printed with %s: %s", format, got)
		}
	}
}
