package authorizer_test

import (
	"context"
	"encoding/json"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/sluicelimits/sluice/authorizer"
	"github.com/sluicelimits/sluice/internal/request/answer"
	"github.com/sluicelimits/sluice/internal/request/apigw"
	"github.com/sluicelimits/sluice/internal/testkit/tokentest"
)

const benchPlans = `
plans:
  - id: p
    limits:
      - { id: burst, algorithm: token_bucket, rate: 1000000, period: 1s, burst: 2000000 }
      - { id: hour, algorithm: fixed_window, threshold: 1000000000, period: 1h }
tenants: [ { id: acme, plan: p } ]
`

// benchEvent returns the event of the shape for the call, with as many more headers as a browser behind CloudFront
// sends.
func benchEvent(b *testing.B, s apigw.Shape, c call) []byte {
	b.Helper()
	var golden struct {
		Headers map[string]string `json:"headers"`
	}
	if err := json.Unmarshal(goldenEvents()[s], &golden); err != nil {
		b.Fatal(err)
	}
	for name, v := range golden.Headers {
		switch strings.ToLower(name) {
		case "x-api-key", "authorization", "accept", "user-agent", "x-amzn-trace-id", "x-forwarded-for":
		default:
			c.header = append(c.header, name, v)
		}
	}
	return c.event(b, s)
}

func benchToken() string {
	return signer.Sign(tokentest.Claims(noon, tokentest.With("scope", "read:product write:product read:order",
		"client_id", "catalogue-sync", "token_use", "access")))
}

// BenchmarkInvoke measures one event through the handler. The counters are in memory, and the JWT is in the verifier's
// cache, so this is the CPU time of this module alone.
func BenchmarkInvoke(b *testing.B) {
	for _, s := range []apigw.Shape{apigw.RESTRequest, apigw.HTTP2} {
		for name, c := range map[string]call{"key": withKey("acme"), "jwt": withBearer(benchToken())} {
			event := benchEvent(b, s, c)
			b.Run(s.String()+"/"+name, func(b *testing.B) {
				w := newWorld(b, benchPlans, func(c *setup) { c.level = slog.LevelInfo })
				w.expect(s, c, "allowed")
				b.ReportAllocs()
				b.ReportMetric(float64(len(event)), "event-bytes")
				for b.Loop() {
					if out, err := w.Invoke(context.Background(), event); err != nil ||
						!strings.Contains(string(out[:min(len(out), 600)]), `"decision":"allowed"`) {
						b.Fatal(string(out), err)
					}
				}
			})
		}
	}
}

// BenchmarkInvokeSteps measures the steps of BenchmarkInvoke, for an event of a REST API with a JWT in the cache.
func BenchmarkInvokeSteps(b *testing.B) {
	text := benchToken()
	event := benchEvent(b, apigw.RESTRequest, withBearer(text))
	w := newWorld(b, benchPlans, func(c *setup) { c.level = slog.LevelInfo })
	w.expect(apigw.RESTRequest, withBearer(text), "allowed")
	parsed, err := apigw.Parse(event)
	if err != nil {
		b.Fatal(err)
	}
	b.Run("parse", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, err := apigw.Parse(event); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("verify", func(b *testing.B) {
		v := w.verifier
		b.ReportAllocs()
		for b.Loop() {
			if _, err := v.Verify(context.Background(), text, noon); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("decide_with_verify", func(b *testing.B) {
		req := authorizer.Request{Method: parsed.Method, Path: parsed.Path, Header: parsed.Header, Peer: parsed.Peer}
		b.ReportAllocs()
		for b.Loop() {
			a := w.authorizer.Authorize(context.Background(), &req)
			if !a.Allowed() {
				b.Fatal(a.Kind)
			}
			a.Release()
		}
	})
	b.Run("encode", func(b *testing.B) {
		a := w.authorizer.Authorize(context.Background(),
			&authorizer.Request{Method: parsed.Method, Path: parsed.Path, Header: parsed.Header, Peer: parsed.Peer})
		out := apigw.Answer{Kind: answer.Allowed, Header: a.Header, Tenant: a.Tenant, Subject: a.Subject, Plan: a.Plan,
			KeyID: a.KeyID}
		b.ReportAllocs()
		for b.Loop() {
			if _, err := new(apigw.Encoder).Append(make([]byte, 0, 1536), parsed, &out); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("deadline", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			ctx, cancel := context.WithTimeout(context.Background(), time.Second)
			if ctx.Err() != nil {
				b.Fatal(ctx.Err())
			}
			cancel()
		}
	})
}
