package sluice_test

import (
	"errors"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluicelimits/sluice"
)

// reservable limits requests, tokens in two ways, and bytes.
const reservable = `plans:
  - id: p
    limits:
      - { id: rpm, algorithm: fixed_window, threshold: 100, period: 1m }
      - { id: tpm, unit: tokens, cost: { default: 50 }, algorithm: sliding_window, threshold: 1000, period: 1m }
      - { id: tpd, unit: tokens, cost: { default: 50 }, quota: { units: 5000, every: day } }
      - { id: bpm, unit: bytes, cost: { default: 0 }, algorithm: token_bucket, rate: 1000, period: 1m }
tenants: [ { id: acme, plan: p } ]
`

// leftFor returns what is left of the limit that binds for the costs.
func leftFor(t *testing.T, l *sluice.Limiter, costs sluice.Costs) int64 {
	t.Helper()
	return l.Peek(t.Context(), acme, sluice.Request{Costs: costs}).Remaining
}

// Costs of one unit that ask for nothing else.
var (
	onlyRequests = sluice.Costs{"requests": 1, "tokens": 0, "bytes": 0}
	onlyTokens   = sluice.Costs{"requests": 0, "tokens": 1, "bytes": 0}
	onlyBytes    = sluice.Costs{"requests": 0, "tokens": 0, "bytes": 1}
)

// wantLeft fails the test unless so much is left of each unit, of the limit of which least is left.
func wantLeft(t *testing.T, l *sluice.Limiter, requests, tokens, bytes int64) {
	t.Helper()
	got := [3]int64{leftFor(t, l, onlyRequests), leftFor(t, l, onlyTokens), leftFor(t, l, onlyBytes)}
	if want := [3]int64{requests, tokens, bytes}; got != want {
		t.Errorf("%v requests, tokens and bytes are left, want %v", got, want)
	}
}

// Guarantees that a settlement corrects each unit by itself, that a unit which it does not name keeps its estimate, and
// that units are charged of which the estimate was 0.
func TestSettle(t *testing.T) {
	l := open(t, reservable, nil)
	estimate := sluice.Costs{"tokens": 400}
	d, r := l.Reserve(t.Context(), acme, sluice.Request{}, estimate, time.Hour)
	if !d.Allowed || d.Reservation() != r {
		t.Fatalf("%+v", d)
	}
	wantLeft(t, l, 99, 600, 1000)
	got, err := l.Settle(t.Context(), r, sluice.Costs{"tokens": 150, "bytes": 1200, "micro-usd": 7})
	if err != nil || !maps.Equal(got.Returned, map[string]int64{"tpm": 250, "tpd": 250}) ||
		!maps.Equal(got.Charged, map[string]int64{"bpm": 1200}) || len(got.Uncharged) > 0 || got.Repeated {
		t.Errorf("Settle = %+v, %v", got, err)
	}
	if left := leftFor(t, l, onlyTokens); left != 850 {
		t.Errorf("%d tokens are left, want 850", left)
	}
	d = l.Decide(t.Context(), acme, sluice.Request{Costs: sluice.Costs{"bytes": 1}})
	if d.Allowed || d.Unit != "bytes" || d.RetryAfter != 12*time.Second+60*time.Millisecond {
		t.Errorf("with a debt of 200 bytes at 1000 a minute: %+v, want a wait of 12.06 s", d)
	}
	for range 2 {
		if got, err := l.Settle(t.Context(), r, sluice.Costs{"tokens": 1}); err != nil || !got.Repeated ||
			len(got.Returned)+len(got.Charged) > 0 {
			t.Errorf("a second Settle = %+v, %v; want Repeated", got, err)
		}
	}

	_, r = l.Reserve(t.Context(), acme, sluice.Request{}, sluice.Costs{"tokens": 100}, time.Hour)
	if got, err := l.Settle(t.Context(), r, nil); err != nil || len(got.Returned)+len(got.Charged) > 0 {
		t.Errorf("Settle with no unit = %+v, %v; want every estimate kept", got, err)
	}
}

// Guarantees that Cancel gives back all units, requests too, and that nothing can be settled afterwards.
func TestCancel(t *testing.T) {
	l := open(t, reservable, nil)
	_, r := l.Reserve(t.Context(), acme, sluice.Request{}, sluice.Costs{"tokens": 400, "bytes": 30}, time.Hour)
	got, err := l.Cancel(t.Context(), r)
	if err != nil || !maps.Equal(got.Returned, map[string]int64{"rpm": 1, "tpm": 400, "tpd": 400, "bpm": 30}) {
		t.Errorf("Cancel = %+v, %v", got, err)
	}
	if got, err := l.Settle(t.Context(), r, sluice.Costs{"tokens": 900}); err != nil || !got.Repeated {
		t.Errorf("Settle after Cancel = %+v, %v; want Repeated", got, err)
	}
	wantLeft(t, l, 100, 1000, 1000)
}

// Guarantees that an update charges what is more, all or none, gives back what is less, and that the settlement then
// corrects the sum.
func TestUpdate(t *testing.T) {
	l := open(t, reservable, nil)
	update := func(r sluice.Reservation, tokens int64) sluice.Decision {
		t.Helper()
		d, err := l.Update(t.Context(), r, sluice.Costs{"tokens": tokens}, time.Hour)
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	_, r := l.Reserve(t.Context(), acme, sluice.Request{}, sluice.Costs{"tokens": 250}, time.Minute)
	if d := update(r, 500); !d.Allowed || d.Reservation() != r {
		t.Errorf("250 tokens more: %+v", d)
	}
	wantLeft(t, l, 99, 500, 1000)
	if d := update(r, 1001); d.Allowed || d.Unit != "tokens" {
		t.Errorf("501 tokens more: %+v, want a denial", d)
	}
	wantLeft(t, l, 99, 500, 1000)
	if d := update(r, 300); !d.Allowed {
		t.Errorf("200 tokens less: %+v", d)
	}
	wantLeft(t, l, 99, 700, 1000)
	if d := update(r, 100); !d.Allowed {
		t.Errorf("200 tokens less again: %+v", d)
	}
	wantLeft(t, l, 99, 900, 1000)
	if d := update(r, 600); !d.Allowed {
		t.Errorf("500 tokens more: %+v", d)
	}
	wantLeft(t, l, 99, 400, 1000)
	got, err := l.Settle(t.Context(), r, sluice.Costs{"tokens": 650})
	if err != nil || !maps.Equal(got.Charged, map[string]int64{"tpm": 50, "tpd": 50}) || len(got.Returned) > 0 {
		t.Errorf("Settle = %+v, %v", got, err)
	}
	wantLeft(t, l, 99, 350, 1000)
	if _, err := l.Update(t.Context(), r, sluice.Costs{"tokens": 700}, time.Hour); !errors.Is(err,
		sluice.ErrReservationEnded) {
		t.Errorf("Update after Settle: %v, want ErrReservationEnded", err)
	}
}

// Guarantees that a reservation ends with its time, which an update prolongs, and that the estimate then counts.
func TestReservationEnds(t *testing.T) {
	now := noon
	l := open(t, reservable, func(c *sluice.Config) { c.Now = func() time.Time { return now } })
	_, short := l.Reserve(t.Context(), acme, sluice.Request{}, sluice.Costs{"tokens": 100}, time.Minute)
	_, long := l.Reserve(t.Context(), acme, sluice.Request{}, sluice.Costs{"tokens": 100}, time.Minute)
	now = now.Add(50 * time.Second)
	if _, err := l.Update(t.Context(), long, nil, time.Minute); err != nil {
		t.Fatal(err)
	}
	now = now.Add(10 * time.Second)
	for name, call := range map[string]func(sluice.Reservation) error{
		"Settle": func(r sluice.Reservation) error {
			_, err := l.Settle(t.Context(), r, sluice.Costs{"tokens": 10})
			return err
		},
		"Cancel": func(r sluice.Reservation) error { _, err := l.Cancel(t.Context(), r); return err },
		"Update": func(r sluice.Reservation) error { _, err := l.Update(t.Context(), r, nil, time.Hour); return err },
	} {
		if err := call(short); !errors.Is(err, sluice.ErrReservationEnded) || !errors.Is(err, sluice.ErrReservation) {
			t.Errorf("%s when the time is over: %v, want ErrReservationEnded", name, err)
		}
	}
	if got, err := l.Settle(t.Context(), long, sluice.Costs{"tokens": 120}); err != nil || got.Charged["tpd"] != 20 {
		t.Errorf("Settle of the one that was prolonged = %+v, %v", got, err)
	}
	daily := l.Peek(t.Context(), acme, sluice.Request{Costs: sluice.Costs{"requests": 0, "tokens": 4780}})
	if daily.Allowed || daily.Limit != "tpm" {
		t.Errorf("%+v; want 4780 tokens left of the day, which only tpm denies", daily)
	}
}

// Guarantees that bad costs and times are refused by an error that says what is wrong, and change nothing.
func TestBadReservations(t *testing.T) {
	l := open(t, reservable, nil)
	_, r := l.Reserve(t.Context(), acme, sluice.Request{}, sluice.Costs{"tokens": 100}, time.Hour)
	for want, used := range map[string]sluice.Costs{
		"tokens: -1 is outside 0..1099511627776":            {"tokens": -1},
		"tokens: 1099511627777 is outside 0..1099511627776": {"tokens": 1<<40 + 1},
		"the unit To kens is not":                           {"To kens": 1},
		"requests are given back by Cancel":                 {"requests": 1},
	} {
		if _, err := l.Settle(t.Context(), r, used); !errors.Is(err, sluice.ErrCost) ||
			!strings.Contains(strings.ReplaceAll(err.Error(), `"`, ""), want) {
			t.Errorf("Settle(%v): %v, want ErrCost and %q", used, err, want)
		}
	}
	for _, ttl := range []time.Duration{-1, 0, sluice.MaxReservation + 1} {
		if _, err := l.Update(t.Context(), r, nil, ttl); !errors.Is(err, sluice.ErrReservation) {
			t.Errorf("Update for %s: %v, want ErrReservation", ttl, err)
		}
		d, none := l.Reserve(t.Context(), acme, sluice.Request{}, nil, ttl)
		if d.Allowed || !errors.Is(d.Err, sluice.ErrReservation) || none != (sluice.Reservation{}) {
			t.Errorf("Reserve for %s: %+v", ttl, d)
		}
	}
	if _, err := l.Update(t.Context(), r, sluice.Costs{"bytes": 5}, time.Hour); !errors.Is(err, sluice.ErrCost) ||
		!strings.Contains(err.Error(), "the estimate did not name bytes") {
		t.Errorf("Update of a unit that the estimate did not name: %v", err)
	}
	d, none := l.Reserve(t.Context(), acme, sluice.Request{}, sluice.Costs{"tokens": 5000}, time.Hour)
	if d.Allowed || none != (sluice.Reservation{}) {
		t.Errorf("a denial reserves %+v", none)
	}
	if got, err := l.Settle(t.Context(), none, sluice.Costs{"tokens": 10}); err != nil || got.Repeated {
		t.Errorf("Settle of a denial = %+v, %v; want no change", got, err)
	}
	if _, err := l.Update(t.Context(), none, nil, time.Hour); !errors.Is(err, sluice.ErrReservation) {
		t.Errorf("Update of a denial: %v, want ErrReservation", err)
	}
	if got, err := l.Settle(t.Context(), r, sluice.Costs{"tokens": 90}); err != nil || got.Returned["tpm"] != 10 {
		t.Errorf("after all that, Settle = %+v, %v", got, err)
	}
}

// Guarantees that of many calls at once one settles, whatever they say was used.
func TestSettleAtOnce(t *testing.T) {
	l := open(t, reservable, nil)
	_, r := l.Reserve(t.Context(), acme, sluice.Request{}, sluice.Costs{"tokens": 100}, time.Hour)
	var first atomic.Int64
	var group sync.WaitGroup
	for i := range int64(16) {
		group.Go(func() {
			got, err := l.Settle(t.Context(), r, sluice.Costs{"tokens": 100 + i})
			if err != nil {
				t.Error(err)
			}
			if !got.Repeated {
				first.Add(1)
			}
		})
	}
	group.Wait()
	if left := leftFor(t, l, onlyTokens); first.Load() != 1 || left < 1000-115 || left > 1000-100 {
		t.Errorf("%d of 16 calls settled, and %d tokens are left", first.Load(), left)
	}
}

// Guarantees that settlements are refused with an error that says to try again later if the store cannot remember more
// of them, and that decisions go on.
func TestTooManySettlements(t *testing.T) {
	monthly := strings.Replace(hourly, "algorithm: fixed_window, threshold: 500, period: 1h",
		"quota: { units: 1000000, every: month }", 1)
	l := open(t, monthly, func(c *sluice.Config) { c.Memory = 64 << 10 })
	left, refused := int64(1_000_000), 0
	for i := range 64 * 300 {
		d, r := l.Reserve(t.Context(), acme, sluice.Request{}, nil, time.Minute)
		if left--; !d.Allowed {
			t.Fatalf("decision %d: %+v", i, d)
		}
		if i%64 > 0 {
			continue
		}
		back, err := l.Cancel(t.Context(), r)
		switch {
		case errors.Is(err, sluice.ErrSettlementsFull):
			if refused++; !errors.Is(err, sluice.ErrReservation) || !strings.Contains(err.Error(), "try again later") {
				t.Errorf("%v; want an error that says to try again later", err)
			}
		case err != nil || back.Returned["hourly"] != 1:
			t.Fatalf("settlement %d: %+v, %v", i, back, err)
		default:
			left++
		}
	}
	if refused == 0 {
		t.Error("no settlement was refused")
	}
	if d := l.Peek(t.Context(), acme, sluice.Request{}); d.Remaining != left {
		t.Errorf("%d left, want %d", d.Remaining, left)
	}
}

// Guarantees that a reservation keeps its sum when the plans are read again between its decisions.
func TestUpdateAfterReload(t *testing.T) {
	file := filepath.Join(t.TempDir(), "plans.yaml")
	write := func(text string) {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(reservable)
	l := open(t, "", func(c *sluice.Config) { c.Plans, c.PlansData = []string{file}, nil })
	_, r := l.Reserve(t.Context(), acme, sluice.Request{}, sluice.Costs{"tokens": 250}, time.Hour)
	write(strings.Replace(reservable, "threshold: 1000", "threshold: 2000", 1))
	if err := l.Reload(); err != nil {
		t.Fatal(err)
	}
	if d, err := l.Update(t.Context(), r, sluice.Costs{"tokens": 500}, time.Hour); err != nil || !d.Allowed {
		t.Fatalf("%+v, %v", d, err)
	}
	got, err := l.Settle(t.Context(), r, sluice.Costs{"tokens": 500})
	if err != nil || len(got.Returned)+len(got.Charged) > 0 {
		t.Errorf("Settle of what was reserved = %+v, %v; want no change", got, err)
	}
	wantLeft(t, l, 99, 1500, 1000)
}
