package cell

import (
	"context"
	"time"

	"github.com/sluicelimits/sluice/internal/cell/config"
	"github.com/sluicelimits/sluice/internal/cell/dynamotable"
	"github.com/sluicelimits/sluice/internal/cell/secrets"
	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/limiter/store/dynamodb"
	"github.com/sluicelimits/sluice/internal/limiter/store/redis"
	"github.com/sluicelimits/sluice/internal/limiter/store/router"
	"github.com/sluicelimits/sluice/internal/plan"
)

// Counters gives operators access to the counters of a cell and to the limits that the cell enforces. It does without
// leases, a fallback limiter or a cache, so that operators see what is stored. Make it with NewCounters.
type Counters struct {
	Store  limit.Store
	reader *config.Reader
}

// patience is how long an operator's call waits for a store. It is longer than a request may wait, so that a new
// connection can be made.
const patience = 2 * time.Second

// NewCounters makes Counters from the settings of the cell's authorizer, which must name a config table. It makes no
// calls. It ignores Config's Bundle, Output and InvocationID.
func NewCounters(c Config) (*Counters, error) {
	a, err := newAWSClients(c.Env)
	if err != nil {
		return nil, err
	}
	items, err := dynamodb.New(dynamodb.Config{Client: a.dynamodb(), Table: c.Settings.CountersTable,
		Timeout: patience})
	if err != nil {
		return nil, err
	}
	to := router.Config{Cell: c.Settings.Cell, Rates: router.Backend{Store: items}}
	if c.Settings.Redis != nil {
		to.Quotas = to.Rates
		if to.Rates.Store, err = newRates(c, a); err != nil {
			return nil, err
		}
	}
	if len(c.Settings.Homes) > 0 { // limits that other cells keep are read and changed in those cells
		homes, err := a.homes(c.Settings.Homes, patience)
		if err != nil {
			return nil, err
		}
		to.Homes = make(map[string]router.Backend, len(homes))
		for cell, store := range homes {
			to.Homes[cell] = router.Backend{Store: store}
		}
	}
	all, err := router.New(to)
	if err != nil {
		return nil, err
	}
	documents := dynamotable.New(dynamotable.Config{Client: a.dynamodb(), Table: c.Settings.ConfigTable})
	reader, err := config.New(config.Config{
		// Operators may see limits even if there are no shares, since nothing is granted here.
		Table: documents, Cell: c.Settings.Cell, Alone: true,
		Accepts: all.Accepts, Log: c.Log, Timeout: patience, FirstTimeout: patience, Reaches: reaches(c.Settings.Homes),
	})
	if err != nil {
		return nil, err
	}
	return &Counters{Store: all, reader: reader}, nil
}

// newRates makes the store of the cell's Redis, which counts its rates.
func newRates(c Config, a *awsClients) (*redis.Store, error) {
	secret, err := secrets.New(secrets.Config{Client: a.secretsManager(), ID: c.Settings.Secret, Log: c.Log})
	if err != nil {
		return nil, err
	}
	of := *c.Settings.Redis
	of.Deadline = patience
	return newRedis(&of, a, secret, c.Log)
}

// Tenant returns a tenant with the limits that the cell enforces at present; nil if there is none.
func (k *Counters) Tenant(ctx context.Context, id string) (*plan.Tenant, error) {
	configuration, join := k.reader.Begin(ctx, time.Now())
	if join != nil {
		defer join()
	}
	return configuration.Tenant(ctx, id)
}
