package outage

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/sluicelimits/sluice/internal/limit"
)

const (
	payTimeout = 2 * time.Second // of one charge that nobody waits for
	payAgain   = time.Second     // after one that was not sent
)

// payer charges what is owed, beside the decisions. It runs while there is something to charge and the store answers.
type payer struct {
	mu     sync.Mutex
	closed bool
	until  time.Time          // not before
	stop   context.CancelFunc // of the one that runs; nil: none does
	busy   sync.WaitGroup
}

// startPaying begins to charge what is owed, if nobody does.
func (s *Store) startPaying(now time.Time) {
	p := &s.payer
	p.mu.Lock()
	defer p.mu.Unlock()
	began := time.Now()
	if p.closed || p.stop != nil || began.Before(p.until) {
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	p.stop = cancel
	p.busy.Go(func() {
		defer cancel()
		err := s.pay(ctx, time.Second/time.Duration(s.c.PerSecond), func() time.Time { return now.Add(time.Since(began)) })
		p.mu.Lock()
		defer p.mu.Unlock()
		p.stop = nil
		if err != nil {
			p.until = time.Now().Add(payAgain)
		}
	})
}

// pay charges all that is owed, with a pause after each charge, until the store is not asked any more. now is the caller's
// clock.
func (s *Store) pay(ctx context.Context, pause time.Duration, now func() time.Time) error {
	for {
		owner, o := s.debts.next()
		if o == nil {
			return nil
		}
		for {
			b, part := o.bill(owner, now().UnixMicro()+s.lag.Load())
			if len(b.request.Charges) == 0 {
				s.debts.paid()
				break
			}
			if sent, err := s.charge(ctx, &b, now()); err != nil {
				if !sent {
					o.take(part)
				}
				s.debts.putBack(owner, o)
				return err
			}
			select {
			case <-ctx.Done():
			case <-time.After(pause):
			}
		}
	}
}

// charge sends one charge. An error means that the store did not answer; it may have been sent then, or not.
func (s *Store) charge(ctx context.Context, b *bill, now time.Time) (sent bool, err error) {
	if err := ctx.Err(); err != nil {
		return false, err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), payTimeout) // what was begun is better awaited than lost
	defer cancel()
	var d limit.Decision
	err = s.c.ChargeTo.Decide(ctx, &b.request, now, &d)
	switch {
	case errors.Is(err, ErrOpen):
		return false, err
	case err == nil && d.Allowed:
		s.chargedBack.Add(b.units)
		return true, nil
	}
	s.dropped.Add(b.units)
	if errors.Is(err, limit.ErrFull) || own(ctx, err) {
		err = nil // the store does answer
	}
	return true, err
}

// Close charges what is still owed, if the store answers, and returns what it left undone. Call it when no decision is under
// way.
func (s *Store) Close(ctx context.Context) error {
	p := &s.payer
	p.mu.Lock()
	p.closed = true
	if p.stop != nil {
		p.stop()
	}
	p.mu.Unlock()
	p.busy.Wait()
	began := time.Now()
	err := s.pay(ctx, 0, func() time.Time { return began.Add(time.Since(began)) })
	if n := s.debts.waiting.Load(); err != nil && n > 0 {
		return fmt.Errorf("outage: what %d owners spent without the store is not charged there: %w", n, err)
	}
	return nil
}
