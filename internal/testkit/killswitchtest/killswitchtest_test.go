package killswitchtest_test

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/sluicelimits/sluice/internal/testkit/killswitchtest"
)

// Guarantees that the stand-in refuses what AppConfig refuses: a token that was used, a poll that is too early, an
// interval that is not allowed, another configuration, and an unsigned call. A client that does so would work with a
// more lenient stand-in, and fail on AWS.
func TestRefuses(t *testing.T) {
	var a killswitchtest.AppConfig
	a.Set(`{"mode":"off"}`)
	url, stop, err := a.Listen()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = stop() }()
	call := func(method, path, body string, signed bool) (status int, header http.Header, text string) {
		t.Helper()
		r, err := http.NewRequestWithContext(t.Context(), method, url+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		if signed {
			r.Header.Set("Authorization", "AWS4-HMAC-SHA256 Credential=A/20261121/eu-west-1/appconfig/aws4_request")
		}
		out, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer out.Body.Close()
		all, err := io.ReadAll(out.Body)
		if err != nil {
			t.Fatal(err)
		}
		return out.StatusCode, out.Header, string(all)
	}
	session := func(application string, seconds int) string {
		return fmt.Sprintf(`{"ApplicationIdentifier":%q,"EnvironmentIdentifier":%q,`+
			`"ConfigurationProfileIdentifier":%q,"RequiredMinimumPollIntervalInSeconds":%d}`,
			application, killswitchtest.Environment, killswitchtest.Profile, seconds)
	}
	begin := func(body string, signed bool, want int) string {
		t.Helper()
		status, _, text := call(http.MethodPost, "/configurationsessions", body, signed)
		if status != want {
			t.Errorf("%s, signed %v: status %d, body %s, want %d", body, signed, status, text, want)
		}
		return text
	}
	begin(session(killswitchtest.Application, 15), false, http.StatusForbidden)
	begin(session("other", 15), true, http.StatusNotFound)
	begin(session(killswitchtest.Application, 14), true, http.StatusBadRequest)
	begin("{", true, http.StatusBadRequest)
	_, token, _ := strings.Cut(begin(session(killswitchtest.Application, 15), true, http.StatusCreated), `":"`)
	token, _, _ = strings.Cut(token, `"`)

	latest := func(token string, want int) (string, string) {
		t.Helper()
		status, header, text := call(http.MethodGet, "/configuration?configuration_token="+token, "", true)
		if status != want {
			t.Errorf("token %q: %d %s, want %d", token, status, text, want)
		}
		return header.Get("Next-Poll-Configuration-Token"), text
	}
	next, text := latest(token, http.StatusOK)
	if text != `{"mode":"off"}` || next == "" || next == token {
		t.Errorf("the poll returned %q and the token %q, after the token %q", text, next, token)
	}
	latest(token, http.StatusBadRequest) // used
	latest(next, http.StatusBadRequest)  // too early
	latest("nobody's", http.StatusBadRequest)
	if a.Calls(killswitchtest.Configuration) != 4 || a.Calls(killswitchtest.Session) != 5 {
		t.Errorf("the stand-in counted %d and %d calls", a.Calls(killswitchtest.Configuration),
			a.Calls(killswitchtest.Session))
	}
}
