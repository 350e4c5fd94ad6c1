package outage

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/sony/gobreaker/v2"

	"github.com/sluicelimits/sluice/internal/limit"
)

var _ limit.Store = (*Breaker)(nil)

// ErrOpen is in the error of a [Breaker] that did not ask its store: nothing was sent.
var ErrOpen = errors.New("not asked, for it has been failing")

// errOwn tells gobreaker that a call says nothing about the store.
var errOwn = errors.New("the caller's own affair")

// BreakerConfig sets up a [Breaker].
type BreakerConfig struct {
	Store limit.Store // required
	Name  string      // of the store, for errors and the log; required

	// Failures open the breaker if no call succeeded between them, all within Window; so does a Window in which at least half
	// of 4 × Failures calls or more failed. 0 means 5: a lost packet or a reconnect does not open it, and a store that is gone
	// has cost five calls their deadline.
	Failures int
	Window   time.Duration // 0 means 10 s, at least 1 s: an instance with a call a second must notice, too

	// Cooldown is how long the store is not asked, lengthened by up to a fifth, so that instances which lost a store together
	// do not return to it together. Each probe that fails doubles it, up to MaxCooldown. 0 means 1 s and 4 s.
	Cooldown, MaxCooldown time.Duration

	Log *slog.Logger // default slog.Default(); a line when it opens and when it closes
}

// Breaker is a [limit.Store] that stops asking one that keeps failing. While it is open a call is [ErrOpen] at once; after the
// cooldown one call at a time is let through as a probe, and decides whether the breaker closes. Make it with [NewBreaker].
//
// What the store says of a request ([limit.ErrInvalidRequest] and the like) and what a caller gives up is no failure; a full
// store ([limit.ErrFull]) has answered.
type Breaker struct {
	c       BreakerConfig
	refusal error
	start   time.Time
	// gobreaker and not failsafe-go: it ignores what a call that began before the state changed comes to, where failsafe-go
	// takes that for the probe's outcome and gives out a second permit. It has no jitter, hence until.
	breaker *gobreaker.CircuitBreaker[struct{}]
	until   atomic.Int64 // time since start before which nothing is asked; the monotonic clock's, so a clock that leaps cannot shut the store out
	state   atomic.Uint32
	news    atomic.Bool // the state changed, and nobody has said so yet
	failed  int         // probes in a row; guarded by the breaker's lock

	opened, probes, refused atomic.Int64
}

// Name is the store's, as on the live page.
func (b *Breaker) Name() string { return b.c.Name }

// State is what a breaker does with a call.
type State uint32

// The states.
const (
	StateClosed  State = iota // asks the store
	StateOpen                 // does not ask
	StateProbing              // lets one call through, and no other meanwhile
)

// String is the state's name, as on the live page.
func (s State) String() string {
	switch s {
	case StateClosed:
		return "closed"
	case StateOpen:
		return "open"
	case StateProbing:
		return "probing"
	}
	return fmt.Sprintf("state(%d)", uint32(s))
}

// BreakerStats counts since the start.
type BreakerStats struct {
	State   State
	Opened  int64 // times that it opened, failed probes not included
	Probes  int64
	Refused int64 // calls that were not let through
}

// NewBreaker puts a breaker before a store. The error names the field.
func NewBreaker(c BreakerConfig) (*Breaker, error) {
	if c.Failures == 0 {
		c.Failures = 5
	}
	if c.Window == 0 {
		c.Window = 10 * time.Second
	}
	if c.Cooldown == 0 {
		c.Cooldown = time.Second
	}
	if c.MaxCooldown == 0 {
		c.MaxCooldown = max(4*time.Second, c.Cooldown)
	}
	if c.Log == nil {
		c.Log = slog.Default()
	}
	switch {
	case c.Store == nil:
		return nil, errors.New("breaker: Store is missing")
	case c.Name == "":
		return nil, errors.New("breaker: Name is missing")
	case c.Failures < 1:
		return nil, fmt.Errorf("breaker of %s: Failures %d is below 1", c.Name, c.Failures)
	case c.Window < time.Second:
		return nil, fmt.Errorf("breaker of %s: Window %s is below 1s", c.Name, c.Window)
	case c.Cooldown < time.Millisecond || c.MaxCooldown < c.Cooldown:
		return nil, fmt.Errorf("breaker of %s: Cooldown %s..%s, want at least 1ms and no more than MaxCooldown", c.Name, c.Cooldown, c.MaxCooldown)
	}
	b := &Breaker{c: c, refusal: fmt.Errorf("%s: %w", c.Name, ErrOpen), start: time.Now()}
	b.breaker = gobreaker.NewCircuitBreaker[struct{}](gobreaker.Settings{
		Name: c.Name, MaxRequests: 1, Interval: c.Window, BucketPeriod: c.Window / 10, Timeout: c.Cooldown,
		ReadyToTrip: b.burst, OnStateChange: b.changed, IsExcluded: func(err error) bool { return errors.Is(err, errOwn) },
	})
	return b, nil
}

// burst reports whether these failures open the breaker.
func (b *Breaker) burst(n gobreaker.Counts) bool {
	return int(n.ConsecutiveFailures) >= b.c.Failures ||
		int(n.TotalSuccesses+n.TotalFailures) >= 4*b.c.Failures && n.TotalFailures >= n.TotalSuccesses
}

// changed is called under the breaker's lock, so it only takes notes.
func (b *Breaker) changed(_ string, from, to gobreaker.State) {
	switch to {
	case gobreaker.StateOpen:
		if from == gobreaker.StateClosed {
			b.opened.Add(1)
			b.failed = 0
			b.news.Store(true)
		} else {
			b.failed++
		}
		cooldown := b.c.Cooldown
		for range b.failed {
			if cooldown = 2 * cooldown; cooldown >= b.c.MaxCooldown {
				cooldown = b.c.MaxCooldown
				break
			}
		}
		cooldown += rand.N(cooldown/5 + 1)
		b.until.Store(int64(time.Since(b.start) + cooldown))
		b.state.Store(uint32(StateOpen))
	case gobreaker.StateHalfOpen:
		b.probes.Add(1)
		b.state.Store(uint32(StateProbing))
	case gobreaker.StateClosed:
		b.until.Store(0)
		b.state.Store(uint32(StateClosed))
		b.news.Store(true)
	}
}

// through calls the store unless the breaker is open.
func (b *Breaker) through(ctx context.Context, call func() error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if until := b.until.Load(); until > 0 && int64(time.Since(b.start)) < until {
		b.refused.Add(1)
		return b.refusal
	}
	var err error
	called := false
	_, _ = b.breaker.Execute(func() (struct{}, error) { // its error is ours, or says that it did not call
		called = true
		if err = call(); err == nil || errors.Is(err, limit.ErrFull) {
			return struct{}{}, nil
		} else if own(ctx, err) {
			return struct{}{}, errOwn
		}
		return struct{}{}, err
	})
	if !called {
		b.refused.Add(1)
		return b.refusal
	}
	if b.news.Load() && b.news.Swap(false) {
		b.say(err)
	}
	return err
}

// own reports whether an error is the request's or the caller's, and says nothing about the store.
func own(ctx context.Context, err error) bool {
	return errors.Is(err, limit.ErrInvalidRequest) || errors.Is(err, limit.ErrInvalidCost) || errors.Is(err, limit.ErrDuplicateCounter) ||
		errors.Is(ctx.Err(), context.Canceled)
}

func (b *Breaker) say(cause error) {
	if b.State() == StateClosed {
		b.c.Log.Info("the store answers again", "store", b.c.Name)
		return
	}
	b.c.Log.Warn("the store is not asked for a while, for it keeps failing", "store", b.c.Name, "error", cause)
}

// State is what the breaker does now.
func (b *Breaker) State() State { return State(b.state.Load()) }

// Stats is what the breaker does now, and how often it did what.
func (b *Breaker) Stats() BreakerStats {
	return BreakerStats{State: b.State(), Opened: b.opened.Load(), Probes: b.probes.Load(), Refused: b.refused.Load()}
}

// Decide asks the store, if the breaker lets it. See [limit.Store].
func (b *Breaker) Decide(ctx context.Context, req *limit.Request, now time.Time, d *limit.Decision) error {
	err := b.through(ctx, func() error { return b.c.Store.Decide(ctx, req, now, d) })
	if err != nil {
		d.Clear(now.UnixMicro())
	}
	return err
}

// Peek asks the store, if the breaker lets it. See [limit.Store].
func (b *Breaker) Peek(ctx context.Context, req *limit.Request, now time.Time, d *limit.Decision) error {
	err := b.through(ctx, func() error { return b.c.Store.Peek(ctx, req, now, d) })
	if err != nil {
		d.Clear(now.UnixMicro())
	}
	return err
}

// Refund asks the store, if the breaker lets it. See [limit.Store].
func (b *Breaker) Refund(ctx context.Context, r *limit.Receipt, units int64, now time.Time) (back limit.Refund, err error) {
	err = b.through(ctx, func() error {
		var err error
		back, err = b.c.Store.Refund(ctx, r, units, now)
		return err
	})
	return back, err
}

// Accepts says whether the store can keep the limit's counters, whatever state the breaker is in.
func (b *Breaker) Accepts(l *limit.Limit) error { return b.c.Store.Accepts(l) }
