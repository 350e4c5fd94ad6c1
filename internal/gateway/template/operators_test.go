package template_test

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"

	"github.com/sluicelimits/sluice/internal/gateway/stage"
	"github.com/sluicelimits/sluice/internal/gateway/template"
)

// function is a Lambda function that answers with who called it.
type function struct{ calls int }

func (f *function) Invoke(_ context.Context, event []byte) ([]byte, error) {
	f.calls++
	var e struct {
		Path           string
		RequestContext struct {
			Identity struct{ UserArn string }
		}
	}
	if err := json.Unmarshal(event, &e); err != nil {
		return nil, err
	}
	return json.Marshal(map[string]any{"statusCode": 200, "body": e.Path + " by " + e.RequestContext.Identity.UserArn})
}

// Guarantees that the operators' API of each stack is served from the stack's whole template, as infra keeps it: by who signs for the stack's
// region, and by nobody else. What stands beside it (tables, queues, alarms, an application of AppConfig) is passed over.
func TestOperatorsAPIs(t *testing.T) {
	now := time.Date(2026, 11, 21, 9, 15, 28, 0, time.UTC)
	const ann = "arn:aws:iam::123456789012:user/ann"
	for _, tt := range []struct{ file, function, region string }{
		{"control", "sluice-admin", "eu-west-1"},
		{"control-watched", "sluice-admin", "eu-west-1"},
		{"cell-small", "sluice-a-1-ops", "eu-west-1"},
		{"cell-small-afar", "sluice-us-1-ops", "us-east-1"},
		{"cell-watched", "sluice-us-1-ops", "us-east-1"},
		{"cell-full", "sluice-f-1-ops", "eu-west-1"},
		{"cell-full-cluster", "sluice-f-2-ops", "eu-west-1"},
	} {
		data, err := os.ReadFile(filepath.Join("..", "..", "..", "infra", "testdata", tt.file+".template.json"))
		if err != nil {
			t.Fatal(err)
		}
		d, err := template.Parse(tt.file, data, template.Options{API: only(t, data)})
		if err != nil {
			t.Errorf("%s: %v", tt.file, err)
			continue
		}
		r := d.Routes
		if len(r) != 1 || r[0].Key != "POST /{proxy+}" || r[0].Authorization != stage.AWSIAM || r[0].Integration.Function != tt.function || d.Region != tt.region || d.Stage != "v1" {
			t.Errorf("%s: %+v", tt.file, d)
			continue
		}
		f := new(function)
		s, err := stage.New(stage.Config{Description: d, Functions: map[string]stage.Function{tt.function: f}, Now: func() time.Time { return now }, Log: slog.New(slog.DiscardHandler),
			Credentials: map[string]stage.Credential{"AKIAANN": {Secret: "secret", Account: "123456789012", Caller: "AIDAANN", UserARN: ann}}})
		if err != nil {
			t.Fatalf("%s: %v", tt.file, err)
		}
		call := func(region, secret string) *httptest.ResponseRecorder {
			const body = "{}"
			r := httptest.NewRequestWithContext(t.Context(), "POST", "http://127.0.0.1:9000/v1/tenants/get", strings.NewReader(body))
			sum := sha256.Sum256([]byte(body))
			if err := v4.NewSigner().SignHTTP(t.Context(), aws.Credentials{AccessKeyID: "AKIAANN", SecretAccessKey: secret}, r, hex.EncodeToString(sum[:]), "execute-api", region, now); err != nil {
				t.Fatal(err)
			}
			r.Body = io.NopCloser(strings.NewReader(body))
			w := httptest.NewRecorder()
			s.ServeHTTP(w, r)
			return w
		}
		if w := call(tt.region, "secret"); w.Code != http.StatusOK || w.Body.String() != "/tenants/get by "+ann {
			t.Errorf("%s: %d %s", tt.file, w.Code, w.Body)
		}
		if w := call("ap-south-1", "secret"); w.Code != http.StatusForbidden {
			t.Errorf("%s: for another region: %d %s", tt.file, w.Code, w.Body)
		}
		if w := call(tt.region, "other"); w.Code != http.StatusForbidden || f.calls != 1 {
			t.Errorf("%s: by nobody: %d %s after %d calls", tt.file, w.Code, w.Body, f.calls)
		}
	}
}

var operatorsAPI = regexp.MustCompile(`"(\w*Operators[0-9A-F]{8})": \{`)

// only is the logical id of the operators' API.
func only(t *testing.T, data []byte) string {
	t.Helper()
	m := operatorsAPI.FindSubmatch(data)
	if m == nil {
		t.Fatal("the template has no operators' API")
	}
	return string(m[1])
}
