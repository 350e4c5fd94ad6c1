// Command publisher is the Lambda function that publishes the changes of plans, tenants and API keys to an SNS topic.
// The queues of the cells are subscribed to the topic, and you can subscribe queues of your own. (The balancer
// publishes the changes of cells.)
//
// Its event sources are the streams of the three control tables. Each reports which records of a batch failed
// (ReportBatchItemFailures), divides a batch after an error, and gives a record up after a number of retries or at an
// age; docs/functions.md has the numbers. Two queues keep what an operator has to look at:
//
//   - Lambda sends the records that it gave up to the queue of failed records.
//   - The function itself sends dead letters, which are records and events that can never be published, to the queue in
//     SLUICE_KEPT_QUEUE.
package main

import (
	"context"

	"github.com/sluicelimits/sluice/internal/aws/environ"
	"github.com/sluicelimits/sluice/internal/control"
	"github.com/sluicelimits/sluice/internal/control/dynamo"
	"github.com/sluicelimits/sluice/internal/function"
	"github.com/sluicelimits/sluice/streams/publisher"
)

func main() { function.Main(environ.Read[environ.Publisher], start) }

func start(process *function.Process, s *environ.Publisher) (function.Handler, error) {
	meter, err := process.Meter("") // the publisher belongs to no cell
	if err != nil {
		return nil, err
	}
	decoder := dynamo.NewDecoder(map[control.Table]string{
		control.Plans: s.Tables.Plans, control.Tenants: s.Tables.Tenants, control.Keys: s.Tables.Keys,
	})
	p := publisher.New(publisher.Config{
		Topic: function.NewTopic(function.SNS(process.Env, function.Region(s.Topic)), s.Topic),
		Keep:  function.NewQueue(function.SQS(process.Env), s.KeptQueue), // in the function's own region
		Meter: meter, Log: process.Log,
	})
	return func(ctx context.Context, event []byte) ([]byte, error) { return p.Invoke(ctx, decoder, event) }, nil
}
