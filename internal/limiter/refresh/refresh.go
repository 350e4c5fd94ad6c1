// Package refresh keeps a value that is read over a network: it caches the value, reads it again as it ages, and goes
// on using it while reads fail.
//
// Callers pass the time. Between their calls, nothing runs except for a read in progress: a process that is frozen
// after each request, as on Lambda, would stop it. A read that was cut off by a freeze is given up, and another one
// takes its place.
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

// Constants for all values.
const (
	ReadTimeout = 5 * time.Second        // of one read, whoever waits for it
	FrozenAfter = 6 * time.Second        // above ReadTimeout: a read that began longer ago was cut off by a freeze
	MaxBackoff  = time.Minute            // the longest time between reads that fail, to which up to a fifth is added
	ReplaceWait = 500 * time.Millisecond // how long callers wait for a value that replaces an old one

	firstBackoff = time.Second // doubled after each further failure
)

var (
	errSlow  = errors.New("the read takes longer than callers wait")
	errCut   = errors.New("the read was cut off by a freeze or by Close")
	errPanic = errors.New("the read panicked")
)

// Config sets up a [Cache]. All fields except for RefreshOf are required.
type Config[V any] struct {
	// Read reads the value. before is the value in use, or nil if there is none yet; Read may return it if nothing has
	// changed. ctx ends after ReadTimeout, with Close, and when the read is given up. A panic becomes an error without
	// the value of the panic.
	Read func(ctx context.Context, before *V) (*V, error)

	// Ended is called when a read has ended, before those who wait for it go on. It is not called for reads that were
	// given up, or that Close ended. Calls may overlap.
	Ended func(End[V])

	Wait time.Duration // how long First and Renew wait at most
	// Refresh is the age at which the value is read again, to which up to a fifth is added. The value is overdue at
	// twice Refresh.
	Refresh  time.Duration
	Cooldown time.Duration // the shortest time between two reads while there is a value

	// RefreshOf returns the Refresh of one value, which must be at least Cooldown. If nil, Refresh is used for every
	// value.
	RefreshOf func(*V) time.Duration
}

// End describes how a read ended.
type End[V any] struct {
	Before   *V    // the value in use until then; nil if there was none
	Value    *V    // the value that was read; nil if Err is set
	Failures int   // how many reads failed in a row: up to this one, or before this success
	Err      error // the error of Config.Read
}

// Cache keeps the value. It is safe for concurrent use. Create it with [New].
type Cache[V any] struct {
	c    Config[V]
	held atomic.Pointer[held[V]] // nil until a read succeeds

	mu       sync.Mutex
	flight   *flight       // the read in progress, or nil
	begun    clock.Instant // when the latest read was requested
	gap      time.Duration // from begun until the next read may begin; 0 before a read has ended
	row      int           // failed reads in a row
	last     error         // the error of the latest read
	reads    int64
	failures int64
	base     context.Context // ends with Close
	stop     context.CancelFunc
	running  sync.WaitGroup
}

// held is the value that was read, with the ages at which it is read again.
type held[V any] struct {
	value     *V
	from      time.Time     // when the read was requested, by the wall clock
	asked     clock.Instant // the same time, by both clocks
	soft, due time.Duration // the ages at which the value is read again, and at which it is overdue
}

// flight is a read in progress.
type flight struct {
	*singleflight.Call // by the caller's clock

	from   time.Time     // when the read began, by the caller's wall clock
	since  clock.Instant // when the read began, by this process's clock
	cancel context.CancelFunc
}

// Reading refers to a read in progress, or to none.
type Reading struct {
	flight *flight
	Began  bool // the call that returned the Reading has begun the read
}

// New returns a cache that has not read anything yet.
func New[V any](c Config[V]) *Cache[V] {
	base, stop := context.WithCancel(context.Background()) //nolint:gosec // Close calls stop
	return &Cache[V]{c: c, base: base, stop: stop}
}

// Close cancels a read in progress and waits for its end. The value stays.
func (k *Cache[V]) Close() {
	k.mu.Lock() // after this, no read begins
	k.stop()
	k.mu.Unlock()
	k.running.Wait()
}

// Value returns the latest value that was read, or nil if there is none.
func (k *Cache[V]) Value() *V {
	if have := k.held.Load(); have != nil {
		return have.value
	}
	return nil
}

// Warm begins to read the value if there is none yet. It does not wait for the read.
func (k *Cache[V]) Warm(now time.Time) {
	if k.Value() == nil {
		k.Look(now)
	}
}

// First returns the value. If there is none yet, First reads it and waits for the read. The error says why there is
// still no value.
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

// Renew does what [Cache.Look] does, and waits for the read. The error says why the value may not be the newest one:
// the wait has ended, or the latest read failed or was cut off. A read that began less than Config.Cooldown ago is new
// enough.
func (k *Cache[V]) Renew(ctx context.Context, now time.Time) error {
	if err := wait(ctx, k.Look(now).flight, k.c.Wait); err != nil {
		return err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.last
}

// Upkeep does what [Cache.Look] does if the value is old or missing. If the value is overdue, as in a process that
// thawed, the caller should wait for the read with [Cache.Await].
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

// Await waits for the end of a read, until ReplaceWait after its beginning. If the source does not answer, one caller
// after another would otherwise be delayed.
func (k *Cache[V]) Await(ctx context.Context, r Reading) {
	if r.flight != nil {
		// after an error, the old value stays in use
		_ = wait(ctx, r.flight, min(k.c.Wait, ReplaceWait)-clock.Read().Since(r.flight.since))
	}
}

// Look returns the read in progress. If there is none, it begins one, unless the latest one began less than
// Config.Cooldown ago, or failed and must not be repeated yet.
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
		k.flight.cancel() // its result is ignored
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

// wait waits for the end of a read, if there is one. The error says why it stopped waiting.
func wait(ctx context.Context, f *flight, most time.Duration) error {
	if f == nil {
		return nil
	}
	if err := ctx.Err(); err != nil {
		return err // also if the read has just ended, so that a caller whose context has ended always gets that error
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
		if p := recover(); p != nil { // the value of the panic may hold anything
			value, err = nil, errPanic
		}
	}()
	return k.c.Read(ctx, k.Value())
}

// finish ends a read, with a value or with an error. If the read was given up meanwhile, it changes nothing.
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
		// The pause grows with each failure. While there is a value, it is at least the cooldown.
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

// spread returns d plus up to a fifth, at random, so that instances that began at the same time do not read at the same
// times.
func spread(d time.Duration) time.Duration { return d + rand.N(d/5+1) }

// Stats holds counts since New, and the value in use.
type Stats[V any] struct {
	Reads    int64 // reads that ended and were not given up
	Failures int64 // failed reads, included in Reads
	Value    *V
	From     time.Time // when the read of Value was requested; zero if there is none
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
