package clock

import (
	"context"
	"hash/maphash"
	"math/rand/v2"
	"time"
)

// Runtime holds what the limiter takes from the machine that it runs on: the time, goroutines, waits, and random
// numbers. A simulation in virtual time sets all of its fields, so that a run depends on the seed alone. A nil Runtime
// is that of the machine.
type Runtime struct {
	Now   func() time.Time
	Go    func(f func())                             // begins f, which may wait, beside the caller
	Sleep func(ctx context.Context, d time.Duration) // returns after d, or when ctx ends

	// Wait returns nil when done is closed, or ctx.Err() when ctx ends before that.
	Wait func(ctx context.Context, done <-chan struct{}) error
	Wake func(done <-chan struct{}) // done, for which others may wait, has just been closed

	Rand func(n int64) int64      // returns a random number from 0 up to, and without, n, which is above 0
	Hash func(name string) uint64 // of the names that hash tables look for
}

// Time returns the time of day, with a monotonic reading if the Runtime is the machine's.
func (r *Runtime) Time() time.Time {
	if r == nil {
		return time.Now()
	}
	return r.Now()
}

// Read reads both clocks.
func (r *Runtime) Read() Instant { return At(r.Time()) }

// Begin calls f beside the caller: in a goroutine, if the Runtime is the machine's.
func (r *Runtime) Begin(f func()) {
	if r == nil {
		go f()
		return
	}
	r.Go(f)
}

// Pause waits for d, or until ctx ends.
func (r *Runtime) Pause(ctx context.Context, d time.Duration) {
	if r != nil {
		r.Sleep(ctx, d)
		return
	}
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// WithTimeout returns a context that ends after d. If the Runtime is not the machine's, Done is not closed when d is
// over: those who wait go by Deadline, and Err says by the Runtime's clock whether the context has ended.
func (r *Runtime) WithTimeout(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	if r == nil {
		return context.WithTimeout(ctx, d)
	}
	return &deadlineContext{ctx, r, r.Now().Add(d)}, func() {}
}

// deadlineContext is a context that ends at a time of a Runtime that is not the machine's.
type deadlineContext struct {
	context.Context
	runtime *Runtime
	at      time.Time
}

// Deadline implements [context.Context].
func (c *deadlineContext) Deadline() (time.Time, bool) {
	if outer, ok := c.Context.Deadline(); ok && outer.Before(c.at) {
		return outer, true
	}
	return c.at, true
}

// Err implements [context.Context].
func (c *deadlineContext) Err() error {
	if err := c.Context.Err(); err != nil {
		return err
	}
	if c.runtime.Now().Before(c.at) {
		return nil
	}
	return context.DeadlineExceeded
}

// RandomUpTo returns a random duration from 0 up to, and without, d, which is above 0.
func (r *Runtime) RandomUpTo(d time.Duration) time.Duration {
	if r == nil {
		return rand.N(d)
	}
	return time.Duration(r.Rand(int64(d)))
}

// HashName returns a hash of the name: with the seed, if the Runtime is the machine's.
func (r *Runtime) HashName(seed maphash.Seed, name string) uint64 {
	if r == nil {
		return maphash.String(seed, name)
	}
	return r.Hash(name)
}
