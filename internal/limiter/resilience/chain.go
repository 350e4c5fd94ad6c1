package resilience

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/sluicelimits/sluice/internal/lease"
	"github.com/sluicelimits/sluice/internal/limit"
	"github.com/sluicelimits/sluice/internal/store/router"
)

// NamedStore is a store and its name in errors, in the log and on the live page.
type NamedStore struct {
	Name  string
	Store limit.Store
}

// ChainConfig sets up a [Chain].
type ChainConfig struct {
	Rates  NamedStore // required; it counts everything but the quotas, if they have a store of their own
	Quotas NamedStore // the store of the quotas; if its Store is nil, Rates counts them, too

	// Homes are the counters of other cells, by cell: the cells that keep limits which this one decides on
	// (limit.Limit.Home). They may be far away, so a decision asks them only for what it lacks. Cell is the name of
	// this cell. What this cell keeps itself is counted with its quotas.
	Cell  string
	Homes map[string]NamedStore

	NoLeases     bool // each decision asks the stores
	MaxInstances int  // the most processes that may share the stores, known before they are counted; 0 means 1

	Breaker  BreakerConfig  // of each store; Name, Observe and Log are set by NewChain
	Lease    lease.Config   // Store and Instances are set by NewChain
	Fallback FallbackConfig // Store, ReplayTo, Instances and MaxInstances are set by NewChain

	// Frozen is for a process that may be frozen between requests, as on Lambda: nothing runs by itself, and
	// RunBackgroundTasks is to be called with each request.
	Frozen bool

	// Observe is told of each call of a store that its breaker lets through: the store's name, how long the call took,
	// and whether the store failed. What the store says of the request, and what a caller gave up, is no failure.
	// Observe is called in the course of a decision and must not wait. If nil, nobody is told.
	Observe func(store string, took time.Duration, failed bool)

	Log *slog.Logger // default slog.Default()
}

// Chain is the store chain of a process: a [limit.Store] that has an answer whatever becomes of the stores below. Make
// it with [NewChain].
type Chain struct {
	*Fallback

	Leases    *lease.Store // nil with ChainConfig.NoLeases
	Breakers  []*Breaker   // of the rates, of the quotas if they have their own store, of each home by the cell's name
	Instances *Instances   // counts who shares the rates

	router         *router.Store
	cell           string
	homes          map[string]*home // by cell; nil without homes
	quotaInstances *Instances       // counts who shares this cell's own quotas; nil without homes
	spareLeases    sparePause
	stop           context.CancelFunc
	running        sync.WaitGroup
}

// NewChain builds the store chain and, unless it is Frozen, begins to count the processes that share the stores. The
// error names the field. Close the chain when done; that closes no store.
func NewChain(config ChainConfig) (*Chain, error) {
	if config.Log == nil {
		config.Log = slog.Default()
	}
	if config.Rates.Store == nil {
		return nil, errors.New("store chain: Rates is missing")
	}
	c := &Chain{cell: config.Cell}
	err := c.addStores(&config)
	if err == nil {
		err = c.addDeciders(&config)
	}
	if err != nil {
		return nil, fmt.Errorf("store chain: %w", err)
	}
	ctx, stop := context.WithCancel(context.Background())
	c.stop = stop
	if !config.Frozen {
		c.running.Go(func() { c.Instances.Run(ctx) })
		c.running.Go(func() { c.runHomes(ctx) })
	}
	return c, nil
}

// addStores puts a breaker before each store, joins the stores in the router, and counts who shares them.
func (c *Chain) addStores(config *ChainConfig) error {
	breaker, err := c.newBreaker(config, config.Rates.Name)
	if err != nil {
		return err
	}
	to := router.Config{Cell: config.Cell, Rates: router.Backend{Store: config.Rates.Store, Guard: breaker}}
	quotas := to.Rates
	if config.Quotas.Store != nil {
		if breaker, err = c.newBreaker(config, config.Quotas.Name); err != nil {
			return err
		}
		to.Quotas = router.Backend{Store: config.Quotas.Store, Guard: breaker}
		quotas = to.Quotas
	}
	if c.Instances, err = countInstances(to.Rates, config.MaxInstances, false); err != nil {
		return err
	}
	if len(config.Homes) > 0 {
		if to.Homes, err = c.addHomes(config, quotas); err != nil {
			return err
		}
	}
	c.router, err = router.New(to)
	return err
}

// addHomes makes the backends of the homes, and counts who shares the quotas, there and in this cell's own store.
func (c *Chain) addHomes(config *ChainConfig, quotas router.Backend) (map[string]router.Backend, error) {
	most := max(config.MaxInstances, 1) * (1 + len(config.Homes))
	var err error
	if c.quotaInstances, err = countInstances(quotas, most, true); err != nil {
		return nil, err
	}
	c.homes = make(map[string]*home, len(config.Homes))
	backends := make(map[string]router.Backend, len(config.Homes))
	for _, cell := range slices.Sorted(maps.Keys(config.Homes)) {
		store := config.Homes[cell]
		breaker, err := c.newBreaker(config, store.Name)
		if err != nil {
			return nil, fmt.Errorf("home %s: %w", cell, err)
		}
		h := &home{Breaker: breaker}
		if h.instances, err = countInstances(router.Backend{Store: store.Store, Guard: breaker}, most, true); err != nil {
			return nil, fmt.Errorf("home %s: %w", cell, err)
		}
		c.homes[cell], backends[cell] = h, router.Backend{Store: store.Store, Guard: h}
	}
	return backends, nil
}

func (c *Chain) newBreaker(config *ChainConfig, name string) (*Breaker, error) {
	of := config.Breaker
	of.Name, of.Log = name, config.Log
	if observe := config.Observe; observe != nil {
		of.Observe = func(took time.Duration, failed bool) { observe(name, took, failed) }
	}
	b, err := NewBreaker(of)
	if err == nil {
		c.Breakers = append(c.Breakers, b)
	}
	return b, err
}

// countInstances makes the instance count of one store, which is asked through its guard.
func countInstances(of router.Backend, most int, quotas bool) (*Instances, error) {
	guarded, err := router.New(router.Config{Rates: of})
	if err != nil {
		return nil, err
	}
	return NewInstances(InstancesConfig{Store: guarded, Max: most, Quotas: quotas})
}

// addDeciders puts the lease layer and the fallback limiter before the router.
func (c *Chain) addDeciders(config *ChainConfig) error {
	var decider limit.Store = c.router
	var err error
	if !config.NoLeases {
		if c.spareLeases.period = config.Lease.GiveBackEvery; c.spareLeases.period == 0 {
			c.spareLeases.period = lease.DefaultGiveBackEvery
		}
		of := config.Lease
		if config.Frozen {
			of.GiveBackEvery = -1
		}
		of.Store, of.Instances, of.InstancesOf = c.router, c.Instances.Count, c.instancesOf
		of.Prefetch = !config.Frozen && len(config.Homes) > 0
		if c.Leases, err = lease.New(of); err != nil {
			return err
		}
		decider = c.Leases
	}
	of := config.Fallback
	of.Store, of.ReplayTo = decider, c.router
	of.Instances, of.InstancesOf, of.MaxInstances = c.Instances.Count, c.instancesOf, config.MaxInstances
	if of.Log == nil {
		of.Log = config.Log
	}
	if c.Fallback, err = NewFallback(of); err != nil && c.Leases != nil {
		err = errors.Join(err, c.Leases.Close(context.Background()))
	}
	return err
}

// Close replays what the fallback limiter admitted and gives back what was leased, as far as the stores answer before
// ctx ends. No decision may be under way.
func (c *Chain) Close(ctx context.Context) error {
	c.stop()
	c.running.Wait()
	errs := []error{c.Fallback.Close(ctx)}
	if c.Leases != nil {
		errs = append(errs, c.Leases.Close(ctx))
	}
	return errors.Join(append(errs, c.router.Close(ctx))...)
}
