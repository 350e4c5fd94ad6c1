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
)

var _ limit.Store = (*Breaker)(nil)

// ErrBreakerOpen is in the error of a [Breaker] that did not ask its store: nothing was sent.
var ErrBreakerOpen = errors.New("not asked, for it has been failing")

// errOwn tells gobreaker that a call says nothing about the store.
var errOwn = errors.New("the caller's own affair")

// BreakerConfig sets up a [Breaker].
type BreakerConfig struct {
	Store limit.Store // required
	Name  string      // of the store, for errors and the log; required

	// Failures open the breaker if no call succeeded between them, all within Window; so does a Window in which at least half
	// of 4 × Failures calls or more failed. Some of them must have begun after others had failed: calls that fail together may be
	// those of one pause of some milliseconds. 0 means 5: a lost packet or a reconnect does not open it, and a store that is gone
	// has cost five calls their deadline.
	Failures int
	Window   time.Duration // 0 means 10 s, at least 1 s: an instance with a call a second must notice, too

	// Cooldown is how long the store is not asked, lengthened by up to a fifth, so that instances which lost a store together
	// do not return to it together. Each probe that fails doubles it, up to MaxCooldown. 0 means 1 s and 4 s.
	Cooldown, MaxCooldown time.Duration

	Log *slog.Logger // default slog.Default(); a line when it opens and when it closes
}

// Breaker is a [limit.Store] that stops asking one that keeps failing. While it is open a call is [ErrBreakerOpen] at once; after the
// cooldown one call at a time is let through as a probe, and decides whether the breaker closes. Make it with [NewBreaker].
//
// An error that says the store answered ([limit.Answered]) is no failure, and neither is a call that its caller gave up. So
// one tenant's request, or one tenant's stored data, cannot open the breaker for the others.
type Breaker struct {
	c       BreakerConfig
	refusal error
	current atomic.Pointer[life]
	until   atomic.Pointer[instant] // before which nothing is asked; nil: now
	now     func() instant
	state   atomic.Uint32
	news    atomic.Bool // the state changed, and nobody has said so yet

	// Failures of calls none of which began before the one before had failed: all, and those since a call succeeded.
	rounds, inRow atomic.Int64
	base          atomic.Int64 // rounds when it closed

	mu     sync.Mutex
	failed int // probes in a row

	opened, probes, refused atomic.Int64
}

// life is a breaker between two thaws of the process. gobreaker goes by the monotonic clock alone, which may stand still in a
// process that is frozen between requests: a cooldown would then last for as many requests as fit into it.
type life struct {
	// gobreaker and not failsafe-go: it ignores what a call that began before the state changed comes to, where failsafe-go
	// takes that for the probe's outcome and gives out a second permit. It has no jitter, hence Breaker.until.
	*gobreaker.CircuitBreaker[struct{}]

	// probing says that it began in the place of one that was open, and no call has succeeded. The first failure opens it. Until
	// then it lets all calls through, but a process that was frozen begins with one.
	probing atomic.Bool
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
	b := &Breaker{c: c, refusal: fmt.Errorf("%s: %w", c.Name, ErrBreakerOpen), now: read}
	b.current.Store(b.begin(false))
	return b, nil
}

func (b *Breaker) begin(probing bool) *life {
	l := new(life)
	l.probing.Store(probing)
	l.CircuitBreaker = gobreaker.NewCircuitBreaker[struct{}](gobreaker.Settings{
		Name: b.c.Name, MaxRequests: 1, Interval: b.c.Window, BucketPeriod: b.c.Window / 10, Timeout: b.c.Cooldown,
		ReadyToTrip:   func(n gobreaker.Counts) bool { return l.probing.Load() || b.burst(n) },
		OnStateChange: func(_ string, from, to gobreaker.State) { b.changed(l, from, to) },
		IsExcluded:    func(err error) bool { return errors.Is(err, errOwn) },
	})
	return l
}

// thaw puts a new breaker in the place of one whose cooldown is over and which may not know it.
func (b *Breaker) thaw(old *life) *life {
	b.mu.Lock()
	defer b.mu.Unlock()
	if now := b.current.Load(); now != old {
		return now
	}
	l := b.begin(true)
	b.current.Store(l)
	b.until.Store(nil)
	b.state.Store(uint32(StateProbing))
	b.probes.Add(1)
	return l
}

const pauses = 2 // that a store must have made, at least: calls that failed, the one begun after the other had

// burst reports whether these failures open the breaker.
func (b *Breaker) burst(n gobreaker.Counts) bool {
	least := min(int64(b.c.Failures), pauses)
	return int(n.ConsecutiveFailures) >= b.c.Failures && b.inRow.Load() >= least ||
		int(n.TotalSuccesses+n.TotalFailures) >= 4*b.c.Failures && n.TotalFailures >= n.TotalSuccesses && b.rounds.Load()-b.base.Load() >= least
}

// changed is called under gobreaker's lock, so it only takes notes. What calls of an earlier life come to is none of this one's
// affair.
func (b *Breaker) changed(l *life, from, to gobreaker.State) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.current.Load() != l {
		return
	}
	switch to {
	case gobreaker.StateOpen:
		if from == gobreaker.StateClosed && !l.probing.Load() {
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
		until := b.now().plus(cooldown)
		b.until.Store(&until)
		b.state.Store(uint32(StateOpen))
	case gobreaker.StateHalfOpen:
		b.probes.Add(1)
		b.state.Store(uint32(StateProbing))
	case gobreaker.StateClosed:
		b.closed()
	}
}

func (b *Breaker) closed() {
	b.base.Store(b.rounds.Load())
	b.inRow.Store(0)
	b.until.Store(nil)
	b.state.Store(uint32(StateClosed))
	b.news.Store(true)
}

// succeeded ends the probing after a thaw.
func (b *Breaker) succeeded(l *life) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if l.probing.Swap(false) && b.current.Load() == l {
		b.failed = 0
		b.closed()
	}
}

// through calls the store unless the breaker is open.
func (b *Breaker) through(ctx context.Context, call func() error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	l := b.current.Load()
	if until := b.until.Load(); until != nil {
		switch now := b.now(); {
		case now.before(*until):
			b.refused.Add(1)
			return b.refusal
		case now.mono < until.mono: // what gobreaker goes by
			l = b.thaw(l)
		}
	}
	var err error
	called := false
	_, _ = l.Execute(func() (struct{}, error) { // its error is ours, or says that it did not call
		called = true
		round := b.rounds.Load()
		if err = call(); err == nil || errors.Is(err, limit.ErrFull) {
			b.inRow.Store(0)
			return struct{}{}, nil
		} else if limit.Answered(err) || own(ctx, err) {
			return struct{}{}, errOwn
		}
		if b.rounds.CompareAndSwap(round, round+1) {
			b.inRow.Add(1)
		}
		return struct{}{}, err
	})
	if !called {
		b.refused.Add(1)
		return b.refusal
	}
	if l.probing.Load() && (err == nil || errors.Is(err, limit.ErrFull)) {
		b.succeeded(l)
	}
	if b.news.Load() && b.news.Swap(false) {
		b.say(err)
	}
	return err
}

// own reports whether the request is invalid or its caller gave up. Such an error is returned: no fallback decides for it.
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

// AcceptsPlan asks the store beneath. See [limit.PlanAccepter].
func (b *Breaker) AcceptsPlan(all []*limit.Limit, together ...[]*limit.Limit) error {
	return limit.AcceptsPlan(b.c.Store, all, together...)
}

// Accepts says whether the store can keep the limit's counters, whatever state the breaker is in.
func (b *Breaker) Accepts(l *limit.Limit) error { return b.c.Store.Accepts(l) }
