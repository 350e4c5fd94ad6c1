package secretstest_test

import (
	"context"
	"errors"
	"net/http"
	"runtime"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	sdk "github.com/aws/aws-sdk-go-v2/service/secretsmanager"
	"github.com/aws/aws-sdk-go-v2/service/secretsmanager/types"
	"github.com/aws/smithy-go"
	"go.uber.org/goleak"

	"github.com/sluicelimits/sluice/internal/testkit/secretstest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// listen serves the stand-in, and returns its address and a client of the SDK that never tries again.
func listen(t *testing.T, m *secretstest.Manager) (url string, client *sdk.Client) {
	t.Helper()
	url, stop, err := m.Listen()
	if err != nil {
		t.Fatal(err)
	}
	transport := &http.Transport{}
	t.Cleanup(func() {
		transport.CloseIdleConnections()
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
	return url, sdk.New(sdk.Options{Region: "eu-west-1", BaseEndpoint: &url,
		HTTPClient:       &http.Client{Transport: transport},
		RetryMaxAttempts: 1, Credentials: credentials.NewStaticCredentialsProvider("local", "local", "")})
}

// Guarantees that versions and stages are those of the service: what a rotation leaves where is what a reader must not
// mix up.
func TestStages(t *testing.T) {
	m := new(secretstest.Manager)
	first := m.Set("s", "one")
	m.Set("other", "not this one")
	second := m.Stage("s", "two")
	_, client := listen(t, m)
	want := func(what string, in sdk.GetSecretValueInput, id, text string, stages ...string) {
		t.Helper()
		out, err := client.GetSecretValue(t.Context(), &in)
		if id == "" {
			var missing *types.ResourceNotFoundException
			if !errors.As(err, &missing) {
				t.Errorf("%s: %v, want ResourceNotFoundException", what, err)
			}
			return
		}
		if err != nil || *out.VersionId != id || *out.SecretString != text || strings.Join(out.VersionStages,
			" ") != strings.Join(stages, " ") ||
			*out.ARN != secretstest.ARN("s") || *out.Name != "s" || out.CreatedDate == nil || out.SecretBinary != nil {
			t.Errorf("%s: %+v, %v; want %s, %q, %v", what, out, err, id, text, stages)
		}
	}
	s := aws.String("s")
	pending := sdk.GetSecretValueInput{SecretId: s, VersionStage: aws.String(secretstest.Pending)}
	previous := sdk.GetSecretValueInput{SecretId: s, VersionStage: aws.String(secretstest.Previous)}
	want("by name", sdk.GetSecretValueInput{SecretId: s}, first, "one", secretstest.Current)
	want("by ARN", sdk.GetSecretValueInput{SecretId: aws.String(secretstest.ARN("s"))}, first, "one",
		secretstest.Current)
	want("pending", pending, second, "two", secretstest.Pending)
	want("none is previous", previous, "", "")
	if !m.Finish("s") || m.Finish("s") || m.Finish("nobody") {
		t.Error("Finish ends what has not begun, or not what has")
	}
	want("after the rotation", sdk.GetSecretValueInput{SecretId: s}, second, "two", secretstest.Pending,
		secretstest.Current)
	want("previous", previous, first, "one", secretstest.Previous)
	want("by version", sdk.GetSecretValueInput{SecretId: s, VersionId: &first}, first, "one", secretstest.Previous)
	want("a version of another stage", sdk.GetSecretValueInput{SecretId: s, VersionId: &first,
		VersionStage: aws.String(secretstest.Current)}, "", "")
	want("another secret", sdk.GetSecretValueInput{SecretId: aws.String("nobody")}, "", "")
	m.SetBinary("s", []byte{1, 2})
	if out, err := client.GetSecretValue(t.Context(), &sdk.GetSecretValueInput{SecretId: s}); err != nil ||
		string(out.SecretBinary) != "\x01\x02" || out.SecretString != nil {
		t.Errorf("binary: %+v, %v", out, err)
	}
	m.Remove("s")
	want("removed", sdk.GetSecretValueInput{SecretId: s}, "", "")
}

// Guarantees that faults are those that were asked for, and end when they should: a stand-in that is always well tests
// nothing.
func TestFaults(t *testing.T) {
	m := new(secretstest.Manager)
	m.Set("s", "one")
	_, client := listen(t, m)
	call := func(ctx context.Context) error {
		_, err := client.GetSecretValue(ctx, &sdk.GetSecretValueInput{SecretId: aws.String("s")})
		return err
	}
	code := func(err error) string {
		var api smithy.APIError
		if errors.As(err, &api) {
			return api.ErrorCode()
		}
		return ""
	}
	m.Fail(secretstest.Throttled(), 2)
	for n, want := range []string{"ThrottlingException", "ThrottlingException", ""} {
		if err := call(t.Context()); code(err) != want || (err == nil) != (want == "") {
			t.Errorf("call %d: %v, want %q", n+1, err, want)
		}
	}
	m.Fail(secretstest.Down(), -1)
	for range 3 {
		if err := call(t.Context()); code(err) != "InternalServiceError" {
			t.Errorf("down: %v", err)
		}
	}
	m.Fail(secretstest.Fault{Drop: true}, 1)
	if err := call(t.Context()); err == nil || code(err) != "" {
		t.Errorf("dropped: %v, want an error of the connection", err)
	}
	m.Fail(secretstest.Fault{Body: "rubbish"}, 1)
	if err := call(t.Context()); err == nil || code(err) != "" {
		t.Errorf("rubbish: %v, want an error of the answer", err)
	}
	m.Fail(secretstest.Fault{Hang: true}, -1)
	ctx, cancel := context.WithCancel(t.Context())
	before := m.Calls()
	ended := make(chan error)
	go func() { ended <- call(ctx) }()
	for m.Calls() == before {
		runtime.Gosched()
	}
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("hanging: %v, want that nobody answered", err)
	}
	if n := m.Calls(); n != 9 {
		t.Errorf("%d calls are counted, want 9", n)
	}
}

// Guarantees that a call which the service would refuse is refused: a client that does not sign, or for another
// service, must not pass here.
func TestRefuses(t *testing.T) {
	m := new(secretstest.Manager)
	m.Set("s", "one")
	url, _ := listen(t, m)
	for _, c := range []struct {
		name, method, target, signed, body, want string
	}{
		{"not signed", "POST", "secretsmanager.GetSecretValue", "", `{"SecretId":"s"}`, "MissingAuthenticationToken"},
		{"signed for another service", "POST", "secretsmanager.GetSecretValue",
			"AWS4-HMAC-SHA256 Credential=x/20260101/eu-west-1/dynamodb/aws4_request", `{"SecretId":"s"}`,
			"MissingAuthenticationToken"},
		{"another operation", "POST", "secretsmanager.PutSecretValue", "", `{"SecretId":"s"}`, "UnknownOperation"},
		{"another method", "GET", "secretsmanager.GetSecretValue", "", "", "InvalidRequest"},
		{"no secret", "POST", "secretsmanager.GetSecretValue",
			"AWS4-HMAC-SHA256 Credential=x/20260101/eu-west-1/secretsmanager/aws4_request", `{}`, "InvalidParameter"},
		{"a body that is too large", "POST", "secretsmanager.GetSecretValue", "", strings.Repeat(" ", 65<<10),
			"Serialization"},
	} {
		req, err := http.NewRequestWithContext(t.Context(), c.method, url, strings.NewReader(c.body))
		if err != nil {
			t.Fatal(err)
		}
		req.Close = true
		req.Header = http.Header{"Content-Type": {"application/x-amz-json-1.1"}, "X-Amz-Target": {c.target},
			"Authorization": {c.signed}}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		if err := resp.Body.Close(); err != nil {
			t.Error(err)
		}
		if got := resp.Header.Get("X-Amzn-Errortype"); resp.StatusCode != http.StatusBadRequest ||
			!strings.HasPrefix(got, c.want) {
			t.Errorf("%s: %d %s, want 400 %s", c.name, resp.StatusCode, got, c.want)
		}
	}
}
