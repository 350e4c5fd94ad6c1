package operate

import (
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/sluicelimits/sluice/internal/control"
)

// spellings are paths of a call of /keys/create, and whether each is the only valid spelling.
var spellings = map[string]bool{
	"/keys/create":      true,
	"/keys/create/":     false,
	"/keys/create////":  false,
	"//keys/create":     false,
	"/keys//create":     false,
	"/./keys/create":    false,
	"/x/../keys/create": false,
	"/KEYS/CREATE":      false,
	"/Keys/create":      false,
	"/keys%2Fcreate":    false,
	"/keys/%63reate":    false,
	"/keys/create;x":    false,
	"/keys/create%20":   false,
	"/keys/creat":       false,
	"/create":           false,
}

// countingMux returns a mux with one operation, which counts its calls.
func countingMux(ran *int) *Mux {
	var table []Operation
	add(&table, "/keys/create", writes, rare, func(n *int, _ context.Context, _ string, _ *struct{}) (*string, error) {
		*n++
		return new(string), nil
	}, "")
	return newMux(ran, slog.New(slog.DiscardHandler), table)
}

func wantOneCall(t *testing.T, what, spelling string, status, ran int) {
	t.Helper()
	want := http.StatusNotFound
	if spellings[spelling] {
		want = http.StatusOK
	}
	if status != want || ran != 0 && want != http.StatusOK {
		t.Errorf("%s %q: status %d, ran %d times; want %d", what, spelling, status, ran, want)
	}
}

// Guarantees that the body of an item is in an answer as the table has it. Clients compare bodies with their own.
func TestAnswersKeepBodies(t *testing.T) {
	const body = `{"id":"a<b>&c"}`
	var table []Operation
	add(&table, "/get", reads, rare, func(*int, context.Context, string, *struct{}) (*control.Item, error) {
		return &control.Item{Body: json.RawMessage(body)}, nil
	}, "")
	server := httptest.NewServer(Local(newMux(new(int), slog.New(slog.DiscardHandler), table), "ann@local"))
	defer server.Close()
	answer, err := http.Post(server.URL+"/get", "application/json", strings.NewReader("{}"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = answer.Body.Close() }() // it was read
	got, err := io.ReadAll(answer.Body)
	if err != nil || !strings.Contains(string(got), `"body":`+body) || strings.HasSuffix(string(got), "\n") {
		t.Errorf("the answer is %q, error %v; want %s in it, on one line", got, err, body)
	}
}

// TestLambdaPaths guarantees that an operation has only one path: IAM policies name it as it is sent, so with a second
// spelling a caller would avoid a Deny.
func TestLambdaPaths(t *testing.T) {
	for sent := range spellings {
		decoded, err := url.PathUnescape(sent)
		if err != nil {
			t.Fatal(err)
		}
		proxied := func(proxy string) map[string]any {
			return map[string]any{
				"resource": "/{proxy+}", "path": sent, "pathParameters": map[string]string{"proxy": proxy},
			}
		}
		for kind, routed := range map[string]map[string]any{
			"{proxy+} as it was sent":         proxied(sent[1:]),
			"{proxy+} decoded":                proxied(decoded[1:]),
			"a resource for the path":         {"resource": "/keys/create", "path": sent},
			"a path of a domain":              {"resource": "/keys/create", "path": "/operators" + sent},
			"a path that API Gateway decodes": {"resource": "/keys/create", "path": decoded},
		} {
			event := map[string]any{
				"httpMethod": "POST", "headers": map[string]string{"Content-Type": "application/json"}, "body": "{}",
				"requestContext": map[string]any{"apiId": "a1b2c3", "stage": "v1", "requestId": "r1", "path": "/v1" +
					sent, "identity": map[string]string{
					"accountId": "123456789012", "caller": "AIDAEXAMPLE",
					"userArn": "arn:aws:iam::123456789012:user/eve"}},
			}
			maps.Copy(event, routed)
			payload, err := json.Marshal(event)
			if err != nil {
				t.Fatal(err)
			}
			ran := 0
			out, err := Lambda(countingMux(&ran), "a1b2c3/v1").Invoke(t.Context(), payload)
			var answer struct{ StatusCode int }
			if err != nil || json.Unmarshal(out, &answer) != nil {
				t.Fatalf("%s %q: got %s, error %v; want an answer in JSON", kind, sent, out, err)
			}
			wantOneCall(t, kind, sent, answer.StatusCode, ran)
		}
	}
}

// TestLocalPaths guarantees the same for a local process, which replaces the deployed function.
func TestLocalPaths(t *testing.T) {
	for sent := range spellings {
		ran := 0
		h := http.StripPrefix("/admin", Local(countingMux(&ran), "ann@local"))
		r := httptest.NewRequest(http.MethodPost, "http://localhost/admin"+sent, strings.NewReader("{}"))
		r.RemoteAddr = "127.0.0.1:5"
		r.Header.Set("Content-Type", "application/json")
		answer := httptest.NewRecorder()
		h.ServeHTTP(answer, r)
		wantOneCall(t, "local", sent, answer.Code, ran)
	}
}
