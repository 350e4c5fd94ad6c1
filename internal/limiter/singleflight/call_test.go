package singleflight_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluicelimits/sluice/internal/limiter/clock"
	"github.com/sluicelimits/sluice/internal/limiter/singleflight"
)

var errDown = errors.New("down")

// Guarantees that all who wait for a call get its error when it ends, and that later callers get it at once.
func TestAllHearTheOutcome(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := singleflight.Begin(clock.Read(), nil)
		if ended, err := c.Result(); ended || err != nil || c.BudgetEnded() {
			t.Errorf("after the call has begun: ended %t, error %v, budget ended %t; want none of these", ended, err,
				c.BudgetEnded())
		}
		var all sync.WaitGroup
		for range 20 {
			all.Go(func() {
				if err := c.Wait(t.Context()); err != nil {
					t.Errorf("Wait = %v, want no error", err)
				}
				if ended, err := c.Result(); !ended || !errors.Is(err, errDown) {
					t.Errorf("Result = %t, %v; want that it ended with %v", ended, err, errDown)
				}
			})
		}
		synctest.Wait()
		c.End(errDown)
		all.Wait()
		<-c.Done()
		if err := c.Wait(t.Context()); err != nil {
			t.Errorf("Wait after the end of the call = %v, want no error", err)
		}
	})
}

// Guarantees that nobody waits longer than the budget of the call or than its own context. Otherwise a table that does
// not answer would delay every request.
func TestWaitsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		budget, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		c := singleflight.Begin(clock.Read(), budget.Done())
		mine, leave := context.WithTimeout(t.Context(), time.Second)
		defer leave()
		began := time.Now()
		if err := c.Wait(mine); !errors.Is(err, context.DeadlineExceeded) || time.Since(began) != time.Second ||
			c.BudgetEnded() {
			t.Errorf("Wait = %v after %s, budget ended %t; want that only the caller's context ends, after 1s", err,
				time.Since(began), c.BudgetEnded())
		}
		if err := c.Wait(t.Context()); err != nil || time.Since(began) != 2*time.Second || !c.BudgetEnded() {
			t.Errorf("Wait = %v after %s, budget ended %t; want that the budget of the call ends, after 2s", err,
				time.Since(began), c.BudgetEnded())
		}
		if ended, _ := c.Result(); ended {
			t.Error("Result says that the call has ended, but only its budget has")
		}
		c.End(nil)
		if ended, err := c.Result(); !ended || err != nil {
			t.Errorf("Result = %t, %v; want that the call has ended without an error, after its budget", ended, err)
		}
	})
}
