package sluice_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/sluicelimits/sluice"
	"github.com/sluicelimits/sluice/internal/limiter/store"
	"github.com/sluicelimits/sluice/internal/limiter/store/memory/memorytest"
)

// faulty is a store of a limiter whose calls fail on demand.
type faulty struct{ *memorytest.Faulty }

func (f faulty) Backend() store.Backend {
	return store.Backend{Name: "faulty", Counters: f, Keeper: f}
}

func (f faulty) Keep(_ context.Context, _ string, value []byte) ([]byte, string, error) {
	return value, "memory", nil
}

func openFaulty(t *testing.T) (*sluice.Limiter, faulty) {
	t.Helper()
	f := faulty{memorytest.NewFaulty(t)}
	return open(t, reservable, func(c *sluice.Config) { c.Store, c.NoLeases = f, true }), f
}

// Guarantees that a settlement or an update whose reply is lost is completed by the next call, and changes nothing
// twice, and that a settlement which has begun is not prolonged.
func TestReservationsWithLostReplies(t *testing.T) {
	l, f := openFaulty(t)
	_, r := l.Reserve(t.Context(), acme, sluice.Request{}, sluice.Costs{"tokens": 500}, time.Minute)
	f.LosesReplies.Store(true)
	if _, err := l.Settle(t.Context(), r, sluice.Costs{"tokens": 300}); !errors.Is(err, sluice.ErrReservation) {
		t.Errorf("Settle without a reply: %v", err)
	}
	f.LosesReplies.Store(false)
	if _, err := l.Update(t.Context(), r, nil, time.Hour); !errors.Is(err, sluice.ErrReservationEnded) {
		t.Errorf("Update after a settlement has begun: %v, want ErrReservationEnded", err)
	}
	if got, err := l.Settle(t.Context(), r, sluice.Costs{"tokens": 300}); err != nil || !got.Repeated {
		t.Errorf("Settle again = %+v, %v; want Repeated", got, err)
	}
	wantLeft(t, l, 99, 700, 1000)

	_, r = l.Reserve(t.Context(), acme, sluice.Request{}, sluice.Costs{"tokens": 500}, time.Minute)
	f.LosesReplies.Store(true)
	if _, err := l.Update(t.Context(), r, sluice.Costs{"tokens": 100}, time.Minute); err == nil {
		t.Error("an update without a reply has no error")
	}
	f.LosesReplies.Store(false)
	got, err := l.Settle(t.Context(), r, sluice.Costs{"tokens": 400})
	if err != nil || got.Charged["tpm"] != 300 {
		t.Errorf("Settle after an update without a reply = %+v, %v; want 300 charged", got, err)
	}
	wantLeft(t, l, 98, 300, 1000)
}

// Guarantees that a reservation that was partly made while the store was away is settled to its sum.
func TestReservationsWithoutTheStore(t *testing.T) {
	l, f := openFaulty(t)
	_, r := l.Reserve(t.Context(), acme, sluice.Request{}, sluice.Costs{"tokens": 200}, time.Hour)
	f.Away.Store(true)
	if d, err := l.Update(t.Context(), r, sluice.Costs{"tokens": 300}, time.Hour); err != nil || !d.StoreFailed {
		t.Fatalf("Update without the store: %+v, %v", d, err)
	}
	f.Away.Store(false)
	if got, err := l.Settle(t.Context(), r, sluice.Costs{"tokens": 300}); err != nil || len(got.Charged) > 0 {
		t.Errorf("Settle of the estimate = %+v, %v; want no change", got, err)
	}

	f.Away.Store(true)
	_, r = l.Reserve(t.Context(), acme, sluice.Request{}, sluice.Costs{"tokens": 200}, time.Hour)
	if _, err := l.Update(t.Context(), r, sluice.Costs{"tokens": 100}, time.Hour); err != nil {
		t.Fatal(err)
	}
	f.Away.Store(false)
	if got, err := l.Settle(t.Context(), r, sluice.Costs{"tokens": 60}); err != nil || got.Returned["tpd"] != 40 {
		t.Errorf("Settle after an update to less while the store was away = %+v, %v; want 40 returned", got, err)
	}
}

// Guarantees that a reservation of a token bucket which is lowered twice gives everything back.
func TestLoweredBucket(t *testing.T) {
	l := open(t, reservable, nil)
	_, r := l.Reserve(t.Context(), acme, sluice.Request{}, sluice.Costs{"bytes": 500}, time.Hour)
	if _, err := l.Update(t.Context(), r, sluice.Costs{"bytes": 300}, time.Hour); err != nil {
		t.Fatal(err)
	}
	if got, err := l.Settle(t.Context(), r, sluice.Costs{"bytes": 100}); err != nil || got.Returned["bpm"] != 200 {
		t.Errorf("Settle = %+v, %v; want 200 returned", got, err)
	}
	if left := leftFor(t, l, onlyBytes); left != 900 {
		t.Errorf("%d bytes are left, want 900", left)
	}
}

// Guarantees that a reservation is settled by its own limiter only.
func TestForeignReservation(t *testing.T) {
	l, other := open(t, reservable, nil), open(t, reservable, nil)
	_, r := l.Reserve(t.Context(), acme, sluice.Request{}, sluice.Costs{"tokens": 500}, time.Hour)
	if _, err := other.Settle(t.Context(), r, nil); !errors.Is(err, sluice.ErrReservation) {
		t.Errorf("Settle by another limiter: %v, want ErrReservation", err)
	}
	if got, err := l.Cancel(t.Context(), r); err != nil || got.Returned["tpm"] != 500 {
		t.Errorf("Cancel by its own = %+v, %v", got, err)
	}
}

// Guarantees that a limit per address charges an update to the address of the reservation.
func TestUpdateOfAnAddress(t *testing.T) {
	plans := "plans: [ { id: p, limits: [ { id: each, per: ip, unit: tokens, cost: { default: 0 }, " +
		"algorithm: fixed_window, threshold: 100, period: 1h } ] } ]\ntenants: [ { id: acme, plan: p } ]\n"
	l := open(t, plans, nil)
	one, other := sluice.Request{Peer: "192.0.2.1:1"}, sluice.Request{Peer: "192.0.2.2:1"}
	_, r := l.Reserve(t.Context(), acme, one, sluice.Costs{"tokens": 60}, time.Hour)
	if d, err := l.Update(t.Context(), r, sluice.Costs{"tokens": 90}, time.Hour); err != nil || !d.Allowed {
		t.Fatalf("%+v, %v", d, err)
	}
	for name, tt := range map[string]struct {
		r    sluice.Request
		left int64
	}{"its address": {one, 10}, "another address": {other, 100}} {
		tt.r.Costs = sluice.Costs{"tokens": 1}
		if d := l.Peek(t.Context(), acme, tt.r); d.Remaining != tt.left {
			t.Errorf("%s has %d left, want %d", name, d.Remaining, tt.left)
		}
	}
	if d, err := l.Update(t.Context(), r, sluice.Costs{"tokens": 101}, time.Hour); err != nil || d.Allowed {
		t.Errorf("an update above the limit of the address: %+v, %v; want a denial", d, err)
	}
	if got, err := l.Settle(t.Context(), r, sluice.Costs{"tokens": 90}); err != nil || len(got.Charged) > 0 {
		t.Errorf("Settle of the estimate = %+v, %v; want no change", got, err)
	}
}

// Guarantees that two reservations that an open limit admitted while the store was away do not share a name: each is
// settled.
func TestReservationsOfAnOpenLimit(t *testing.T) {
	f := faulty{memorytest.NewFaulty(t)}
	f.Away.Store(true)
	plans := "plans: [ { id: p, limits: [ { id: rpm, onStoreFailure: open, algorithm: fixed_window, threshold: 100, " +
		"period: 1h }, { id: bytes, unit: bytes, cost: { default: 0 }, algorithm: fixed_window, threshold: 1000, " +
		"period: 1h } ] } ]\ntenants: [ { id: acme, plan: p } ]\n"
	l := open(t, plans, func(c *sluice.Config) { c.Store, c.NoLeases = f, true })
	var all []sluice.Reservation
	for range 2 {
		d, r := l.Reserve(t.Context(), acme, sluice.Request{}, sluice.Costs{"bytes": 0}, time.Hour)
		if !d.Allowed || !d.StoreFailed {
			t.Fatalf("%+v", d)
		}
		all = append(all, r)
	}
	f.Away.Store(false)
	for i, r := range all {
		if got, err := l.Settle(t.Context(), r, sluice.Costs{"bytes": 70}); err != nil || got.Charged["bytes"] != 70 {
			t.Errorf("reservation %d: %+v, %v; want 70 bytes charged", i, got, err)
		}
	}
}

// Guarantees that the shortest reservation is no longer than it says.
func TestShortestReservation(t *testing.T) {
	now := noon
	l := open(t, reservable, func(c *sluice.Config) { c.Now = func() time.Time { return now } })
	_, r := l.Reserve(t.Context(), acme, sluice.Request{}, sluice.Costs{"tokens": 5}, time.Nanosecond)
	now = now.Add(time.Microsecond)
	if got, err := l.Settle(t.Context(), r, sluice.Costs{"tokens": 1}); !errors.Is(err, sluice.ErrReservationEnded) {
		t.Errorf("Settle after a reservation of 1 ns = %+v, %v; want ErrReservationEnded", got, err)
	}
}
