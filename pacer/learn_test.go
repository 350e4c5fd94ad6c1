package pacer_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluicelimits/sluice/pacer"

	"github.com/sluicelimits/sluice/internal/testkit/soak"
)

// provider is an HTTP server in virtual time that limits its clients by itself.
type provider struct {
	admit func() bool
	delay time.Duration // of a request to the provider, and of its reply

	mu      sync.Mutex
	refused int
}

func (p *provider) RoundTrip(*http.Request) (*http.Response, error) {
	<-time.After(p.delay)
	r := &http.Response{StatusCode: http.StatusOK, Header: http.Header{}, Body: io.NopCloser(strings.NewReader(""))}
	p.mu.Lock()
	if !p.admit() {
		p.refused++
		r.StatusCode = http.StatusTooManyRequests
	}
	p.mu.Unlock()
	<-time.After(p.delay)
	return r, nil
}

// refusals returns the number of requests that were refused.
func (p *provider) refusals() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.refused
}

// windowed returns a function that admits *limit requests in each second.
func windowed(limit *int) func() bool {
	var window int64
	var n int
	return func() bool {
		if now := time.Now().Unix(); now != window {
			window, n = now, 0
		}
		n++
		return n <= *limit
	}
}

// bucketed returns a token bucket of *limit requests per second, with room for those of a tenth of a second.
func bucketed(limit *int) func() bool {
	last, tokens := time.Now(), 0.0
	return func() bool {
		now := time.Now()
		tokens = min(tokens+now.Sub(last).Seconds()*float64(*limit), float64(*limit)/10)
		if last = now; tokens < 1 {
			return false
		}
		tokens--
		return true
	}
}

// keepBusy keeps so many requests waiting or on their way for a time. It returns the number that were not refused.
func keepBusy(t *testing.T, c *http.Client, workers int, d time.Duration) (accepted int) {
	t.Helper()
	end := time.Now().Add(d)
	results := make(chan int, workers)
	for range workers {
		go func() {
			n := 0
			for time.Now().Before(end) {
				r, err := c.Get("http://provider.test/")
				if err != nil {
					t.Error(err)
					break
				}
				if r.Body.Close(); r.StatusCode == http.StatusOK {
					n++
				}
			}
			results <- n
		}()
	}
	for range workers {
		accepted += <-results
	}
	return accepted
}

// The limit of a provider falls to 40 % and then rises to 375 % of that, without notice. The pacer finds the new limit,
// against providers that count in windows and in buckets. It uses nearly all of it, with few refusals.
func TestLearns(t *testing.T) {
	soak.SkipUnderRace(t)
	for name, kind := range map[string]func(*int) func() bool{"window": windowed, "bucket": bucketed} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				scale, workers := 10, 100
				if testing.Short() {
					scale, workers = 2, 20
				}
				limit := 100 * scale
				at := &provider{admit: kind(&limit), delay: 5 * time.Millisecond}
				p := open(t, pacer.Config{Limit: pacer.PerSecond(int64(500 * scale)), Smoothing: pacer.Spread,
					Learning: &pacer.Learning{}})
				client := &http.Client{Transport: &pacer.Transport{Pacer: p, Base: at}}
				// phase is half a minute to learn, and then a minute in which the use and the refusals are counted.
				phase := func(to int, leastUsed float64, mostRefused int) {
					t.Helper()
					at.mu.Lock()
					limit = to
					at.mu.Unlock()
					before := at.refusals()
					keepBusy(t, client, workers, 30*time.Second)
					learning := at.refusals() - before
					before = at.refusals()
					used := float64(keepBusy(t, client, workers, time.Minute)) / 60 / float64(to)
					t.Logf("%s, limit %d: %d refused while it learned; then %.1f %% used, %d refused in a minute",
						name, to, learning,
						100*used, at.refusals()-before)
					if used < leastUsed || at.refusals()-before > mostRefused {
						t.Errorf("limit %d: %.1f %% of it are used and %d requests refused in a minute, want %.0f "+
							"%% and %d", to,
							100*used,
							at.refusals()-before, 100*leastUsed, mostRefused)
					}
				}
				phase(100*scale, 0.9, 40*scale)
				phase(40*scale, 0.9, 40*scale)
				phase(150*scale, 0.9, 40*scale)
			})
		})
	}
}

// A provider that bans is never probed: after the first refusal the rate does not rise again.
func TestNeverProbesWhoBans(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limit := 30
		at := &provider{admit: windowed(&limit), delay: time.Millisecond}
		p := open(t, pacer.Config{Limit: pacer.PerSecond(50), Learning: &pacer.Learning{Bans: true}})
		client := &http.Client{Transport: &pacer.Transport{Pacer: p, Base: at}}
		keepBusy(t, client, 5, 10*time.Second)
		refused, learned := at.refusals(), p.Status().Learned
		if refused == 0 || learned > 30 || learned < 20 {
			t.Errorf("%d requests were refused, and the learned rate is %d per second", refused, learned)
		}
		keepBusy(t, client, 5, 5*time.Minute)
		if at.refusals() != refused || p.Status().Learned != learned {
			t.Errorf("%d more requests were refused, and the rate is %d, before it was %d", at.refusals()-refused,
				p.Status().Learned,
				learned)
		}
	})
}

// While few or no requests are sent, nothing can be learned, and the rate does not rise.
func TestLearnsNothingFromLittle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limit := 1000
		at := &provider{admit: windowed(&limit), delay: time.Millisecond}
		p := open(t, pacer.Config{Limit: pacer.PerSecond(1000), Learning: &pacer.Learning{Start: 20}})
		client := &http.Client{Transport: &pacer.Transport{Pacer: p, Base: at}}
		for range 120 {
			keepBusy(t, client, 1, time.Nanosecond)
			pass(500 * time.Millisecond)
		}
		if n := p.Status().Learned; n != 20 {
			t.Errorf("from two requests a second the pacer learned a rate of %d, want 20", n)
		}
	})
}

// The pacer obeys the Retry-After of a provider and the number of units left, so that nothing is refused.
func TestObeysHeaders(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		p := open(t, pacer.Config{Limit: pacer.PerSecond(100)})
		observe := func(status int, pairs ...string) {
			h := http.Header{}
			for i := 0; i < len(pairs); i += 2 {
				h.Set(pairs[i], pairs[i+1])
			}
			permit := mustAcquire(t, p, "a", 1)
			p.Observe(pacer.Reply{Status: status, Header: h, Permit: permit, Sent: time.Now(), Received: time.Now()})
		}
		at := func(want time.Duration) {
			t.Helper()
			mustAcquire(t, p, "a", 1)
			if got := time.Since(began); got != want {
				t.Errorf("granted after %s, want %s", got, want)
			}
		}
		observe(429, "Retry-After", "7")
		ctx, cancel := context.WithTimeout(context.Background(), 6*time.Second)
		defer cancel()
		var late *pacer.LateError
		if _, err := p.Acquire(ctx, "a", 1); !errors.As(err, &late) || late.Late != time.Second {
			t.Errorf("while the provider asks for a pause: %v, want a LateError by a second", err)
		}
		at(7 * time.Second)
		observe(200, "RateLimit", `"default";r=2;t=5`)
		at(7 * time.Second)
		at(7 * time.Second)
		at(12 * time.Second) // the third
		observe(200, "X-RateLimit-Remaining", "0", "X-RateLimit-Reset", "3")
		at(15 * time.Second)
		observe(200, "RateLimit-Policy", `"slow";q=30;w=10`)
		at(15 * time.Second)
		at(16 * time.Second) // three per second, of which the window has had three
		at(16 * time.Second)
		at(16 * time.Second)
		at(17 * time.Second)
		observe(200, "RateLimit-Policy", `"fast";q=1000000;w=1`) // above Config.Limit, which stays
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
			p.Observe(pacer.Reply{Status: 200, Header: http.Header{"Ratelimit-Policy": {policy}}, Sent: now,
				Received: now})
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
				p := open(t, pacer.Config{Limit: pacer.PerSecond(10), Learning: &pacer.Learning{Start: 10}})
				permit := mustAcquire(t, p, "a", 1)
				began := time.Now()
				p.Observe(pacer.Reply{Status: 200, Header: http.Header{http.CanonicalHeaderKey(lie.name): {lie.value}},
					Permit: permit, Sent: began, Received: began})
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
			p.Observe(pacer.Reply{Status: 200, Header: http.Header{"Ratelimit": {`"a";r=` + n + `;t=60`}},
				Permit: permit,
				Sent:   time.Now(), Received: time.Now()})
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
		transport := &pacer.Transport{Pacer: p, Base: &provider{},
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
