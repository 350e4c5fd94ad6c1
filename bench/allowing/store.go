package main

import (
	"context"
	"errors"
	"time"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
)

// admitting is a store that keeps no counters. It treats every counter as new, so it admits every request. Its answers
// have the same fields as those of a real store.
type admitting struct{}

// Decide implements [limit.Store].
func (admitting) Decide(_ context.Context, req *limit.Request, now time.Time, d *limit.Decision) error {
	e, err := d.Begin(req, now.UnixMicro())
	if err != nil {
		return err
	}
	for i := range d.Results {
		e.Evaluate(i, &limit.State{}, false)
	}
	if e.Settle() {
		for i := range d.Results {
			e.Charge(i, &limit.State{})
		}
	}
	return nil
}

// Peek implements [limit.Store].
func (admitting) Peek(_ context.Context, req *limit.Request, now time.Time, d *limit.Decision) error {
	e, err := d.Begin(req, now.UnixMicro())
	if err != nil {
		return err
	}
	for i := range d.Results {
		e.Evaluate(i, &limit.State{}, false)
	}
	e.Settle()
	return nil
}

// Refund implements [limit.Store].
func (admitting) Refund(context.Context, *limit.Receipt, int64, time.Time) (limit.Refund, error) {
	return limit.Refund{}, errors.New("nothing was charged")
}

// Accepts implements [limit.Store].
func (admitting) Accepts(*limit.Limit) error { return nil }
