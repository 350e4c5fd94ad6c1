package config

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/sluicelimits/sluice/internal/cell/table"
	"github.com/sluicelimits/sluice/internal/limiter/resilience"
)

var errRefused = errors.New("the table is not read for a while, because it keeps failing")

const (
	gateFailures = 5           // consecutive failures that open the circuit breaker
	gateCooldown = time.Second // how long it stays open, at least
)

// gate is a circuit breaker in front of the table, so that not every request waits for a table that keeps failing.
type gate struct {
	breaker  *resilience.Breaker
	refused  atomic.Int64
	failures atomic.Int64
}

func newGate() (*gate, error) {
	b, err := resilience.NewBreaker(resilience.BreakerConfig{
		Name: "cell configuration", Failures: gateFailures, Cooldown: gateCooldown, MaxCooldown: gateCooldown,
		Log: slog.New(slog.DiscardHandler), // the reader logs when the table cannot be read, and when it can again
	})
	if err != nil {
		return nil, fmt.Errorf("config: %w", err)
	}
	return &gate{breaker: b}, nil
}

// do calls the table. A panic of the table is returned as an error. That the table is empty, or has a row that is not a
// document, does not count as a failure.
func (g *gate) do(ctx context.Context, timeout time.Duration, call func(context.Context) error) error {
	var answered error
	err := g.breaker.Do(ctx, func() (err error) {
		defer func() {
			if p := recover(); p != nil {
				err = fmt.Errorf("the table panicked: %v", p)
			}
		}()
		ctx, cancel := context.WithTimeout(ctx, timeout)
		defer cancel()
		if err = call(ctx); errors.Is(err, table.ErrEmpty) || errors.As(err, new(*table.BadRow)) {
			answered, err = err, nil
		}
		return err
	})
	switch {
	case errors.Is(err, resilience.ErrBreakerOpen):
		g.refused.Add(1)
		return errRefused
	case err != nil:
		g.failures.Add(1)
		return err
	}
	return answered
}
