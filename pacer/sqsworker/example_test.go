package sqsworker_test

import (
	"context"
	"log"

	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/sluicelimits/sluice/pacer"
	"github.com/sluicelimits/sluice/pacer/sqsworker"
)

// It needs a queue, so it is compiled and not run.
func ExampleRun() {
	ctx, client, url := context.Background(), sqs.New(sqs.Options{Region: "eu-central-1"}),
		"https://sqs.eu-central-1.amazonaws.com/1/jobs"
	p, err := pacer.New(pacer.Config{Limit: pacer.PerSecond(50), Smoothing: pacer.Spread})
	if err != nil {
		log.Fatal(err)
	}
	handle := func(_ context.Context, m *types.Message) error {
		log.Print(*m.Body)
		return nil
	}
	counts, err := sqsworker.Run(ctx, sqsworker.Config{Client: client, Queue: url, Pacer: p, Handle: handle})
	log.Print(counts.Deleted, err)
}
