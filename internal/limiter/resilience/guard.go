package resilience

import (
	"context"
	"time"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/limiter/store/router"
)

var _ router.Guard = (*Breaker)(nil)

// Decide makes the store's call as [Breaker.Do] does. See [router.Guard].
func (b *Breaker) Decide(ctx context.Context, s limit.Store, req *limit.Request, now time.Time,
	d *limit.Decision) error {
	err := b.Do(ctx, func() error { return s.Decide(ctx, req, now, d) })
	if err != nil {
		d.Clear(now.UnixMicro())
	}
	return err
}

// Peek makes the store's call as [Breaker.Do] does. See [router.Guard].
func (b *Breaker) Peek(ctx context.Context, s limit.Store, req *limit.Request, now time.Time, d *limit.Decision) error {
	err := b.Do(ctx, func() error { return s.Peek(ctx, req, now, d) })
	if err != nil {
		d.Clear(now.UnixMicro())
	}
	return err
}

// Settle makes the store's call as [Breaker.Do] does. See [router.Guard].
func (b *Breaker) Settle(ctx context.Context, s limit.Store, r *limit.Receipt, used []int64,
	now time.Time) (out limit.Settlement, err error) {
	err = b.Do(ctx, func() error {
		var err error
		out, err = s.Settle(ctx, r, used, now)
		return err
	})
	return out, err
}
