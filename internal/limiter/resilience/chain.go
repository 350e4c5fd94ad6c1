package resilience

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/sluicelimits/sluice/internal/lease"
	"github.com/sluicelimits/sluice/internal/limit"
	"github.com/sluicelimits/sluice/internal/store/router"
)

// NamedStore is a store and what it is called in errors, in the log and on the live page.
type NamedStore struct {
	Name  string
	Store limit.Store
}

// ChainConfig sets up a [Chain].
type ChainConfig struct {
	Rates  NamedStore // required; everything is counted in it but quotas that have a store of their own
	Quotas NamedStore // a store of their own; without a Store there is none

	// Homes are the counters of other cells, by cell, of limits that these keep (limit.Limit.Home): as far away as they
	// are, of these a decision asks only what it lacks. Cell is the name of this cell: what it keeps itself is counted
	// with its quotas.
	Cell  string
	Homes map[string]NamedStore

	NoLeases     bool // each decision asks the stores
	MaxInstances int  // the most processes that may share the stores, known before they are counted; 0 means 1

	Breaker  BreakerConfig  // of each store; Store, Name and Log are set by NewChain
	Lease    lease.Config   // Store and Instances are set by NewChain
	Fallback FallbackConfig // Store, ChargeTo, Instances and MaxInstances are set by NewChain

	// Frozen is for a process that may stand still between requests, as on Lambda: nothing runs by itself, and RunBackgroundTasks is to be
	// called with each request.
	Frozen bool

	// Observe is told of each call of a store beneath its breaker: the store's name, how long it took, and whether it failed.
	// What the store says of the request, and what a caller gave up, is no failure. It is called beside decisions and must not
	// wait; nil where nobody watches.
	Observe func(store string, took time.Duration, failed bool)

	Log *slog.Logger // default slog.Default()
}

// Chain is a [limit.Store] that has an answer whatever becomes of the stores below. Make it with [NewChain].
type Chain struct {
	*Fallback

	Leases    *lease.Store // nil with ChainConfig.NoLeases
	Breakers  []*Breaker
	Instances *Instances

	joined  *router.Store // nil where one store counts everything
	away    *router.Homes // nil without homes, as are the next two
	homes   map[string]*home
	cell    string
	quotas  *Instances // who shares this cell's own quotas
	stop    context.CancelFunc
	running sync.WaitGroup
	looks   looks
}

// NewChain builds the ladder and, unless it is Frozen, begins to count the processes that share the stores. The error names the
// field. Close it when done; that closes no store.
func NewChain(c ChainConfig) (*Chain, error) {
	if c.Log == nil {
		c.Log = slog.Default()
	}
	if c.Rates.Store == nil {
		return nil, errors.New("ladder: Rates is missing")
	}
	l := &Chain{cell: c.Cell}
	rates, err := l.guard(&c, c.Rates)
	if err != nil {
		return nil, err
	}
	below, quotas := rates, rates
	if c.Quotas.Store != nil {
		if quotas, err = l.guard(&c, c.Quotas); err != nil {
			return nil, err
		}
		if l.joined, err = router.New(router.Config{Rates: rates, Quotas: quotas}); err != nil {
			return nil, fmt.Errorf("ladder: %w", err)
		}
		below = l.joined
	}
	if below, err = l.addHomes(&c, below, quotas); err != nil {
		return nil, err
	}
	if l.Instances, err = NewInstances(InstancesConfig{Store: rates, Max: c.MaxInstances}); err != nil {
		return nil, fmt.Errorf("ladder: %w", err)
	}
	deciding := below
	if !c.NoLeases {
		if l.looks.every = c.Lease.Look; l.looks.every == 0 {
			l.looks.every = lease.DefaultLook
		}
		if c.Frozen {
			c.Lease.Look = -1
		}
		c.Lease.Store, c.Lease.Instances, c.Lease.InstancesOf = below, l.Instances.Count, l.instancesOf
		c.Lease.Ahead = !c.Frozen && len(c.Homes) > 0
		if l.Leases, err = lease.New(c.Lease); err != nil {
			return nil, fmt.Errorf("ladder: %w", err)
		}
		deciding = l.Leases
	}
	c.Fallback.Store, c.Fallback.ChargeTo = deciding, below
	c.Fallback.Instances, c.Fallback.InstancesOf, c.Fallback.MaxInstances = l.Instances.Count, l.instancesOf, c.MaxInstances
	if c.Fallback.Log == nil {
		c.Fallback.Log = c.Log
	}
	if l.Fallback, err = NewFallback(c.Fallback); err != nil {
		if l.Leases != nil {
			err = errors.Join(err, l.Leases.Close(context.Background()))
		}
		return nil, fmt.Errorf("ladder: %w", err)
	}
	ctx, stop := context.WithCancel(context.Background())
	l.stop = stop
	if !c.Frozen {
		l.running.Go(func() { l.Instances.Run(ctx) })
		l.running.Go(func() { l.runHomes(ctx) })
	}
	return l, nil
}

func (l *Chain) guard(c *ChainConfig, store NamedStore) (limit.Store, error) {
	of := c.Breaker
	of.Store, of.Name, of.Log = store.Store, store.Name, c.Log
	if c.Observe != nil {
		of.Store = &observed{store: store.Store, name: store.Name, tell: c.Observe}
	}
	b, err := NewBreaker(of)
	if err != nil {
		return nil, fmt.Errorf("ladder: %w", err)
	}
	l.Breakers = append(l.Breakers, b)
	return b, nil
}

// Close charges what is still owed and gives back what was leased, as far as the stores answer before ctx ends. No decision may
// be under way.
func (l *Chain) Close(ctx context.Context) error {
	l.stop()
	l.running.Wait()
	errs := []error{l.Fallback.Close(ctx)}
	if l.Leases != nil {
		errs = append(errs, l.Leases.Close(ctx))
	}
	if l.away != nil {
		errs = append(errs, l.away.Close(ctx))
	}
	if l.joined != nil {
		errs = append(errs, l.joined.Close(ctx))
	}
	return errors.Join(errs...)
}
