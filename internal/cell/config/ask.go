package config

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/sluicelimits/sluice/internal/cell/table"
	"github.com/sluicelimits/sluice/internal/limiter/breaker"
)

// newBreaker makes the circuit breaker in front of the table, so that not every request waits for a table that keeps
// failing. The reader logs when the table cannot be read, and when it can again.
func newBreaker() *breaker.Breaker {
	return breaker.New(breaker.Config{Name: "the config table", Judge: judge, MaxCooldown: time.Second})
}

// judge returns what an error of the table says about it: that it is empty, or has a row that is not a document, is not
// a failure.
func judge(err error) breaker.Outcome {
	if errors.Is(err, table.ErrEmpty) || errors.As(err, new(*table.BadRow)) {
		return breaker.Succeeded
	}
	return breaker.Failed
}

// ask calls the table, unless it keeps failing. A panic of the table is returned as an error.
func (r *Reader) ask(ctx context.Context, timeout time.Duration, call func(context.Context) error) error {
	return r.breaker.Do(ctx, func() (err error) {
		defer func() {
			if p := recover(); p != nil {
				err = fmt.Errorf("the table panicked: %v", p)
			}
		}()
		ctx, cancel := context.WithTimeout(ctx, timeout)
		defer cancel()
		return call(ctx)
	})
}
