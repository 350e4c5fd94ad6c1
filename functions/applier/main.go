// Command applier is the Lambda behind a cell's queue: it brings changes into the cell's configuration.
//
// Its event source is the queue, subscribed to the topic with raw delivery, with ReportBatchItemFailures; docs/functions.md has the
// numbers.
package main

import (
	"os"

	"github.com/sluicelimits/sluice/internal/awsio"
	"github.com/sluicelimits/sluice/internal/cellconfig/table"
	"github.com/sluicelimits/sluice/internal/environ"
	"github.com/sluicelimits/sluice/internal/function"
	"github.com/sluicelimits/sluice/streams/applier"
)

func main() { function.Main(start) }

func start() (*function.Process, function.Handler, error) {
	s, err := environ.ParseApplier(os.Environ())
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
	store, err := table.New(table.Config{Client: process.DynamoDB(awsio.Region(s.ConfigTable)), Table: s.ConfigTable})
	if err != nil {
		return nil, nil, err
	}
	a, err := applier.New(applier.Config{
		Cell: s.Cell, Store: store, Keep: awsio.NewQueue(awsio.SQS(process.Env), s.KeptQueue), Meter: meter, Log: process.Log,
	})
	if err != nil {
		return nil, nil, err
	}
	return process, a.Invoke, nil
}
