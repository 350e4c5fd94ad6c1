// Command admin is the Lambda function behind the operators' REST API for changes in the control tables.
//
// The methods of the API have AWS_IAM authorization. The function refuses an event without the caller's identity, and
// an event of another API. Its role may read and write items of the control tables. If they are configured, it may also
// read the cells' config tables and the secret with the peppers.
package main

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/secretsmanager"

	"github.com/sluicelimits/sluice/internal/aws/environ"
	"github.com/sluicelimits/sluice/internal/cell/dynamotable"
	"github.com/sluicelimits/sluice/internal/cell/secrets"
	"github.com/sluicelimits/sluice/internal/control"
	"github.com/sluicelimits/sluice/internal/control/dynamo"
	"github.com/sluicelimits/sluice/internal/control/operate"
	"github.com/sluicelimits/sluice/internal/function"
	counters "github.com/sluicelimits/sluice/internal/limiter/store/dynamodb"
)

func main() { function.Main(environ.Read[environ.Admin], start) }

func start(process *function.Process, s *environ.Admin) (function.Handler, error) {
	tables := dynamo.New(process.DynamoDB(function.Region(s.Tables.Plans)), map[control.Table]string{
		control.Plans: s.Tables.Plans, control.Tenants: s.Tables.Tenants, control.Keys: s.Tables.Keys,
		control.Cells: s.Tables.Cells,
	})
	// A plan may be used in any cell, and a small cell keeps all counters in DynamoDB.
	c := operate.ControlConfig{Tables: tables, Log: process.Log, AcceptsPlan: counters.AcceptsPlan,
		CellTables: map[string]operate.CellTable{}, Regions: map[string]string{}}
	for _, t := range s.CellTable {
		// A table that is given by name is in the function's own region.
		c.Regions[t.Cell] = cmp.Or(function.Region(t.Table), process.Config("").Region)
		c.CellTables[t.Cell] = dynamotable.New(dynamotable.Config{
			Client: process.DynamoDB(function.Region(t.Table)), Table: t.Table,
		})
	}
	if s.Secret != "" {
		var err error
		if c.Hash, err = hashes(process, s.Secret, s.Pepper); err != nil {
			return nil, err
		}
	}
	service := operate.NewControl(c)
	return operate.Lambda(service.Mux(), s.API).Invoke, nil
}

// hashes returns a function that hashes new keys with one pepper of a secret.
func hashes(process *function.Process, id, pepper string) (func(context.Context, string) (string, string, error),
	error) {
	client := secretsmanager.NewFromConfig(process.Config(""), func(o *secretsmanager.Options) {
		o.BaseEndpoint = process.Endpoint("SECRETS_MANAGER")
		o.EndpointOptions.UseFIPSEndpoint, o.EndpointOptions.UseDualStackEndpoint = process.FIPS(), process.DualStack()
	})
	cache, err := secrets.New(secrets.Config{Client: client, ID: id, Log: process.Log})
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context, key string) (string, string, error) {
		values, err := cache.Get(ctx, time.Now())
		if err != nil {
			return "", "", err
		}
		all, err := values.Peppers().Hashes(key)
		if err != nil {
			return "", "", err
		}
		for _, h := range all {
			if h.Pepper == pepper {
				return pepper, fmt.Sprintf("%x", h.Hash), nil
			}
		}
		return "", "", fmt.Errorf("the secret has no pepper %q", pepper)
	}, nil
}
