package resilience

import (
	"context"
	"errors"
	"time"

	"github.com/sluicelimits/sluice/internal/limiter/breaker"
	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/limiter/store/router"
)

var _ router.Guard = (*guard)(nil)

// guard makes the calls of a store through a circuit breaker.
//
// An error by which the store answered ([limit.Answered]) is no failure, and neither is a call that its caller gave up.
// So one tenant's request, or one tenant's stored data, cannot open the breaker for other tenants.
type guard struct {
	*breaker.Breaker

	observe func(store string, took time.Duration, failed bool) // see ChainConfig.Observe
}

// judge returns what an error of a store says about the store.
func judge(err error) breaker.Outcome {
	switch {
	case errors.Is(err, limit.ErrFull):
		return breaker.Succeeded
	case limit.Answered(err):
		return breaker.SaysNothing
	}
	return breaker.Failed
}

// Decide makes the store's call as [breaker.Breaker.Do] does. See [router.Guard].
func (g *guard) Decide(ctx context.Context, s limit.Store, req *limit.Request, now time.Time, d *limit.Decision) error {
	err := g.do(ctx, func() error { return s.Decide(ctx, req, now, d) })
	if err != nil {
		d.Clear(now.UnixMicro())
	}
	return err
}

// Peek makes the store's call as [breaker.Breaker.Do] does. See [router.Guard].
func (g *guard) Peek(ctx context.Context, s limit.Store, req *limit.Request, now time.Time, d *limit.Decision) error {
	err := g.do(ctx, func() error { return s.Peek(ctx, req, now, d) })
	if err != nil {
		d.Clear(now.UnixMicro())
	}
	return err
}

// Settle makes the store's call as [breaker.Breaker.Do] does. See [router.Guard].
func (g *guard) Settle(ctx context.Context, s limit.Store, r *limit.Receipt, used []int64,
	now time.Time) (out limit.Settlement, err error) {
	err = g.do(ctx, func() error {
		var err error
		out, err = s.Settle(ctx, r, used, now)
		return err
	})
	return out, err
}

// do makes a call through the breaker, and passes its duration and outcome to observe.
func (g *guard) do(ctx context.Context, call func() error) error {
	return g.Do(ctx, func() error {
		if g.observe == nil {
			return call()
		}
		began := time.Now()
		err := call()
		g.observe(g.Name(), time.Since(began),
			err != nil && !limit.Answered(err) && !errors.Is(ctx.Err(), context.Canceled))
		return err
	})
}
