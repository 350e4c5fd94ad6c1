package operate_test

import (
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/sluicelimits/sluice/internal/control"
	"github.com/sluicelimits/sluice/internal/control/operate"
)

// local returns a request from a process on this machine.
func local(t *testing.T, path, body string) *http.Request {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "http://127.0.0.1:8080"+path,
		strings.NewReader(body))
	r.RemoteAddr = "127.0.0.1:40000"
	r.Header.Set("Content-Type", "application/json")
	return r
}

// post calls an operation and returns the body of the answer.
func post(t *testing.T, h http.Handler, path, body string) string {
	t.Helper()
	w := httptest.NewRecorder()
	h.ServeHTTP(w, local(t, path, body))
	return w.Body.String()
}

const suspend = `{"tenant":"acme","reason":"x"}`

// Guarantees that only the process determines the actor: no member and no header can name another one.
func TestTheActorCannotBeForged(t *testing.T) {
	w := newWorld(t)
	w.seed(plans)
	h := operate.Local(w.Control.Mux(), "ann@local")
	r := local(t, "/tenants/suspend", suspend)
	for _, name := range []string{"X-Amzn-Iam-User-Arn", "X-Actor", "Actor", "User", "X-Sluice-Actor",
		"Authorization"} {
		r.Header.Set(name, bob)
	}
	answer := httptest.NewRecorder()
	h.ServeHTTP(answer, r)
	if item, err := w.Get(t.Context(), "", &operate.GetRequest{Table: control.Tenants, Key: "acme"}); err != nil ||
		item.Actor != "ann@local" || item.Version != 2 {
		t.Errorf("after %d %s: got the item %+v, error %v; want version 2 by ann@local", answer.Code, answer.Body,
			item, err)
	}
	w.tables.puts = 0
	for _, body := range []string{
		`{"tenant":"acme","reason":"x","actor":"bob"}`, `{"tenant":"acme","reason":"x","Actor":"bob"}`,
		`{"tenant":"acme","reason":"x","Reason":"y"}`,
		`{"tenant":"acme","reason":"x","reason":"y"}`,
	} {
		if got := post(t, h, "/tenants/suspend", body); !strings.Contains(got, `"code":"invalid"`) ||
			w.tables.puts != 0 {
			t.Errorf("%s: got %s, want invalid, and no write", body, got)
		}
	}
}

// Guarantees that only processes on this machine are answered, and no web page in a browser on it.
func TestOnlyThisMachineIsAnswered(t *testing.T) {
	w := newWorld(t)
	w.seed(plans)
	h := operate.Local(w.Control.Mux(), "ann@local")
	for name, change := range map[string]func(*http.Request){
		"another machine":        func(r *http.Request) { r.RemoteAddr = "192.0.2.1:1" },
		"no address":             func(r *http.Request) { r.RemoteAddr = "@" },
		"a page":                 func(r *http.Request) { r.Header.Set("Origin", "https://evil.example") },
		"a page without Origin":  func(r *http.Request) { r.Header.Set("Sec-Fetch-Site", "same-site") },
		"a page of its own":      func(r *http.Request) { r.Header.Set("Origin", "http://127.0.0.1:8080") },
		"a name that was turned": func(r *http.Request) { r.Host = "evil.example:8080" },
		"no host":                func(r *http.Request) { r.Host = "" },
		"a proxy":                func(r *http.Request) { r.Header.Set("X-Forwarded-For", "127.0.0.1") },
		"a proxy by X-Real-IP":   func(r *http.Request) { r.Header.Set("X-Real-IP", "203.0.113.7") },
		"a proxy by HTTP/1.0":    func(r *http.Request) { r.Proto, r.ProtoMinor = "HTTP/1.0", 0 },
	} {
		r := local(t, "/tenants/suspend", suspend)
		change(r)
		answer := httptest.NewRecorder()
		h.ServeHTTP(answer, r)
		if answer.Code != http.StatusForbidden || w.tables.puts != 0 {
			t.Errorf("%s: got %d %s, want 403, and no write", name, answer.Code, answer.Body)
		}
	}
	for _, host := range []string{"localhost:8080", "[::1]:8080", "127.0.0.1"} {
		r := local(t, "/tenants/suspend", suspend)
		r.Host, r.RemoteAddr = host, "[::1]:40000"
		answer := httptest.NewRecorder()
		if h.ServeHTTP(answer, r); answer.Code != http.StatusOK {
			t.Errorf("%s: got %d %s, want 200", host, answer.Code, answer.Body)
		}
	}
}

// Guarantees that each kind of bad call has an answer of its own and writes nothing.
func TestBadCalls(t *testing.T) {
	w := newWorld(t)
	w.seed(plans)
	h := operate.Local(w.Control.Mux(), "ann@local")
	for name, c := range map[string]struct {
		change func(*http.Request)
		body   string
		status int
		says   string
	}{
		"method": {func(r *http.Request) { r.Method = http.MethodGet }, suspend, 405, "POST"},
		"path":   {func(r *http.Request) { r.URL.Path = "/tenants/delete" }, suspend, 404, "no operation"},
		"root":   {func(r *http.Request) { r.URL.Path = "/" }, suspend, 404, "no operation"},
		"type": {func(r *http.Request) { r.Header.Set("Content-Type", "text/plain") }, suspend, 415,
			"application/json"},
		"no type":     {func(r *http.Request) { r.Header.Del("Content-Type") }, suspend, 415, "application/json"},
		"nothing":     {nil, "", 400, "JSON object"},
		"null":        {nil, "null", 400, "JSON object"},
		"list":        {nil, "[]", 400, "JSON object"},
		"two":         {nil, suspend + suspend, 400, "JSON object"},
		"type of":     {nil, `{"tenant":3,"reason":"x"}`, 400, "tenant: want a text"},
		"fraction":    {nil, `{"tenant":"acme","reason":"x","expect":1.5}`, 400, "expect: want an integer"},
		"unknown":     {nil, `{"tenant":"acme","reason":"x","force":true}`, 400, "force: there is no such member"},
		"no reason":   {nil, `{"tenant":"acme"}`, 400, "reason"},
		"long reason": {nil, `{"tenant":"acme","reason":"` + strings.Repeat("r", 513) + `"}`, 400, "reason"},
		"large": {nil, `{"tenant":"acme","reason":"` + strings.Repeat("r", operate.MaxBodyBytes) + `"}`, 413,
			"at most"},
	} {
		t.Run(name, func(t *testing.T) {
			r := local(t, "/tenants/suspend", c.body)
			if c.change != nil {
				c.change(r)
			}
			answer := httptest.NewRecorder()
			h.ServeHTTP(answer, r)
			if answer.Code != c.status || !strings.Contains(answer.Body.String(), c.says) || w.tables.puts != 0 {
				t.Errorf("got %d %s, want %d with %q", answer.Code, answer.Body, c.status, c.says)
			}
		})
	}
	if got := post(t, h, "/apply", `{"reason":"x","changes":[{"table":"tenants","key":"t","expect":0,"body":{},`+
		`"actor":"bob"}]}`); !strings.Contains(got, "changes[0].actor: there is no such member") {
		t.Errorf("a forged actor in a change: got %s, want that there is no such member", got)
	}
	got := post(t, h, "/boosts/add",
		`{"tenant":"acme","limit":"burst","factor":2,"until":"tomorrow","reason":"x"}`)
	if !strings.Contains(got, `"invalid"`) {
		t.Errorf("an invalid time: got %s, want invalid", got)
	}
}

// event returns the documented event of a REST API's Lambda proxy integration with IAM authorization, after a change.
func event(t *testing.T, change func(e, identity map[string]any)) []byte {
	t.Helper()
	text, err := os.ReadFile("testdata/rest-iam.json")
	if err != nil {
		t.Fatal(err)
	}
	var e map[string]any
	if err := json.Unmarshal(text, &e); err != nil {
		t.Fatal(err)
	}
	if change != nil {
		change(e, e["requestContext"].(map[string]any)["identity"].(map[string]any))
	}
	if text, err = json.Marshal(e); err != nil {
		t.Fatal(err)
	}
	return text
}

// api is the API of testdata/rest-iam.json.
const api = "abc123/prod"

// Guarantees that an event that is not from the function's own API and stage is an error and changes nothing. This
// includes events that somebody forges who invokes the function directly without knowing the API.
func TestEventsOfNoAPIOfOurs(t *testing.T) {
	w := newWorld(t)
	w.seed(plans)
	for name, change := range map[string]func(e, context map[string]any){
		"without a context": func(e, _ map[string]any) { delete(e, "requestContext") },
		"an identity alone": func(_, c map[string]any) {
			maps.DeleteFunc(c, func(k string,
				_ any) bool {
				return k != "identity"
			})
		},
		"another API":         func(_, c map[string]any) { c["apiId"] = "other" },
		"without an API":      func(_, c map[string]any) { delete(c, "apiId") },
		"another stage":       func(_, c map[string]any) { c["stage"] = "test-invoke-stage" },
		"without a stage":     func(_, c map[string]any) { delete(c, "stage") },
		"the stage in the id": func(_, c map[string]any) { c["apiId"], c["stage"] = "abc123/prod", "" },
		"without a request":   func(_, c map[string]any) { delete(c, "requestId") },
	} {
		payload := event(t, func(e, _ map[string]any) { change(e, e["requestContext"].(map[string]any)) })
		if out, err := operate.Lambda(w.Control.Mux(), api).Invoke(t.Context(), payload); err == nil {
			t.Errorf("%s: the answer is %s, want an error", name, out)
		}
	}
	if out, err := operate.Lambda(w.Control.Mux(), "").Invoke(t.Context(), event(t, nil)); err == nil {
		t.Errorf("a function that knows no API of its own: got %s, want an error", out)
	}
	item, err := w.Get(t.Context(), "", &operate.GetRequest{Table: control.Tenants, Key: "acme"})
	if err != nil || strings.Contains(string(item.Body), "suspended") {
		t.Errorf("after the refused calls: got the tenant %s, error %v; want that it is not suspended", item.Body, err)
	}
}

// Guarantees that the actor is the IAM identity that API Gateway reports, for a user and for a role's session,
// whatever base path the call has and however the body is encoded; and that a method without authorization admits
// nobody.
func TestEventsOfAPIGateway(t *testing.T) {
	w := newWorld(t)
	w.seed(plans)
	f := operate.Lambda(w.Control.Mux(), api)
	for name, c := range map[string]struct {
		change func(e, identity map[string]any)
		status int
		actor  string
	}{
		"as documented": {nil, 200, "arn:aws:iam::123456789012:user/ann"},
		"a role's session": {func(_, id map[string]any) {
			id["userArn"], id["caller"] = bob, "AROAEXAMPLE:bob"
		}, 200, bob},
		"without a proxy resource": {func(e, _ map[string]any) {
			e["pathParameters"], e["path"] = nil, "/tenants/suspend"
		}, 200, ann},
		"base64": {func(e, _ map[string]any) {
			e["isBase64Encoded"], e["body"] = true, "eyJ0ZW5hbnQiOiJhY21lIiwicmVhc29uIjoieCJ9"
		}, 200, ann},
		"a name that is too long": {func(_, id map[string]any) {
			id["userArn"] = "arn:aws:iam::123456789012:user/" + strings.Repeat("a", 600)
		}, 200, "caller AIDAEXAMPLE"},
		"no authorization": {func(_, id map[string]any) {
			id["userArn"], id["caller"], id["accountId"] = nil, nil, nil
		}, 403, ""},
		"forged in headers": {func(e, id map[string]any) {
			id["userArn"], id["caller"], id["accountId"] = nil, nil, nil
			e["headers"].(map[string]any)["userArn"] = bob
		}, 403, ""},
		"an authorizer's word": {func(e, id map[string]any) {
			id["userArn"], id["caller"], id["accountId"] = nil, nil, nil
			e["requestContext"].(map[string]any)["authorizer"] = map[string]any{"principalId": bob, "userArn": bob}
		}, 403, ""},
		"an API key's": {func(_, id map[string]any) {
			id["userArn"], id["caller"], id["accountId"] = nil, nil, nil
			id["apiKey"] = "k"
		}, 403, ""},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := w.Resume(t.Context(), "before", &operate.TenantRequest{Tenant: "acme",
				Reason: "x"}); err != nil {
				t.Fatal(err)
			}
			out, err := f.Invoke(t.Context(), event(t, c.change))
			if err != nil {
				t.Fatal(err)
			}
			var answer struct {
				StatusCode int
				Body       string
				Headers    map[string]string
			}
			if err := json.Unmarshal(out, &answer); err != nil || answer.StatusCode != c.status ||
				answer.Headers["Content-Type"] != "application/json" {
				t.Fatalf("got %s, %v; want status %d", out, err, c.status)
			}
			item, err := w.Get(t.Context(), "", &operate.GetRequest{Table: control.Tenants, Key: "acme"})
			if suspended := strings.Contains(string(item.Body), "suspended"); err != nil ||
				suspended != (c.status == 200) || suspended && item.Actor != c.actor {
				t.Errorf("after the call: got the tenant %s by %s, error %v; want it suspended by the caller, or as "+
					"before if the call is refused", item.Body, item.Actor, err)
			}
		})
	}
	for _, payload := range []string{"", "{}", "[]", `{"version":"2.0","rawPath":"/x"}`, `{"httpMethod":"POST"}`} {
		if out, err := f.Invoke(t.Context(), []byte(payload)); err == nil {
			t.Errorf("%s: got %s, want an error", payload, out)
		}
	}
}

// FuzzLocal guarantees that the answer to any call is JSON with a documented status, and that a refused call writes
// nothing.
func FuzzLocal(f *testing.F) {
	for _, path := range []string{"/apply", "/tenants/set", "/boosts/add", "/keys/create", "/cells/add",
		"/documents/list", "/limits/promote"} {
		f.Add(path, suspend)
		f.Add(path,
			`{"reason":"x","changes":[{"table":"tenants","key":"t","expect":0,"body":{"id":"t","plan":"pro"}}]}`)
		f.Add(path, `{"tenant":"acme","reason":"x","overrides":[{"id":"burst","rate":5}],"cells":["a"],`+
			`"drop":["burst"]}`)
		f.Add(path, `{"tenant":"acme","limit":"burst","factor":2,"until":"2027-01-01T00:00:00Z","reason":"x"}`)
		f.Add(path, `{"cell":"c","weight":2,"ops":"https://x/y","reason":"x"}`)
		f.Add(path, `{"table":"plans","after":"x","most":3}`)
	}
	f.Fuzz(func(t *testing.T, path, body string) {
		if !strings.HasPrefix(path, "/") || strings.ContainsAny(path, "?#% ") ||
			strings.ContainsFunc(path, func(c rune) bool { return c < ' ' || c > '~' }) {
			t.Skip("not a path of a request")
		}
		w := newWorldOn(t, &serial{Tables: inMemory{}})
		w.seed(plans)
		r := local(t, "/", body)
		r.URL.Path = path
		answer := httptest.NewRecorder()
		operate.Local(w.Control.Mux(), "ann@local").ServeHTTP(answer, r)
		var out map[string]json.RawMessage
		if err := json.Unmarshal(answer.Body.Bytes(), &out); err != nil {
			t.Fatalf("%s %s: got %s, want JSON", path, body, answer.Body)
		}
		switch _, refused := out["error"]; {
		case answer.Code == http.StatusInternalServerError:
			t.Errorf("%s %s: got %s, want no internal error", path, body, answer.Body)
		case refused != (answer.Code != http.StatusOK):
			t.Errorf("%s %s: got %d %s, want an error in the body exactly if the status is not 200", path, body,
				answer.Code, answer.Body)
		case refused && w.tables.puts > 0:
			t.Errorf("%s %s: it is refused, but wrote %+v; want no write", path, body, w.tables.changes)
		}
		for _, c := range w.tables.changes {
			if c.Actor != "ann@local" {
				t.Errorf("%s %s: got the actor %q, want ann@local", path, body, c.Actor)
			}
		}
	})
}

// FuzzInvoke guarantees that an event is carried out only for the actor that its identity names.
func FuzzInvoke(f *testing.F) {
	text, err := os.ReadFile("testdata/rest-iam.json")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(text)
	f.Add([]byte(`{"httpMethod":"POST","path":"/whoami","headers":{"content-type":"application/json"},"body":"{}"}`))
	f.Add([]byte(`{"httpMethod":"POST","path":"/whoami","headers":{"content-type":"application/json"},"body":"{}",` +
		`"requestContext":{"apiId":"abc123","stage":"prod","requestId":"r","identity":{"accountId":"1","caller":"c",` +
		`"userArn":"arn:aws:iam::1:user/ann"}}}`))
	f.Fuzz(func(t *testing.T, payload []byte) {
		var said struct {
			RequestContext struct {
				APIID, Stage string
				Identity     struct{ Caller, UserArn string }
			}
		}
		m := operate.NewTestMux("/whoami", func(actor string) {
			if err := json.Unmarshal(payload, &said); err != nil {
				t.Errorf("%q was carried out, want that a payload that is not JSON is refused", payload)
			}
			if id := said.RequestContext.Identity; actor == "" || actor != id.UserArn && actor != "caller "+id.Caller {
				t.Errorf("%q was carried out for %q, want the caller's identity", payload, actor)
			}
			if c := said.RequestContext; c.APIID+"/"+c.Stage != api {
				t.Errorf("%q was carried out, want that only calls to the API %s are", payload, api)
			}
		})
		_, _ = operate.Lambda(m, api).Invoke(t.Context(), payload)
	})
}

var discard = slog.New(slog.DiscardHandler)

// Guarantees that a call without the token is refused before its body is read, and that only the complete token is
// accepted, without a second credential.
func TestRequireToken(t *testing.T) {
	w := newWorld(t)
	w.seed(plans)
	h := operate.RequireToken("right", operate.Local(w.Control.Mux(), "ann@local"))
	for name, c := range map[string]struct {
		credentials []string
		status      int
	}{
		"right":             {[]string{"Bearer right"}, 200},
		"another case":      {[]string{"bearer right"}, 200},
		"none":              {nil, 401},
		"empty":             {[]string{""}, 401},
		"wrong":             {[]string{"Bearer wrong"}, 401},
		"no scheme":         {[]string{"right"}, 401},
		"another scheme":    {[]string{"Basic right"}, 401},
		"no token":          {[]string{"Bearer "}, 401},
		"its beginning":     {[]string{"Bearer righ"}, 401},
		"more than it":      {[]string{"Bearer right "}, 401},
		"two":               {[]string{"Bearer right", "Bearer right"}, 401},
		"a list":            {[]string{"Bearer right, Bearer wrong"}, 401},
		"in another header": {nil, 401},
	} {
		r := local(t, "/tenants/suspend", suspend)
		if c.status != http.StatusOK {
			r.Body = io.NopCloser(iotest.ErrReader(errors.New("the body was read")))
		}
		r.Header["Authorization"] = c.credentials
		r.Header.Set("X-API-Key", "right")
		r.URL.RawQuery = "token=right"
		answer := httptest.NewRecorder()
		h.ServeHTTP(answer, r)
		refused := answer.Code == 401 && answer.Header().Get("WWW-Authenticate") == "Bearer" &&
			strings.Contains(answer.Body.String(), `"code":"unauthorized"`)
		if answer.Code != c.status || refused != (c.status == 401) || strings.Contains(answer.Body.String(), "right") {
			t.Errorf("%s: got %d %s, want the status of the case, without the token", name, answer.Code, answer.Body)
		}
	}
	r := local(t, "/tenants/suspend", suspend)
	r.Header.Set("Authorization", "Bearer right")
	r.Header.Set("X-Real-IP", "203.0.113.7")
	answer := httptest.NewRecorder()
	if h.ServeHTTP(answer, r); answer.Code != http.StatusForbidden {
		t.Errorf("through a proxy, with the token: got %d %s, want 403", answer.Code, answer.Body)
	}
}
