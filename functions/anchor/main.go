// Command anchor is the Lambda function that signs the newest version of every item of the control tables once a day.
// It runs every hour. Package audit says what an anchor proves.
//
// Its role may read the control tables, and put objects below anchors/ into the audit bucket. No other role may sign
// with the key.
package main

import (
	"github.com/aws/aws-sdk-go-v2/service/kms"

	"github.com/sluicelimits/sluice/internal/aws/environ"
	"github.com/sluicelimits/sluice/internal/control"
	"github.com/sluicelimits/sluice/internal/control/audit"
	"github.com/sluicelimits/sluice/internal/control/audit/bucket"
	"github.com/sluicelimits/sluice/internal/control/audit/kmskey"
	"github.com/sluicelimits/sluice/internal/control/dynamo"
	"github.com/sluicelimits/sluice/internal/function"
)

func main() { function.Main(environ.Read[environ.Anchor], start) }

func start(process *function.Process, s *environ.Anchor) (function.Handler, error) {
	meter, err := process.Meter("")
	if err != nil {
		return nil, err
	}
	tables := dynamo.New(process.DynamoDB(function.Region(s.Tables.Plans)), map[control.Table]string{
		control.Plans: s.Tables.Plans, control.Tenants: s.Tables.Tenants, control.Keys: s.Tables.Keys,
		control.Cells:      s.Tables.Cells,
		control.Operations: s.Operations,
	})
	archive := bucket.New(bucket.NewClient(process.Env), s.Bucket)
	keys := kms.NewFromConfig(process.Config(""), func(o *kms.Options) {
		o.BaseEndpoint = process.Endpoint("KMS")
		o.EndpointOptions.UseFIPSEndpoint, o.EndpointOptions.UseDualStackEndpoint = process.FIPS(), process.DualStack()
	})
	a := audit.Anchorer{Meter: meter, Log: process.Log, AnchorConfig: audit.AnchorConfig{
		Archive: archive, Tables: tables, Signer: kmskey.NewSigner(keys, s.Key),
	}}
	return function.Scheduled(a.Run), nil
}
