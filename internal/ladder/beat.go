package ladder

import (
	"context"
	"sync"
	"time"
)

// joinWithin is how long an answer waits at most for what Beat began. What has not ended then goes on beside later requests.
const joinWithin = 100 * time.Millisecond

// beats is what a frozen ladder does beside requests.
type beats struct {
	ctx  context.Context // ends with Close
	look time.Duration   // between two looks at the leases; below 0 never

	mu     sync.Mutex
	busy   bool
	closed bool
	looked time.Time // by the wall clock, for the other one may stand still while the process does
}

// Beat begins what is due of that which a server's ladder does by itself: it says that this instance runs, and gives back what
// is leased and not going to be used. It is for a Frozen ladder; call it with each request. join is nil where nothing is due,
// which is nearly always; else call it before the request is answered, since afterwards the process may be frozen. It waits at
// most 100 ms. What fails is seen where requests are decided.
func (l *Ladder) Beat(now time.Time) (join func()) {
	beat, look := l.due(now)
	if !beat && !look {
		return nil
	}
	done := make(chan struct{})
	go func() {
		defer l.running.Done()
		defer close(done)
		defer l.rest()
		if beat {
			_ = l.Fleet.Beat(l.beats.ctx, now)
		}
		if look {
			l.Leases.Look(l.beats.ctx, now)
		}
	}()
	return func() {
		enough := time.NewTimer(joinWithin)
		defer enough.Stop()
		select {
		case <-done:
		case <-enough.C:
		}
	}
}

// due says what is to be done, for one caller at a time. Who is told that something is must do it, and call rest.
func (l *Ladder) due(now time.Time) (beat, look bool) {
	b := &l.beats
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.busy || b.closed {
		return false, false
	}
	beat = l.Fleet.Due(now)
	if wall := now.Round(0); l.Leases != nil && b.look > 0 && (b.looked.IsZero() || wall.Before(b.looked) || !wall.Before(b.looked.Add(b.look))) {
		b.looked, look = wall, true
	}
	if b.busy = beat || look; b.busy {
		l.running.Add(1) // under the lock, so that Close waits for it or it does not begin
	}
	return beat, look
}

func (l *Ladder) rest() {
	l.beats.mu.Lock()
	defer l.beats.mu.Unlock()
	l.beats.busy = false
}

// closing keeps further beats from beginning.
func (l *Ladder) closing() {
	l.beats.mu.Lock()
	l.beats.closed = true
	l.beats.mu.Unlock()
	l.stop()
	l.running.Wait()
}
