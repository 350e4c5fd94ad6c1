package pacer

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/sluicelimits/sluice/internal/limiter/clock"
)

// Config sets up a [Pacer]. Only Limit is required.
type Config struct {
	Limit     Limit
	Guard     Guard
	Smoothing Smoothing // FrontLoaded, the default, or Spread

	// Shared makes the pacer share the limit with other pacers. If nil, this pacer alone uses the limit.
	Shared *Shared

	// Part makes the pacer use a part of the limit, which is divided among several instances. If nil, the limit is not
	// divided.
	Part *Part

	// MaxWaiting is the number of requests that may wait at once, 1..2^31; 0 means DefaultMaxWaiting. Further requests
	// fail with ErrFull. A waiting ticket takes 64 bytes, and each key some 150 more.
	MaxWaiting int
}

// Waker is called when the turn of a ticket has come.
type Waker interface {
	// Wake is called once for each ticket that Enqueue accepted, unless Cancel returned true. If err is nil, the permit
	// is granted. Otherwise err wraps ErrExpired, ErrNever or ErrClosed, and nothing is granted.
	//
	// Wake may be called before Enqueue returns, and by any goroutine that uses the pacer. It must not block or panic,
	// because no other waker is called until it returns. It may call methods of the pacer.
	Wake(p Permit, err error)
}

// WakerFunc makes a [Waker] of a function.
type WakerFunc func(p Permit, err error)

// Wake calls f.
func (f WakerFunc) Wake(p Permit, err error) { f(p, err) }

// Ticket is a place in the queue.
type Ticket struct {
	// Earliest is the earliest possible time of the grant, as estimated when the ticket was made, see [LateError]. It
	// carries a reading of the monotonic clock.
	Earliest time.Time

	place place
}

// Forever is a longest wait that never ends.
const Forever = never

// Counts are numbers of units and requests since the pacer was made.
type Counts struct {
	Asked    int64 // units of the requests that were granted at once or took a place in the queue
	Granted  int64 // units that were granted
	Returned int64 // of Granted: units that were given back in time to be granted again
	Lost     int64 // of Granted: units that were given back after their window had closed
	Excess   int64 // units that were spent in addition to those granted, see [Permit.Settle]

	AtOnce   int64 // requests that were granted without taking a place in the queue
	Refused  int64 // requests that failed at once with a LateError
	Expired  int64 // tickets whose longest wait passed
	Canceled int64 // tickets that were canceled, also by the end of a context

	LedgerCalls  int64 // calls to the ledger of a shared limit
	LedgerErrors int64 // of LedgerCalls: those that failed
}

// Status describes the present state of a pacer.
type Status struct {
	Counts

	Limit        Limit
	Waiting      int   // tickets in the queue
	WaitingUnits int64 // their cost
	WaitingKeys  int   // keys with tickets in the queue

	Window int64 // number of the provider's window
	Units  int64 // units that may be granted in the window
	Used   int64 // units of the window that are granted
}

// Pacer makes requests wait until they fit under a limit. It is safe for concurrent use. Make it with [New].
//
// A pacer has one timer, which runs only while requests wait. A pacer that shares its limit also has a goroutine, which
// Close ends.
type Pacer struct {
	origin     time.Time // monotonic times are counted from here
	maxWaiting int

	mu   gate
	core core

	share   *shareRun          // nil: the limit is not shared
	readAt  time.Duration      // the monotonic time until which the latest reading of the wall clock is used
	timer   *time.Timer        // nil until a request waits
	timerAt time.Duration      // when the timer fires; never: it is stopped
	serving bool               // a goroutine is calling wakers, and will look for further tickets to serve
	batch   [wakeBatch]outcome // used by that goroutine; not on its stack, because this would double its stack's size
	closed  bool
}

const (
	// wallInterval is how long one reading of the wall clock is used. Reading only the monotonic clock takes half of
	// the time that it takes to read both.
	wallInterval = 10 * time.Millisecond

	// shortestSleep is the shortest time for which the timer is set. An idle Go program rounds its timers to a
	// millisecond, so a shorter time would gain little. All tickets that are due after a sleep are served together.
	shortestSleep = 500 * time.Microsecond

	// longestSleep is the longest time until a pacer notices that the wall clock was set forward.
	longestSleep = time.Second

	wakeBatch = 32 // number of tickets that are taken out of the queue before the lock is released to wake them
)

// New makes a pacer. The error wraps ErrConfig.
func New(c Config) (*Pacer, error) {
	if c.MaxWaiting == 0 {
		c.MaxWaiting = DefaultMaxWaiting
	}
	if c.MaxWaiting < 1 || c.MaxWaiting > 1<<31 {
		return nil, fmt.Errorf("%w: MaxWaiting of %d is not within 1..%d", ErrConfig, c.MaxWaiting, 1<<31)
	}
	if c.Smoothing > Spread {
		return nil, fmt.Errorf("%w: %s is neither FrontLoaded nor Spread", ErrConfig, c.Smoothing)
	}
	if err := c.Limit.check(); err != nil {
		return nil, err
	}
	if err := errors.Join(c.Guard.check(c.Limit.Period), c.Shared.check(&c),
		c.Part.check(&c)); err != nil {
		return nil, err
	}
	now := time.Now()
	p := &Pacer{origin: now, maxWaiting: c.MaxWaiting, timerAt: never}
	p.core = core{queue: newQueue(), supply: supply{limit: c.Limit, guard: c.Guard, smoothing: c.Smoothing}}
	p.core.supply.shared = c.Shared != nil
	if c.Part != nil {
		p.core.supply.part = &parts{index: c.Part.Index, total: c.Limit.Units, instances: c.Part.Instances}
	}
	p.core.supply.advance(clock.Instant{Wall: time.Duration(now.UnixNano())})
	if c.Shared != nil {
		p.beginSharing(c.Shared, c.Limit)
	}
	return p, nil
}

// Acquire waits until cost units of a key are granted, or until ctx ends. Any text is a key. If the context has a
// deadline that lies before the earliest possible time of the grant, Acquire fails at once with a [*LateError]. Other
// errors wrap ErrCost, ErrNever, ErrFull, ErrClosed, or the cause of the context's end.
func (p *Pacer) Acquire(ctx context.Context, key string, cost int64) (Permit, error) {
	if ctx.Err() != nil {
		return Permit{}, context.Cause(ctx)
	}
	if serial, useBy, total := p.grantByGate(cost); total != 0 {
		return Permit{p, cost, serial, useBy, total}, nil
	}
	if permit, ok := p.grantOrLock(cost); ok {
		return permit, nil
	}
	return p.waitAndUnlock(ctx, key, cost)
}

// grantOrLock grants cost units if no request waits and the units are free. Otherwise it returns false, with the lock
// held.
func (p *Pacer) grantOrLock(cost int64) (Permit, bool) {
	p.mu.Lock()
	if now := p.now(); p.core.queue.waiting == 0 && cost > 0 && !p.closed {
		p.core.supply.pass(now, false)
		if permit, ok := p.core.grant(cost, now); ok {
			p.core.counts.Asked += cost
			p.core.counts.AtOnce++
			p.openGate()
			p.mu.Unlock()
			permit.pacer = p
			return permit, true
		}
	}
	return Permit{}, false
}

// waitAndUnlock takes a place in the queue, releases the lock, and waits for the grant or the end of ctx.
func (p *Pacer) waitAndUnlock(ctx context.Context, key string, cost int64) (Permit, error) {
	now, latest := p.now(), never
	if deadline, ok := ctx.Deadline(); ok {
		latest = after(now, time.Until(deadline))
	}
	done := make(chan outcome, 1)
	_, err := p.enqueue(key, cost, latest, never, now, WakerFunc(func(permit Permit, err error) {
		done <- outcome{permit: permit, err: err}
	}))
	if err != nil {
		p.mu.Unlock()
		return Permit{}, err
	}
	place := p.core.queue.latest
	p.serveAndUnlock(now)
	select {
	case o := <-done:
		return o.permit, o.err
	case <-ctx.Done():
	}
	if p.cancel(place) {
		return Permit{}, fmt.Errorf("pacer: wait for %d units for key %q: %w", cost, key, context.Cause(ctx))
	}
	o := <-done // the grant came first, and must not be lost
	return o.permit, o.err
}

// TryAcquire grants cost units if no request waits and the units are free. It never waits. If the limit is shared, the
// pacer leases units of the next window for calls that fail. It does not know whether these are attempts of one
// request, so what it leases for them at most doubles from window to window.
func (p *Pacer) TryAcquire(cost int64) (Permit, bool) {
	if serial, useBy, total := p.grantByGate(cost); total != 0 {
		return Permit{p, cost, serial, useBy, total}, true
	}
	permit, ok := p.grantOrLock(cost)
	if !ok {
		if p.share != nil {
			p.share.observeTry(&p.core, cost)
		}
		p.mu.Unlock()
	}
	return permit, ok
}

// Enqueue is Acquire without a goroutine: it returns at once, and w is woken later. maxWait is the longest wait, 0 or
// more; Forever has no end. If the earliest possible time of the grant lies beyond it, Enqueue fails with a
// [*LateError] and w is not woken. Other errors wrap ErrCost, ErrNever, ErrFull or ErrClosed.
func (p *Pacer) Enqueue(key string, cost int64, maxWait time.Duration, w Waker) (Ticket, error) {
	p.mu.Lock()
	now := p.now()
	latest := after(now, max(maxWait, 0))
	earliest, err := p.enqueue(key, cost, latest, latest, now, w)
	if err != nil {
		p.mu.Unlock()
		return Ticket{}, err
	}
	t := Ticket{Earliest: p.timeOf(earliest), place: p.core.queue.latest}
	p.serveAndUnlock(now)
	return t, nil
}

// enqueue appends a ticket to the queue of its key, and returns the earliest possible time of its grant. A grant after
// latest is too late. After expires, the ticket leaves the queue with ErrExpired.
func (p *Pacer) enqueue(key string, cost int64, latest, expires, now time.Duration, w Waker) (time.Duration, error) {
	if p.closed || cost < 1 || cost > p.core.supply.limit.Units || p.core.queue.waiting >= p.maxWaiting {
		return 0, p.refusal(cost)
	}
	if p.core.queue.waiting == 0 {
		p.core.supply.pass(now, false)
	}
	earliest := p.core.earliest(key, cost, now)
	if earliest > latest {
		return 0, p.lateError(key, cost, earliest, latest)
	}
	p.core.queue.push(key, cost, expires, w)
	p.core.counts.Asked += cost
	return earliest, nil
}

// refusal returns the reason why a ticket with the given cost was not accepted.
func (p *Pacer) refusal(cost int64) error {
	switch {
	case p.closed:
		return ErrClosed
	case cost < 1 || cost > MaxUnits:
		return fmt.Errorf("%w: %d units are not within 1..%d", ErrCost, cost, int64(MaxUnits))
	case cost > p.core.supply.limit.Units:
		return p.core.neverError(cost)
	}
	return fmt.Errorf("%w: %d", ErrFull, p.core.queue.waiting)
}

func (p *Pacer) lateError(key string, cost int64, earliest, latest time.Duration) error {
	p.core.counts.Refused++
	return &LateError{Key: key, Cost: cost, Earliest: p.timeOf(earliest), Late: earliest - latest}
}

// Cancel takes a ticket out of the queue, so that the tickets behind it move up. If it returns true, the ticket's waker
// is never called. If it returns false, the waker has been called or is about to be called, and the caller uses or
// releases the permit that the waker gets. Canceling a ticket a second time does nothing and returns false.
func (p *Pacer) Cancel(t Ticket) bool { return p.cancel(t.place) }

func (p *Pacer) cancel(t place) bool {
	p.mu.Lock()
	q := p.core.queue
	i := q.find(t)
	if i == 0 {
		p.mu.Unlock()
		return false
	}
	p.core.counts.Canceled++
	first, cost := q.isFirst(i), q.at(i).cost
	q.remove(i)
	if next := q.next(); first && next != 0 && q.at(next).cost < cost {
		p.serveAndUnlock(p.now()) // the units that are left may be enough for the next ticket
	} else {
		p.mu.Unlock()
	}
	return true
}

// SetLimit replaces the limit at once, also for requests that wait already. Units that were granted in the open window
// count towards the new limit. If the period changes, nothing is granted until a window of the new period begins. The
// error wraps ErrConfig; the old limit then stays. Use [Pacer.SetSharedLimit] to change a shared limit, and
// [Pacer.SetPlan] to change one that is divided.
func (p *Pacer) SetLimit(l Limit) error {
	p.mu.Lock()
	if p.share != nil || p.core.supply.part != nil {
		p.mu.Unlock()
		return fmt.Errorf("%w: the limit is that of several instances: SetSharedLimit or SetPlan changes it", ErrConfig)
	}
	if err := errors.Join(l.check(), p.core.supply.guard.check(l.Period)); err != nil {
		p.mu.Unlock()
		return err
	}
	p.readBoth()
	p.core.supply.setLimit(l)
	now := p.readBoth().Mono // for the edges of the new windows
	p.serveAndUnlock(now)
	return nil
}

// SetWeight gives a key a weight, 1..MaxWeight, for all grants that follow. By default, keys have weight 1. The pacer
// remembers any other weight until SetWeight is called again for the key. The error wraps ErrWeight.
func (p *Pacer) SetWeight(key string, weight int64) error {
	if weight < 1 || weight > MaxWeight {
		return fmt.Errorf("%w: %d for key %q is not within 1..%d", ErrWeight, weight, key, MaxWeight)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.core.queue.setWeight(key, weight)
	return nil
}

// Status returns the present state of the pacer.
func (p *Pacer) Status() Status {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.status()
}

// status is called with the lock held.
func (p *Pacer) status() Status {
	p.now()
	q, s := p.core.queue, &p.core.supply
	return Status{
		Counts: p.core.counts, Limit: s.limit,
		Waiting: q.waiting, WaitingUnits: q.units, WaitingKeys: len(q.busy.items),
		Window: s.number, Units: s.units, Used: s.used,
	}
}

// Close makes all waiting and all further requests fail with ErrClosed. It returns the leased units of a shared limit
// to the ledger, if the ledger answers within a period. If another goroutine is calling wakers, that goroutine also
// calls those of the requests that fail, possibly after Close has returned.
func (p *Pacer) Close() {
	p.mu.Lock()
	now, first := p.now(), !p.closed
	p.closed = true
	p.serveAndUnlock(now)
	if p.share != nil && first {
		p.endSharing()
	}
}

// now returns the monotonic time. It reads the wall clock, too, if the latest reading is too old to be used. It is
// called with the lock held.
func (p *Pacer) now() time.Duration {
	mono := time.Since(p.origin)
	if mono < p.readAt {
		return mono
	}
	return p.readBoth().Mono
}

// readBoth reads both clocks, and updates the supply. If one of the clocks seems to have jumped, it reads them once
// more, because the goroutine may have been suspended between the readings of the two.
func (p *Pacer) readBoth() clock.Instant {
	s := &p.core.supply
	now := p.instant()
	if step(s.read, now) > clockStep {
		now = p.instant()
	}
	s.advance(now)
	p.readAt = now.Mono + wallInterval
	for _, edge := range [...]time.Duration{s.opens, s.closes, s.begin + s.limit.Period} {
		if edge > now.Mono {
			p.readAt = min(p.readAt, edge)
		}
	}
	return now
}

// instant returns one reading of both clocks.
func (p *Pacer) instant() clock.Instant {
	now := time.Now()
	return clock.Instant{Mono: now.Sub(p.origin), Wall: time.Duration(now.UnixNano())}
}

// timeOf returns the time of day at a monotonic time.
func (p *Pacer) timeOf(mono time.Duration) time.Time { return p.origin.Add(mono) }

// serveAndUnlock wakes the tickets whose turn has come, sets the timer, and releases the lock. It calls wakers without
// holding the lock, in the order of their grants. If another goroutine is already doing this, it leaves the work to
// that goroutine.
func (p *Pacer) serveAndUnlock(now time.Duration) {
	if p.serving {
		p.mu.Unlock()
		return
	}
	p.serving = true
	for {
		var n int
		if p.closed {
			n = p.core.cancelAll(p.batch[:], ErrClosed)
		} else if p.core.servable(now) { // serve alone would do, and would need more of the stack
			n = p.core.serve(now, p.batch[:])
		}
		if n == 0 {
			break
		}
		p.mu.Unlock()
		for i := range n {
			o := &p.batch[i]
			if o.err == nil {
				o.permit.pacer = p
			}
			o.waker.Wake(o.permit, o.err)
		}
		clear(p.batch[:n])
		p.mu.Lock()
		now = p.now()
	}
	p.serving = false
	p.setTimer(now)
	if p.share != nil && !p.closed {
		p.share.look(&p.core)
	}
	p.mu.Unlock()
}

// setTimer sets the timer to the next time at which there is something to do. If the timer fires earlier than that, it
// is left as it is.
func (p *Pacer) setTimer(now time.Duration) {
	at := p.core.nextServe(now)
	if at == never {
		if p.timerAt != never {
			p.timer.Stop()
			p.timerAt = never
		}
		return
	}
	at = min(max(at, now+shortestSleep), now+longestSleep)
	if p.timerAt <= at {
		return
	}
	p.timerAt = at
	if p.timer == nil {
		p.timer = time.AfterFunc(at-now, p.fire)
		return
	}
	p.timer.Reset(at - now)
}

func (p *Pacer) fire() {
	p.mu.Lock()
	now := p.now()
	p.timerAt = never
	p.serveAndUnlock(now)
}
