// Package breaker has a circuit breaker, which stops the calls of something that keeps failing, such as a store. It
// measures time by both clocks of the machine ([clock.Instant]), so a process that is frozen between its requests makes
// calls again once the cooldown is over, although its monotonic clock stood still.
package breaker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/sluicelimits/sluice/internal/limiter/clock"
)

// ErrOpen is in the error of a call that a [Breaker] did not make.
var ErrOpen = errors.New("not called, because it keeps failing")

const (
	// failuresToOpen lets a lost packet or a reconnect pass. When a store is gone, five calls wait for their deadlines.
	failuresToOpen = 5

	// callsToJudge is how many calls must have ended before the share of those that failed says something.
	callsToJudge = 4 * failuresToOpen

	// countedFor is long enough for an instance that makes one call a second to reach failuresToOpen, too.
	countedFor = 10 * time.Second
)

// Config sets up a [Breaker].
type Config struct {
	Name string // of the service that is called; errors and log lines contain it

	// Cooldown is how long no call is made once the breaker is open; 0 means 1 s. Each probe that fails doubles it, up
	// to MaxCooldown; 0 means 4 s. Then up to a fifth is added at random, so that instances which lost a store together
	// do not return to it together.
	Cooldown, MaxCooldown time.Duration

	// Judge returns what the error of a call says. If nil, every error means Failed. Whatever it returns, a call that
	// its caller gave up has not failed.
	Judge func(error) Outcome

	Runtime *clock.Runtime // if nil, the machine's

	Log *slog.Logger // gets a line when the breaker opens and when it closes; if nil, nothing is logged
}

// Outcome is what a call says about what was called.
type Outcome uint8

// The outcomes.
const (
	Failed      Outcome = iota // it does not work; also if the call panics
	Succeeded                  // it works, even if the call returned an error
	SaysNothing                // whether it works is not known
)

// Breaker is a circuit breaker. While it is open, a call ends with [ErrOpen] at once. After the cooldown it makes one
// call at a time as a probe, whose outcome decides whether the breaker closes. Make it with [New].
//
// It opens after a call that failed, and that began after another one had failed, if one of these is true:
//   - It is the fifth in a row that has failed.
//   - At least 20 calls have ended, and at least half of them have failed.
//
// Calls that were under way together do not open it, because all of them may have failed in one pause of some
// milliseconds of a healthy store. After 10 s, a row and the count of all calls begin anew.
type Breaker struct {
	config  Config
	refusal error
	now     func() clock.Instant // Runtime.Read, except in tests

	mu        sync.Mutex
	stats     Stats
	changes   int64         // of the state; the outcome of a call that began before the last one is not counted
	cooldown  time.Duration // the last one, without what is added at random
	openUntil clock.Instant // while the breaker is open

	// While the breaker is closed: all calls, and those that failed since the last one that succeeded.
	all, row span
}

// span counts calls that began within countedFor.
type span struct {
	began           clock.Instant // when the first of them began
	calls, failures int64
	firstFailure    int64 // Stats.Failed after the first failure
}

// State is what a breaker does with a call.
type State uint32

// The states.
const (
	Closed  State = iota // every call is made
	Open                 // no call is made
	Probing              // a call is made to find out whether it succeeds
)

// String returns the state's name.
func (s State) String() string { return [...]string{"closed", "open", "probing"}[s] }

// Stats holds the state of a [Breaker], and counts since the start.
type Stats struct {
	State   State
	Opened  int64 // how often the breaker opened; a probe that failed is not counted
	Probes  int64 // how often the breaker began to probe
	Failed  int64 // calls that failed
	Refused int64 // calls that were not made
}

// New makes a breaker that is closed.
func New(config Config) *Breaker {
	config.Cooldown = cmp.Or(config.Cooldown, time.Second)
	config.MaxCooldown = cmp.Or(config.MaxCooldown, 4*time.Second)
	config.Log = cmp.Or(config.Log, slog.New(slog.DiscardHandler))
	return &Breaker{config: config, refusal: fmt.Errorf("%s: %w", config.Name, ErrOpen), now: config.Runtime.Read}
}

// Name returns Config.Name.
func (b *Breaker) Name() string { return b.config.Name }

// State returns the present state.
func (b *Breaker) State() State { return b.Stats().State }

// Stats returns the present state and the counts since the start.
func (b *Breaker) Stats() Stats {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.stats
}

// Reset closes the breaker and forgets all failures. It is for a caller who knows that earlier failures say nothing
// about the present, as after a freeze.
func (b *Breaker) Reset() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.change(Closed)
}

// Do makes the call unless the breaker is open, and returns the call's error. If the call was not made, the error wraps
// [ErrOpen], or is ctx.Err() if ctx has ended.
func (b *Breaker) Do(ctx context.Context, call func() error) (err error) {
	if err := ctx.Err(); err != nil {
		return err
	}
	t, ok := b.admit()
	if !ok {
		return b.refusal
	}
	outcome := Failed // also if the call panics
	defer func() {
		switch before, after := b.settle(t, outcome); {
		case before == Closed && after == Open:
			b.config.Log.Warn("the store keeps failing and is not called for a while", "store", b.config.Name,
				"error", err)
		case before == Probing && after == Closed:
			b.config.Log.Info("the store answers again", "store", b.config.Name)
		}
	}()
	err = call()
	switch {
	case err == nil:
		outcome = Succeeded
	case b.config.Judge != nil:
		outcome = b.config.Judge(err)
	}
	if outcome == Failed && errors.Is(ctx.Err(), context.Canceled) {
		outcome = SaysNothing
	}
	return err
}

// ticket is the permission to make one call.
type ticket struct {
	began           clock.Instant
	changes, failed int64 // Breaker.changes and Stats.Failed when the call began
}

// admit reports whether the call may be made. The first call after a cooldown is a probe.
func (b *Breaker) admit() (t ticket, ok bool) {
	now := b.now()
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.stats.State == Open && !now.Before(b.openUntil):
		b.change(Probing)
		b.stats.Probes++
	case b.stats.State != Closed:
		b.stats.Refused++
		return ticket{}, false
	}
	return ticket{now, b.changes, b.stats.Failed}, true
}

// settle counts the outcome of a call, and returns the state before and after that.
func (b *Breaker) settle(t ticket, outcome Outcome) (before, after State) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if outcome == Failed {
		b.stats.Failed++
	}
	before = b.stats.State
	switch {
	case t.changes != b.changes:
	case before == Probing && outcome == Failed:
		b.open(2 * b.cooldown)
	case before == Probing && outcome == Succeeded:
		b.change(Closed)
	case before == Probing: // nothing is known yet, and the cooldown is over: the next call is the next probe
		b.change(Open)
	case outcome != SaysNothing && b.count(t, outcome):
		b.stats.Opened++
		b.open(b.config.Cooldown)
	}
	return before, b.stats.State
}

// count counts a call of the closed breaker and reports whether the breaker opens. b.mu is held.
func (b *Breaker) count(t ticket, outcome Outcome) (opens bool) {
	b.all.add(t, outcome, b.stats.Failed)
	if outcome == Succeeded {
		b.row = span{}
		return false
	}
	b.row.add(t, outcome, b.stats.Failed)
	return b.row.failures >= failuresToOpen && t.failed >= b.row.firstFailure ||
		b.all.calls >= callsToJudge && 2*b.all.failures >= b.all.calls && t.failed >= b.all.firstFailure
}

// add counts a call. failed is Stats.Failed, including this call.
func (s *span) add(t ticket, outcome Outcome, failed int64) {
	if t.began.Since(s.began) >= countedFor {
		*s = span{began: t.began}
	}
	s.calls++
	if outcome == Failed {
		if s.failures++; s.failures == 1 {
			s.firstFailure = failed
		}
	}
}

// open begins a cooldown. b.mu is held.
func (b *Breaker) open(cooldown time.Duration) {
	b.change(Open)
	b.cooldown = min(cooldown, b.config.MaxCooldown)
	b.openUntil = b.now().Add(b.cooldown + b.config.Runtime.RandomUpTo(b.cooldown/5+1))
}

// change changes the state. b.mu is held.
func (b *Breaker) change(to State) {
	b.stats.State = to
	b.changes++
	b.all, b.row = span{}, span{}
}
