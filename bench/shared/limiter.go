package shared

import (
	"context"
	"errors"
	"fmt"

	"github.com/sluicelimits/sluice/internal/limiter/lease"
	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/limiter/resilience"
	"github.com/sluicelimits/sluice/internal/limiter/store/redis"
)

// Limiter is how an instance decides.
type Limiter string

// The limiters.
const (
	Naive   Limiter = "naive"    // each decision calls the store
	OldRule Limiter = "old rule" // it decides from leases, with the rule prototype
	Leased  Limiter = "leased"   // it decides from leases, with the present rule
)

// rule returns the rule of leases of a limiter.
func (l Limiter) rule(frozen bool) lease.Rule {
	switch {
	case l != OldRule:
		return lease.Adaptive{}
	case frozen:
		return prototype{shortLived}
	default:
		return prototype{longRunning}
	}
}

// open connects an instance to the store. done gives back its leases and closes it.
func (l Limiter) open(
	ctx context.Context, addr string, instances int,
) (store limit.Store, done func(context.Context) error, err error) {
	s, err := redis.New(ctx, redis.Config{Addrs: []string{addr}, Deadline: storeDeadline})
	if err != nil {
		return nil, nil, err
	}
	if err := s.Ping(ctx); err != nil {
		return nil, nil, err
	}
	switch l {
	case Naive:
		return s, func(context.Context) error { return s.Close() }, nil
	case OldRule, Leased:
		all, err := resilience.NewInstances(resilience.InstancesConfig{Store: s, Max: instances})
		if err != nil {
			return nil, nil, err
		}
		leases, err := lease.New(lease.Config{Store: s, Instances: all.Count, Rule: l.rule(false)})
		if err != nil {
			return nil, nil, err
		}
		beating, stop := context.WithCancel(ctx)
		go all.Run(beating)
		return leases, func(ctx context.Context) error {
			stop()
			return errors.Join(leases.Close(ctx), s.Close())
		}, nil
	default:
		return nil, nil, fmt.Errorf("no limiter is called %q", l)
	}
}
