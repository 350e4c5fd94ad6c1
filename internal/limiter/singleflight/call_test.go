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
			t.Errorf("a call that has begun: ended %t, %v, budget ended %t", ended, err, c.BudgetEnded())
		}
		var all sync.WaitGroup
		for range 20 {
			all.Go(func() {
				if err := c.Wait(t.Context()); err != nil {
					t.Errorf("Wait = %v", err)
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
			t.Errorf("Wait after the end = %v", err)
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
			t.Errorf("Wait = %v after %s, budget ended %t; want the caller's own end after 1s", err, time.Since(began),
				c.BudgetEnded())
		}
		if err := c.Wait(t.Context()); err != nil || time.Since(began) != 2*time.Second || !c.BudgetEnded() {
			t.Errorf("Wait = %v after %s, budget ended %t; want that the budget ends after 2s", err, time.Since(began),
				c.BudgetEnded())
		}
		if ended, _ := c.Result(); ended {
			t.Error("the call has ended, and only its budget has")
		}
		c.End(nil)
		if ended, err := c.Result(); !ended || err != nil {
			t.Errorf("Result = %t, %v: a call may end after its budget", ended, err)
		}
	})
}
