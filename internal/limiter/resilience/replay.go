package resilience

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/sluicelimits/sluice/internal/limiter/breaker"
	"github.com/sluicelimits/sluice/internal/limiter/clock"
	"github.com/sluicelimits/sluice/internal/limiter/limit"
)

const (
	replayTimeout = 2 * time.Second // of one replay request; no client waits for it
	retryReplay   = time.Second     // pause after a replay that failed; as long as the breaker's first cooldown
)

// replayer is the state of the replay, which charges pending units in the background. A replay runs in a goroutine that
// startReplay starts. It ends when nothing is pending, or nothing more can be charged because a store does not answer.
type replayer struct {
	mu            sync.Mutex
	closed        bool               // Close was called; no replay starts any more
	failed        clock.Instant      // when a replay last failed; none starts for retryReplay after it
	stop          context.CancelFunc // ends the replay after its request under way; nil: no replay runs
	cancelRequest context.CancelFunc // ends the request under way, too
	running       sync.WaitGroup
}

// startReplay starts a replay unless one runs or has just failed. now is the time by the caller's clock.
func (f *Fallback) startReplay(now time.Time) {
	r := &f.replay
	r.mu.Lock()
	defer r.mu.Unlock()
	runtime := f.config.Runtime
	began := runtime.Read()
	if r.closed || r.stop != nil || began.Since(r.failed) < retryReplay {
		return
	}
	requestCtx, cancelRequest := context.WithCancel(context.Background())
	ctx, stop := context.WithCancel(requestCtx)
	r.stop, r.cancelRequest = stop, cancelRequest
	r.running.Add(1)
	runtime.Begin(func() {
		defer r.running.Done()
		defer cancelRequest()
		pause := time.Second / time.Duration(f.config.PerSecond)
		err := f.replayAll(ctx, requestCtx, pause, func() time.Time { return now.Add(runtime.Read().Since(began)) })
		r.mu.Lock()
		defer r.mu.Unlock()
		r.stop, r.cancelRequest = nil, nil
		if err != nil {
			r.failed = runtime.Read()
		}
	})
}

// replayAll charges all pending units, with a pause after each request. The units of a store that does not answer stay
// pending, and the units of other stores are charged all the same. It returns the error of the first store that did not
// answer.
//
// No request begins after ctx has ended. A request under way goes on until requestCtx ends, because the units of a
// request that is cut off are lost. now returns the time by the caller's clock.
func (f *Fallback) replayAll(ctx, requestCtx context.Context, pause time.Duration, now func() time.Time) error {
	var failed error // of the first store that did not answer
	probed, unanswered := map[destination]bool{}, map[destination]bool{}
	// Without a failure, this ends when nothing is pending. Owners that are put back come again, behind all others, so
	// after a failure it ends when as many owners have had a turn as waited at the start.
	for left := f.pending.waiting.Load(); failed == nil || left > 0; left-- {
		owner, o := f.pending.takeNext()
		if o == nil {
			break
		}
		for {
			request, taken := o.nextRequest(owner, now().UnixMicro()+f.clockOffset.Load(), unanswered)
			if len(request.request.Charges) == 0 {
				break
			}
			var sent bool
			var err error
			if !probed[request.to] {
				probed[request.to] = true
				err = f.probe(ctx, requestCtx, &request, now())
			}
			if err == nil {
				sent, err = f.send(ctx, requestCtx, &request, now())
			}
			if err != nil {
				if !sent {
					o.merge(taken)
				}
				if ctx.Err() != nil || requestCtx.Err() != nil {
					f.pending.putBack(owner, o)
					return err
				}
				unanswered[request.to], failed = true, cmp.Or(failed, err)
				continue
			}
			f.config.Runtime.Pause(ctx, pause)
		}
		if len(o.limits) > 0 {
			f.pending.putBack(owner, o)
		} else {
			f.pending.done()
		}
	}
	return failed
}

// probe peeks at the request's counters, and returns an error if the store does not answer. The decision that started
// the replay may have come from a lease, so the store may still be away. If a charge is sent to a store that does not
// answer, its units are lost. A peek loses nothing.
func (f *Fallback) probe(ctx, requestCtx context.Context, r *replayRequest, now time.Time) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	ctx, cancel := f.config.Runtime.WithTimeout(requestCtx, replayTimeout)
	defer cancel()
	var d limit.Decision
	err := f.config.ReplayTo.Peek(ctx, &limit.Request{Owner: r.request.Owner, Charges: r.request.Charges}, now, &d)
	if ended := requestCtx.Err(); ended != nil {
		return ended
	}
	if limit.Answered(err) {
		return nil
	}
	return err
}

// send sends one replay request. An error means that the store did not answer. sent is false if the store cannot have
// received the request, whose units are then still pending.
func (f *Fallback) send(ctx, requestCtx context.Context, r *replayRequest, now time.Time) (sent bool, err error) {
	if err := ctx.Err(); err != nil {
		return false, err
	}
	ctx, cancel := f.config.Runtime.WithTimeout(requestCtx, replayTimeout)
	defer cancel()
	var d limit.Decision
	err = f.config.ReplayTo.Decide(ctx, &r.request, now, &d)
	switch {
	case errors.Is(err, breaker.ErrOpen):
		return false, err
	case err == nil && d.Allowed:
		f.chargedBack.Add(r.units)
		for full, most := d.Fullest(), f.fullest.Load(); full > most && !f.fullest.CompareAndSwap(most, full); {
			most = f.fullest.Load()
		}
		return true, nil
	}
	f.dropped.Add(r.units)
	if ended := requestCtx.Err(); ended != nil {
		return true, ended
	}
	if limit.Answered(err) {
		err = nil // the store answered
	}
	return true, err
}

// Close charges the units that are still pending, as far as the stores answer before ctx ends. The error says how many
// owners have units left. No decision may be under way.
func (f *Fallback) Close(ctx context.Context) error {
	r := &f.replay
	r.mu.Lock()
	r.closed = true
	if r.stop != nil {
		r.stop()
		defer context.AfterFunc(ctx, r.cancelRequest)()
	}
	r.mu.Unlock()
	r.running.Wait()
	began := time.Now()
	err := f.replayAll(ctx, ctx, 0, func() time.Time { return began.Add(time.Since(began)) })
	if n := f.pending.waiting.Load(); err != nil && n > 0 {
		return fmt.Errorf("fallback limiter: what %d owners spent without the store is not charged there: %w", n, err)
	}
	return nil
}
