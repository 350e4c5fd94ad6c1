package resilience

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sony/gobreaker/v2"

	"github.com/sluicelimits/sluice/internal/limit"
	"github.com/sluicelimits/sluice/internal/limiter/clock"
)

// ErrBreakerOpen is in the error of a [Breaker] that did not make a call: nothing was sent.
var ErrBreakerOpen = errors.New("not asked, for it has been failing")

// errHarmless tells gobreaker that a call says nothing about the store.
var errHarmless = errors.New("the caller's own affair")

// BreakerConfig sets up a [Breaker].
type BreakerConfig struct {
	Name string // of the store, for errors and the log; required

	// Failures is how many calls must fail, with no success between them and all within Window, for the breaker to
	// open. It also opens if 4 × Failures calls or more were made within Window and at least half of them failed. In
	// either case, at least one of the failed calls must have begun after another one had failed: calls that fail
	// together may have met one and the same pause of some milliseconds. 0 means 5: a lost packet or a reconnect does
	// not open the breaker, and a store that is gone has cost five calls their deadline.
	Failures int

	// Window is at least 1 s; 0 means 10 s, so that an instance that makes one call a second notices, too.
	Window time.Duration

	// Cooldown is how long the store is not called once the breaker is open. Each cooldown is lengthened at random, by
	// up to a fifth, so that instances which lost a store together do not return to it together. Each probe that fails
	// doubles the cooldown, up to MaxCooldown. 0 means 1 s and 4 s.
	Cooldown, MaxCooldown time.Duration

	// Observe is told of each call that is made: how long it took, and whether the store failed. If nil, nobody is
	// told. What the store says of the request, and what a caller gave up, is no failure. Observe is called in the
	// course of a decision and must not wait.
	Observe func(took time.Duration, failed bool)

	Log *slog.Logger // gets a line when the breaker opens and when it closes; default slog.Default()
}

// Breaker is a circuit breaker: it stops the calls of a store that keeps failing. While it is open, a call ends with
// [ErrBreakerOpen] at once. After the cooldown it makes one call at a time as a probe, whose outcome decides whether
// the breaker closes. Make it with [NewBreaker].
//
// An error by which the store answered ([limit.Answered]) is no failure, and neither is a call that its caller gave up.
// So one tenant's request, or one tenant's stored data, cannot open the breaker for other tenants.
type Breaker struct {
	c       BreakerConfig
	refusal error
	current atomic.Pointer[generation]
	until   atomic.Pointer[clock.Instant] // no call is made before it; nil: calls are made now
	now     func() clock.Instant
	state   atomic.Uint32
	changed atomic.Bool // the state has changed, and the log has no line about it yet

	// A round is a failed call that began after the round before it had failed. Calls that fail together are one round.
	rounds, roundsInRow atomic.Int64 // all, and those since a call succeeded
	roundsAtClose       atomic.Int64 // what rounds was when the breaker closed

	mu           sync.Mutex
	failedProbes int // in a row

	opened, probes, refused atomic.Int64
}

// generation is a gobreaker, which a thaw of the process replaces. gobreaker goes by the monotonic clock alone, which
// may stand still in a process that is frozen between requests. A cooldown would then last for as many requests as fit
// into it.
type generation struct {
	// It is gobreaker and not failsafe-go, because gobreaker ignores the outcome of a call that began before the state
	// changed. failsafe-go takes that outcome for the probe's and gives out a second permit. gobreaker has no jitter,
	// hence Breaker.until.
	*gobreaker.CircuitBreaker[struct{}]

	// probing says that this generation replaced one that was open, and that no call has succeeded yet. Then the first
	// failure opens it. Until one of the two, it lets all calls through, but a process that was frozen begins with one.
	probing atomic.Bool
}

// Name returns the store's name, which the live page shows.
func (b *Breaker) Name() string { return b.c.Name }

// BreakerState is what a breaker does with a call.
type BreakerState uint32

// The states.
const (
	StateClosed  BreakerState = iota // every call is made
	StateOpen                        // no call is made
	StateProbing                     // one call is made, and no other meanwhile
)

// String returns the state's name, which the live page shows.
func (s BreakerState) String() string {
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
	State   BreakerState
	Opened  int64 // times that the breaker opened; failed probes are not counted
	Probes  int64
	Refused int64 // calls that were not made
}

// NewBreaker makes a breaker that is closed. The error names the field.
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
	case c.Name == "":
		return nil, errors.New("breaker: Name is missing")
	case c.Failures < 1:
		return nil, fmt.Errorf("breaker of %s: Failures %d is below 1", c.Name, c.Failures)
	case c.Window < time.Second:
		return nil, fmt.Errorf("breaker of %s: Window %s is below 1s", c.Name, c.Window)
	case c.Cooldown < time.Millisecond || c.MaxCooldown < c.Cooldown:
		return nil, fmt.Errorf("breaker of %s: Cooldown %s..%s, want at least 1ms and no more than MaxCooldown",
			c.Name, c.Cooldown, c.MaxCooldown)
	}
	b := &Breaker{c: c, refusal: fmt.Errorf("%s: %w", c.Name, ErrBreakerOpen), now: clock.Read}
	b.current.Store(b.newGeneration(false))
	return b, nil
}

func (b *Breaker) newGeneration(probing bool) *generation {
	g := new(generation)
	g.probing.Store(probing)
	g.CircuitBreaker = gobreaker.NewCircuitBreaker[struct{}](gobreaker.Settings{
		Name: b.c.Name, MaxRequests: 1, Interval: b.c.Window, BucketPeriod: b.c.Window / 10, Timeout: b.c.Cooldown,
		ReadyToTrip:   func(n gobreaker.Counts) bool { return g.probing.Load() || b.failsOften(n) },
		OnStateChange: func(_ string, from, to gobreaker.State) { b.noteChange(g, from, to) },
		IsExcluded:    func(err error) bool { return errors.Is(err, errHarmless) },
	})
	return g
}

// thaw replaces a generation whose cooldown is over, which it may not know.
func (b *Breaker) thaw(old *generation) *generation {
	b.mu.Lock()
	defer b.mu.Unlock()
	if current := b.current.Load(); current != old {
		return current
	}
	g := b.newGeneration(true)
	b.current.Store(g)
	b.until.Store(nil)
	b.state.Store(uint32(StateProbing))
	b.probes.Add(1)
	return g
}

// leastRounds is how many rounds must have failed for the breaker to open: two, because the calls of one round may all
// have met the same pause of a store that is well.
const leastRounds = 2

// failsOften reports whether these failures open the breaker. See BreakerConfig.Failures.
func (b *Breaker) failsOften(n gobreaker.Counts) bool {
	least := min(int64(b.c.Failures), leastRounds)
	return int(n.ConsecutiveFailures) >= b.c.Failures && b.roundsInRow.Load() >= least ||
		int(n.TotalSuccesses+n.TotalFailures) >= 4*b.c.Failures && n.TotalFailures >= n.TotalSuccesses &&
			b.rounds.Load()-b.roundsAtClose.Load() >= least
}

// noteChange is called under gobreaker's lock, so it only takes notes. Calls of an earlier generation change nothing.
func (b *Breaker) noteChange(g *generation, from, to gobreaker.State) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.current.Load() != g {
		return
	}
	switch to {
	case gobreaker.StateOpen:
		if from == gobreaker.StateClosed && !g.probing.Load() {
			b.opened.Add(1)
			b.failedProbes = 0
			b.changed.Store(true)
		} else {
			b.failedProbes++
		}
		until := b.now().Add(b.cooldown())
		b.until.Store(&until)
		b.state.Store(uint32(StateOpen))
	case gobreaker.StateHalfOpen:
		b.probes.Add(1)
		b.state.Store(uint32(StateProbing))
	case gobreaker.StateClosed:
		b.noteClosed()
	}
}

// cooldown returns the next cooldown: it doubles with each failed probe, and a random part of up to a fifth is added.
func (b *Breaker) cooldown() time.Duration {
	cooldown := b.c.Cooldown
	for range b.failedProbes {
		if cooldown = 2 * cooldown; cooldown >= b.c.MaxCooldown {
			cooldown = b.c.MaxCooldown
			break
		}
	}
	return cooldown + rand.N(cooldown/5+1)
}

func (b *Breaker) noteClosed() {
	b.roundsAtClose.Store(b.rounds.Load())
	b.roundsInRow.Store(0)
	b.until.Store(nil)
	b.state.Store(uint32(StateClosed))
	b.changed.Store(true)
}

// Reset closes the breaker and forgets what failed. It is for an owner who knows that what failed before says nothing
// about now, as after a freeze.
func (b *Breaker) Reset() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.current.Store(b.newGeneration(false))
	b.noteClosed()
	b.changed.Store(false) // that the store answers again is not known
}

// endProbing notes that a call succeeded after a thaw.
func (b *Breaker) endProbing(g *generation) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if g.probing.Swap(false) && b.current.Load() == g {
		b.failedProbes = 0
		b.noteClosed()
	}
}

// Do makes the call unless the breaker is open, and returns the call's error. If the call was not made, the error wraps
// [ErrBreakerOpen], or is why ctx has ended.
func (b *Breaker) Do(ctx context.Context, call func() error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	g := b.current.Load()
	if until := b.until.Load(); until != nil {
		switch now := b.now(); {
		case now.Before(*until):
			b.refused.Add(1)
			return b.refusal
		case now.Mono < until.Mono: // gobreaker goes by the monotonic clock, and takes the cooldown to be going on
			g = b.thaw(g)
		}
	}
	var err error
	called := false
	_, _ = g.Execute(func() (struct{}, error) { // its error is the call's, or says that the call was not made
		called = true
		round := b.rounds.Load()
		err = b.observed(ctx, call)
		switch {
		case err == nil || errors.Is(err, limit.ErrFull):
			b.roundsInRow.Store(0)
			return struct{}{}, nil
		case limit.Answered(err) || callersOwn(ctx, err):
			return struct{}{}, errHarmless
		}
		if b.rounds.CompareAndSwap(round, round+1) {
			b.roundsInRow.Add(1)
		}
		return struct{}{}, err
	})
	if !called {
		b.refused.Add(1)
		return b.refusal
	}
	if g.probing.Load() && (err == nil || errors.Is(err, limit.ErrFull)) {
		b.endProbing(g)
	}
	if b.changed.Load() && b.changed.Swap(false) {
		b.logChange(err)
	}
	return err
}

// observed makes the call and tells Observe of it.
func (b *Breaker) observed(ctx context.Context, call func() error) error {
	if b.c.Observe == nil {
		return call()
	}
	began := time.Now()
	err := call()
	b.c.Observe(time.Since(began), err != nil && !limit.Answered(err) && !errors.Is(ctx.Err(), context.Canceled))
	return err
}

// callersOwn reports whether the request is invalid or its caller gave up. Such an error is returned to the caller, and
// no fallback decides for it.
func callersOwn(ctx context.Context, err error) bool {
	return errors.Is(err, limit.ErrInvalidRequest) || errors.Is(err, limit.ErrInvalidCost) ||
		errors.Is(err, limit.ErrDuplicateCounter) || errors.Is(ctx.Err(), context.Canceled)
}

func (b *Breaker) logChange(cause error) {
	if b.State() == StateClosed {
		b.c.Log.Info("the store answers again", "store", b.c.Name)
		return
	}
	b.c.Log.Warn("the store is not asked for a while, for it keeps failing", "store", b.c.Name, "error", cause)
}

// State returns what the breaker does now.
func (b *Breaker) State() BreakerState { return BreakerState(b.state.Load()) }

// Stats returns what the breaker does now, and how often it did what.
func (b *Breaker) Stats() BreakerStats {
	return BreakerStats{State: b.State(), Opened: b.opened.Load(), Probes: b.probes.Load(), Refused: b.refused.Load()}
}
