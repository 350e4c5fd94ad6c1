package awspacer_test

import (
	"github.com/aws/aws-sdk-go-v2/aws/retry"
	"github.com/aws/aws-sdk-go-v2/service/sqs"

	"github.com/sluicelimits/sluice/pacer"
	"github.com/sluicelimits/sluice/pacer/awspacer"
)

// Each attempt of each call of an SQS client waits for its turn.
func Example() {
	p, err := pacer.New(pacer.Config{Limit: pacer.PerSecond(100)})
	if err != nil {
		panic(err)
	}
	client := sqs.New(sqs.Options{Retryer: &awspacer.Retryer{Base: retry.NewStandard(), Pacer: p}})
	_ = client
}
