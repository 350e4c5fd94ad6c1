// Command applier is the Lambda behind a cell's queue: it brings changes into the cell's configuration, as the
// control tables have them.
//
// Its event source is the queue, subscribed to the topic with raw delivery, with ReportBatchItemFailures; docs/functions.md has the
// numbers.
package main

import (
	"context"
	"errors"

	"github.com/sluicelimits/sluice/internal/aws/environ"
	"github.com/sluicelimits/sluice/internal/aws/function"
	"github.com/sluicelimits/sluice/internal/cell/cellconfig/table"
	"github.com/sluicelimits/sluice/internal/control"
	"github.com/sluicelimits/sluice/internal/control/dynamo"
	"github.com/sluicelimits/sluice/streams/acknowledge"
	"github.com/sluicelimits/sluice/streams/applier"
	"github.com/sluicelimits/sluice/streams/awsio"
)

func main() { function.Main(environ.ParseApplier, start) }

func start(process *function.Process, s *environ.Applier) (function.Handler, error) {
	meter, err := process.Meter(s.Cell)
	if err != nil {
		return nil, err
	}
	store, err := table.New(table.Config{Client: process.DynamoDB(awsio.Region(s.ConfigTable)), Table: s.ConfigTable})
	if err != nil {
		return nil, err
	}
	tables, err := dynamo.New(process.DynamoDB(awsio.Region(s.Tables.Plans)), map[control.Table]string{
		control.Plans: s.Tables.Plans, control.Tenants: s.Tables.Tenants, control.Keys: s.Tables.Keys,
		control.Cells: s.Tables.Cells,
	})
	if err != nil {
		return nil, err
	}
	a, err := applier.New(applier.Config{
		Cell: s.Cell, Tables: tables, Store: store, Keep: awsio.NewQueue(awsio.SQS(process.Env), s.KeptQueue),
		Meter: meter, Log: process.Log,
	})
	if err != nil {
		return nil, err
	}
	heard, err := acknowledge.New(acknowledge.Config{Cell: s.Cell, Tables: tables, Store: store})
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context, event []byte) ([]byte, error) {
		if !acknowledge.Concerned(event) {
			return a.Invoke(ctx, event)
		}
		if err := heard.Prepare(ctx); err != nil {
			return nil, err // all messages come again
		}
		answer, err := a.Invoke(ctx, event)
		if err == nil {
			if _, err = heard.Run(ctx); errors.Is(err, control.ErrBadItem) {
				process.Log.ErrorContext(ctx, "the shares are not acknowledged", "error", err) // to have it again changes nothing
				err = nil
			}
		}
		return answer, err
	}, nil
}
