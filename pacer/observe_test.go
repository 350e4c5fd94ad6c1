package pacer_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluicelimits/sluice/pacer"
)

// The pacer obeys the Retry-After of a provider and the number of units left, so that nothing is refused.
func TestObeysHeaders(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		p := open(t, pacer.Config{Limit: pacer.PerSecond(100)})
		observe := func(pairs ...string) {
			h := http.Header{}
			for i := 0; i < len(pairs); i += 2 {
				h.Set(pairs[i], pairs[i+1])
			}
			permit := mustAcquire(t, p, "a", 1)
			p.Observe(pacer.Reply{Header: h, Permit: permit, Received: time.Now()})
		}
		at := func(want time.Duration) {
			t.Helper()
			mustAcquire(t, p, "a", 1)
			if got := time.Since(began); got != want {
				t.Errorf("granted after %s, want %s", got, want)
			}
		}
		observe("Retry-After", "7")
		ctx, cancel := context.WithTimeout(context.Background(), 6*time.Second)
		defer cancel()
		var late *pacer.LateError
		if _, err := p.Acquire(ctx, "a", 1); !errors.As(err, &late) || late.Late != time.Second {
			t.Errorf("while the provider asks for a pause: %v, want a LateError by a second", err)
		}
		at(7 * time.Second)
		observe("RateLimit", `"default";r=2;t=5`)
		at(7 * time.Second)
		at(7 * time.Second)
		at(12 * time.Second) // the third
		observe("X-RateLimit-Remaining", "0", "X-RateLimit-Reset", "3")
		at(15 * time.Second)
		observe("RateLimit-Policy", `"slow";q=30;w=10`)
		at(15 * time.Second)
		at(16 * time.Second) // three per second, of which the window has had three
		at(16 * time.Second)
		at(16 * time.Second)
		at(17 * time.Second)
		observe("RateLimit-Policy", `"fast";q=1000000;w=1`) // above Config.Limit, which stays
		if s := p.Status(); s.Units != 100 {
			t.Errorf("the window has %d units, want 100", s.Units)
		}
	})
}

// A stated limit of a long window is used as a whole: its windows of a second get a unit more in turn, or some get
// none.
func TestStatedLimitOfLongWindows(t *testing.T) {
	for policy, want := range map[string]int64{`"a";q=100;w=60`: 100, `"a";q=1800;w=3600`: 30, `"a";q=5000;w=3600`: 83,
		`"a";q=6000;w=60, "b";q=90;w=60`: 90} {
		synctest.Test(t, func(t *testing.T) {
			p := open(t, pacer.Config{Limit: pacer.PerSecond(100)})
			now := time.Now()
			p.Observe(pacer.Reply{Header: http.Header{"Ratelimit-Policy": {policy}}, Received: now})
			for range 300 {
				_, err := p.Enqueue("a", 1, pacer.Forever, pacer.WakerFunc(func(pacer.Permit, error) {}))
				if err != nil {
					t.Fatal(err)
				}
			}
			pass(time.Minute - time.Millisecond)
			if n := p.Status().Granted; n < want-1 || n > want+1 {
				t.Errorf("%s: %d units were granted in a minute, want %d", policy, n, want)
			}
		})
	}
}

// False headers of a provider make the pacer pause for an hour at most. They never make it send more than the limit,
// or stop it forever.
func TestLyingProvider(t *testing.T) {
	for _, lie := range []struct{ name, value string }{
		{"Retry-After", "31536000"}, {"RateLimit", `"a";r=0;t=31536000`}, {"RateLimit-Policy", `"a";q=1;w=31536000`},
		{"RateLimit-Policy", `"a";q=1000000000000;w=1`}, {"Retry-After", "-1"}, {"X-RateLimit-Remaining",
			"99999999999999999999"},
	} {
		t.Run(fmt.Sprint(lie), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := open(t, pacer.Config{Limit: pacer.PerSecond(10)})
				permit := mustAcquire(t, p, "a", 1)
				began := time.Now()
				p.Observe(pacer.Reply{Header: http.Header{http.CanonicalHeaderKey(lie.name): {lie.value}},
					Permit: permit, Received: began})
				mustAcquire(t, p, "a", 1)
				if d := time.Since(began); d > pacer.LongestPause {
					t.Errorf("the provider's headers cause a pause of %s, want an hour at most", d)
				}
				mustAcquire(t, p, "b", 10) // more than one unit in each window: it has one to itself
				if s := p.Status(); s.Units > 10 || s.Limit.Units != 10 {
					t.Errorf("status %+v, want at most 10 units", s)
				}
			})
		})
	}
}

// A reply that arrives late does not replace what a later request's reply said. Units that were granted after a reply's
// request are subtracted from the units that the reply says are left.
func TestUnitsInFlight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := open(t, pacer.Config{Limit: pacer.PerSecond(100)})
		left := func(permit pacer.Permit, n string) {
			p.Observe(pacer.Reply{Header: http.Header{"Ratelimit": {`"a";r=` + n + `;t=60`}},
				Permit: permit, Received: time.Now()})
		}
		first := mustAcquire(t, p, "a", 1)
		second := mustAcquire(t, p, "a", 1)
		mustAcquire(t, p, "a", 3)
		left(second, "5") // of which 3 are on their way
		left(first, "90") // which is old
		mustAcquire(t, p, "a", 2)
		var late *pacer.LateError
		if _, err := p.Enqueue("a", 1, time.Minute-1, nil); !errors.As(err, &late) {
			t.Errorf("a sixth unit of five that were left: %v, want a LateError", err)
		}
	})
}

// RoundTrip closes the body of a request that it does not send, and returns the pacer's error.
func TestTransportRefuses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := open(t, pacer.Config{Limit: pacer.PerSecond(1)})
		mustAcquire(t, p, "", 1)
		ctx, cancel := context.WithTimeout(context.Background(), time.Millisecond)
		defer cancel()
		body := &closed{Reader: strings.NewReader("text")}
		r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://provider.test/", body)
		if err != nil {
			t.Fatal(err)
		}
		key, cost := "", int64(0)
		transport := &pacer.Transport{Pacer: p, Base: http.NewFileTransport(http.Dir(t.TempDir())),
			Key:  func(*http.Request) string { key = "called"; return "a" },
			Cost: func(*http.Request) int64 { cost++; return 1 }}
		var late *pacer.LateError
		resp, err := transport.RoundTrip(r)
		if err == nil {
			_ = resp.Body.Close()
		}
		if !errors.As(err, &late) || late.Key != "a" || !body.closed || key == "" || cost != 1 {
			t.Errorf("RoundTrip: %v; body closed: %t", err, body.closed)
		}
	})
}

type closed struct {
	io.Reader
	closed bool
}

func (c *closed) Close() error { c.closed = true; return nil }
