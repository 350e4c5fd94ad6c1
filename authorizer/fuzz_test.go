package authorizer_test

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/sluicelimits/sluice/internal/request/apigw"
	"github.com/sluicelimits/sluice/internal/request/identity"
	"github.com/sluicelimits/sluice/internal/testkit/tokentest"
)

// FuzzInvoke guarantees that no event causes a panic or passes without a good credential. Each event is answered with a
// 401, an answer that API Gateway accepts, or an error that holds nothing of the event.
func FuzzInvoke(f *testing.F) {
	good := signer.Sign(tokentest.Claims(noon, tokentest.With("exp", noon.AddDate(30, 0, 0).Unix())))
	for _, s := range shapes {
		for _, c := range []call{withKey("acme"), withHeader(), withBearer(good), withBearer("s3cr3t"),
			withBearer(good, "X-Api-Key", identity.ExampleKey("globex"))} {
			f.Add(c.event(f, s))
		}
	}
	all := newWorld(f, allPlans, func(c *setup) {
		// logs hold an event's stage and route, which are no secrets but may look like them
		c.level = slog.LevelError + 1
		c.handler.Recorder = nil
	})
	f.Fuzz(func(t *testing.T, event []byte) {
		all.advance(time.Second) // refills the limits, which would deny what else passes
		w := &world{t: t, Handler: all.Handler}
		out, err := w.Invoke(context.Background(), event)
		if err != nil && !errors.Is(err, apigw.ErrUnauthorized) {
			if !errors.Is(err, apigw.ErrEvent) || strings.Contains(err.Error(), "s3cr3t") || len(err.Error()) > 200 ||
				out != nil {
				t.Fatalf("%s, %v", out, err)
			}
			return
		}
		r := w.read(out, err)
		if !r.allow {
			return
		}
		parsed, err := apigw.Parse(event)
		if err != nil {
			t.Fatal(err)
		}
		found, err := identity.FindCredentials(parsed.Header)
		known := map[string]bool{"": true, good: true}
		for _, name := range tenantsWithKeys {
			known[identity.ExampleKey(name)] = true
		}
		if err != nil || !found.Any() || !known[found.Key] || !known[found.Bearer] {
			t.Fatalf("passed with %v: %s", err, out)
		}
	})
}
