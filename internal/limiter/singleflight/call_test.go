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

// Guarantees that all who wait for a call hear its outcome when it ends, and those who come later at once.
func TestAllHearTheOutcome(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := singleflight.Begin(clock.Read(), nil)
		if ended, err := c.Result(); ended || err != nil || c.Late() {
			t.Errorf("a call that has begun: ended %t, %v, late %t", ended, err, c.Late())
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

// Guarantees that nobody waits longer than the call's budget or its own context: a table that hangs would hold up every
// request.
func TestWaitsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		budget, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		c := singleflight.Begin(clock.Read(), budget.Done())
		mine, leave := context.WithTimeout(t.Context(), time.Second)
		defer leave()
		began := time.Now()
		if err := c.Wait(mine); !errors.Is(err, context.DeadlineExceeded) || time.Since(began) != time.Second || c.Late() {
			t.Errorf("Wait = %v after %s, late %t; want the caller's own end after 1s", err, time.Since(began), c.Late())
		}
		if err := c.Wait(t.Context()); err != nil || time.Since(began) != 2*time.Second || !c.Late() {
			t.Errorf("Wait = %v after %s, late %t; want that the call is late after 2s", err, time.Since(began), c.Late())
		}
		if ended, _ := c.Result(); ended {
			t.Error("a call that is late has ended")
		}
		c.End(nil)
		if ended, err := c.Result(); !ended || err != nil {
			t.Errorf("Result = %t, %v: a late call may still end", ended, err)
		}
	})
}
