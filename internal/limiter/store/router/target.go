package router

import (
	"context"
	"time"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
)

// target decides over limits: either a pair, or directly the backend of the rates.
type target struct {
	pair    *pair // if nil, backend decides
	backend Backend
}

func (t *target) decide(ctx context.Context, req *limit.Request, now time.Time, d *limit.Decision) error {
	if t.pair != nil {
		return t.pair.decide(ctx, req, now, d)
	}
	return t.backend.decide(ctx, req, now, d)
}

func (t *target) peek(ctx context.Context, req *limit.Request, now time.Time, d *limit.Decision) error {
	if t.pair != nil {
		return t.pair.peek(ctx, req, now, d)
	}
	return t.backend.peek(ctx, req, now, d)
}

func (t *target) refund(ctx context.Context, receipt *limit.Receipt, units int64, now time.Time) (limit.Refund, error) {
	if t.pair != nil {
		return t.pair.refund(ctx, receipt, units, now)
	}
	return t.backend.refund(ctx, receipt, units, now)
}

func (t *target) accepts(l *limit.Limit) error {
	if t.pair != nil {
		return t.pair.accepts(l)
	}
	return t.backend.Store.Accepts(l)
}

func (t *target) acceptsPlan(all []*limit.Limit, together ...[]*limit.Limit) error {
	if t.pair != nil {
		return t.pair.acceptsPlan(all, together...)
	}
	return limit.AcceptsPlan(t.backend.Store, all, together...)
}
