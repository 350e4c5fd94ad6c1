package resilience

import (
	"context"
	"errors"
	"time"

	"github.com/sluicelimits/sluice/internal/limit"
)

// observed is a store whose calls are told.
type observed struct {
	store limit.Store
	name  string
	tell  func(store string, took time.Duration, failed bool)
}

func (o *observed) Decide(ctx context.Context, req *limit.Request, now time.Time, d *limit.Decision) error {
	began := time.Now()
	err := o.store.Decide(ctx, req, now, d)
	o.told(ctx, began, err)
	return err
}

func (o *observed) Peek(ctx context.Context, req *limit.Request, now time.Time, d *limit.Decision) error {
	began := time.Now()
	err := o.store.Peek(ctx, req, now, d)
	o.told(ctx, began, err)
	return err
}

func (o *observed) Refund(ctx context.Context, r *limit.Receipt, units int64, now time.Time) (limit.Refund, error) {
	began := time.Now()
	back, err := o.store.Refund(ctx, r, units, now)
	o.told(ctx, began, err)
	return back, err
}

// Accepts asks nobody, and is not told.
func (o *observed) Accepts(l *limit.Limit) error { return o.store.Accepts(l) }

// AcceptsPlan asks the store beneath. See [limit.PlanAccepter].
func (o *observed) AcceptsPlan(all []*limit.Limit, together ...[]*limit.Limit) error {
	return limit.AcceptsPlan(o.store, all, together...)
}

func (o *observed) told(ctx context.Context, began time.Time, err error) {
	o.tell(o.name, time.Since(began), err != nil && !harmless(ctx, err))
}

// harmless reports whether an error says nothing about the store, as the circuit breaker has it.
func harmless(ctx context.Context, err error) bool {
	return limit.Answered(err) || errors.Is(ctx.Err(), context.Canceled)
}
