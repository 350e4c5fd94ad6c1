package cell

import (
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/appconfigdata"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/secretsmanager"

	"github.com/sluicelimits/sluice/authorizer"
	"github.com/sluicelimits/sluice/internal/aws/awsenv"
	"github.com/sluicelimits/sluice/internal/aws/environ"
	"github.com/sluicelimits/sluice/internal/cell/killswitch"
	"github.com/sluicelimits/sluice/internal/limiter/limit"
	dynamostore "github.com/sluicelimits/sluice/internal/limiter/store/dynamodb"
)

// awsClients makes the clients of AWS services.
type awsClients struct{ *awsenv.Env }

func newAWSClients(env func(string) string) (*awsClients, error) {
	e, err := awsenv.New(env)
	if err != nil {
		return nil, err
	}
	return &awsClients{e}, nil
}

func (a *awsClients) dynamodb() *dynamodb.Client { return a.DynamoDB("") }

// homes returns the counters tables of other cells, by cell. It makes one client for each region.
func (a *awsClients) homes(tables []environ.CellTable, timeout time.Duration) (map[string]limit.Store, error) {
	clients := map[string]*dynamodb.Client{}
	out := make(map[string]limit.Store, len(tables))
	for _, t := range tables {
		region := awsenv.Region(t.Table)
		if clients[region] == nil {
			clients[region] = a.DynamoDB(region)
		}
		s, err := dynamostore.New(dynamostore.Config{Client: clients[region], Table: t.Table, Timeout: timeout})
		if err != nil {
			return nil, fmt.Errorf("the counters of cell %s: %w", t.Cell, err)
		}
		out[t.Cell] = s
	}
	return out, nil
}

// reaches returns a function that reports whether there is a counters table for a home cell.
func reaches(homes []environ.CellTable) func(home string) bool {
	return func(home string) bool {
		return slices.ContainsFunc(homes, func(t environ.CellTable) bool { return t.Cell == home })
	}
}

// newKillSwitch makes the kill switch, or returns nil if none is configured. The first poll makes its client.
func newKillSwitch(of *environ.AppConfig, a *awsClients, log *slog.Logger) (*killswitch.Switch, error) {
	if of == nil {
		return nil, nil
	}
	return killswitch.New(killswitch.Config{
		Application: of.Application, Environment: of.Environment, Profile: of.Profile, Wait: authorizer.BackgroundWait,
		Log: log,
		Client: func() killswitch.Client {
			return appconfigdata.NewFromConfig(a.Config(""), func(o *appconfigdata.Options) {
				o.BaseEndpoint = a.Endpoint("APPCONFIGDATA")
				o.EndpointOptions.UseFIPSEndpoint, o.EndpointOptions.UseDualStackEndpoint = a.FIPS(), a.DualStack()
			})
		},
	})
}

func (a *awsClients) secretsManager() *secretsmanager.Client {
	return secretsmanager.NewFromConfig(a.Config(""), func(o *secretsmanager.Options) {
		o.BaseEndpoint = a.Endpoint("SECRETS_MANAGER")
		o.EndpointOptions.UseFIPSEndpoint, o.EndpointOptions.UseDualStackEndpoint = a.FIPS(), a.DualStack()
	})
}
