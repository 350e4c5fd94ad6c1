package resilience

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/sluicelimits/sluice/internal/limit"
	"github.com/sluicelimits/sluice/internal/limiter/clock"
)

const (
	replayTimeout = 2 * time.Second // of one replay request, for which nobody waits
	retryReplay   = time.Second     // after a request that was not sent; as long as the breaker's first cooldown
)

// replayer charges what is pending, beside the decisions. It runs while something is pending and the store answers.
type replayer struct {
	mu     sync.Mutex
	closed bool
	failed clock.Instant      // when a request was last not sent; no replay begins for retryReplay after it
	stop   context.CancelFunc // ends the replay that runs after its request under way; nil: none runs
	cut    context.CancelFunc // ends that request, too
	busy   sync.WaitGroup
}

// startReplay begins to charge what is pending, unless a replay runs or has just failed. now is the caller's clock.
func (f *Fallback) startReplay(now time.Time) {
	r := &f.replay
	r.mu.Lock()
	defer r.mu.Unlock()
	began := clock.Read()
	if r.closed || r.stop != nil || began.Since(r.failed) < retryReplay {
		return
	}
	underWay, cut := context.WithCancel(context.Background())
	ctx, stop := context.WithCancel(underWay)
	r.stop, r.cut = stop, cut
	r.busy.Go(func() {
		defer cut()
		pause := time.Second / time.Duration(f.c.PerSecond)
		err := f.replayAll(ctx, underWay, pause, func() time.Time { return now.Add(clock.Read().Since(began)) })
		r.mu.Lock()
		defer r.mu.Unlock()
		r.stop, r.cut = nil, nil
		if err != nil {
			r.failed = clock.Read()
		}
	})
}

// replayAll charges everything that is pending, with a pause after each request. What belongs to a store that does not
// answer stays pending, and does not hold up what belongs to others. No request begins after ctx has ended. A request
// under way ends with underWay, because the units of a request that is cut off are lost. now is the caller's clock.
func (f *Fallback) replayAll(ctx, underWay context.Context, pause time.Duration, now func() time.Time) error {
	var failed error // of the first store that did not answer
	probed, silent := map[place]bool{}, map[place]bool{}
	// Owners that are put back come again, behind all others. After a failure, each owner has its turn once.
	for left := f.pending.waiting.Load(); failed == nil || left > 0; left-- {
		owner, o := f.pending.takeNext()
		if o == nil {
			break
		}
		for {
			request, taken := o.nextRequest(owner, now().UnixMicro()+f.clockOffset.Load(), silent)
			if len(request.request.Charges) == 0 {
				break
			}
			var sent bool
			var err error
			if !probed[request.in] {
				probed[request.in] = true
				err = f.probe(ctx, underWay, &request, now())
			}
			if err == nil {
				sent, err = f.send(ctx, underWay, &request, now())
			}
			if err != nil {
				if !sent {
					o.merge(taken)
				}
				if ctx.Err() != nil || underWay.Err() != nil {
					f.pending.putBack(owner, o)
					return err
				}
				silent[request.in], failed = true, cmp.Or(failed, err)
				continue
			}
			select {
			case <-ctx.Done():
			case <-time.After(pause):
			}
		}
		if len(o.limits) > 0 {
			f.pending.putBack(owner, o)
		} else {
			f.pending.done()
		}
	}
	return failed
}

// probe returns an error if the store does not answer. The decision that started the replay may have come from a lease,
// so the store may still be away. A charge that is sent to a store that is away is lost, with all that its owner spent
// meanwhile; a look loses nothing.
func (f *Fallback) probe(ctx, underWay context.Context, r *replayRequest, now time.Time) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(underWay, replayTimeout)
	defer cancel()
	var d limit.Decision
	err := f.c.ReplayTo.Peek(ctx, &limit.Request{Owner: r.request.Owner, Charges: r.request.Charges}, now, &d)
	if cut := underWay.Err(); cut != nil {
		return cut
	}
	if limit.Answered(err) || callersOwn(ctx, err) {
		return nil
	}
	return err
}

// send sends one replay request. An error means that the store did not answer; sent says whether it may have got the
// request.
func (f *Fallback) send(ctx, underWay context.Context, r *replayRequest, now time.Time) (sent bool, err error) {
	if err := ctx.Err(); err != nil {
		return false, err
	}
	ctx, cancel := context.WithTimeout(underWay, replayTimeout)
	defer cancel()
	var d limit.Decision
	err = f.c.ReplayTo.Decide(ctx, &r.request, now, &d)
	switch {
	case errors.Is(err, ErrBreakerOpen):
		return false, err
	case err == nil && d.Allowed:
		f.chargedBack.Add(r.units)
		for full, most := d.Fullest(), f.fullest.Load(); full > most && !f.fullest.CompareAndSwap(most, full); {
			most = f.fullest.Load()
		}
		return true, nil
	}
	f.dropped.Add(r.units)
	if cut := underWay.Err(); cut != nil {
		return true, cut
	}
	if limit.Answered(err) || callersOwn(ctx, err) {
		err = nil // the store does answer
	}
	return true, err
}

// Close charges what is still pending, as far as the store answers before ctx ends, and returns what is left undone.
// Call it when no decision is under way.
func (f *Fallback) Close(ctx context.Context) error {
	r := &f.replay
	r.mu.Lock()
	r.closed = true
	if r.stop != nil {
		r.stop()
		defer context.AfterFunc(ctx, r.cut)()
	}
	r.mu.Unlock()
	r.busy.Wait()
	began := time.Now()
	err := f.replayAll(ctx, ctx, 0, func() time.Time { return began.Add(time.Since(began)) })
	if n := f.pending.waiting.Load(); err != nil && n > 0 {
		return fmt.Errorf("fallback limiter: what %d owners spent without the store is not charged there: %w", n, err)
	}
	return nil
}
