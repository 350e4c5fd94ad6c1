// Command canary is the Lambda function that measures on a schedule how long it takes until every cell enforces a
// change.
package main

import (
	"os"

	"github.com/sluicelimits/sluice/internal/aws/environ"
	"github.com/sluicelimits/sluice/internal/cell/dynamotable"
	"github.com/sluicelimits/sluice/internal/control"
	"github.com/sluicelimits/sluice/internal/control/dynamo"
	"github.com/sluicelimits/sluice/internal/function"
	"github.com/sluicelimits/sluice/streams/canary"
)

func main() { function.Main(environ.Read[environ.Canary], start) }

func start(process *function.Process, s *environ.Canary) (function.Handler, error) {
	tables := dynamo.New(process.DynamoDB(function.Region(s.Plans)), map[control.Table]string{control.Plans: s.Plans})
	cells := make([]canary.Cell, len(s.Cells))
	for i, c := range s.Cells {
		cells[i].ID = c.Cell
		var err error
		if cells[i].Meter, err = process.Meter(c.Cell); err != nil {
			return nil, err
		}
		cells[i].Table = dynamotable.New(dynamotable.Config{
			Client: process.DynamoDB(function.Region(c.Table)), Table: c.Table,
		})
	}
	c := canary.New(canary.Config{
		Tables: tables, Cells: cells, Actor: "function:" + os.Getenv("AWS_LAMBDA_FUNCTION_NAME"), Log: process.Log,
		Wait: s.Wait,
	})
	return function.Scheduled(c.Run), nil
}
