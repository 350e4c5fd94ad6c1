package stage_test

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/sluicelimits/sluice/internal/dev/gateway/stage"
)

// Guarantees that a resource policy which denies all but some callers lets in exactly these, even if others sign
// correctly, and that a denied request does not reach the function.
func TestResourcePolicy(t *testing.T) {
	for _, tt := range []struct {
		policy   string
		ann, ops int
	}{
		{`[{notAccounts: ["123456789012"]}]`, 200, 200},
		{`[{notAccounts: ["210987654321"]}]`, 403, 403},
		{`[{notPrincipals: ["arn:aws:iam::123456789012:user/ann"]}]`, 200, 403},
		{`[{notPrincipals: ["arn:aws:iam::123456789012:role/o*"]}]`, 403, 200},
		{`[{notPrincipals: ["arn:aws:iam::123456789012:*", "arn:aws:iam::210987654321:user/ann"]}]`, 200, 200},
		{`[{notAddresses: [203.0.113.7, 127.0.0.1]}]`, 200, 200},
		{`[{notPrincipals: ["arn:aws:iam::210987654321:user/ann", "arn:aws:iam::123456789012:user/ann"]}]`, 200, 403},
		{`[{notPrincipals: ["arn:aws:iam::*"]}]`, 403, 403}, // * matches only within one part of the ARN
		{`[{notPrincipals: ["arn:aws:sts::123456789012:assumed-role/ops/eve"]}]`, 403, 403},
		{`[{notAddresses: [127.0.0.0/8]}]`, 200, 200},
		{`[{notAddresses: [203.0.113.7, "2001:db8::/32"]}]`, 403, 403},
		{`[{notAccounts: ["123456789012"]}, {notPrincipals: ["arn:aws:iam::123456789012:user/ann"]}, ` +
			`{notAddresses: [127.0.0.1]}]`, 200, 403},
	} {
		f := &answers{out: `{"statusCode":200,"body":"done"}`}
		text := `{kind: REST, stage: v1, region: eu-west-1, resourcePolicy: ` + tt.policy +
			`, routes: [{route: "POST /{proxy+}", authorization: AWS_IAM, integration: {type: AWS_PROXY, function: ` +
			`backend}}]}`
		base, _ := serve(t, describe(t, text), nil, f, func(c *stage.Config) {
			c.Credentials = map[string]stage.Credential{annKey: ann, opsKey: ops}
		})
		calls := 0
		for name, one := range map[string]struct {
			s    signing
			want int
		}{
			"ann": {of(), tt.ann},
			"ops": {of().with(func(s *signing) { s.key, s.as = opsKey, ops }), tt.ops},
		} {
			if one.want == http.StatusOK {
				calls++
			}
			if got := one.s.send(t, base); got.status != one.want {
				t.Errorf("%s: caller %s gets status %d, body %s; want %d", tt.policy, name, got.status, got.body,
					one.want)
			}
		}
		if f.calls() != calls {
			t.Errorf("%s: the function was called %d times, want %d", tt.policy, f.calls(), calls)
		}
	}
}

// Guarantees the body of a denial by a resource policy, on an API with Sluice's gateway responses: it is only the
// message of API Gateway, because the authorizer was not called and wrote no problem. The status is that of all
// denials.
func TestForeignDenial(t *testing.T) {
	builtin, _ := stage.ReadBuiltin("rest")
	_, responses, _ := strings.Cut(string(builtin), "\ngatewayResponses:")
	text := "kind: REST\nstage: v1\nregion: eu-west-1\nresourcePolicy: [{notAccounts: [\"210987654321\"]}]\n" +
		"routes: [{route: \"POST /{proxy+}\", authorization: AWS_IAM, integration: {type: ECHO}}]\ngatewayResponses:" +
		responses
	base, _ := serve(t, describe(t, text), nil, nil, func(c *stage.Config) {
		c.Credentials = map[string]stage.Credential{annKey: ann}
	})
	got := of().send(t, base)
	var body map[string]string
	if err := json.Unmarshal([]byte(got.body), &body); err != nil || got.status != http.StatusTooManyRequests ||
		body["message"] == "" ||
		len(body) != 1 || got.header.Get("Retry-After") != "" {
		t.Errorf("status %d, headers %v, body %s (%v)", got.status, got.header, got.body, err)
	}
}

// Guarantees that a resource policy that the local gateway cannot evaluate is refused instead of ignored.
func TestResourcePolicyProblems(t *testing.T) {
	const (
		signed = `{route: "POST /a", authorization: AWS_IAM, integration: {type: ECHO}}`
		open   = `{route: "POST /a", integration: {type: ECHO}}`
	)
	for _, tt := range []struct{ policy, route, want string }{
		{`{}`, signed, "resourcePolicy[0]: want exactly one of"},
		{`{notAccounts: [a], notAddresses: ["::1"]}`, signed, "resourcePolicy[0]: want exactly one of"},
		{`{notAddresses: [host]}`, signed, `resourcePolicy[0].notAddresses[0]: "host" is neither an address nor a ` +
			`network`},
		{`{notAddresses: ["::1"]}`, open, "only if all routes have authorization AWS_IAM"},
	} {
		text := `{kind: REST, resourcePolicy: [` + tt.policy + `], routes: [` + tt.route + `]}`
		if _, err := stage.Parse("api.yaml", []byte(text)); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v, want %q", text, err, tt.want)
		}
	}
}
