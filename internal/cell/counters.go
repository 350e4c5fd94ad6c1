package cell

import (
	"context"
	"errors"
	"time"

	"github.com/sluicelimits/sluice/internal/cellconfig"
	"github.com/sluicelimits/sluice/internal/cellconfig/table"
	"github.com/sluicelimits/sluice/internal/limit"
	"github.com/sluicelimits/sluice/internal/plan"
	"github.com/sluicelimits/sluice/internal/secrets"
	"github.com/sluicelimits/sluice/internal/store/dynamodb"
	"github.com/sluicelimits/sluice/internal/store/redis"
	"github.com/sluicelimits/sluice/internal/store/router"
)

// Counters is where a cell counts, and what it enforces, for operators: without leases, backstop or cache in between, so that
// what is seen is what is stored. Make it with NewCounters.
type Counters struct {
	Store  limit.Store
	reader *cellconfig.Reader
	close  []func() error
}

// patience is how long an operator waits for a store; what a request has no time for, such as a new connection, fits in.
const patience = 2 * time.Second

// NewCounters makes them from the settings of the cell's authorizer, which name a config table. It waits for nothing. Config's
// Bundle, Output and InvocationID are not used.
func NewCounters(c Config) (*Counters, error) {
	a, err := newAmazon(c.Env)
	if err != nil {
		return nil, err
	}
	out := &Counters{}
	items, err := dynamodb.New(dynamodb.Config{Client: a.dynamodb(), Table: c.Settings.CountersTable, Timeout: patience})
	if err != nil {
		return nil, err
	}
	out.Store = items
	if c.Settings.Redis != nil {
		if err := out.addRedis(c, a, items); err != nil {
			return nil, err
		}
	}
	if err := out.addHomes(c, a); err != nil {
		return nil, err
	}
	documents, err := table.New(table.Config{Client: a.dynamodb(), Table: c.Settings.ConfigTable})
	if err != nil {
		return nil, err
	}
	out.reader, err = cellconfig.New(cellconfig.Config{
		Table: documents, Cell: c.Settings.Cell, Alone: true, // operators see limits also before there are shares: nothing is granted here
		Accepts: out.Store.Accepts, Log: c.Log, Timeout: patience, FirstTimeout: patience, Reaches: reaches(c.Settings.Homes),
	})
	return out, err
}

// addRedis puts the rates where the cell has them.
func (k *Counters) addRedis(c Config, a *amazon, quotas limit.Store) error {
	secret, err := secrets.New(secrets.Config{Client: a.secretsManager(), ID: c.Settings.Secret, Log: c.Log})
	if err != nil {
		return err
	}
	of := *c.Settings.Redis
	of.Deadline = patience
	var rates *redis.Store
	if rates, err = newRedis(&of, a, secret, c.Log); err != nil {
		return err
	}
	both, err := router.New(router.Config{Rates: rates, Quotas: quotas, HoldFor: -1})
	if err != nil {
		return err
	}
	k.Store = both
	k.close = []func() error{func() error { return both.Close(context.Background()) }, rates.Close, func() error { secret.Close(); return nil }}
	return nil
}

// addHomes has limits that other cells keep looked at, and changed, there.
func (k *Counters) addHomes(c Config, a *amazon) error {
	stores, err := a.homes(c.Settings.Homes, patience)
	if err != nil || len(stores) == 0 {
		return err
	}
	all, err := router.NewHomes(router.HomesConfig{Cell: c.Settings.Cell, Own: k.Store, Homes: stores, HoldFor: -1})
	if err != nil {
		return err
	}
	k.Store = all
	k.close = append([]func() error{func() error { return all.Close(context.Background()) }}, k.close...)
	return nil
}

// Tenant is a tenant with the limits that the cell enforces now; nil where there is none.
func (k *Counters) Tenant(ctx context.Context, id string) (*plan.Tenant, error) {
	configuration, join := k.reader.Begin(ctx, time.Now())
	if join != nil {
		defer join()
	}
	return configuration.Tenant(ctx, id)
}

// Close ends connections.
func (k *Counters) Close() error {
	var errs []error
	for _, f := range k.close {
		errs = append(errs, f())
	}
	return errors.Join(errs...)
}
