package stand_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluicelimits/sluice/localstack/stand"
)

// Guarantees that a LocalStack that is not running, or invalid options, are reported in one line that says what to
// do.
func TestOpen(t *testing.T) {
	well := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if body, err := io.ReadAll(r.Body); err != nil || !strings.Contains(string(body), "Action=GetCallerIdentity&") {
			w.WriteHeader(http.StatusNotFound)
			return
		}
		_, _ = io.WriteString(w, "<GetCallerIdentityResponse><GetCallerIdentityResult><Account>000000000000</Account>"+
			"</GetCallerIdentityResult></GetCallerIdentityResponse>")
	}))
	defer well.Close()
	ill := httptest.NewServer(http.NotFoundHandler())
	defer ill.Close()
	const redis = "127.0.0.1:6390"
	for _, tt := range []struct{ name, endpoint, redis, root, want string }{
		{"there", well.URL, redis, "../..", ""},
		{"nobody", "http://127.0.0.1:1", redis, "../..", "start one with localstack/up"},
		{"another program", ill.URL, redis, "../..", "404 Not Found"},
		{"no endpoint", "", redis, "../..", `endpoint "" must be a URL`},
		{"no URL", "127.0.0.1:4566", redis, "../..", "must be a URL"},
		{"with a path", well.URL + "/a", redis, "../..", "must be a URL"},
		{"no Redis", well.URL, "", "../..", `the Redis "" must have the form host:port`},
		{"no root", well.URL, redis, "", "the repository's root is missing"},
	} {
		_, err := stand.Open(t.Context(), stand.Options{Endpoint: tt.endpoint, Redis: tt.redis, Root: tt.root,
			Dir: t.TempDir()})
		if tt.want == "" && err != nil || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want) ||
			strings.Contains(err.Error(), "\n")) {
			t.Errorf("%s: %v, want %q", tt.name, err, tt.want)
		}
	}
}

// Guarantees that Until repeats a check until it succeeds, and that its error, if the check never succeeds, contains
// the last error of the check.
func TestUntil(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		asked := 0
		if err := stand.Until(t.Context(), time.Minute, time.Second, func(context.Context) error {
			if asked++; asked < 5 {
				return errors.New("not yet")
			}
			return nil
		}); err != nil || asked != 5 {
			t.Errorf("asked %d times: %v", asked, err)
		}
		began := time.Now()
		err := stand.Until(t.Context(), time.Minute, time.Second, func(ctx context.Context) error {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			return errors.New("two are missing")
		})
		if !errors.Is(err, stand.ErrNever) || !strings.Contains(err.Error(), "two are missing") ||
			time.Since(began) != time.Minute {
			t.Errorf("after %s: %v", time.Since(began), err)
		}
	})
}
