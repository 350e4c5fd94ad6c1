package resilience

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"testing"
	"time"

	"github.com/sluicelimits/sluice/internal/limiter/clock"
	"github.com/sluicelimits/sluice/internal/limiter/limit"
)

// answering is a store that fails while err is set, and counts its calls.
type answering struct {
	limit.Store
	err   error
	asked int
}

func (s *answering) Decide(context.Context, *limit.Request, time.Time, *limit.Decision) error {
	s.asked++
	return s.err
}

// Guarantees that a process that is frozen between requests, whose monotonic clock stands still meanwhile, calls its
// store once the cooldown is over by the wall clock: one probe, and then the next cooldown. By the
// monotonic clock alone, a function that is called once a minute would go on without its store for a great many calls.
func TestBreakerThaws(t *testing.T) {
	store := &answering{err: errors.New("connection refused")}
	b, err := NewBreaker(BreakerConfig{Name: "Redis", Log: slog.New(slog.NewTextHandler(io.Discard, nil))})
	if err != nil {
		t.Fatal(err)
	}
	var wall time.Duration
	b.now = func() clock.Instant { return clock.Instant{Mono: time.Second, Wall: wall} }
	ask := func(want error, asked int) {
		t.Helper()
		var d limit.Decision
		if err := b.Decide(t.Context(), store, &limit.Request{}, time.Unix(0, 0), &d); !errors.Is(err, want) ||
			store.asked != asked {
			t.Fatalf("Decide = %v after %d calls of the store; want %v after %d", err, store.asked, want, asked)
		}
	}
	for i := range 5 {
		ask(store.err, i+1)
	}
	ask(ErrBreakerOpen, 5)
	wall += 900 * time.Millisecond
	ask(ErrBreakerOpen, 5)
	wall += time.Minute
	ask(store.err, 6)      // the probe after the thaw
	ask(ErrBreakerOpen, 6) // not called again for the other five
	wall += 1500 * time.Millisecond
	ask(ErrBreakerOpen, 6) // the second cooldown is twice as long
	if n := b.Stats(); n.State != StateOpen || n.Opened != 1 || n.Probes != 1 {
		t.Errorf("breaker stats %+v; want it open, opened once, with one probe", n)
	}
	wall += time.Minute
	store.err = nil
	ask(nil, 7)
	if n := b.Stats(); n.State != StateClosed || n.Probes != 2 {
		t.Errorf("breaker stats %+v; want it closed after the second probe", n)
	}
	store.err = errors.New("a packet was lost")
	for i := range 4 {
		ask(store.err, 8+i) // as before, a few failures do not open the breaker
	}
	store.err = nil
	ask(nil, 12)
	wall -= time.Hour // the clock is set back, and calls are still made
	ask(nil, 13)
}
