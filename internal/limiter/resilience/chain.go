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

	"github.com/sluicelimits/sluice/internal/limiter/breaker"
	"github.com/sluicelimits/sluice/internal/limiter/clock"
	"github.com/sluicelimits/sluice/internal/limiter/lease"
	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/limiter/store/router"
)

// NamedStore is a store with the name that errors, the log and the live page have for it.
type NamedStore struct {
	Name  string
	Store limit.Store
}

// ChainConfig sets up a [Chain].
type ChainConfig struct {
	Rates  NamedStore // required; counts every limit that no other store counts
	Quotas NamedStore // counts the quotas; if its Store is nil, Rates counts them

	// Cell is the name of this cell. A limit whose home cell (limit.Limit.Home) is this cell is counted in Quotas.
	Cell string

	// Homes are the stores of other home cells, by the cell's name. They count the limits whose home is that cell. They
	// may be far away, so this cell leases from them, and a decision asks them only for the units that it lacks.
	Homes map[string]NamedStore

	NoLeases     bool // each decision asks the stores
	MaxInstances int  // how many processes may share the stores at most; used until they are counted. 0 means 1

	Breaker  breaker.Config // of each store; Name, Judge, Runtime and Log are set by NewChain
	Lease    lease.Config   // Store and Instances are set by NewChain
	Fallback FallbackConfig // Store, ReplayTo, Instances and MaxInstances are set by NewChain

	// Frozen is for a process that may be frozen between requests, as on Lambda. The chain then starts no goroutine
	// that announces the instance or gives back leases, and RunBackgroundTasks must be called with each request.
	Frozen bool

	// Observe is called after each call of a store, with the store's name, how long the call took, and whether it
	// failed. The call has not failed if the store answered with an error, or if the caller gave the call up. The
	// decision waits until Observe returns. If it is nil, nothing is observed.
	Observe func(store string, took time.Duration, failed bool)

	Runtime *clock.Runtime // of every part of the chain; if nil, the machine's. With another one, set Frozen

	Log *slog.Logger // default slog.Default()
}

// Chain is the store chain of a process: a [limit.Store] that has an answer whatever becomes of the stores below. Make
// it with [NewChain].
type Chain struct {
	*Fallback

	Leases    *lease.Store       // nil with ChainConfig.NoLeases
	Breakers  []*breaker.Breaker // of Rates, of Quotas if it is given, and of each of Homes in the order of their names
	Instances *Instances         // counts the processes that share Rates

	router         *router.Store
	cell           string
	homes          map[string]*home // by cell; nil without homes
	quotaInstances *Instances       // counts the processes of all cells that share Quotas; nil without homes
	spareLeases    spareTimer
	stop           context.CancelFunc // ends the goroutines in running
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
		err = c.addLeasesAndFallback(&config)
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

// addStores makes a breaker and an instance count for each store, and the router over all of them.
func (c *Chain) addStores(config *ChainConfig) error {
	to := router.Config{Cell: config.Cell,
		Rates: router.Backend{Store: config.Rates.Store, Guard: c.newGuard(config, config.Rates.Name)}}
	quotas := to.Rates
	if config.Quotas.Store != nil {
		quotas = router.Backend{Store: config.Quotas.Store, Guard: c.newGuard(config, config.Quotas.Name)}
		to.Quotas = quotas
	}
	var err error
	if c.Instances, err = countInstances(config, to.Rates, config.MaxInstances, false); err != nil {
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

// addHomes returns the router's backends for the homes. It makes a breaker and an instance count for each home, and an
// instance count for this cell's own quotas, which other cells share.
func (c *Chain) addHomes(config *ChainConfig, quotas router.Backend) (map[string]router.Backend, error) {
	maxInstances := max(config.MaxInstances, 1) * (1 + len(config.Homes)) // each cell may run as many as this one
	var err error
	if c.quotaInstances, err = countInstances(config, quotas, maxInstances, true); err != nil {
		return nil, err
	}
	c.homes = make(map[string]*home, len(config.Homes))
	backends := make(map[string]router.Backend, len(config.Homes))
	for _, cell := range slices.Sorted(maps.Keys(config.Homes)) {
		store := config.Homes[cell]
		h := &home{guard: c.newGuard(config, store.Name)}
		backend := router.Backend{Store: store.Store, Guard: h.guard}
		if h.instances, err = countInstances(config, backend, maxInstances, true); err != nil {
			return nil, fmt.Errorf("home %s: %w", cell, err)
		}
		c.homes[cell], backends[cell] = h, router.Backend{Store: store.Store, Guard: h}
	}
	return backends, nil
}

// newGuard makes the guard of a store, and its breaker, which it appends to c.Breakers.
func (c *Chain) newGuard(config *ChainConfig, name string) *guard {
	settings := config.Breaker
	settings.Name, settings.Judge, settings.Runtime, settings.Log = name, judge, config.Runtime, config.Log
	b := breaker.New(settings)
	c.Breakers = append(c.Breakers, b)
	return &guard{b, config.Observe}
}

// countInstances makes the instance count of one store. Its calls go through the store's breaker.
func countInstances(
	config *ChainConfig, backend router.Backend, maxInstances int, quotas bool,
) (*Instances, error) {
	guarded, err := router.New(router.Config{Rates: backend})
	if err != nil {
		return nil, err
	}
	return NewInstances(InstancesConfig{Store: guarded, Max: maxInstances, Quotas: quotas, Runtime: config.Runtime})
}

// addLeasesAndFallback makes the lease layer over the router, and the fallback limiter over both.
func (c *Chain) addLeasesAndFallback(config *ChainConfig) error {
	var next limit.Store = c.router
	var err error
	if !config.NoLeases {
		leases := config.Lease
		leases.Runtime = config.Runtime
		if config.Frozen {
			leases.GiveBackEvery = -1 // RunBackgroundTasks gives back spare leases
		}
		leases.Store, leases.Instances = c.router, c.instancesOf
		if c.Leases, err = lease.New(leases); err != nil {
			return err
		}
		next = c.Leases
	}
	fallback := config.Fallback
	fallback.Runtime = config.Runtime
	fallback.Store, fallback.ReplayTo, fallback.Instances = next, c.router, c.instancesOf
	fallback.MaxInstances = config.MaxInstances
	if fallback.Log == nil {
		fallback.Log = config.Log
	}
	if c.Fallback, err = NewFallback(fallback); err != nil && c.Leases != nil {
		err = errors.Join(err, c.Leases.Close(context.Background()))
	}
	return err
}

// Close replays what the fallback limiter admitted and gives back leased units, as far as the stores answer before ctx
// ends. No decision may be under way.
func (c *Chain) Close(ctx context.Context) error {
	c.stop()
	c.running.Wait()
	errs := []error{c.Fallback.Close(ctx)}
	if c.Leases != nil {
		errs = append(errs, c.Leases.Close(ctx))
	}
	return errors.Join(errs...)
}
