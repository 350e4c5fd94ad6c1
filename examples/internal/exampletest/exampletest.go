// Package exampletest has the test that every example passes.
package exampletest

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/sluicelimits/sluice"
)

// Run checks that an example works as its documentation says. A tenant gets the burst of its plan, and then status 429
// with the time to wait, which does not affect another tenant. A request without a tenant gets status 401. The route
// for health checks has no limit.
func Run(t *testing.T, handler func(*sluice.Limiter) http.Handler) {
	t.Helper()
	limiter, err := sluice.New(sluice.Config{
		Plans: []string{"../plans/two-plans.yaml"},
		Now:   func() time.Time { return time.Unix(1_800_000_000, 0) },
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := limiter.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	served := handler(limiter)
	call := func(path, tenant string, want int) *httptest.ResponseRecorder {
		t.Helper()
		r := httptest.NewRequest(http.MethodGet, path, http.NoBody)
		if tenant != "" {
			r.Header.Set("Tenant", tenant)
		}
		w := httptest.NewRecorder()
		served.ServeHTTP(w, r)
		if w.Code != want {
			t.Errorf("%s of %q is answered %d %s, want %d", path, tenant, w.Code, w.Body, want)
		}
		if w.Code != http.StatusOK && strings.Contains(w.Body.String(), "hello") {
			t.Errorf("%s of %q is denied, and the handler ran: %s", path, tenant, w.Body)
		}
		return w
	}
	for range 5 { // the burst of the plan
		if w := call("/product/7", "acme", http.StatusOK); w.Body.String() != "hello, acme\n" {
			t.Errorf("the body is %q", w.Body)
		}
	}
	w := call("/product/7", "acme", http.StatusTooManyRequests)
	if got := w.Header().Get("Retry-After"); got != "1" || !strings.Contains(w.Body.String(), `"retry-after-ms":1000`) {
		t.Errorf("Retry-After is %q, and the body %s; want a second", got, w.Body)
	}
	call("/product/7", "globex", http.StatusOK)
	call("/product/7", "", http.StatusUnauthorized)
	for range 10 {
		call("/healthz", "", http.StatusOK)
	}
}
