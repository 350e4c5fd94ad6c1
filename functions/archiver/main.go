// Command archiver is the Lambda function that keeps the audit trail: it stores each version of each item of the
// control tables as an object that nobody can overwrite.
//
// Its event sources are the streams of all five tables, with ReportBatchItemFailures, bisecting on errors, bounded
// retries and age, and a queue for records that failed too often. Its role may put objects into the bucket and read
// them, and nothing else of S3. The bucket's default retention locks the objects.
package main

import (
	"context"

	"github.com/sluicelimits/sluice/internal/aws/environ"
	"github.com/sluicelimits/sluice/internal/control"
	"github.com/sluicelimits/sluice/internal/control/audit/bucket"
	"github.com/sluicelimits/sluice/internal/control/dynamo"
	"github.com/sluicelimits/sluice/internal/function"
	"github.com/sluicelimits/sluice/streams/archiver"
)

func main() { function.Main(environ.Read[environ.Archiver], start) }

func start(process *function.Process, s *environ.Archiver) (function.Handler, error) {
	meter, err := process.Meter("")
	if err != nil {
		return nil, err
	}
	decoder := dynamo.NewDecoder(map[control.Table]string{
		control.Plans: s.Tables.Plans, control.Tenants: s.Tables.Tenants, control.Keys: s.Tables.Keys,
		control.Cells:      s.Tables.Cells,
		control.Operations: s.Operations,
	})
	archive := bucket.New(bucket.NewClient(process.Env), s.Bucket)
	a := archiver.New(archiver.Config{Archive: archive, Meter: meter, Log: process.Log})
	return func(ctx context.Context, event []byte) ([]byte, error) { return a.Invoke(ctx, decoder, event) }, nil
}
