package apigw_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sluicelimits/sluice/internal/request/answer"
	"github.com/sluicelimits/sluice/internal/request/apigw"
	"github.com/sluicelimits/sluice/internal/testkit/golden"
)

// shapes lists the names of the golden events. Each file is an event as API Gateway sends it, with values of our own.
var shapes = []apigw.Shape{apigw.RESTToken, apigw.RESTRequest, apigw.HTTP1, apigw.HTTP2, apigw.WebSocket}

func readEvent(t testing.TB, s apigw.Shape) []byte {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("testdata", s.String()+".event.json"))
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func parseEvent(t testing.TB, s apigw.Shape) *apigw.Event {
	t.Helper()
	e, err := apigw.Parse(readEvent(t, s))
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// checkJSON compares got, a JSON text, with a file of testdata.
func checkJSON(t *testing.T, name string, got []byte) {
	t.Helper()
	var b bytes.Buffer
	if err := json.Indent(&b, got, "", "  "); err != nil {
		t.Fatalf("%s: %v in %s", name, err, got)
	}
	golden.Check(t, name, b.String()+"\n")
}

// Guarantees what is read from each shape of event. A change of it changes who is limited, and by which limits.
func TestEvents(t *testing.T) {
	for _, s := range shapes {
		data := readEvent(t, s)
		e, err := apigw.Parse(data)
		if err != nil {
			t.Fatal(err)
		}
		clear(data) // the runtime may use the memory again: the event must not depend on it
		if e.Shape != s {
			t.Errorf("%s.event.json has the shape %s", s, e.Shape)
		}
		got, err := json.Marshal(struct {
			Shape string
			*apigw.Event
		}{e.Shape.String(), e})
		if err != nil {
			t.Fatal(err)
		}
		checkJSON(t, s.String()+".parsed.json", got)
	}
}

func limited() apigw.Answer {
	return apigw.Answer{
		Kind: answer.Limited, Tenant: "acme", Subject: "ci", Plan: "pro", KeyID: "k1",
		Instance: "urn:uuid:0b0e9d3c-7a66-4d3e-8a41-6f5e4d3c2b1a",
		Header: answer.Header{Limit: "200", Remaining: "0", Reset: "2", RetryAfter: "1",
			RateLimit: `"burst";r=0;t=2, "monthly";r=99000;t=777600`,
			Policy:    `"burst";q=200;w=2, "monthly";q=100000;w=2592000`},
		Problem: []byte(`{"type":"https://iana.org/assignments/http-problem-types#quota-exceeded","title":"Rate ` +
			`limit exceeded","status":429,"retry-after-ms":681}`),
	}
}

// Guarantees how each shape of event is answered. Mapping templates and backends depend on each byte of it.
func TestAnswers(t *testing.T) {
	allowed := limited()
	allowed.Kind, allowed.Instance, allowed.Problem = answer.Allowed, "", nil
	allowed.Header.Remaining, allowed.Header.RetryAfter, allowed.Header.RateLimit = "12", "",
		`"burst";r=12;t=2, "monthly";r=99000;t=777600`
	allowed.Values = []apigw.Value{apigw.Text("source", "00112233445566778899aabbccddeeff"),
		apigw.Name("region", "Île-de-France"),
		apigw.Number("cost", 3), apigw.Bool("trial", false)}
	degraded := apigw.Answer{Kind: answer.Allowed, Anonymous: true, Plan: "public", StoreFailed: true,
		ConfigStale: true}
	suspended := apigw.Answer{Kind: answer.SuspendedTenant, Tenant: "acme", KeyID: "k1",
		Instance: "urn:uuid:0b0e9d3c-7a66-4d3e-8a41-6f5e4d3c2b1a",
		Problem:  (&answer.Problem{Kind: answer.SuspendedTenant}).Append(nil)}
	address := apigw.Answer{Kind: answer.IPLimited,
		Header: answer.Header{Limit: "100", Remaining: "0", Reset: "2", RetryAfter: "1",
			RateLimit: `"ip:per-address";r=0;t=2`, Policy: `"ip:per-address";q=100;w=2`}}
	unavailable := apigw.Answer{Kind: answer.Unavailable, Tenant: "acme", StoreFailed: true,
		Header: answer.Header{RetryAfter: "1"}}
	shadow := limited()
	shadow.Kind, shadow.Instance, shadow.Problem, shadow.Header.RetryAfter = answer.Allowed, "", nil, ""
	shadow.Mode, shadow.ShadowDenial = "shadow", answer.Limited
	for _, s := range shapes {
		e := parseEvent(t, s)
		for _, c := range []struct {
			name    string
			answer  apigw.Answer
			encoder apigw.Encoder
		}{
			{"allowed", allowed, apigw.Encoder{}},
			{"anonymous_without_store", degraded, apigw.Encoder{}},
			{"limited", limited(), apigw.Encoder{PassDenials: []string{"another-api"}}},
			{"limited_passed", limited(), apigw.Encoder{PassDenials: []string{e.API}}},
			{"address_limited", address, apigw.Encoder{}},
			{"suspended", suspended, apigw.Encoder{}},
			{"unavailable", unavailable, apigw.Encoder{}},
			{"in_shadow", shadow, apigw.Encoder{}},
		} {
			got, err := c.encoder.Append(nil, e, &c.answer)
			if err != nil {
				t.Fatalf("%s, %s: %v", s, c.name, err)
			}
			checkJSON(t, s.String()+"."+c.name+".answer.json", got)
		}
	}
}

// Guarantees that a missing or bad credential is a 401 of REST and WebSocket APIs, even if denials are passed on to the
// backend: API Gateway recognizes this answer only by its text. What an HTTP API does with the text is not documented,
// so for it this is a denial like others: a 403, or the middleware's answer if denials are passed on.
func TestUnauthorized(t *testing.T) {
	for _, s := range shapes {
		e := parseEvent(t, s)
		if s == apigw.HTTP1 || s == apigw.HTTP2 {
			for _, k := range []answer.Kind{answer.NoCredential, answer.BadCredential} {
				for _, passes := range []string{"another-api", e.API} {
					n := apigw.Encoder{PassDenials: []string{passes}}
					b, err := n.Append(nil, e, &apigw.Answer{Kind: k})
					lets := strings.Contains(string(b), `"Allow"`) || strings.Contains(string(b), `"isAuthorized":true`)
					if err != nil || lets != (passes == e.API) ||
						!strings.Contains(string(b), `"decision":"`+k.String()+`","httpStatus":401`) {
						t.Errorf("%s, %s, where denials of %s are passed on: %s, %v; want the decision with status "+
							"401", s, k, passes, b, err)
					}
				}
			}
			continue
		}
		for _, k := range []answer.Kind{answer.NoCredential, answer.BadCredential} {
			n := apigw.Encoder{PassDenials: []string{e.API}}
			b, err := n.Append([]byte("x"), e, &apigw.Answer{Kind: k})
			if !errors.Is(err, apigw.ErrUnauthorized) || err.Error() != "Unauthorized" || string(b) != "x" {
				t.Errorf("%s, %s: %q, %v", s, k, b, err)
			}
		}
	}
}

// Guarantees that of all kinds of answers, including future ones, only Allowed allows a request. A kind that was
// forgotten would otherwise let requests pass.
func TestOnlyAllowedAllows(t *testing.T) {
	for _, s := range shapes {
		e := parseEvent(t, s)
		for _, k := range append(answer.Kinds(), answer.Kind(250)) {
			got, err := new(apigw.Encoder).Append(nil, e, &apigw.Answer{Kind: k})
			if e.Unauthorized(k) {
				continue
			}
			if err != nil {
				t.Fatal(err)
			}
			allows := strings.Contains(string(got), `"Allow"`) || strings.Contains(string(got), `"isAuthorized":true`)
			if allows != (k == answer.Allowed) {
				t.Errorf("%s, %s: %s", s, k, got)
			}
		}
	}
}
