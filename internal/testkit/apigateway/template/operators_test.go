package template_test

import (
	"context"
	"encoding/json"
	"log/slog"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/sluicelimits/sluice/internal/testkit/apigateway"
	"github.com/sluicelimits/sluice/internal/testkit/apigateway/template"
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

// Guarantees that each operation of a stack's operators' API, and nothing else, is served to signed calls only, by the
// stack's own function in the stack's region, and that the function learns who signed. The templates are the golden
// ones of the stacks.
func TestOperatorsAPIs(t *testing.T) {
	const ann = "arn:aws:iam::000000000000:user/ann"
	for _, tt := range []struct{ file, function, region, path string }{
		{"control", "sluice-admin", "eu-west-1", "/keys/create"},
		{"control-watched", "sluice-admin", "eu-west-1", "/keys/create"},
		{"cell-small", "sluice-a-1-ops", "eu-west-1", "/counters/peek"},
		{"cell-small-afar", "sluice-us-1-ops", "us-east-1", "/counters/peek"},
		{"cell-watched", "sluice-us-1-ops", "us-east-1", "/counters/peek"},
		{"cell-full", "sluice-f-1-ops", "eu-west-1", "/counters/peek"},
		{"cell-full-cluster", "sluice-f-2-ops", "eu-west-1", "/counters/peek"},
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
		unsound := func(r apigateway.Route) bool {
			return !strings.HasPrefix(r.Key, "POST /") || r.Authorization != apigateway.AWSIAM ||
				r.Integration.Function != tt.function
		}
		if len(d.Routes) == 0 || slices.ContainsFunc(d.Routes, unsound) || d.Region != tt.region || d.Stage != "v1" {
			t.Errorf("%s is read as %+v", tt.file, d)
		}
		f := new(function)
		s, err := apigateway.New(apigateway.Config{Description: d, Log: slog.New(slog.DiscardHandler),
			Functions: map[string]apigateway.Function{tt.function: f}, Callers: map[string]string{"AKIAANN": ann}})
		if err != nil {
			t.Fatalf("%s: %v", tt.file, err)
		}
		for _, c := range []struct {
			path, key string
			status    int
		}{{tt.path, "AKIAANN", 200}, {tt.path, "AKIAEVE", 403}, {tt.path, "", 403}, {tt.path + "/x", "AKIAANN", 403}} {
			r := httptest.NewRequestWithContext(t.Context(), "POST", "http://127.0.0.1:9000/v1"+c.path,
				strings.NewReader("{}"))
			if c.key != "" {
				r.Header.Set("Authorization", "AWS4-HMAC-SHA256 Credential="+c.key+"/20261121/"+tt.region)
			}
			w := httptest.NewRecorder()
			s.ServeHTTP(w, r)
			if w.Code != c.status || c.status == 200 && w.Body.String() != tt.path+" by "+ann {
				t.Errorf("%s: a call of %s with the key %q: status %d, body %s; want %d", tt.file, c.path, c.key,
					w.Code, w.Body, c.status)
			}
		}
		if f.calls != 1 {
			t.Errorf("%s: the function was called %d times, want 1", tt.file, f.calls)
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
