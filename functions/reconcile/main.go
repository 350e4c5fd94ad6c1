// Command reconcile is the Lambda that compares the control tables with a cell's copy on a schedule, repairs what the cell has
// missed, and reports drift.
package main

import (
	"context"

	"github.com/sluicelimits/sluice/internal/aws/environ"
	"github.com/sluicelimits/sluice/internal/aws/function"
	"github.com/sluicelimits/sluice/internal/cell/cellconfig/table"
	"github.com/sluicelimits/sluice/internal/control"
	"github.com/sluicelimits/sluice/internal/control/dynamo"
	"github.com/sluicelimits/sluice/streams/acknowledge"
	"github.com/sluicelimits/sluice/streams/awsio"
	"github.com/sluicelimits/sluice/streams/reconcile"
)

func main() { function.Main(environ.ParseReconcile, start) }

func start(process *function.Process, s *environ.Reconcile) (function.Handler, error) {
	meter, err := process.Meter(s.Cell)
	if err != nil {
		return nil, err
	}
	tables, err := dynamo.New(process.DynamoDB(awsio.Region(s.Tables.Plans)), map[control.Table]string{
		control.Plans: s.Tables.Plans, control.Tenants: s.Tables.Tenants, control.Keys: s.Tables.Keys, control.Cells: s.Tables.Cells,
	})
	if err != nil {
		return nil, err
	}
	store, err := table.New(table.Config{Client: process.DynamoDB(awsio.Region(s.ConfigTable)), Table: s.ConfigTable})
	if err != nil {
		return nil, err
	}
	r, err := reconcile.New(reconcile.Config{Tables: tables, Store: store, Meter: meter, Log: process.Log, Grace: s.Grace})
	if err != nil {
		return nil, err
	}
	heard, err := acknowledge.New(acknowledge.Config{Cell: s.Cell, Tables: tables, Store: store})
	if err != nil {
		return nil, err
	}
	return function.Scheduled(func(ctx context.Context) (reconcile.Result, error) {
		result, err := r.Run(ctx)
		if err == nil {
			_, err = heard.Run(ctx) // what was lost, or just repaired
		}
		return result, err
	}), nil
}
