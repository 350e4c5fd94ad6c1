// Package memorytest makes memory stores for tests, also one whose calls fail on demand.
package memorytest

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/limiter/store/memory"
)

// New returns an empty store with the default configuration.
func New(tb testing.TB) *memory.Store {
	tb.Helper()
	s, err := memory.New(memory.Config{})
	if err != nil {
		tb.Fatal(err)
	}
	return s
}

// ErrAway is the error of a call that fails on demand.
var ErrAway = errors.New("the store is away")

// Faulty is a store whose decisions and settlements fail while one of its fields is set.
type Faulty struct {
	limit.Store

	Away         atomic.Bool // before they have any effect
	LosesReplies atomic.Bool // after they have taken effect
	SettlesFail  atomic.Bool // settlements only, before they have any effect
	Open         atomic.Bool // decisions do not fail, but admit without a charge
}

// NewFaulty returns an empty memory store that works until a field is set.
func NewFaulty(tb testing.TB) *Faulty {
	tb.Helper()
	return &Faulty{Store: New(tb)}
}

// Decide makes a decision, or fails.
func (f *Faulty) Decide(ctx context.Context, req *limit.Request, now time.Time, d *limit.Decision) error {
	switch {
	case f.Away.Load():
		return ErrAway
	case f.Open.Load():
		*d = limit.Decision{Allowed: true}
		return nil
	}
	err := f.Store.Decide(ctx, req, now, d)
	if f.LosesReplies.Load() {
		return ErrAway
	}
	return err
}

// Settle makes a settlement, or fails.
func (f *Faulty) Settle(ctx context.Context, r *limit.Receipt, used []int64, now time.Time) (limit.Settlement, error) {
	if f.Away.Load() || f.SettlesFail.Load() {
		return limit.Settlement{}, ErrAway
	}
	out, err := f.Store.Settle(ctx, r, used, now)
	if f.LosesReplies.Load() {
		return limit.Settlement{}, ErrAway
	}
	return out, err
}
