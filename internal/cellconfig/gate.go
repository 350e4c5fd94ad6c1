package cellconfig

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/sony/gobreaker/v2"
)

var errRefused = errors.New("the table is not asked for a while, for it keeps failing")

const (
	gateFailures = 5           // in a row, which stop the asking
	gateCooldown = time.Second // for how long
)

// gate stops asking a table that keeps failing, so that not every request waits for it.
type gate struct {
	breaker  atomic.Pointer[gobreaker.CircuitBreaker[struct{}]]
	refused  atomic.Int64
	failures atomic.Int64
}

func newGate() *gate {
	g := &gate{}
	g.reset()
	return g
}

// reset forgets what failed. gobreaker goes by the monotonic clock, which stands still while a process is frozen: what it
// knows from before says nothing about now.
func (g *gate) reset() {
	g.breaker.Store(gobreaker.NewCircuitBreaker[struct{}](gobreaker.Settings{
		Name: "cell configuration", MaxRequests: 1, Interval: 10 * time.Second, BucketPeriod: time.Second, Timeout: gateCooldown,
		ReadyToTrip: func(n gobreaker.Counts) bool { return n.ConsecutiveFailures >= gateFailures },
	}))
}

// do calls the table. A panic in it is an error, and a table without a head has answered.
func (g *gate) do(ctx context.Context, timeout time.Duration, call func(context.Context) error) error {
	called := false
	var answered error
	_, err := g.breaker.Load().Execute(func() (out struct{}, err error) {
		called = true
		defer func() {
			if p := recover(); p != nil {
				err = fmt.Errorf("the table panics: %v", p)
			}
		}()
		ctx, cancel := context.WithTimeout(ctx, timeout)
		defer cancel()
		if err = call(ctx); errors.Is(err, ErrEmpty) {
			answered, err = err, nil
		}
		return out, err
	})
	switch {
	case !called:
		g.refused.Add(1)
		return errRefused
	case err != nil:
		g.failures.Add(1)
		return err
	}
	return answered
}
