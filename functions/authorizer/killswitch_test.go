//go:build unix

package main

import (
	"fmt"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluicelimits/sluice/internal/request/identity"
	"github.com/sluicelimits/sluice/internal/testkit/killswitchtest"
)

// withKillSwitch lets the function poll an AppConfig each second.
func (w *world) withKillSwitch(mode string) *killswitchtest.AppConfig {
	w.t.Helper()
	a := &killswitchtest.AppConfig{Interval: time.Second}
	if mode != "" {
		a.Set(fmt.Sprintf(`{"mode":%q}`, mode))
	}
	url, stop, err := a.Listen()
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { _ = stop() })
	w.env["AWS_ENDPOINT_URL_APPCONFIGDATA"], w.env["SLUICE_KILL_SWITCH"] = url, killswitchtest.Setting
	return a
}

// callUntilMode calls until the answer has the mode, "" for enforce, and returns that answer.
func (w *world) callUntilMode(mode string, headers ...string) *outcome {
	w.t.Helper()
	for end := time.Now().Add(patient); ; <-time.After(20 * time.Millisecond) {
		o, err := w.call(headers...)
		if err != nil {
			w.t.Fatal(err)
		}
		if got, _ := o.Context["mode"].(string); got == mode {
			return o
		}
		if time.Now().After(end) {
			w.t.Fatalf("still %v, want mode %q\n%s", o.Context, mode, strings.Join(w.output(), "\n"))
		}
	}
}

// wantModeUntil calls until the function has logged a line, and fails if an answer has another mode.
func (w *world) wantModeUntil(mode, line string, headers ...string) {
	w.t.Helper()
	for end := time.Now().Add(patient); !strings.Contains(strings.Join(w.output(), "\n"),
		line); <-time.After(20 * time.Millisecond) {
		if o := w.wantAnswer("Allow", "allowed", headers...); o.Context["mode"] != mode {
			w.t.Fatalf("in another mode than %s: %v", mode, o.Context)
		}
		if time.Now().After(end) {
			w.t.Fatalf("no line %q", line)
		}
	}
}

// Guarantees that one deployment in AppConfig changes what the running binary does, though it is frozen between two
// calls. In shadow, a tenant that is over the limit passes, is marked, and is charged nothing. In off, it passes
// without headers of limits. In enforce, limits deny again. A bad credential is always refused, and a failure of
// AppConfig changes nothing.
func TestKillSwitch(t *testing.T) {
	w := newWorld(t, ten)
	w.withRedis()
	a := w.withKillSwitch("enforce")
	w.start()
	key := []string{"x-api-key", w.key}
	for range 10 {
		w.wantAnswer("Allow", "allowed", key...)
	}
	w.wantAnswer("Deny", "limited", key...)

	a.Set(`{"mode":"shadow"}`)
	o := w.callUntilMode("shadow", key...)
	if o.effect() != "Allow" || o.Context["decision"] != "allowed" || o.Context["spared"] != "limited" ||
		o.Context["rateLimitRemaining"] != "0" || o.Context["retryAfter"] != nil {
		t.Errorf("in shadow, over the limit: %s %v", o.effect(), o.Context)
	}
	w.unauthorized()
	w.unauthorized("x-api-key", identity.NewKey())

	a.Fail(killswitchtest.Throttled(), -1)
	a.Set(`{"mode":"off","by":"mistake"}`)
	w.wantModeUntil("shadow", "the kill switch cannot be read", key...)
	a.Fail(killswitchtest.Fault{}, 0)
	w.wantModeUntil("shadow", "the kill switch's document cannot be used", key...)
	a.Set(`{"mode":"off"}`)
	if o := w.callUntilMode("off", key...); o.effect() != "Allow" || o.Context["spared"] != nil ||
		o.Context["rateLimit"] != nil || o.Context["tenant"] != "acme" {
		t.Errorf("in off: %s %v", o.effect(), o.Context)
	}
	w.unauthorized("x-api-key", identity.NewKey())
	a.Set(`{"mode":"enforce"}`)
	if o := w.callUntilMode("", key...); o.effect() != "Deny" || o.Context["decision"] != "limited" {
		t.Errorf("enforced again: %s %v; want the limit, which is still full", o.effect(), o.Context)
	}
	w.close()

	metrics := checkLines(t, w.output())
	if sum(metrics, "kill_switch_spared") == 0 || sum(metrics, "enforce_denied") < 2 ||
		sum(metrics, "kill_switch") == 0 {
		t.Errorf("metrics: %v", metrics)
	}
	if n := sum(metrics, "kill_switch_unheard"); n < 2 {
		t.Errorf("%v polls are told to have come to nothing", n)
	}
	for text, want := range map[string]int{"the kill switch was set": 3, "cannot be used": 1,
		"the kill switch cannot be read": 1} {
		if n := strings.Count(strings.Join(w.output(), "\n"), text); n != want {
			t.Errorf("%d lines say %q, want %d\n%s", n, text, want, strings.Join(w.output(), "\n"))
		}
	}
	if text := strings.Join(w.output(), "\n"); strings.Contains(text, "not-to-be-seen") ||
		strings.Contains(text, "mistake") {
		t.Errorf("a token, or a part of a document, is in the output:\n%s", text)
	}
}

// Guarantees that a cell in mode off admits its tenants while its stores fail, makes no calls to them, and still
// refuses a bad credential. That it calls them in mode enforce shows that the test counts calls.
func TestKillSwitchOffWithoutStores(t *testing.T) {
	for _, of := range [][2]string{{"off", "redis"}, {"off", "dynamodb"}, {"enforce", "redis"},
		{"enforce", "dynamodb"}} {
		w := newWorld(t, "      - { id: strict, tiers: [ { period: 1h, threshold: 10 } ], onStoreFailure: closed }")
		connections := refuseConnections(t)
		w.env["AWS_ENDPOINT_URL_DYNAMODB"] = "http://" + connections.addr
		if of[1] == "redis" {
			w.env["SLUICE_REDIS"], w.env["SLUICE_REDIS_TLS"] = connections.addr, "false"
		}
		w.withKillSwitch(of[0])
		w.start()
		if of[0] == "enforce" {
			w.wantAnswer("Deny", "unavailable", "x-api-key", w.key)
			before := connections.n.Load()
			for end := time.Now().Add(patient); connections.n.Load() == before; <-time.After(100 * time.Millisecond) {
				w.wantAnswer("Deny", "unavailable", "x-api-key", w.key)
				if time.Now().After(end) {
					t.Fatal("the store is not called")
				}
			}
			continue
		}
		w.callUntilMode("off", "x-api-key", w.key)
		w.waitForConnections(connections)
		before := connections.n.Load()
		for range 200 {
			if o := w.wantAnswer("Allow", "allowed", "x-api-key", w.key); o.Context["storeFailed"] != nil {
				t.Fatalf("a store was called: %v", o.Context)
			}
		}
		w.unauthorized("x-api-key", identity.NewKey())
		if n := connections.n.Load(); n != before {
			t.Errorf("the store was connected to %d times for 200 calls", n-before)
		}
	}
}

// refusing is a Redis that closes each connection at once.
type refusing struct {
	addr string
	n    atomic.Int64 // the number of connections
}

func refuseConnections(t *testing.T) *refusing {
	t.Helper()
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := &refusing{addr: l.Addr().String()}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			r.n.Add(1)
			_ = c.Close() // the client notices it
		}
	}()
	return r
}

// waitForConnections calls until the connections from the function's start are over: until there is a second without a
// connection.
func (w *world) waitForConnections(r *refusing) {
	w.t.Helper()
	seen, since := r.n.Load(), time.Now()
	for end := time.Now().Add(patient); time.Since(since) < time.Second; <-time.After(20 * time.Millisecond) {
		w.wantAnswer("Allow", "allowed", "x-api-key", w.key)
		if n := r.n.Load(); n != seen {
			seen, since = n, time.Now()
		}
		if time.Now().After(end) {
			w.t.Fatalf("%d connections, and no end", r.n.Load())
		}
	}
}
