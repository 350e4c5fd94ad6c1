// Command reconcile is the Lambda function that compares the control tables with a cell's copy on a schedule, repairs
// what the cell lacks, and reports differences.
package main

import (
	"context"

	"github.com/sluicelimits/sluice/internal/aws/environ"
	"github.com/sluicelimits/sluice/internal/cell/dynamotable"
	"github.com/sluicelimits/sluice/internal/control"
	"github.com/sluicelimits/sluice/internal/control/dynamo"
	"github.com/sluicelimits/sluice/internal/function"
	"github.com/sluicelimits/sluice/streams/applier"
	"github.com/sluicelimits/sluice/streams/reconcile"
)

func main() { function.Main(environ.Read[environ.Reconcile], start) }

func start(process *function.Process, s *environ.Reconcile) (function.Handler, error) {
	meter, err := process.Meter(s.Cell)
	if err != nil {
		return nil, err
	}
	tables := dynamo.New(process.DynamoDB(function.Region(s.Tables.Plans)), map[control.Table]string{
		control.Plans: s.Tables.Plans, control.Tenants: s.Tables.Tenants, control.Keys: s.Tables.Keys,
		control.Cells: s.Tables.Cells,
	})
	store := dynamotable.New(dynamotable.Config{
		Client: process.DynamoDB(function.Region(s.ConfigTable)), Table: s.ConfigTable,
	})
	r := reconcile.New(reconcile.Config{Tables: tables, Store: store, Meter: meter, Log: process.Log,
		Grace: s.Grace})
	heard := applier.NewAcknowledger(applier.AcknowledgerConfig{Cell: s.Cell, Tables: tables, Store: store})
	return function.Scheduled(func(ctx context.Context) (reconcile.Result, error) {
		result, err := r.Run(ctx)
		if err == nil {
			_, err = heard.Run(ctx) // in case an acknowledgement was lost, or its shares were repaired
		}
		return result, err
	}), nil
}
