package middleware_test

//lint:file-ignore SA1008 names are spelled as on the wire

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"time"

	"github.com/sluicelimits/sluice"
	"github.com/sluicelimits/sluice/middleware"
)

const plans = `
plans:
  - id: free
    limits: [ { id: burst, algorithm: token_bucket, rate: 1, period: 1h, burst: 2 } ]
  - id: public
    limits: [ { id: shared, algorithm: token_bucket, rate: 1, period: 1h, burst: 1 } ]
tenants: [ { id: acme, plan: free } ]
anonymousPlan: public
`

func hello(w http.ResponseWriter, r *http.Request) {
	who, _ := middleware.FromContext(r.Context())
	fmt.Fprintf(w, "hello, %s", who.Tenant)
}

// get prints what a client receives.
func get(h http.Handler, header ...string) {
	r := httptest.NewRequest(http.MethodGet, "/product/1", http.NoBody)
	for i := 0; i < len(header); i += 2 {
		r.Header.Add(header[i], header[i+1])
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	body, _ := io.ReadAll(w.Result().Body)
	text := string(body)
	if w.Code != http.StatusOK {
		text = w.Header().Get("Content-Type")
	}
	fmt.Fprintln(os.Stdout, w.Code, "remaining:", w.Header().Values("X-RateLimit-Remaining"), text)
}

// An observer sees why each request is denied.
func ExampleWithObserver() {
	key := "keys: [ { id: k, tenant: acme, pepper: p1, hash: " + strings.Repeat("ab", 32) + " } ]"
	limiter, err := sluice.New(sluice.Config{PlansData: []byte(plans + key),
		Peppers: map[string][]byte{"p1": make([]byte, 32)}, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = limiter.Close(context.Background()) }()
	slog := slog.New(slog.NewTextHandler(os.Stdout, &slog.HandlerOptions{ReplaceAttr: withoutTime}))

	watched := middleware.Limit(limiter, middleware.WithObserver(func(r *http.Request, d *sluice.Decision) {
		if !d.Allowed {
			slog.Info("denied", "reason", d.Reason, "cause", d.Err, "path", r.URL.Path)
		}
	}))(http.HandlerFunc(hello))

	get(watched, "X-API-Key", "a-key-of-nobody")
	// Output:
	// level=INFO msg=denied reason=bad_credential cause="unknown API key" path=/product/1
	// 401 remaining: [] application/problem+json
}

func withoutTime(_ []string, a slog.Attr) slog.Attr {
	if a.Key == slog.TimeKey {
		return slog.Attr{}
	}
	return a
}

// The program authenticates its callers itself.
func ExampleLimit() {
	limiter, err := sluice.New(sluice.Config{PlansData: []byte(plans)})
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = limiter.Close(context.Background()) }()

	session := func(r *http.Request) (sluice.Identity, error) {
		switch r.Header.Get("Session") {
		case "":
			return sluice.Identity{}, sluice.ErrNoCredential
		case "good":
			return sluice.Identity{Tenant: "acme", Subject: "alice"}, nil
		}
		return sluice.Identity{}, errors.New("no such session")
	}
	api := middleware.Limit(limiter, middleware.WithIdentity(session))(http.HandlerFunc(hello))

	get(api, "Session", "good")
	get(api, "Session", "good")
	get(api, "Session", "good")
	get(api, "Session", "stolen")
	get(api)
	// Output:
	// 200 remaining: [1] hello, acme
	// 200 remaining: [0] hello, acme
	// 429 remaining: [0] application/problem+json
	// 401 remaining: [] application/problem+json
	// 200 remaining: [0] hello,
}

// A request that failed gives back its units.
func ExampleWithReservation() {
	limiter, err := sluice.New(sluice.Config{PlansData: []byte(plans)})
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = limiter.Close(context.Background()) }()

	failing := func(w http.ResponseWriter, r *http.Request) {
		if d, ok := middleware.Decision(r.Context()); ok {
			if _, err := limiter.Cancel(r.Context(), d.Reservation()); err != nil {
				log.Print(err)
			}
		}
		http.Error(w, "the database is away", http.StatusBadGateway)
	}
	acme := func(*http.Request) (sluice.Identity, error) { return sluice.Identity{Tenant: "acme"}, nil }
	api := middleware.Limit(limiter, middleware.WithIdentity(acme), middleware.WithReservation(time.Minute, nil))(
		http.HandlerFunc(failing))

	for range 3 {
		get(api)
	}
	// Output:
	// 502 remaining: [1] text/plain; charset=utf-8
	// 502 remaining: [1] text/plain; charset=utf-8
	// 502 remaining: [1] text/plain; charset=utf-8
}

// The handler is behind an HTTP API whose authorizer passes denials on, and whose parameter mappings write these
// headers.
func ExampleBehind() {
	service := middleware.Behind(middleware.MappedHeaders)(http.HandlerFunc(hello))

	get(service, "X-Sluice-Caller", "d=allowed;t=acme;s=alice;p=pro", "X-Sluice-Remaining", "41")
	get(service, "X-Sluice-Caller", "d=limited;t=acme;s=alice;p=pro", "X-Sluice-Remaining", "0")
	get(service) // a request that did not come through the gateway
	// Output:
	// 200 remaining: [41] hello, acme
	// 429 remaining: [0] application/problem+json
	// 403 remaining: [] application/problem+json
}
