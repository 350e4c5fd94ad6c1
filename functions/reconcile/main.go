// Command reconcile is the Lambda function that compares the control tables with a cell's copy on a schedule, repairs
// what the cell lacks, and reports differences.
package main

import (
	"context"
	"encoding/json"
	"os"

	"github.com/sluicelimits/sluice/internal/aws/environ"
	"github.com/sluicelimits/sluice/internal/aws/function"
	"github.com/sluicelimits/sluice/internal/cell/cellconfig/table"
	"github.com/sluicelimits/sluice/internal/control"
	"github.com/sluicelimits/sluice/internal/control/dynamo"
	"github.com/sluicelimits/sluice/streams/acknowledge"
	"github.com/sluicelimits/sluice/streams/awsio"
	"github.com/sluicelimits/sluice/streams/reconcile"
)

func main() { function.Main(start) }

func start() (*function.Process, function.Handler, error) {
	s, err := environ.ParseReconcile(os.Environ())
	if err != nil {
		return nil, nil, err
	}
	process, err := function.Start(s.Common)
	if err != nil {
		return nil, nil, err
	}
	meter, err := process.Meter(s.Cell)
	if err != nil {
		return nil, nil, err
	}
	tables, err := dynamo.New(process.DynamoDB(awsio.Region(s.Tables.Plans)), map[control.Table]string{
		control.Plans: s.Tables.Plans, control.Tenants: s.Tables.Tenants, control.Keys: s.Tables.Keys,
		control.Cells: s.Tables.Cells,
	})
	if err != nil {
		return nil, nil, err
	}
	store, err := table.New(table.Config{Client: process.DynamoDB(awsio.Region(s.ConfigTable)), Table: s.ConfigTable})
	if err != nil {
		return nil, nil, err
	}
	r, err := reconcile.New(reconcile.Config{Tables: tables, Store: store, Meter: meter, Log: process.Log,
		Grace: s.Grace})
	if err != nil {
		return nil, nil, err
	}
	heard, err := acknowledge.New(acknowledge.Config{Cell: s.Cell, Tables: tables, Store: store})
	if err != nil {
		return nil, nil, err
	}
	return process, func(ctx context.Context, _ []byte) ([]byte, error) { // the event of a schedule has no content
		result, err := r.Run(ctx)
		if err != nil {
			return nil, err
		}
		if _, err := heard.Run(ctx); err != nil { // in case an acknowledgement was lost, or its shares were repaired
			return nil, err
		}
		return json.Marshal(result)
	}, nil
}
