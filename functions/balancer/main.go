// Command balancer is the Lambda function that decides what share of each limit a cell has.
//
// Its event sources are the stream of the control table of cells, with ReportBatchItemFailures, bisecting on errors,
// bounded retries and age, and a queue for records that failed too often; and a schedule, once a minute. It publishes
// the changes in the stream, as the publisher does for the other tables. Its timeout must be several seconds longer
// than the grace, which is 18 seconds.
package main

import (
	"context"

	"github.com/sluicelimits/sluice/internal/aws/environ"
	"github.com/sluicelimits/sluice/internal/control"
	"github.com/sluicelimits/sluice/internal/control/dynamo"
	"github.com/sluicelimits/sluice/internal/function"
	"github.com/sluicelimits/sluice/streams/balancer"
	"github.com/sluicelimits/sluice/streams/publisher"
)

func main() { function.Main(environ.Read[environ.Balancer], start) }

func start(process *function.Process, s *environ.Balancer) (function.Handler, error) {
	meter, err := process.Meter("")
	if err != nil {
		return nil, err
	}
	decoder := dynamo.NewDecoder(map[control.Table]string{control.Cells: s.Tables.Cells})
	p := publisher.New(publisher.Config{
		Topic: function.NewTopic(function.SNS(process.Env, function.Region(s.Topic)), s.Topic),
		Keep:  function.NewQueue(function.SQS(process.Env), s.KeptQueue),
		Meter: meter, Log: process.Log,
	})
	tables := dynamo.New(process.DynamoDB(function.Region(s.Tables.Plans)), map[control.Table]string{
		control.Cells: s.Tables.Cells, control.Plans: s.Tables.Plans,
	})
	b := balancer.New(balancer.Config{
		Tables: tables, Meter: meter, Log: process.Log,
		Publish: func(ctx context.Context, event []byte) ([]byte, error) { return p.Invoke(ctx, decoder, event) },
	})
	return b.Invoke, nil
}
