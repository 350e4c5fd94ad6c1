package resilience

import (
	"time"

	"github.com/sluicelimits/sluice/internal/limiter/breaker"
	"github.com/sluicelimits/sluice/internal/limiter/limit"
)

// Derive returns the limit that one of that many instances applies without the store at a time.
func Derive(l *limit.Limit, instances int64, now time.Time) (*limit.Limit, error) {
	p, err := partOf(l, instances, now)
	if err != nil {
		return nil, err
	}
	return p.limit, nil
}

// NewGuard returns a guard of the store with the name.
func NewGuard(store string) *guard {
	return &guard{Breaker: breaker.New(breaker.Config{Name: store, Judge: judge})}
}
