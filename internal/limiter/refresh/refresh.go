// Package refresh keeps a value that is read over a network: cached, read again as it ages, and used on where it cannot
// be.
//
// Time arrives from callers, and nothing runs between their calls but a read under way: a process that is frozen after
// each request, as a Lambda is, would stop it. A read that a freeze cut is given up, and another takes its place.
package refresh

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluicelimits/sluice/internal/limiter/clock"
	"github.com/sluicelimits/sluice/internal/limiter/singleflight"
)

// What holds for every value.
const (
	ReadTimeout = 5 * time.Second        // of one read, whoever waits for it
	FrozenAfter = 6 * time.Second        // a read that began longer ago was in a freeze, and its connection is no good
	MaxBackoff  = time.Minute            // between reads that fail, and up to a fifth more
	ReplaceWait = 500 * time.Millisecond // for a value that is old, not missing

	firstBackoff = time.Second // doubled after each further failure
)

var (
	errSlow  = errors.New("the read takes longer than may be waited")
	errCut   = errors.New("the read was cut off")
	errPanic = errors.New("the read panicked")
)

// Config sets up a [Cache]. All of it but RefreshOf is required.
type Config[V any] struct {
	// Read gets the value, or an error why there is none. before is the one in use, nil where there is none yet; where
	// nothing changed it may be returned again. ctx ends after ReadTimeout, with Close, and when the read is given up.
	// A panic is an error that holds nothing of it.
	Read func(ctx context.Context, before *V) (*V, error)

	// Ended is told how a read ended, before those who wait for it go on. Nothing is told of reads that were given up,
	// or that Close ended. Calls may overlap.
	Ended func(End[V])

	Wait time.Duration // that First and Renew wait at most
	// age at which the value is read again, and up to a fifth more; it is overdue at twice this age
	Refresh  time.Duration
	Cooldown time.Duration // least time between two reads, for as long as there is a value

	// RefreshOf is Refresh for one value, where that says it itself; nil is Refresh for all. It is not below Cooldown.
	RefreshOf func(*V) time.Duration
}

// End is how a read ended.
type End[V any] struct {
	Before   *V    // the value in use until then; nil where there was none
	Value    *V    // what was read; nil where Err says why there is none
	Failures int   // in a row: with this one, or before the success that ended them
	Err      error // of Config.Read
}

// Cache has the value. It is safe for concurrent use. Make it with [New].
type Cache[V any] struct {
	c    Config[V]
	held atomic.Pointer[held[V]] // nil until a read succeeds

	mu       sync.Mutex
	flight   *flight       // the read under way; nil while there is none
	begun    clock.Instant // when the latest read was asked for
	gap      time.Duration // after begun, before the next; none before a read ended
	row      int           // failures in a row
	last     error         // of the latest read
	reads    int64
	failures int64
	base     context.Context // ends with Close
	stop     context.CancelFunc
	running  sync.WaitGroup
}

// held is what was read, and how old it may become.
type held[V any] struct {
	value     *V
	from      time.Time     // when the read of it was asked for, by the wall clock
	asked     clock.Instant // the same
	soft, due time.Duration // ages at which it is read again, and at which it is overdue
}

// flight is a read under way.
type flight struct {
	*singleflight.Call // by the caller's clock

	from   time.Time     // when it began, by the caller's wall clock
	since  clock.Instant // when it began, by this process's clock
	cancel context.CancelFunc
}

// Reading is a read that is under way, or none.
type Reading struct {
	flight *flight
	Began  bool // by the call that returned it
}

// New makes a cache, which reads nothing yet.
func New[V any](c Config[V]) *Cache[V] {
	base, stop := context.WithCancel(context.Background()) //nolint:gosec // Close calls stop
	return &Cache[V]{c: c, base: base, stop: stop}
}

// Close ends a read under way and waits for its end. A value that is there stays.
func (k *Cache[V]) Close() {
	k.mu.Lock() // after it, no read begins
	k.stop()
	k.mu.Unlock()
	k.running.Wait()
}

// Value is the latest that was read; nil while there is none.
func (k *Cache[V]) Value() *V {
	if have := k.held.Load(); have != nil {
		return have.value
	}
	return nil
}

// Warm begins to read the value if there is none yet, and does not wait for it.
func (k *Cache[V]) Warm(now time.Time) {
	if k.Value() == nil {
		k.Look(now)
	}
}

// First is the value. Where there is none yet it is read and waited for; the error is why there is still none.
func (k *Cache[V]) First(ctx context.Context, now time.Time) (*V, error) {
	if v := k.Value(); v != nil {
		return v, nil
	}
	err := k.Renew(ctx, now)
	if v := k.Value(); v != nil {
		return v, nil
	}
	if err == nil {
		err = errCut
	}
	return nil, err
}

// Renew is [Cache.Look], waited for. The error is why the value may not be the newest: the wait ended, or the latest
// read failed or was cut off. One that began less than Config.Cooldown ago is new enough.
func (k *Cache[V]) Renew(ctx context.Context, now time.Time) error {
	if err := wait(ctx, k.Look(now).flight, k.c.Wait); err != nil {
		return err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.last
}

// Upkeep is [Cache.Look] where the value is old or there is none. A value that is overdue, as in a process that thawed,
// is one to [Cache.Await] the end of the read for.
func (k *Cache[V]) Upkeep(now time.Time) (r Reading, overdue bool) {
	have := k.held.Load()
	if have == nil {
		return k.Look(now), false
	}
	at := clock.At(now)
	if !at.Due(have.asked, have.soft) {
		return Reading{}, false
	}
	return k.Look(now), at.Due(have.asked, have.due)
}

// Await waits for the end of a read while it is young, up to ReplaceWait from its beginning: with a source that hangs,
// those who come one after the other are not held up one after the other.
func (k *Cache[V]) Await(ctx context.Context, r Reading) {
	if r.flight != nil {
		// the old value is used on
		_ = wait(ctx, r.flight, min(k.c.Wait, ReplaceWait)-clock.Read().Since(r.flight.since))
	}
}

// Look is the read under way. Where there is none it begins one, unless the latest began less than Config.Cooldown ago,
// or failed and is not to be tried again yet.
func (k *Cache[V]) Look(now time.Time) Reading {
	at := clock.At(now)
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.base.Err() != nil {
		return Reading{}
	}
	if k.flight != nil {
		if !at.Due(k.flight.Began, FrozenAfter) {
			return Reading{flight: k.flight}
		}
		k.flight.cancel() // it ends, and nobody asks how
		k.flight, k.last = nil, errCut
	}
	if !at.Due(k.begun, k.gap) {
		return Reading{}
	}
	ctx, cancel := context.WithTimeout(k.base, ReadTimeout)
	f := &flight{Call: singleflight.Begin(at, nil), from: now.Round(0), since: clock.Read(), cancel: cancel}
	k.begun, k.flight = at, f
	k.running.Add(1)
	go k.run(ctx, f)
	return Reading{flight: f, Began: true}
}

// wait waits for the end of a read, if there is one. The error is why it did not.
func wait(ctx context.Context, f *flight, most time.Duration) error {
	if f == nil {
		return nil
	}
	if err := ctx.Err(); err != nil {
		return err // also if the read has just ended, so that a caller that is gone always hears why
	}
	timer := time.NewTimer(most)
	defer timer.Stop()
	select {
	case <-f.Done():
		return nil
	case <-timer.C:
		return errSlow
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (k *Cache[V]) run(ctx context.Context, f *flight) {
	defer k.running.Done()
	defer f.cancel()
	value, err := k.read(ctx)
	defer f.End(err)
	if end, tell := k.finish(f, value, err); tell {
		k.c.Ended(end)
	}
}

func (k *Cache[V]) read(ctx context.Context) (value *V, err error) {
	defer func() {
		if p := recover(); p != nil { // which may hold anything
			value, err = nil, errPanic
		}
	}()
	return k.c.Read(ctx, k.Value())
}

// finish ends a read, with a value or with the error why there is none. One that was given up meanwhile changes
// nothing.
func (k *Cache[V]) finish(f *flight, value *V, err error) (end End[V], tell bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.flight != f {
		return End[V]{}, false
	}
	k.flight = nil
	k.reads++
	before := k.Value()
	if k.last = err; err != nil {
		// The longer it lasts, the longer the next one is away; while there is a value to go on with, at least a
		// cooldown.
		k.gap = spread(min(firstBackoff<<min(k.row, 10), MaxBackoff))
		if before != nil {
			k.gap = max(k.gap, k.c.Cooldown)
		}
		k.failures++
		k.row++
		return End[V]{Before: before, Failures: k.row, Err: err}, k.base.Err() == nil
	}
	end = End[V]{Before: before, Value: value, Failures: k.row}
	k.row, k.gap = 0, k.c.Cooldown
	age := k.c.Refresh
	if k.c.RefreshOf != nil {
		age = k.c.RefreshOf(value)
	}
	k.held.Store(&held[V]{value: value, from: f.from, asked: f.Began, soft: spread(age), due: 2 * age})
	return end, true
}

// spread is d and up to a fifth more, so that instances which began together do not go on together.
func spread(d time.Duration) time.Duration { return d + rand.N(d/5+1) }

// Stats are counts since New, and what is in use.
type Stats[V any] struct {
	Reads    int64 // that ended and were not given up
	Failures int64 // of Reads
	Value    *V
	From     time.Time // when the read of Value was asked for; zero while there is none
}

// Stats returns the counts.
func (k *Cache[V]) Stats() Stats[V] {
	k.mu.Lock()
	defer k.mu.Unlock()
	out := Stats[V]{Reads: k.reads, Failures: k.failures}
	if have := k.held.Load(); have != nil {
		out.Value, out.From = have.value, have.from
	}
	return out
}
