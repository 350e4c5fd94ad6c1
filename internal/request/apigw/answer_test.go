package apigw_test

import (
	"encoding/json"
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"testing"

	"github.com/sluicelimits/sluice/internal/request/answer"
	"github.com/sluicelimits/sluice/internal/request/apigw"
)

// policyAnswer holds the fields of an answer that tests check. Numbers keep their digits.
type policyAnswer struct {
	PrincipalID    *string `json:"principalId"`
	PolicyDocument *struct {
		Version   string
		Statement []struct{ Action, Effect, Resource string }
	} `json:"policyDocument"`
	IsAuthorized *bool          `json:"isAuthorized"`
	Context      map[string]any `json:"context"`
}

// checkAnswer checks that API Gateway accepts the answer, and that it allows or denies as expected.
func checkAnswer(t *testing.T, text []byte, e *apigw.Event, allow bool) policyAnswer {
	t.Helper()
	var got policyAnswer
	d := json.NewDecoder(strings.NewReader(string(text)))
	d.DisallowUnknownFields()
	d.UseNumber()
	if err := d.Decode(&got); err != nil || d.More() {
		t.Fatalf("%v in %s", err, text)
	}
	if len(text) > apigw.MaxAnswerBytes {
		t.Fatalf("the answer has %d bytes, want at most MaxAnswerBytes: %.300s", len(text), text)
	}
	if e.Shape == apigw.HTTP2 {
		if got.IsAuthorized == nil || *got.IsAuthorized != allow || got.PolicyDocument != nil {
			t.Fatalf("allow %v: %s", allow, text)
		}
	} else {
		want := "Deny"
		if allow {
			want = "Allow"
		}
		p := got.PolicyDocument
		if got.IsAuthorized != nil || got.PrincipalID == nil || *got.PrincipalID == "" || p == nil ||
			p.Version != "2012-10-17" || len(p.Statement) != 1 ||
			p.Statement[0].Effect != want || p.Statement[0].Action != "execute-api:Invoke" ||
			len(p.Statement[0].Resource) > 512*3 || strings.Contains(p.Statement[0].Resource, "${") {
			t.Fatalf("%s: %s", want, text)
		}
		checkPrintable(t, "principalId", *got.PrincipalID)
	}
	if got.Context[apigw.ContextDecision] == nil || got.Context[apigw.ContextHTTPStatus] == nil {
		t.Fatalf("the decision is missing: %s", text)
	}
	for name, v := range got.Context {
		switch v := v.(type) {
		case string:
			checkPrintable(t, name, v)
		case json.Number, bool:
		default:
			t.Fatalf("context %s is no scalar: %v", name, v)
		}
	}
	return got
}

func checkPrintable(t *testing.T, name, value string) {
	t.Helper()
	for i := range len(value) {
		if value[i] < ' ' || value[i] > '~' {
			t.Fatalf("%s = %q", name, value)
		}
	}
}

func appendAnswer(t *testing.T, e *apigw.Event, a *apigw.Answer) policyAnswer {
	t.Helper()
	text, err := new(apigw.Encoder).Append(nil, e, a)
	if err != nil {
		t.Fatal(err)
	}
	return checkAnswer(t, text, e, a.Kind == answer.Allowed)
}

// Guarantees that an answer stays within its bound with any number of limits and values; that values are left out from
// the end; and that the two lists name the same limits, the binding one first.
func TestAnswerIsBounded(t *testing.T) {
	a := limited()
	var left, policy []string
	for i := range 60 {
		left = append(left, fmt.Sprintf(`"%s-%d";r=%d;t=1`, strings.Repeat("n", 30), i, 1<<i))
		policy = append(policy, fmt.Sprintf(`"%s-%d";q=1;w=1`, strings.Repeat("n", 30), i))
	}
	a.Header.RateLimit, a.Header.Policy = strings.Join(left, ", "), strings.Join(policy[:50], ", ")
	a.Problem = []byte(`{"detail":"` + strings.Repeat("p", 2500) + `"}`)
	for i := range 300 {
		a.Values = append(a.Values, apigw.Text("v"+strconv.Itoa(i), strings.Repeat("v", 200)))
	}
	for _, s := range shapes {
		e := parseEvent(t, s)
		got := appendAnswer(t, e, &a)
		for _, name := range []string{"tenant", "retryAfter", "rateLimitLimit", "rateLimitReset", "problemType",
			"instance", "problem"} {
			if got.Context[name] == nil {
				t.Errorf("%s: the context has no %s, want only later values left out", s, name)
			}
		}
		if got.Context["problem"] != string(a.Problem) {
			t.Errorf("%s: the problem is not in the context as a whole", s)
		}
		l, p := strings.Split(got.Context["rateLimit"].(string), ", "),
			strings.Split(got.Context["rateLimitPolicy"].(string), ", ")
		if len(l) != len(p) || len(l) < 20 || l[0] != left[0] || p[0] != policy[0] || l[len(l)-1] != left[len(l)-1] ||
			p[len(p)-1] != policy[len(p)-1] {
			t.Errorf("%s: %d of rateLimit, %d of rateLimitPolicy: %q, %q", s, len(l), len(p), l, p)
		}
		if got.Context["v299"] != nil || got.Context["leftOut"] == nil {
			t.Errorf("%s: left out: %v", s, got.Context["leftOut"])
		}
	}

	for pad := range 100 { // wherever the last value ends, there is room for the end of the answer
		a.Values[0] = apigw.Text("pad", strings.Repeat("p", pad))
		for i := 1; i < len(a.Values); i++ {
			a.Values[i] = apigw.Text("v"+strconv.Itoa(i), strings.Repeat("v", max(0, 40-i)))
		}
		appendAnswer(t, parseEvent(t, apigw.RESTRequest), &a)
	}

	a = limited()
	a.Problem = []byte(`{"detail":"` + strings.Repeat("<", 8000) + `"}`)
	a.Values = []apigw.Value{apigw.Number("after", 1)}
	got := appendAnswer(t, parseEvent(t, apigw.RESTRequest), &a)
	if got.Context["problem"] != nil || got.Context["after"] == nil || got.Context["rateLimit"] != a.Header.RateLimit ||
		got.Context["leftOut"] != json.Number("1") {
		t.Errorf("a body that does not fit is left out, whole and alone: %v", got.Context)
	}
}

// Guarantees that a context which would be too large does not prevent the decision: values that are too large are left
// out.
func TestLargestNames(t *testing.T) {
	name := strings.Repeat("\x00", 128)
	for _, c := range []struct{ tenant, subject, principal string }{
		{name, name, strings.Repeat("%00", 128) + "/" + strings.Repeat("%00", 128)},
		{name, strings.Repeat("x", 1<<20), strings.Repeat("%00", 128)},
		{strings.Repeat("x", 1<<20), "ci", "(unknown)"},
		{"acme", strings.Repeat("x", 7000), "acme"},
		{"a/b", "c", "a%2Fb/c"},
		{"a", "b/c", "a/b%2Fc"},
		{"", "c", "(unknown)"},
		{"(anonymous)", "", "%28anonymous%29"},
	} {
		a := limited()
		a.Tenant, a.Subject, a.Plan, a.KeyID = c.tenant, c.subject, name, name
		got := appendAnswer(t, parseEvent(t, apigw.RESTRequest), &a)
		if *got.PrincipalID != c.principal || got.Context["plan"] != strings.Repeat("%00", 128) ||
			got.Context["retryAfter"] != "1" || got.Context["problem"] == nil {
			t.Errorf("%.20q, %.20q: principal %.60q, context %.300v", c.tenant, c.subject, *got.PrincipalID,
				got.Context)
		}
	}
}

// Guarantees that the names of context values are ones that API Gateway accepts, and that a tenant's claim cannot
// replace a value of ours: a claim with the name "decision" must not become the decision.
func TestNamesOfValues(t *testing.T) {
	bad := []string{"", "decision", "caller", "httpStatus", "tenant", "principalId", "error", "leftOut", "a-b", "a.b",
		"1a", "_a", "é", "a\n", strings.Repeat("a", 65), "twice"}
	a := apigw.Answer{Kind: answer.SuspendedTenant,
		Values: []apigw.Value{apigw.Text("twice", "1"), apigw.Text("ok_1", "yes")}}
	for _, name := range bad {
		a.Values = append(a.Values, apigw.Text(name, "allowed"))
	}
	got := appendAnswer(t, parseEvent(t, apigw.HTTP2), &a)
	want := map[string]any{"decision": "suspended_tenant", "caller": "d=suspended_tenant",
		"httpStatus": json.Number("403"), "problemType": answer.SuspendedTenant.Type(),
		"twice": "1", "ok_1": "yes", "leftOut": json.Number(strconv.Itoa(len(bad)))}
	if fmt.Sprint(got.Context) != fmt.Sprint(want) {
		t.Errorf("got %v\nwant %v", got.Context, want)
	}
}

// Guarantees that a policy names the request, even if its path is long or looks like a policy variable.
func TestResource(t *testing.T) {
	const arn = "arn:aws:execute-api:eu-west-1:1:api/prod/GET/"
	for _, c := range []struct{ path, want string }{
		{"product/1", arn + "product/1"},
		{"a:b/*", arn + "a:b/*"},
		{"a\"\\<é", arn + "a\"\\<é"},
		{"${aws:username}", arn + "?{aws:username}"},
		{strings.Repeat("a", 512-len(arn)), arn + strings.Repeat("a", 512-len(arn))},
		{strings.Repeat("a", 513-len(arn)), arn + strings.Repeat("a", 511-len(arn)) + "*"},
		{"a" + strings.Repeat("é", 500), arn + "a" + strings.Repeat("é", (510-len(arn))/2) + "*"},
	} {
		e := parseEvent(t, apigw.RESTRequest)
		e.ARN = arn + c.path
		got := appendAnswer(t, e, &apigw.Answer{Kind: answer.Allowed}).PolicyDocument.Statement[0].Resource
		if got != c.want || len(got) > 512 {
			t.Errorf("%.40q: %q, want %q", c.path, got, c.want)
		}
	}
}

// Guarantees that a denial is passed on to the backend only if an operator has chosen this for the API, and never for a
// REST API.
func TestPassDenials(t *testing.T) {
	for _, s := range shapes {
		e := parseEvent(t, s)
		http := s == apigw.HTTP1 || s == apigw.HTTP2 || s == apigw.WebSocket
		for _, c := range []struct {
			apis []string
			want bool
		}{{nil, false}, {[]string{""}, false}, {[]string{"other", e.API + "x"}, false},
			{[]string{"other", e.API}, http}} {
			a := limited()
			text, err := (&apigw.Encoder{PassDenials: c.apis}).Append(nil, e, &a)
			if err != nil {
				t.Fatal(err)
			}
			if got := checkAnswer(t, text, e, c.want); got.Context["decision"] != "limited" ||
				got.Context["httpStatus"] != json.Number("429") {
				t.Errorf("%s, %q: %v", s, c.apis, got.Context)
			}
		}
	}
}

// FuzzAnswer guarantees that, whatever the names and values are, the answer is JSON within its bound, in printable
// ASCII and with scalars only; that it has the right decision; and that names can be read back unchanged.
func FuzzAnswer(f *testing.F) {
	f.Add(uint8(apigw.RESTRequest), uint8(answer.Limited), "acme", "ci", `"burst";r=0;t=2`, "x",
		"arn:aws:execute-api:r:1:a/s/GET/", 3)
	f.Add(uint8(apigw.HTTP2), uint8(answer.Allowed), "a\r\nX-Evil: 1", "\xff\xfe\u2028", "a\r\nb, c", "decision",
		"${\xff", 4000)
	f.Add(uint8(apigw.WebSocket), uint8(250), strings.Repeat("\x00", 500), "</script>", strings.Repeat(`"<>&", `, 500),
		"", strings.Repeat("\x01", 600), 0)
	f.Fuzz(func(t *testing.T, shape, kind uint8, tenant, subject, list, value, arn string, n int) {
		e := &apigw.Event{Shape: shapes[int(shape)%len(shapes)], ARN: arn}
		k := answer.Kind(kind)
		if k == answer.NoCredential || k == answer.BadCredential {
			return
		}
		a := apigw.Answer{Kind: k, Tenant: tenant, Subject: subject, Plan: value, Instance: value,
			Problem: []byte(value),
			Header: answer.Header{Limit: value, RetryAfter: value, RateLimit: list,
				Policy: strings.Repeat(list, max(n, 0)%5)},
			Values: []apigw.Value{apigw.Text("text", value), apigw.Name("name", subject), apigw.Text(value, list),
				apigw.Number("number", int64(n))}}
		for i := range max(n, 0) % 100 {
			a.Values = append(a.Values, apigw.Text("v"+strconv.Itoa(i), value))
		}
		got := appendAnswer(t, e, &a)
		if got.Context["decision"] != k.String() {
			t.Fatalf("decision %v, want %s", got.Context["decision"], k)
		}
		if v, ok := got.Context["tenant"].(string); ok {
			if back, err := url.PathUnescape(v); err != nil || back != tenant {
				t.Fatalf("tenant %q came back as %q, %v", tenant, back, err)
			}
		}
	})
}

// Guarantees that the gateway response of a REST API, which writes the beginning and the end of an object around the
// members of a denial, is valid JSON that has the whole problem and the members before it; and that other kinds of
// APIs, which have no gateway responses, do not get these members.
func TestProblemMembers(t *testing.T) {
	a := limited()
	var whole map[string]any
	if err := json.Unmarshal(a.Problem, &whole); err != nil {
		t.Fatal(err)
	}
	for _, s := range shapes {
		members, has := appendAnswer(t, parseEvent(t, s), &a).Context["problemMembers"].(string)
		if rest := s == apigw.RESTToken || s == apigw.RESTRequest; has != rest {
			t.Errorf("%s: problemMembers: %v", s, has)
		}
		if !has {
			continue
		}
		var body map[string]any
		if err := json.Unmarshal([]byte(`{"message":"m"`+members+`}`), &body); err != nil || body["message"] != "m" {
			t.Errorf("%s: %v: %s", s, err, members)
		}
		if delete(body, "message"); fmt.Sprint(body) != fmt.Sprint(whole) {
			t.Errorf("%s: %v, want %v", s, body, whole)
		}
	}
}
