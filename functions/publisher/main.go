// Command publisher is the Lambda behind the streams of the control tables: it tells cells and subscribers what changed.
//
// Its event sources are the streams of plans, tenants and keys, with ReportBatchItemFailures, bisecting on errors, bounded retries
// and age, and a destination for what fails; docs/functions.md has the numbers.
package main

import (
	"context"

	"github.com/sluicelimits/sluice/internal/aws/environ"
	"github.com/sluicelimits/sluice/internal/aws/function"
	"github.com/sluicelimits/sluice/internal/control"
	"github.com/sluicelimits/sluice/internal/control/streamrecord"
	"github.com/sluicelimits/sluice/streams/awsio"
	"github.com/sluicelimits/sluice/streams/publisher"
)

func main() { function.Main(environ.ParsePublisher, start) }

func start(process *function.Process, s *environ.Publisher) (function.Handler, error) {
	meter, err := process.Meter("")
	if err != nil {
		return nil, err
	}
	decoder, err := streamrecord.New(map[control.Table]string{
		control.Plans: s.Tables.Plans, control.Tenants: s.Tables.Tenants, control.Keys: s.Tables.Keys,
	})
	if err != nil {
		return nil, err
	}
	p, err := publisher.New(publisher.Config{
		Topic: awsio.NewTopic(awsio.SNS(process.Env, awsio.Region(s.Topic)), s.Topic),
		Keep:  awsio.NewQueue(awsio.SQS(process.Env), s.KeptQueue),
		Meter: meter, Log: process.Log,
	})
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context, event []byte) ([]byte, error) { return p.Invoke(ctx, decoder, event) }, nil
}
