package resilience

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"testing"
	"time"

	"github.com/sluicelimits/sluice/internal/limit"
)

// answering fails as long as err is set, and counts how often it was asked.
type answering struct {
	limit.Store
	err   error
	asked int
}

func (s *answering) Decide(context.Context, *limit.Request, time.Time, *limit.Decision) error {
	s.asked++
	return s.err
}

// Guarantees that a process which is frozen between requests, with a monotonic clock that stands still meanwhile, asks its store
// again when the cooldown is over by the wall clock: once, until that succeeds. Otherwise a function that is called once a
// minute would stay on its backstop for as many calls as fit their time into a cooldown.
func TestBreakerThaws(t *testing.T) {
	store := &answering{err: errors.New("connection refused")}
	b, err := NewBreaker(BreakerConfig{Name: "Redis", Log: slog.New(slog.NewTextHandler(io.Discard, nil))})
	if err != nil {
		t.Fatal(err)
	}
	var wall time.Duration
	b.now = func() instant { return instant{mono: time.Second, wall: wall} }
	ask := func(want error, asked int) {
		t.Helper()
		var d limit.Decision
		if err := b.Decide(t.Context(), store, &limit.Request{}, time.Unix(0, 0), &d); !errors.Is(err, want) || store.asked != asked {
			t.Fatalf("%v after %d calls of the store; want %v after %d", err, store.asked, want, asked)
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
	ask(ErrBreakerOpen, 6) // and not five of them
	wall += 1500 * time.Millisecond
	ask(ErrBreakerOpen, 6) // the second cooldown is twice as long
	if n := b.Stats(); n.State != StateOpen || n.Opened != 1 || n.Probes != 1 {
		t.Errorf("%+v; want open, opened once, one probe", n)
	}
	wall += time.Minute
	store.err = nil
	ask(nil, 7)
	if n := b.Stats(); n.State != StateClosed || n.Probes != 2 {
		t.Errorf("%+v; want closed after the second probe", n)
	}
	store.err = errors.New("a packet was lost")
	for i := range 4 {
		ask(store.err, 8+i) // as before: a few failures do not open it
	}
	store.err = nil
	ask(nil, 12)
	wall -= time.Hour // set back: not shut out
	ask(nil, 13)
}

// Guarantees that a clock which is set back does not shut the store out: the monotonic one ends the cooldown.
func TestBreakerClockSetBack(t *testing.T) {
	i := instant{mono: time.Second, wall: time.Hour}.plus(time.Second)
	if (instant{mono: 2 * time.Second, wall: 0}).before(i) || (instant{mono: 0, wall: time.Hour + time.Second}).before(i) {
		t.Error("still waiting though one of the clocks has come that far")
	}
	if !(instant{mono: 1900 * time.Millisecond, wall: 0}).before(i) {
		t.Error("not waiting though neither clock has come that far")
	}
	if d := (instant{mono: time.Second, wall: time.Hour}).since(instant{mono: 0, wall: time.Minute}); d != 59*time.Minute {
		t.Errorf("%s, want what the clock that went further says", d)
	}
}
