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
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"

	"github.com/sluicelimits/sluice/internal/dev/gateway/stage"
	"github.com/sluicelimits/sluice/internal/dev/gateway/template"
)

// function is a Lambda function that answers with the identity of its caller.
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

// Guarantees that the operators' API of each stack can be served from the stack's golden template. It serves callers
// who sign for the stack's region and belong to its account, and nobody else. Other resources (tables, queues, alarms,
// an AppConfig application) are ignored.
func TestOperatorsAPIs(t *testing.T) {
	now := time.Date(2026, 11, 21, 9, 15, 28, 0, time.UTC)
	const ann = "arn:aws:iam::000000000000:user/ann"
	for _, tt := range []struct {
		file, function, region, path string
		narrowed                     bool // whether a policy allows only callers other than ann
	}{
		{"control", "sluice-admin", "eu-west-1", "/keys/create", false},
		{"control-watched", "sluice-admin", "eu-west-1", "/keys/create", true},
		{"cell-small", "sluice-a-1-ops", "eu-west-1", "/counters/peek", false},
		{"cell-small-afar", "sluice-us-1-ops", "us-east-1", "/counters/peek", false},
		{"cell-watched", "sluice-us-1-ops", "us-east-1", "/counters/peek", true},
		{"cell-full", "sluice-f-1-ops", "eu-west-1", "/counters/peek", false},
		{"cell-full-cluster", "sluice-f-2-ops", "eu-west-1", "/counters/peek", false},
	} {
		data, err := os.ReadFile(filepath.Join("..", "..", "..", "..", "infra", "testdata", tt.file+".template.json"))
		if err != nil {
			t.Fatal(err)
		}
		d, err := template.Parse(tt.file, data, template.Options{API: operatorsAPIID(t, data)})
		if err != nil {
			t.Errorf("read %s: %v", tt.file, err)
			continue
		}
		sound := func(r stage.Route) bool {
			return strings.HasPrefix(r.Key, "POST /") && r.Authorization == stage.AWSIAM &&
				r.Integration.Function == tt.function
		}
		named := func(r stage.Route) bool { return r.Key == "POST "+tt.path }
		unsound := func(r stage.Route) bool { return !sound(r) }
		if !slices.ContainsFunc(d.Routes, named) || slices.ContainsFunc(d.Routes, unsound) ||
			d.Region != tt.region || d.Stage != "v1" || len(d.ResourcePolicy) != map[bool]int{false: 1,
			true: 3}[tt.narrowed] {
			t.Errorf("%s is read as %+v", tt.file, d)
			continue
		}
		f := new(function)
		s, err := stage.New(stage.Config{Description: d, Functions: map[string]stage.Function{tt.function: f},
			Now: func() time.Time { return now }, Log: slog.New(slog.DiscardHandler),
			Credentials: map[string]stage.Credential{
				"AKIAANN": {Secret: "secret", Account: "000000000000", Caller: "AIDAANN", UserARN: ann},
				"AKIAEVE": {
					Secret: "secret", Account: "210987654321", Caller: "AIDAEVE",
					UserARN: "arn:aws:iam::210987654321:user/eve",
				},
			}})
		if err != nil {
			t.Fatalf("%s: %v", tt.file, err)
		}
		call := func(key, region, secret, path string) *httptest.ResponseRecorder {
			const body = "{}"
			r := httptest.NewRequestWithContext(t.Context(), "POST", "http://127.0.0.1:9000/v1"+path,
				strings.NewReader(body))
			sum := sha256.Sum256([]byte(body))
			as, hash := aws.Credentials{AccessKeyID: key, SecretAccessKey: secret}, hex.EncodeToString(sum[:])
			if err := v4.NewSigner().SignHTTP(t.Context(), as, r, hash, "execute-api", region, now); err != nil {
				t.Fatal(err)
			}
			r.Body = io.NopCloser(strings.NewReader(body))
			w := httptest.NewRecorder()
			s.ServeHTTP(w, r)
			return w
		}
		status, calls := http.StatusOK, 1
		if tt.narrowed {
			status, calls = http.StatusForbidden, 0
		}
		w := call("AKIAANN", tt.region, "secret", tt.path)
		if w.Code != status || status == http.StatusOK && w.Body.String() != tt.path+" by "+ann {
			t.Errorf("%s: status %d, body %s; want %d", tt.file, w.Code, w.Body, status)
		}
		for _, refused := range []struct{ who, key, region, secret, path string }{
			{"for another region", "AKIAANN", "ap-south-1", "secret", tt.path},
			{"by nobody", "AKIAANN", tt.region, "other", tt.path},
			{"of another account", "AKIAEVE", tt.region, "secret", tt.path},
			{"of what is no operation", "AKIAANN", tt.region, "secret", tt.path + "/x"},
		} {
			w := call(refused.key, refused.region, refused.secret, refused.path)
			if w.Code != http.StatusForbidden || f.calls != calls {
				t.Errorf("%s: a request %s gets status %d, body %s after %d calls of the function", tt.file,
					refused.who, w.Code, w.Body, f.calls)
			}
		}
	}
}

var operatorsAPI = regexp.MustCompile(`"(\w*Operators[0-9A-F]{8})": \{`)

// operatorsAPIID returns the logical id of the operators' API.
func operatorsAPIID(t *testing.T, data []byte) string {
	t.Helper()
	m := operatorsAPI.FindSubmatch(data)
	if m == nil {
		t.Fatal("the template has no operators' API")
	}
	return string(m[1])
}
