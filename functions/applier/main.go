// Command applier is the Lambda function behind a cell's queue. It writes changes to the cell's configuration, as the
// control tables have them.
//
// Its event source is the queue, which is subscribed to the topic with raw delivery, with ReportBatchItemFailures.
// docs/functions.md has the numbers.
package main

import (
	"github.com/sluicelimits/sluice/internal/aws/environ"
	"github.com/sluicelimits/sluice/internal/cell/dynamotable"
	"github.com/sluicelimits/sluice/internal/control"
	"github.com/sluicelimits/sluice/internal/control/dynamo"
	"github.com/sluicelimits/sluice/internal/function"
	"github.com/sluicelimits/sluice/streams/applier"
)

func main() { function.Main(environ.Read[environ.Applier], start) }

func start(process *function.Process, s *environ.Applier) (function.Handler, error) {
	meter, err := process.Meter(s.Cell)
	if err != nil {
		return nil, err
	}
	store := dynamotable.New(dynamotable.Config{
		Client: process.DynamoDB(function.Region(s.ConfigTable)), Table: s.ConfigTable,
	})
	tables := dynamo.New(process.DynamoDB(function.Region(s.Tables.Plans)), map[control.Table]string{
		control.Plans: s.Tables.Plans, control.Tenants: s.Tables.Tenants, control.Keys: s.Tables.Keys,
		control.Cells: s.Tables.Cells,
	})
	heard := applier.NewAcknowledger(applier.AcknowledgerConfig{Cell: s.Cell, Tables: tables, Store: store})
	queues := function.SQS(process.Env)
	a := applier.New(applier.Config{
		Cell: s.Cell, Tables: tables, Store: store, Keep: function.NewQueue(queues, s.KeptQueue),
		Acknowledger: heard, Delayer: function.NewDelayer(queues, s.Queue), Meter: meter, Log: process.Log,
	})
	return a.Invoke, nil
}
