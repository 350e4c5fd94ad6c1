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
	payTimeout = 2 * time.Second // of one charge that nobody waits for
	payAgain   = time.Second     // after one that was not sent
)

// payer charges what is owed, beside the decisions. It runs while there is something to charge and the store answers.
type payer struct {
	mu     sync.Mutex
	closed bool
	failed clock.Instant      // when a charge was last not sent; nothing is charged for payAgain after it
	stop   context.CancelFunc // no further charge by the one that runs; nil: none does
	cut    context.CancelFunc // nor the one that is under way
	busy   sync.WaitGroup
}

// startPaying begins to charge what is owed, if nobody does.
func (f *Fallback) startPaying(now time.Time) {
	p := &f.payer
	p.mu.Lock()
	defer p.mu.Unlock()
	began := clock.Read()
	if p.closed || p.stop != nil || began.Since(p.failed) < payAgain {
		return
	}
	begun, cut := context.WithCancel(context.Background())
	ctx, stop := context.WithCancel(begun)
	p.stop, p.cut = stop, cut
	p.busy.Go(func() {
		defer cut()
		err := f.pay(ctx, begun, time.Second/time.Duration(f.c.PerSecond), func() time.Time { return now.Add(clock.Read().Since(began)) })
		p.mu.Lock()
		defer p.mu.Unlock()
		p.stop, p.cut = nil, nil
		if err != nil {
			p.failed = clock.Read()
		}
	})
}

// pay charges all that is owed, with a pause after each charge, to the stores that are asked and answer: what lies in one that does not
// is kept, and holds up nobody else's. It begins no charge after ctx has ended, and ends the one under way with begun: what was begun is
// better awaited than lost. now is the caller's clock.
func (f *Fallback) pay(ctx, begun context.Context, pause time.Duration, now func() time.Time) error {
	var failed error // of the first store that did not answer
	looked, silent := map[place]bool{}, map[place]bool{}
	for left := f.debts.waiting.Load(); failed == nil || left > 0; left-- { // those that are kept come again, behind all others
		owner, o := f.debts.next()
		if o == nil {
			break
		}
		for {
			b, part := o.bill(owner, now().UnixMicro()+f.lag.Load(), silent)
			if len(b.request.Charges) == 0 {
				break
			}
			var sent bool
			var err error
			if !looked[b.in] {
				looked[b.in] = true
				err = f.look(ctx, begun, &b, now())
			}
			if err == nil {
				sent, err = f.charge(ctx, begun, &b, now())
			}
			if err != nil {
				if !sent {
					o.take(part)
				}
				if ctx.Err() != nil || begun.Err() != nil {
					f.debts.putBack(owner, o)
					return err
				}
				silent[b.in], failed = true, cmp.Or(failed, err)
				continue
			}
			select {
			case <-ctx.Done():
			case <-time.After(pause):
			}
		}
		if len(o.of) > 0 {
			f.debts.putBack(owner, o)
		} else {
			f.debts.paid()
		}
	}
	return failed
}

// look returns an error if the store does not answer. The decision before may have come from a lease, and a charge to a store
// that is away is lost, all that its owner spent meanwhile; a look is not.
func (f *Fallback) look(ctx, begun context.Context, b *bill, now time.Time) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(begun, payTimeout)
	defer cancel()
	var d limit.Decision
	err := f.c.ReplayTo.Peek(ctx, &limit.Request{Owner: b.request.Owner, Charges: b.request.Charges}, now, &d)
	if cut := begun.Err(); cut != nil {
		return cut
	}
	if limit.Answered(err) || callersOwn(ctx, err) {
		return nil
	}
	return err
}

// charge sends one charge. An error means that the store did not answer; it may have been sent then, or not.
func (f *Fallback) charge(ctx, begun context.Context, b *bill, now time.Time) (sent bool, err error) {
	if err := ctx.Err(); err != nil {
		return false, err
	}
	ctx, cancel := context.WithTimeout(begun, payTimeout)
	defer cancel()
	var d limit.Decision
	err = f.c.ReplayTo.Decide(ctx, &b.request, now, &d)
	switch {
	case errors.Is(err, ErrBreakerOpen):
		return false, err
	case err == nil && d.Allowed:
		f.chargedBack.Add(b.units)
		for full, most := d.Fullest(), f.fullest.Load(); full > most && !f.fullest.CompareAndSwap(most, full); {
			most = f.fullest.Load()
		}
		return true, nil
	}
	f.dropped.Add(b.units)
	if cut := begun.Err(); cut != nil {
		return true, cut
	}
	if limit.Answered(err) || callersOwn(ctx, err) {
		err = nil // the store does answer
	}
	return true, err
}

// Close charges what is still owed, if the store answers before ctx ends, and returns what it left undone. Call it when no
// decision is under way.
func (f *Fallback) Close(ctx context.Context) error {
	p := &f.payer
	p.mu.Lock()
	p.closed = true
	if p.stop != nil {
		p.stop()
		defer context.AfterFunc(ctx, p.cut)()
	}
	p.mu.Unlock()
	p.busy.Wait()
	began := time.Now()
	err := f.pay(ctx, ctx, 0, func() time.Time { return began.Add(time.Since(began)) })
	if n := f.debts.waiting.Load(); err != nil && n > 0 {
		return fmt.Errorf("fallback limiter: what %d owners spent without the store is not charged there: %w", n, err)
	}
	return nil
}
