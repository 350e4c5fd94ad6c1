package breaker

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/sluicelimits/sluice/internal/limiter/clock"
)

// answering is a store that fails while err is set, and counts its calls.
type answering struct {
	err   error
	asked int
}

func (s *answering) call() error {
	s.asked++
	return s.err
}

// Guarantees that a process that is frozen between requests, whose monotonic clock stands still meanwhile, calls its
// store once the cooldown is over by the wall clock: one probe, and then the next cooldown. By the
// monotonic clock alone, a function that is called once a minute would go on without its store for a great many calls.
func TestBreakerThaws(t *testing.T) {
	store := &answering{err: errors.New("connection refused")}
	b := New(Config{Name: "Redis"})
	var wall time.Duration
	b.now = func() clock.Instant { return clock.Instant{Mono: time.Second, Wall: wall} }
	ask := func(want error, asked int) {
		t.Helper()
		if err := b.Do(t.Context(), store.call); !errors.Is(err, want) || store.asked != asked {
			t.Fatalf("Do = %v after %d calls of the store; want %v after %d", err, store.asked, want, asked)
		}
	}
	for i := range 5 {
		ask(store.err, i+1)
	}
	ask(ErrOpen, 5)
	wall += 900 * time.Millisecond
	ask(ErrOpen, 5)
	wall += time.Minute
	ask(store.err, 6) // the probe after the thaw
	ask(ErrOpen, 6)   // not called again for the other five
	wall += 1500 * time.Millisecond
	ask(ErrOpen, 6) // the second cooldown is twice as long
	if n := b.Stats(); n.State != Open || n.Opened != 1 || n.Probes != 1 {
		t.Errorf("breaker stats %+v; want it open, opened once, with one probe", n)
	}
	wall += time.Minute
	store.err = nil
	ask(nil, 7)
	if n := b.Stats(); n.State != Closed || n.Probes != 2 {
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

// openFully makes enough calls fail for a breaker of default settings to open.
func openFully(t *testing.T, b *Breaker) {
	t.Helper()
	for range 5 {
		_ = b.Do(t.Context(), func() error { return errRefused })
	}
	if b.State() != Open {
		t.Fatalf("the breaker is %s after five failures, want it open", b.State())
	}
}

var errRefused = errors.New("connection refused")

// Guarantees that a call that began after a freeze, and ends well after the breaker was reset and opened by later
// calls, does not close the breaker: it says nothing about the store since then.
func TestBreakerProbeOfAnEarlierGeneration(t *testing.T) {
	b := New(Config{Name: "Redis"})
	var wall time.Duration
	b.now = func() clock.Instant { return clock.Instant{Mono: time.Second, Wall: wall} }
	openFully(t, b)
	wall += time.Minute
	err := b.Do(t.Context(), func() error {
		b.Reset()
		openFully(t, b)
		return nil
	})
	if err != nil || b.State() != Open {
		t.Errorf("the late call: error %v, then the breaker is %s; want no error, and it open", err, b.State())
	}
	if err := b.Do(t.Context(), func() error { return nil }); !errors.Is(err, ErrOpen) {
		t.Errorf("a call during the cooldown: %v, want ErrOpen", err)
	}
}

// Guarantees that of two callers that find a cooldown over after a freeze, the one that comes second does not undo what
// the probe of the first one has found out.
func TestBreakerThawsForTwo(t *testing.T) {
	b := New(Config{Name: "Redis"})
	var wall time.Duration
	var meanwhile func()
	b.now = func() clock.Instant {
		now := clock.Instant{Mono: time.Second, Wall: wall}
		if first := meanwhile; first != nil {
			meanwhile = nil
			first()
		}
		return now
	}
	openFully(t, b)
	wall += time.Minute
	asked := 0
	probe := func() error { asked++; return errRefused }
	meanwhile = func() { _ = b.Do(t.Context(), probe) }
	err := b.Do(t.Context(), probe)
	if n := b.Stats(); !errors.Is(err, ErrOpen) || asked != 1 || n.State != Open || n.Probes != 1 {
		t.Errorf("the second caller: error %v after %d calls of the store, breaker %+v; want ErrOpen after 1, "+
			"and it open with one probe", err, asked, n)
	}
}

// Guarantees that failures count for 10 s, and no longer.
func TestBreakerForgets(t *testing.T) {
	for every, want := range map[time.Duration]State{2400 * time.Millisecond: Open,
		2600 * time.Millisecond: Closed} {
		b := New(Config{Name: "Redis"}) // 5 within 10 s
		now := clock.Instant{Mono: time.Second, Wall: time.Second}
		b.now = func() clock.Instant { return now }
		for range 30 {
			now = now.Add(every)
			_ = b.Do(t.Context(), func() error { return errRefused })
			if b.State() == Open {
				break
			}
		}
		if b.State() != want {
			t.Errorf("with a failure every %s, the breaker is %s, want it %s", every, b.State(), want)
		}
	}
}

// Guarantees that a probe that its caller gives up, and one that panics, do not keep the store from being probed.
func TestBreakerProbesAgain(t *testing.T) {
	b := New(Config{Name: "Redis"})
	now := clock.Instant{Mono: time.Second, Wall: time.Second}
	b.now = func() clock.Instant { return now }
	openFully(t, b)
	now = now.Add(2 * time.Second)
	ctx, giveUp := context.WithCancel(t.Context())
	if err := b.Do(ctx, func() error { giveUp(); return ctx.Err() }); !errors.Is(err, context.Canceled) {
		t.Fatalf("a probe that was given up: %v", err)
	}
	func() {
		defer func() {
			if recover() == nil {
				t.Error("the panic of a call is lost")
			}
		}()
		_ = b.Do(t.Context(), func() error { panic("a defect") }) // at once: the first probe said nothing
	}()
	if err := b.Do(t.Context(), func() error { return nil }); !errors.Is(err, ErrOpen) {
		t.Errorf("after a probe that failed: %v, want ErrOpen", err)
	}
	now = now.Add(3 * time.Second)
	if err := b.Do(t.Context(), func() error { return nil }); err != nil || b.State() != Closed {
		t.Errorf("the next probe: %v, and the breaker is %s; want it closed", err, b.State())
	}
}
