package apigateway

import (
	"encoding/json"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"
)

const arnOfTest = "arn:aws:execute-api:eu-west-1:210987654321:a1b2c3d4e5/prod/GET/product/42"

// Guarantees the rules of IAM: a Deny that matches wins over any Allow, in any order; an action that no statement names
// is not allowed. A policy that cannot be evaluated here is an error, never an Allow.
func TestPolicies(t *testing.T) {
	const (
		allowAll = `{"Effect":"Allow","Action":"execute-api:Invoke","Resource":"*"}`
		denyThis = `{"Effect":"Deny","Action":"execute-api:Invoke","Resource":"` + arnOfTest + `"}`
		denyElse = `{"Effect":"Deny","Action":"execute-api:Invoke","Resource":"arn:aws:execute-api:*/PUT/*"}`
	)
	for _, c := range []struct {
		name, statements string
		want             verdict
		fails            string
	}{
		{"allow", allowAll, allow, ""},
		{"one in a list", "[" + allowAll + "]", allow, ""},
		{"deny after allow", "[" + allowAll + "," + denyThis + "]", explicitDeny, ""},
		{"deny before allow", "[" + denyThis + "," + allowAll + "]", explicitDeny, ""},
		{"deny of something else", "[" + denyElse + "," + allowAll + "]", allow, ""},
		{"lists", `{"Effect":"Allow","Action":["s3:*","execute-api:*"],"Resource":["arn:aws:s3:::x",` +
			`"arn:aws:execute-api:*:*:a1b2c3d4e5/prod/GET/product/??"]}`, allow, ""},
		{"another action", `{"Effect":"Allow","Action":"execute-api:ManageConnections","Resource":"*"}`, implicitDeny,
			""},
		{"actions have no case", `{"Effect":"Allow","Action":"EXECUTE-API:invoke","Resource":"*"}`, allow, ""},
		{"resources have", `{"Effect":"Allow","Action":"*","Resource":"` + strings.Replace(arnOfTest, "GET", "get",
			1) + `"}`, implicitDeny, ""},
		{"another method", `{"Effect":"Allow","Action":"*","Resource":"` + strings.Replace(arnOfTest, "GET", "PUT",
			1) + `"}`, implicitDeny, ""},
		{"a prefix only", `{"Effect":"Allow","Action":"*",` +
			`"Resource":"arn:aws:execute-api:eu-west-1:210987654321:a1b2c3d4e5/prod/GET/product/4"}`, implicitDeny, ""},
		{"nothing", "[]", implicitDeny, ""},
		{"a condition", `{"Effect":"Allow","Action":"*","Resource":"*",` +
			`"Condition":{"IpAddress":{"aws:SourceIp":"192.0.2.0/24"}}}`, 0, "Condition"},
		{"NotAction", `{"Effect":"Allow","NotAction":"s3:*","Action":"*","Resource":"*"}`, 0, "NotAction"},
		{"NotResource in a second", "[" + allowAll + `,{"Effect":"Deny","Action":"*","NotResource":"x"}]`, 0,
			"Statement 2"},
		{"a variable", `{"Effect":"Allow","Action":"*","Resource":"arn:aws:execute-api:${aws:userid}"}`, 0, "variable"},
		{"no resource", `{"Effect":"Allow","Action":"*"}`, 0, "Resource"},
		{"no action", `{"Effect":"Allow","Resource":"*"}`, 0, "Action"},
		{"no ARN", `{"Effect":"Allow","Action":"*","Resource":"GET/product"}`, 0, "ARN"},
		{"no effect", `{"Action":"*","Resource":"*"}`, 0, "Effect"},
		{"a number", `7`, 0, "Statement"},
		{"a number as action", `{"Effect":"Allow","Action":7,"Resource":"*"}`, 0, "Statement"},
		{"an error after an allow", "[" + allowAll + `,{"Effect":"Perhaps","Action":"*","Resource":"*"}]`, 0, "Effect"},
	} {
		p := policy{Version: "2012-10-17", Statement: json.RawMessage(c.statements)}
		got, err := p.evaluate(arnOfTest)
		if (err != nil) != (c.fails != "") || got != c.want || err != nil && !strings.Contains(err.Error(), c.fails) {
			t.Errorf("%s: %d, %v; want %d, error with %q", c.name, got, err, c.want, c.fails)
		}
	}
}

// FuzzGlob compares glob with regular expressions: * matches any text, ? any character, and no other character is
// special.
func FuzzGlob(f *testing.F) {
	for _, pattern := range []string{"*", "arn:*/prod/*/product/4?", "a*b*c", "**", "", "a.c", "(a|b)", "?"} {
		f.Add(pattern, arnOfTest)
		f.Add(pattern, "abc")
		f.Add(pattern, "")
	}
	f.Fuzz(func(t *testing.T, pattern, s string) {
		if len(pattern) > 200 || len(s) > 200 || !utf8.ValidString(pattern) || !utf8.ValidString(s) {
			return
		}
		quoted := regexp.QuoteMeta(pattern)
		expression := regexp.MustCompile(`(?s)\A` + strings.NewReplacer(`\*`, ".*", `\?`,
			".").Replace(strings.ReplaceAll(quoted, `\\`, "\uE000")) + `\z`)
		if strings.ContainsAny(pattern+s, "\\\uE000") {
			return // the quoting above does not distinguish an escaped backslash before a star
		}
		if got, want := glob(pattern, s), expression.MatchString(s); got != want {
			t.Errorf("glob(%q, %q) = %v, want %v", pattern, s, got, want)
		}
	})
}

// FuzzTemplate checks that parseTemplate replaces variables and nothing else: other text is unchanged, a value that
// contains a variable is not expanded again, and an unknown variable is not an error.
func FuzzTemplate(f *testing.F) {
	f.Add(`{"a":"$context.authorizer.tenant"}`, "acme")
	f.Add("${context.authorizer.tenant}.", "$context.requestId")
	f.Add("$context.authorizer.tenant.$context.authorizer.tenant-", "x")
	f.Add("$5 #1 $", "\r\n")
	f.Add("#set($x = 1)", "x")
	f.Add("$context.authorizer", "x")
	f.Add("${context.authorizer.tenant", "x")
	f.Fuzz(func(t *testing.T, text, tenant string) {
		parsed, err := parseTemplate(text)
		if err != nil {
			if !strings.ContainsAny(text, "$#") {
				t.Fatalf("parseTemplate(%q): %v", text, err)
			}
			return
		}
		c := &call{s: &serving{d: &Description{}}, r: httptest.NewRequest("GET", "/", nil),
			granted: grant{context: map[string]scalar{"tenant": {text: tenant}}}}
		var holes int
		var want strings.Builder
		for _, p := range parsed {
			if p.v == nil {
				want.WriteString(p.text)
				continue
			}
			holes++
			v, _ := valueOf(p, c)
			want.WriteString(v)
		}
		got := string(parsed.fill(c))
		if got != want.String() {
			t.Fatalf("%q with %q is %q, want %q", text, tenant, got, want.String())
		}
		if holes == 0 && got != text {
			t.Fatalf("%q without variables is %q", text, got)
		}
		plain := strings.ReplaceAll(text, "${context.authorizer.tenant}", tenant)
		if !strings.Contains(strings.ReplaceAll(text, "${context.authorizer.tenant}", ""), "$") && got != plain {
			t.Fatalf("%q with %q is %q, want %q", text, tenant, got, plain)
		}
	})
}

// valueOf evaluates a part. Variables about the request itself have no value, since there is no request.
func valueOf(p part, c *call) (v string, ok bool) {
	return p.v(c)
}
