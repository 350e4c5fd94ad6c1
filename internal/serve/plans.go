package serve

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	awsconfig "github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/service/appconfigdata"

	"github.com/sluicelimits/sluice/authorizer"
	"github.com/sluicelimits/sluice/internal/aws/awsenv"
	"github.com/sluicelimits/sluice/internal/cell/config"
	configtable "github.com/sluicelimits/sluice/internal/cell/dynamotable"
	"github.com/sluicelimits/sluice/internal/cell/killswitch"
	"github.com/sluicelimits/sluice/internal/cell/planfile"
	"github.com/sluicelimits/sluice/internal/configfile"
	"github.com/sluicelimits/sluice/internal/limiter/refresh"
	"github.com/sluicelimits/sluice/internal/limiter/resilience"
	"github.com/sluicelimits/sluice/internal/limiter/store/dynamodb"
	"github.com/sluicelimits/sluice/internal/request/identity"
	"github.com/sluicelimits/sluice/internal/request/identity/token"
	"github.com/sluicelimits/sluice/internal/stores"
)

// followEvery is how often the service asks whether its copy of a config table is due: twice as often as the copy asks
// the table, so that it never gets older than config.Fresh, and no request waits for it.
const followEvery = config.PollEvery / 2

// tenantPlans decide about descriptors of the mapping, and about calls of Sluice's own API.
type tenantPlans struct {
	*authorizer.Authorizer

	follow func(context.Context) // takes up changes until the context ends
	kill   *killswitch.Switch    // nil without --kill-switch
	tokens *token.Verifier       // nil without --issuers
}

// close ends what may still be under way.
func (p *tenantPlans) close() {
	if p.kill != nil {
		p.kill.Close()
	}
	if p.tokens != nil {
		p.tokens.Close()
	}
}

// openPlans loads the plans files or the config table. It returns nil if there are neither.
func (o *Options) openPlans(ctx context.Context, c *stores.Counters) (*tenantPlans, error) {
	out := new(tenantPlans)
	var source authorizer.Source
	switch {
	case o.ConfigTable != "":
		reader, err := o.openConfigTable(ctx, c)
		if err != nil {
			return nil, err
		}
		source, out.follow = background{reader}, func(ctx context.Context) {
			every(ctx, followEvery, func(now time.Time) {
				if _, join := reader.Begin(ctx, now); join != nil {
					join()
				}
			})
		}
	case len(o.Plans) > 0:
		plans, err := planfile.Open(planfile.Config{Files: o.Plans, Peppers: o.Peppers, Store: c.Tenants, Log: o.Log})
		if err != nil {
			return nil, err
		}
		source = authorizer.Current(plans.Current)
		out.follow = func(ctx context.Context) { plans.Watch(ctx, configfile.Hangups(ctx)) }
	default:
		return nil, nil //nolint:nilnil // no mapping may be in the configuration then
	}
	config := authorizer.Config{Source: source, Store: c.Tenants, Sources: c.Names, Log: o.Log}
	var err error
	if o.Proxy != nil {
		config.Addresses, config.TrustedHops = c.Addresses, o.Proxy.TrustedHops
		if o.Proxy.Tokens.Issuers != "" {
			if out.tokens, err = o.Proxy.Tokens.Open(o.Log); err != nil {
				return nil, err
			}
			config.Tokens = out.tokens
		}
	}
	if o.KillSwitch != "" {
		if out.kill, err = o.openKillSwitch(ctx); err != nil {
			return nil, err
		}
		config.Mode = out.kill.Mode
		followSource := out.follow
		out.follow = func(ctx context.Context) {
			// AppConfig is polled every killswitch.Every. This only asks whether a poll is due.
			go every(ctx, time.Second, func(now time.Time) { out.kill.Poll(ctx, now) })
			followSource(ctx)
		}
	}
	out.Authorizer, err = authorizer.New(config)
	return out, err
}

// checkHomes checks the flags --home.
func (o *Options) checkHomes() error {
	seen := map[string]bool{}
	for _, text := range o.Homes {
		cell, table, _ := strings.Cut(text, "=")
		switch {
		case cell == "" || table == "":
			return fmt.Errorf("--home %q is not CELL=TABLE", text)
		case seen[cell]:
			return fmt.Errorf("--home names cell %q twice", cell)
		case o.Cell == "":
			return errors.New("--home has no use without --cell")
		case o.Stores.DynamoDB == "":
			return errors.New("--home has no use without --dynamodb: the other cells lease what this cell keeps from " +
				"its counters table")
		}
		seen[cell] = true
	}
	return nil
}

// openHomes makes the stores of other cells, by cell. This service's own cell may be among the flags, and is left out.
func (o *Options) openHomes(ctx context.Context) (map[string]resilience.NamedStore, error) {
	homes := map[string]resilience.NamedStore{}
	for _, text := range o.Homes {
		cell, table, _ := strings.Cut(text, "=")
		if cell == o.Cell {
			continue
		}
		client, err := o.Stores.DynamoDBClient(ctx, awsenv.Region(table))
		if err != nil {
			return nil, err
		}
		store, err := dynamodb.New(dynamodb.Config{Client: client, Table: table, Timeout: o.HomeDeadline})
		if err != nil {
			return nil, fmt.Errorf("--home %s: %w", text, err)
		}
		homes[cell] = resilience.NamedStore{Name: "home " + cell, Store: store}
	}
	return homes, nil
}

// reachesHome reports whether the limits that another cell keeps can be leased from it.
func (o *Options) reachesHome(cell string) bool {
	return slices.ContainsFunc(o.Homes, func(text string) bool { return strings.HasPrefix(text, cell+"=") })
}

// checkKillSwitch checks the flag --kill-switch.
func (o *Options) checkKillSwitch() error {
	switch ids := strings.Split(o.KillSwitch, "/"); {
	case o.KillSwitch == "":
		return nil
	case len(ids) != 3 || slices.Contains(ids, ""):
		return fmt.Errorf("--kill-switch %q is not APPLICATION/ENVIRONMENT/PROFILE, three ids of AWS AppConfig: the "+
			"output KillSwitch of the cell's stack has them", o.KillSwitch)
	case o.ConfigTable == "" && len(o.Plans) == 0:
		return errors.New("--kill-switch has no use without --config-table or --plans: only plans follow it")
	}
	return nil
}

// openKillSwitch makes the kill switch, and reads it once. It is no error if AppConfig does not answer: limits are
// enforced until it does, as in the authorizer.
func (o *Options) openKillSwitch(ctx context.Context) (*killswitch.Switch, error) {
	config, err := awsconfig.LoadDefaultConfig(ctx)
	if err != nil {
		return nil, fmt.Errorf("--kill-switch: %w", err)
	}
	ids := strings.Split(o.KillSwitch, "/")
	kill, err := killswitch.New(killswitch.Config{Application: ids[0], Environment: ids[1], Profile: ids[2],
		Wait: refresh.ReadTimeout, Log: o.Log,
		Client: func() killswitch.Client { return appconfigdata.NewFromConfig(config) }})
	if err != nil {
		return nil, fmt.Errorf("--kill-switch: %w", err)
	}
	kill.Poll(ctx, time.Now())
	return kill, nil
}

// openConfigTable reads the settings of a cell's config table. Plans and tenants are read when requests need them. So
// are API keys, for the proxy: of other requests, Envoy says who calls.
func (o *Options) openConfigTable(
	ctx context.Context, c *stores.Counters,
) (*config.Reader, error) {
	client, err := o.Stores.DynamoDBClient(ctx, "")
	if err != nil {
		return nil, err
	}
	documents := configtable.New(configtable.Config{Client: client, Table: o.ConfigTable})
	of := config.Config{Table: documents, Cell: o.Cell, Alone: o.Alone, Accepts: c.Tenants.Accepts,
		Reaches: o.reachesHome, Timeout: o.Stores.DynamoDBDeadline, Log: o.Log}
	if o.Proxy != nil {
		peppers, err := identity.NewPeppers(o.Peppers)
		if err != nil {
			return nil, fmt.Errorf("--pepper: %w", err)
		}
		of.Hashes = func(_ context.Context, _ time.Time, presented string) ([]identity.KeyHash, error) {
			return peppers.Hashes(presented)
		}
	}
	reader, err := config.New(of)
	if err != nil {
		return nil, fmt.Errorf("--config-table: %w", err)
	}
	if err := reader.Load(ctx, time.Now()); err != nil {
		return nil, fmt.Errorf("--config-table %s: %w", o.ConfigTable, err)
	}
	return reader, nil
}

// background is a source that no request waits for after its decision: a server goes on without requests.
type background struct{ *config.Reader }

// Begin implements [authorizer.Source].
func (b background) Begin(ctx context.Context, now time.Time) (authorizer.Configuration, func()) {
	configuration, _ := b.Reader.Begin(ctx, now)
	return configuration, nil
}
