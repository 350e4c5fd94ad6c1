package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
	"time"

	awsconfig "github.com/aws/aws-sdk-go-v2/config"
	awsdynamodb "github.com/aws/aws-sdk-go-v2/service/dynamodb"

	"github.com/sluicelimits/sluice/authorizer"
	"github.com/sluicelimits/sluice/internal/cell/cellconfig"
	configtable "github.com/sluicelimits/sluice/internal/cell/cellconfig/table"
	"github.com/sluicelimits/sluice/internal/cell/planfile"
	"github.com/sluicelimits/sluice/internal/request/identity"
	"github.com/sluicelimits/sluice/internal/server/limits"
)

// followEvery is how often the service asks whether its copy of a config table is due: twice as often as the copy asks
// the table, so that it never gets older than cellconfig.Fresh, and no request waits for it.
const followEvery = cellconfig.PollEvery / 2

// tenantPlans decide about descriptors of the mapping, and about calls of Sluice's own API.
type tenantPlans struct {
	*authorizer.Authorizer

	follow func(context.Context) // takes up changes until the context ends
}

// openPlans loads the plans files or the config table. It returns nil if there are neither.
func (o *serveOptions) openPlans(ctx context.Context, c *counters, log *slog.Logger) (*tenantPlans, error) {
	out := new(tenantPlans)
	var source authorizer.Source
	switch {
	case o.configTable != "":
		reader, err := o.openConfigTable(ctx, c, log)
		if err != nil {
			return nil, err
		}
		source, out.follow = background{reader}, func(ctx context.Context) { followTable(ctx, reader) }
	case len(o.plans) > 0:
		plans, err := o.openPlansFiles(c, log)
		if err != nil {
			return nil, err
		}
		source = authorizer.Current(plans.Current)
		out.follow = func(ctx context.Context) { watchPlans(ctx, plans, log) }
	default:
		return nil, nil //nolint:nilnil // no mapping may be in the configuration then
	}
	var err error
	out.Authorizer, err = authorizer.New(authorizer.Config{Source: source, Store: c.tenants, Log: log})
	return out, err
}

func (o *serveOptions) openPlansFiles(c *counters, log *slog.Logger) (*planfile.Plans, error) {
	peppers := map[string][]byte{identity.DevPepperID: identity.DevPepper()}
	for _, text := range o.pepperFiles {
		p, err := parsePepper(text)
		if err != nil {
			return nil, err
		}
		if peppers[p.id], err = p.read(); err != nil {
			return nil, err
		}
	}
	return planfile.Open(planfile.Config{Files: o.plans, Peppers: peppers, Accepts: c.tenants.Accepts,
		AcceptsPlan: planAccepter(c.tenants), Log: log})
}

// openConfigTable reads the settings of a cell's config table. Plans and tenants are read when requests need them. API
// keys are not: Envoy says who calls.
func (o *serveOptions) openConfigTable(
	ctx context.Context, c *counters, log *slog.Logger,
) (*cellconfig.Reader, error) {
	client, err := o.dynamoDBClient(ctx)
	if err != nil {
		return nil, err
	}
	documents, err := configtable.New(configtable.Config{Client: client, Table: o.configTable})
	if err != nil {
		return nil, fmt.Errorf("--config-table: %w", err)
	}
	reader, err := cellconfig.New(cellconfig.Config{Table: documents, Cell: o.cell, Alone: o.alone,
		Accepts: c.tenants.Accepts, Timeout: o.stores.dynamodbDeadline, Log: log})
	if err != nil {
		return nil, fmt.Errorf("--config-table: %w", err)
	}
	if err := reader.Load(ctx, time.Now()); err != nil {
		return nil, fmt.Errorf("--config-table %s: %w", o.configTable, err)
	}
	return reader, nil
}

// dynamoDBClient makes a client of the DynamoDB that --dynamodb names, or of AWS's without the flag.
func (o *serveOptions) dynamoDBClient(ctx context.Context) (*awsdynamodb.Client, error) {
	if o.stores.dynamodb != "" && o.stores.dynamodb != realDynamoDB {
		return o.stores.dynamoDBLocal()
	}
	config, err := awsconfig.LoadDefaultConfig(ctx)
	if err != nil {
		return nil, fmt.Errorf("--dynamodb %s: %w", realDynamoDB, err)
	}
	return awsdynamodb.NewFromConfig(config), nil
}

// background is a source that no request waits for after its decision: a server goes on without requests.
type background struct{ *cellconfig.Reader }

// Begin implements [authorizer.Source].
func (b background) Begin(ctx context.Context, now time.Time) (authorizer.Configuration, func()) {
	configuration, _ := b.Reader.Begin(ctx, now)
	return configuration, nil
}

// followTable keeps the copy of a config table up to date until the context ends.
func followTable(ctx context.Context, reader *cellconfig.Reader) {
	tick := time.NewTicker(followEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-tick.C:
			if _, join := reader.Begin(ctx, now); join != nil {
				join()
			}
		}
	}
}

// watchPlans reloads the plans when they change, and on SIGHUP, until the context ends.
func watchPlans(ctx context.Context, plans *planfile.Plans, log *slog.Logger) {
	hangup := make(chan os.Signal, 1)
	signal.Notify(hangup, syscall.SIGHUP)
	defer signal.Stop(hangup)
	if err := plans.Watch(ctx, hangup, nil); err != nil {
		log.Warn("changes of the plans are not seen; restart to load them", "error", err)
	}
}

// openLimits makes Sluice's own API, if there are plans.
func openLimits(c *counters, plans *tenantPlans) (*limits.Service, error) {
	if plans == nil {
		return nil, nil
	}
	return limits.New(limits.Config{Plans: plans.Authorizer, Store: c.tenants})
}
