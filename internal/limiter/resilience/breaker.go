package resilience

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/sluicelimits/sluice/internal/limiter/clock"
	"github.com/sluicelimits/sluice/internal/limiter/limit"
)

// ErrBreakerOpen is in the error of a call that a [Breaker] did not make. Nothing was sent to the store.
var ErrBreakerOpen = errors.New("not called, because it keeps failing")

// BreakerConfig sets up a [Breaker].
type BreakerConfig struct {
	Name string // of the store, for errors and the log; required

	// Failures says when the breaker opens. It opens when, within Window, one of these has happened:
	//   - Failures calls have failed, and none has succeeded between them
	//   - at least 4 × Failures calls have ended, and at least half of them have failed
	// In either case, unless Failures is 1, one of the failed calls must have begun after another one had failed:
	// calls that were under way together may all have failed in one pause of some milliseconds of a healthy store.
	//
	// 0 means 5. Then a lost packet or a reconnect does not open the breaker, and five calls wait for their deadlines
	// before the breaker of a store that is gone opens.
	Failures int

	// Window is at least 1 s. 0 means 10 s, in which an instance that makes one call a second reaches Failures, too.
	Window time.Duration

	// Cooldown is how long the store is not called once the breaker is open; 0 means 1 s. Each probe that fails doubles
	// it, up to MaxCooldown; 0 means 4 s, or Cooldown if that is longer. Then up to a fifth is added at random, so that
	// instances which lost a store together do not return to it together.
	Cooldown, MaxCooldown time.Duration

	// Observe is called after each call that is made, with how long the call took and whether the store failed. A store
	// that answers with an error has not failed, nor has one whose caller gave the call up. The decision waits until
	// Observe returns. If it is nil, nothing is observed.
	Observe func(took time.Duration, failed bool)

	Runtime *clock.Runtime // if nil, the machine's

	Log *slog.Logger // gets a line when the breaker opens and when it closes; default slog.Default()
}

// Breaker is a circuit breaker: it stops the calls of a store that keeps failing. While it is open, a call ends with
// [ErrBreakerOpen] at once. After the cooldown it makes one call at a time as a probe, whose outcome decides whether
// the breaker closes. Make it with [NewBreaker].
//
// An error by which the store answered ([limit.Answered]) is no failure, and neither is a call that its caller gave up.
// So one tenant's request, or one tenant's stored data, cannot open the breaker for other tenants.
type Breaker struct {
	config  BreakerConfig
	refusal error
	now     func() clock.Instant // Runtime.Read, except in tests

	mu        sync.Mutex
	stats     BreakerStats
	changes   int64         // of the state; the outcome of a call that began before the last one is not counted
	openUntil clock.Instant // while the breaker is open
	rounds    int64         // failed rounds since the start: see tally

	failedProbes int // in a row
	tallies      [windowParts]tally
	newest       int // index in tallies
}

// windowParts is into how many parts Window is divided. What is older than Window is forgotten one part at a time.
const windowParts = 10

// tally counts calls that began within one tenth of Window. A slow call is counted in the newest tally when it ends,
// although it began earlier. A failed round is one or more calls that failed together: each of them began before the
// first of them had failed.
type tally struct {
	began                      clock.Instant
	calls, failures, rounds    int
	failuresInRow, roundsInRow int // failures and failed rounds since the last call that succeeded
}

// Name returns the store's name, which the metrics show.
func (b *Breaker) Name() string { return b.config.Name }

// BreakerState is what a breaker does with a call.
type BreakerState uint32

// The states.
const (
	StateClosed  BreakerState = iota // every call is made
	StateOpen                        // no call is made
	StateProbing                     // a call is made to find out whether the store answers
)

// String returns the state's name.
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
	return &Breaker{config: config, refusal: fmt.Errorf("%s: %w", config.Name, ErrBreakerOpen),
		now: config.Runtime.Read}, nil
}

// minFailedRounds is how many rounds must have failed for the breaker to open: two, because the calls of one round may
// all have met one pause of a store that is well.
const minFailedRounds = 2

// opens reports whether the breaker opens after the calls of the last Window. See BreakerConfig.Failures. b.mu is held.
func (b *Breaker) opens(now clock.Instant) bool {
	var sum tally
	for i := range b.tallies {
		if s := &b.tallies[i]; now.Since(s.began) < b.config.Window {
			sum.calls += s.calls
			sum.failures += s.failures
			sum.rounds += s.rounds
			sum.failuresInRow += s.failuresInRow
			sum.roundsInRow += s.roundsInRow
		}
	}
	least := min(b.config.Failures, minFailedRounds)
	return sum.failuresInRow >= b.config.Failures && sum.roundsInRow >= least ||
		sum.calls >= 4*b.config.Failures && 2*sum.failures >= sum.calls && sum.rounds >= least
}

// change changes the state. b.mu is held.
func (b *Breaker) change(to BreakerState) {
	b.stats.State = to
	b.changes++
	b.tallies = [windowParts]tally{}
}

// open begins a cooldown. b.mu is held.
func (b *Breaker) open(now clock.Instant) {
	b.change(StateOpen)
	b.openUntil = now.Add(b.cooldown())
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

// Reset closes the breaker and forgets all failures. It is for a caller who knows that earlier failures say nothing
// about the store's present state, as after a freeze.
func (b *Breaker) Reset() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.change(StateClosed)
}

// outcome is what a call says about the store.
type outcome uint8

const (
	failed    outcome = iota // also if the call panics
	succeeded                // or the store answered that it is full
	saysNothing
)

// ticket is the permission to make one call.
type ticket struct {
	began           clock.Instant
	changes, rounds int64 // those of the breaker when the call began
}

// Do makes the call unless the breaker is open, and returns the call's error. If the call was not made, the error wraps
// [ErrBreakerOpen], or is ctx.Err() if ctx has ended.
func (b *Breaker) Do(ctx context.Context, call func() error) (err error) {
	if err := ctx.Err(); err != nil {
		return err
	}
	t := ticket{began: b.now()}
	if !b.admit(&t) {
		return b.refusal
	}
	result := failed
	defer func() {
		before, after := b.settle(&t, result)
		switch {
		case before == StateClosed && after == StateOpen:
			b.config.Log.Warn("the store keeps failing and is not called for a while", "store", b.config.Name,
				"error", err)
		case before == StateProbing && after == StateClosed:
			b.config.Log.Info("the store answers again", "store", b.config.Name)
		}
	}()
	err = b.callAndObserve(ctx, call)
	switch {
	case err == nil || errors.Is(err, limit.ErrFull):
		result = succeeded
	case limit.Answered(err) || concernsCallerOnly(ctx, err):
		result = saysNothing
	}
	return err
}

// admit fills in the ticket and reports whether the call may be made. The first call after a cooldown is a probe.
func (b *Breaker) admit(t *ticket) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch b.stats.State {
	case StateOpen:
		if !t.began.Before(b.openUntil) {
			b.change(StateProbing)
			b.stats.Probes++
			break
		}
		fallthrough
	case StateProbing:
		b.stats.Refused++
		return false
	case StateClosed:
	}
	t.changes, t.rounds = b.changes, b.rounds
	return true
}

// settle counts the outcome of a call, and returns the state before and after that.
func (b *Breaker) settle(t *ticket, result outcome) (before, after BreakerState) {
	ended := t.began
	if result == failed {
		ended = b.now()
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	before = b.stats.State
	switch {
	case t.changes != b.changes:
	case before == StateProbing && result == failed:
		b.failedProbes++
		b.open(ended)
	case before == StateProbing && result == succeeded:
		b.change(StateClosed)
	case before == StateProbing: // nothing is known yet, and the cooldown is over: the next call is the next probe
		b.change(StateOpen)
	case result != saysNothing:
		b.count(t, result)
		if result == failed && b.opens(ended) {
			b.stats.Opened++
			b.failedProbes = 0
			b.open(ended)
		}
	}
	return before, b.stats.State
}

// count counts a call in the newest tally. b.mu is held.
func (b *Breaker) count(t *ticket, result outcome) {
	s := &b.tallies[b.newest]
	if t.began.Since(s.began) >= b.config.Window/windowParts {
		b.newest = (b.newest + 1) % windowParts
		s = &b.tallies[b.newest]
		*s = tally{began: t.began}
	}
	s.calls++
	if result == succeeded {
		for i := range b.tallies {
			b.tallies[i].failuresInRow, b.tallies[i].roundsInRow = 0, 0
		}
		return
	}
	s.failures++
	s.failuresInRow++
	if t.rounds == b.rounds {
		b.rounds++
		s.rounds++
		s.roundsInRow++
	}
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

// State returns the present state.
func (b *Breaker) State() BreakerState { return b.Stats().State }

// Stats returns the present state and the counts since the start.
func (b *Breaker) Stats() BreakerStats {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.stats
}
