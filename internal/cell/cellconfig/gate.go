package cellconfig

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/sluicelimits/sluice/internal/limiter/resilience"
)

var errRefused = errors.New("the table is not asked for a while, for it keeps failing")

const (
	gateFailures = 5           // in a row, which stop the asking
	gateCooldown = time.Second // for how long, at least
)

// gate stops asking a table that keeps failing, so that not every request waits for it.
type gate struct {
	breaker  *resilience.Breaker
	refused  atomic.Int64
	failures atomic.Int64
}

func newGate() (*gate, error) {
	b, err := resilience.NewBreaker(resilience.BreakerConfig{
		Name: "cell configuration", Failures: gateFailures, Cooldown: gateCooldown, MaxCooldown: gateCooldown,
		Log: slog.New(slog.DiscardHandler), // the reader tells when it cannot read the table, and when it can again
	})
	if err != nil {
		return nil, fmt.Errorf("cellconfig: %w", err)
	}
	return &gate{breaker: b}, nil
}

// do calls the table. A panic in it is an error, and a table without a head has answered.
func (g *gate) do(ctx context.Context, timeout time.Duration, call func(context.Context) error) error {
	var answered error
	err := g.breaker.Do(ctx, func() (err error) {
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
