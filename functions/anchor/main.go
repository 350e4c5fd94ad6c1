// Command anchor is the Lambda function that signs the newest version of every item of the control tables once a day.
// It runs every hour. Package audit says what an anchor proves.
//
// Its role may read the control tables, and put objects below anchors/ into the audit bucket. No other role may sign
// with the key.
package main

import (
	"context"
	"encoding/json"
	"os"

	"github.com/aws/aws-sdk-go-v2/service/kms"

	"github.com/sluicelimits/sluice/internal/aws/environ"
	"github.com/sluicelimits/sluice/internal/aws/function"
	"github.com/sluicelimits/sluice/internal/control"
	"github.com/sluicelimits/sluice/internal/control/audit/bucket"
	"github.com/sluicelimits/sluice/internal/control/audit/kmskey"
	"github.com/sluicelimits/sluice/internal/control/dynamo"
	"github.com/sluicelimits/sluice/streams/anchor"
	"github.com/sluicelimits/sluice/streams/awsio"
)

func main() { function.Main(start) }

func start() (*function.Process, function.Handler, error) {
	s, err := environ.ParseAnchor(os.Environ())
	if err != nil {
		return nil, nil, err
	}
	process, err := function.Start(s.Common)
	if err != nil {
		return nil, nil, err
	}
	meter, err := process.Meter("")
	if err != nil {
		return nil, nil, err
	}
	tables, err := dynamo.New(process.DynamoDB(awsio.Region(s.Tables.Plans)), map[control.Table]string{
		control.Plans: s.Tables.Plans, control.Tenants: s.Tables.Tenants, control.Keys: s.Tables.Keys,
		control.Cells:      s.Tables.Cells,
		control.Operations: s.Operations,
	})
	if err != nil {
		return nil, nil, err
	}
	archive, err := bucket.New(bucket.Config{Client: bucket.NewClient(process.Env), Bucket: s.Bucket})
	if err != nil {
		return nil, nil, err
	}
	keys := kms.NewFromConfig(process.Config(""), func(o *kms.Options) {
		o.BaseEndpoint = process.Endpoint("KMS")
		o.EndpointOptions.UseFIPSEndpoint, o.EndpointOptions.UseDualStackEndpoint = process.FIPS(), process.DualStack()
	})
	a, err := anchor.New(anchor.Config{
		Archive: archive, Tables: tables, Signer: kmskey.NewSigner(keys, s.Key), Meter: meter, Log: process.Log,
	})
	if err != nil {
		return nil, nil, err
	}
	return process, func(ctx context.Context, _ []byte) ([]byte, error) { // the event of a schedule has no content
		done, err := a.Run(ctx)
		if err != nil {
			return nil, err
		}
		return json.Marshal(done)
	}, nil
}
