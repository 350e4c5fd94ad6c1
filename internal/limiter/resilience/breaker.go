package resilience

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sony/gobreaker/v2"

	"github.com/sluicelimits/sluice/internal/limiter/clock"
	"github.com/sluicelimits/sluice/internal/limiter/limit"
)

// ErrBreakerOpen is in the error of a call that a [Breaker] did not make. Nothing was sent to the store.
var ErrBreakerOpen = errors.New("not called, because it keeps failing")

// errNoFailure tells gobreaker that a call ended with an error that says nothing about the store.
var errNoFailure = errors.New("the error concerns the caller only")

// BreakerConfig sets up a [Breaker].
type BreakerConfig struct {
	Name string // of the store, for errors and the log; required

	// Failures is how many calls must fail, with no success between them and all within Window, for the breaker to
	// open. It also opens if at least 4 × Failures calls were made within Window and at least half of them failed. In
	// either case, at least one of the failed calls must have begun after another one had failed, because calls that
	// fail together may have met one pause of some milliseconds of a store that is well. 0 means 5: a lost packet or a
	// reconnect does not open the breaker, and a store that is gone makes five calls wait for their deadline.
	Failures int

	// Window is at least 1 s. 0 means 10 s, in which an instance that makes one call a second reaches Failures, too.
	Window time.Duration

	// Cooldown is how long the store is not called once the breaker is open. Each cooldown is lengthened at random, by
	// up to a fifth, so that instances which lost a store together do not return to it together. Each probe that fails
	// doubles the cooldown, up to MaxCooldown. 0 means 1 s and 4 s.
	Cooldown, MaxCooldown time.Duration

	// Observe is called after each call that is made, with how long the call took and whether the store failed. An
	// error by which the store answered, and a call that its caller gave up, are no failures of the store. A decision
	// waits for Observe. Nil observes nothing.
	Observe func(took time.Duration, failed bool)

	// Runtime is the machine's if it is nil. gobreaker reads the machine's clock alone. With another Runtime, the end
	// of a cooldown is found as after a freeze, and Window is not a sliding one: counting begins anew once it is over.
	Runtime *clock.Runtime

	Log *slog.Logger // gets a line when the breaker opens and when it closes; default slog.Default()
}

// Breaker is a circuit breaker: it stops the calls of a store that keeps failing. While it is open, a call ends with
// [ErrBreakerOpen] at once. After the cooldown it makes one call at a time as a probe, whose outcome decides whether
// the breaker closes. Make it with [NewBreaker].
//
// An error by which the store answered ([limit.Answered]) is no failure, and neither is a call that its caller gave up.
// So one tenant's request, or one tenant's stored data, cannot open the breaker for other tenants.
type Breaker struct {
	config    BreakerConfig
	refusal   error
	current   atomic.Pointer[generation]
	openUntil atomic.Pointer[clock.Instant] // no call is made before this; nil: no cooldown goes on
	now       func() clock.Instant          // clock.Read, except in tests
	state     atomic.Uint32
	unlogged  atomic.Bool // the state has changed, and the log has no line about it yet

	// A failed round is one or more calls that failed together: each began before the first of them had failed.
	failedRounds, failedRoundsInRow atomic.Int64 // all, and those since the last call that succeeded
	failedRoundsAtClose             atomic.Int64 // failedRounds at the time when the breaker closed

	mu           sync.Mutex
	failedProbes int // in a row

	opened, probes, refused atomic.Int64
}

// generation is one gobreaker. A Breaker replaces its gobreaker if a freeze of the process outlasted the cooldown.
// gobreaker knows the monotonic clock alone, which may stand still in a process that is frozen between requests: there,
// the cooldown would go on for many requests after its time.
type generation struct {
	// gobreaker ignores the outcome of a call that began before the state changed. failsafe-go would take that outcome
	// for the probe's, and allow a second probe. gobreaker has no jitter, which Breaker.openUntil adds.
	*gobreaker.CircuitBreaker[struct{}]

	// probing says that this generation replaced one that was open, and that no call has succeeded since. The first
	// failure opens the generation, and the first success ends probing. Until then all calls are made, not one at a
	// time; a process that has just been frozen seldom has more than one.
	probing atomic.Bool

	began clock.Instant // when the generation was made
}

// Name returns the store's name, which the live page shows.
func (b *Breaker) Name() string { return b.config.Name }

// BreakerState is what a breaker does with a call.
type BreakerState uint32

// The states.
const (
	StateClosed  BreakerState = iota // every call is made
	StateOpen                        // no call is made
	StateProbing                     // a call is made to find out whether the store answers
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

// BreakerStats holds the state of a [Breaker], and counts since the start.
type BreakerStats struct {
	State   BreakerState
	Opened  int64 // how often the breaker opened; a probe that failed is not counted
	Probes  int64 // how often the breaker began to probe
	Refused int64 // calls that were not made
}

// NewBreaker makes a breaker that is closed. The error names the field.
func NewBreaker(config BreakerConfig) (*Breaker, error) {
	if config.Failures == 0 {
		config.Failures = 5
	}
	if config.Window == 0 {
		config.Window = 10 * time.Second
	}
	if config.Cooldown == 0 {
		config.Cooldown = time.Second
	}
	if config.MaxCooldown == 0 {
		config.MaxCooldown = max(4*time.Second, config.Cooldown)
	}
	if config.Log == nil {
		config.Log = slog.Default()
	}
	switch {
	case config.Name == "":
		return nil, errors.New("breaker: Name is missing")
	case config.Failures < 1:
		return nil, fmt.Errorf("breaker of %s: Failures %d is below 1", config.Name, config.Failures)
	case config.Window < time.Second:
		return nil, fmt.Errorf("breaker of %s: Window %s is below 1s", config.Name, config.Window)
	case config.Cooldown < time.Millisecond || config.MaxCooldown < config.Cooldown:
		return nil, fmt.Errorf("breaker of %s: Cooldown %s..%s, want at least 1ms and no more than MaxCooldown",
			config.Name, config.Cooldown, config.MaxCooldown)
	}
	b := &Breaker{config: config, refusal: fmt.Errorf("%s: %w", config.Name, ErrBreakerOpen), now: config.Runtime.Read}
	b.current.Store(b.newGeneration(false))
	return b, nil
}

func (b *Breaker) newGeneration(probing bool) *generation {
	g := &generation{began: b.now()}
	g.probing.Store(probing)
	window, timeout := b.config.Window, b.config.Cooldown
	if b.config.Runtime != nil { // gobreaker shall not look at the machine's clock
		window, timeout = 0, math.MaxInt64
	}
	g.CircuitBreaker = gobreaker.NewCircuitBreaker[struct{}](gobreaker.Settings{
		Name: b.config.Name, MaxRequests: 1,
		Interval: window, BucketPeriod: window / 10, Timeout: timeout,
		ReadyToTrip:   func(n gobreaker.Counts) bool { return g.probing.Load() || b.opensAfter(n) },
		OnStateChange: func(_ string, from, to gobreaker.State) { b.noteChange(g, from, to) },
		IsExcluded:    func(err error) bool { return errors.Is(err, errNoFailure) },
	})
	return g
}

// replaceAfterFreeze replaces a generation whose cooldown is over by the wall clock, and not by gobreaker's clock. If
// another goroutine has replaced it already, replaceAfterFreeze returns the current generation.
func (b *Breaker) replaceAfterFreeze(old *generation) *generation {
	b.mu.Lock()
	defer b.mu.Unlock()
	if current := b.current.Load(); current != old {
		return current
	}
	g := b.newGeneration(true)
	b.current.Store(g)
	b.openUntil.Store(nil)
	b.state.Store(uint32(StateProbing))
	b.probes.Add(1)
	return g
}

// cooldownGoesOn reports whether a cooldown that is over still goes on by gobreaker's clock.
func (b *Breaker) cooldownGoesOn(now, until clock.Instant) bool {
	return now.Mono < until.Mono || b.config.Runtime != nil
}

// replaceAfterWindow replaces a generation of a Breaker with a Runtime of its own, if its window is over.
func (b *Breaker) replaceAfterWindow(old *generation) *generation {
	if b.now().Since(old.began) < b.config.Window {
		return old
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if current := b.current.Load(); current != old || b.openUntil.Load() != nil {
		return current
	}
	g := b.newGeneration(old.probing.Load())
	b.current.Store(g)
	return g
}

// minFailedRounds is how many rounds must have failed for the breaker to open: two, because the calls of one round may
// all have met one pause of a store that is well.
const minFailedRounds = 2

// opensAfter reports whether the breaker opens after these calls. See BreakerConfig.Failures.
func (b *Breaker) opensAfter(n gobreaker.Counts) bool {
	least := min(int64(b.config.Failures), minFailedRounds)
	return int(n.ConsecutiveFailures) >= b.config.Failures && b.failedRoundsInRow.Load() >= least ||
		int(n.TotalSuccesses+n.TotalFailures) >= 4*b.config.Failures && n.TotalFailures >= n.TotalSuccesses &&
			b.failedRounds.Load()-b.failedRoundsAtClose.Load() >= least
}

// noteChange keeps what follows from a state change of gobreaker. It is called under gobreaker's lock, so it logs
// nothing; Do logs the change afterwards. A change of an earlier generation has no effect.
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
			b.unlogged.Store(true)
		} else {
			b.failedProbes++
		}
		until := b.now().Add(b.cooldown())
		b.openUntil.Store(&until)
		b.state.Store(uint32(StateOpen))
	case gobreaker.StateHalfOpen:
		b.probes.Add(1)
		b.state.Store(uint32(StateProbing))
	case gobreaker.StateClosed:
		b.noteClosed()
	}
}

// cooldown returns the next cooldown: Cooldown doubled for each failed probe, up to MaxCooldown, and lengthened at
// random by up to a fifth. b.mu is held.
func (b *Breaker) cooldown() time.Duration {
	cooldown := b.config.Cooldown
	for range b.failedProbes {
		if cooldown = 2 * cooldown; cooldown >= b.config.MaxCooldown {
			cooldown = b.config.MaxCooldown
			break
		}
	}
	return cooldown + b.config.Runtime.RandomUpTo(cooldown/5+1)
}

// noteClosed keeps what follows from closing the breaker. b.mu is held.
func (b *Breaker) noteClosed() {
	b.failedRoundsAtClose.Store(b.failedRounds.Load())
	b.failedRoundsInRow.Store(0)
	b.openUntil.Store(nil)
	b.state.Store(uint32(StateClosed))
	b.unlogged.Store(true)
}

// Reset closes the breaker and forgets all failures. It is for a caller who knows that earlier failures say nothing
// about the store's present state, as after a freeze.
func (b *Breaker) Reset() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.current.Store(b.newGeneration(false))
	b.noteClosed()
	b.unlogged.Store(false) // do not log "the store answers again", which is not known
}

// endProbing closes the breaker after the first success of a generation that was made by replaceAfterFreeze.
func (b *Breaker) endProbing(g *generation) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if g.probing.Swap(false) && b.current.Load() == g {
		b.failedProbes = 0
		b.noteClosed()
	}
}

// Do makes the call unless the breaker is open, and returns the call's error. If the call was not made, the error wraps
// [ErrBreakerOpen], or is ctx.Err() if ctx has ended.
func (b *Breaker) Do(ctx context.Context, call func() error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	g := b.current.Load()
	if until := b.openUntil.Load(); until != nil {
		switch now := b.now(); {
		case now.Before(*until):
			b.refused.Add(1)
			return b.refusal
		case b.cooldownGoesOn(now, *until):
			g = b.replaceAfterFreeze(g)
		}
	} else if b.config.Runtime != nil {
		g = b.replaceAfterWindow(g)
	}
	var err error
	called := false
	// The error of Execute is err, or says that the call was not made, as called does.
	_, _ = g.Execute(func() (struct{}, error) {
		called = true
		round := b.failedRounds.Load()
		err = b.callAndObserve(ctx, call)
		switch {
		case err == nil || errors.Is(err, limit.ErrFull):
			b.failedRoundsInRow.Store(0)
			return struct{}{}, nil
		case limit.Answered(err) || concernsCallerOnly(ctx, err):
			return struct{}{}, errNoFailure
		}
		if b.failedRounds.CompareAndSwap(round, round+1) {
			b.failedRoundsInRow.Add(1)
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
	if b.unlogged.Load() && b.unlogged.Swap(false) {
		b.logChange(err)
	}
	return err
}

// callAndObserve makes the call and passes its duration and outcome to Observe.
func (b *Breaker) callAndObserve(ctx context.Context, call func() error) error {
	if b.config.Observe == nil {
		return call()
	}
	began := time.Now()
	err := call()
	b.config.Observe(time.Since(began), err != nil && !limit.Answered(err) && !errors.Is(ctx.Err(), context.Canceled))
	return err
}

// concernsCallerOnly reports whether a call failed because the request is invalid or its caller gave up. The error is
// then returned to the caller: it is no failure of the store, and the fallback limiter does not decide.
func concernsCallerOnly(ctx context.Context, err error) bool {
	return errors.Is(err, limit.ErrInvalidRequest) || errors.Is(err, limit.ErrInvalidCost) ||
		errors.Is(err, limit.ErrDuplicateCounter) || errors.Is(ctx.Err(), context.Canceled)
}

// logChange logs the present state. cause is the error of the call after which the state changed.
func (b *Breaker) logChange(cause error) {
	if b.State() == StateClosed {
		b.config.Log.Info("the store answers again", "store", b.config.Name)
		return
	}
	b.config.Log.Warn("the store keeps failing and is not called for a while", "store", b.config.Name, "error",
		cause)
}

// State returns the present state.
func (b *Breaker) State() BreakerState { return BreakerState(b.state.Load()) }

// Stats returns the present state and the counts since the start.
func (b *Breaker) Stats() BreakerStats {
	return BreakerStats{State: b.State(), Opened: b.opened.Load(), Probes: b.probes.Load(), Refused: b.refused.Load()}
}
