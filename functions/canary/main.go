// Command canary is the Lambda function that measures on a schedule how long it takes until every cell enforces a
// change.
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
	"github.com/sluicelimits/sluice/streams/awsio"
	"github.com/sluicelimits/sluice/streams/canary"
)

func main() { function.Main(start) }

func start() (*function.Process, function.Handler, error) {
	s, err := environ.ParseCanary(os.Environ())
	if err != nil {
		return nil, nil, err
	}
	process, err := function.Start(s.Common)
	if err != nil {
		return nil, nil, err
	}
	tables, err := dynamo.New(process.DynamoDB(awsio.Region(s.Plans)), map[control.Table]string{control.Plans: s.Plans})
	if err != nil {
		return nil, nil, err
	}
	cells := make([]canary.Cell, len(s.Cells))
	for i, c := range s.Cells {
		cells[i].ID = c.Cell
		if cells[i].Meter, err = process.Meter(c.Cell); err != nil {
			return nil, nil, err
		}
		if cells[i].Table, err = table.New(table.Config{Client: process.DynamoDB(awsio.Region(c.Table)),
			Table: c.Table}); err != nil {
			return nil, nil, err
		}
	}
	c, err := canary.New(canary.Config{
		Tables: tables, Cells: cells, Actor: "function:" + os.Getenv("AWS_LAMBDA_FUNCTION_NAME"), Log: process.Log,
		Wait: s.Wait,
	})
	if err != nil {
		return nil, nil, err
	}
	return process, func(ctx context.Context, _ []byte) ([]byte, error) { // the event of a schedule has no content
		seen, err := c.Run(ctx)
		if err != nil {
			return nil, err
		}
		return json.Marshal(seen)
	}, nil
}
