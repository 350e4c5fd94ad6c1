package authorizer_test

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/sluicelimits/sluice/internal/apigw"
	"github.com/sluicelimits/sluice/internal/identity"
	"github.com/sluicelimits/sluice/internal/identity/token/tokentest"
)

// FuzzInvoke holds that no event at all makes a panic or passes without a credential that is good, and that each is answered with a
// 401, an answer that API Gateway takes, or an error that holds nothing of it.
func FuzzInvoke(f *testing.F) {
	good := signer.Sign(tokentest.Claims(noon, tokentest.With("exp", noon.AddDate(30, 0, 0).Unix())))
	for _, s := range shapes {
		for _, c := range []call{by("acme"), with(), bearing(good), bearing("s3cr3t"), bearing(good, "X-Api-Key", identity.ExampleKey("globex"))} {
			f.Add(c.event(f, s))
		}
	}
	all := newWorld(f, allPlans, func(c *setting) {
		c.level = slog.LevelError + 1 // what an event may hold in the operator's places is logged, and is no secret there
		c.handler.Recorder = nil
	})
	f.Fuzz(func(t *testing.T, event []byte) {
		all.pass(time.Second) // a limit that is used up would hide what passes
		w := &world{t: t, Handler: all.Handler}
		out, err := w.Invoke(context.Background(), event)
		if err != nil && !errors.Is(err, apigw.ErrUnauthorized) {
			if !errors.Is(err, apigw.ErrEvent) || strings.Contains(err.Error(), "s3cr3t") || len(err.Error()) > 200 || out != nil {
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
		for _, name := range keyed {
			known[identity.ExampleKey(name)] = true
		}
		if err != nil || !found.Any() || !known[found.Key] || !known[found.Bearer] {
			t.Fatalf("passed with %v: %s", err, out)
		}
	})
}
