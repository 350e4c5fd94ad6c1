// Command archiver is the Lambda behind the streams of the control tables that keeps the audit trail: each version of each item
// as an object that nobody can rewrite.
//
// Its event sources are the streams of all five tables, with ReportBatchItemFailures, bisecting on errors, bounded retries and
// age, and a destination for what fails. Its role may put objects into the bucket and read them, and nothing else of S3: the
// bucket's default retention locks them.
package main

import (
	"context"

	"github.com/sluicelimits/sluice/internal/aws/environ"
	"github.com/sluicelimits/sluice/internal/aws/function"
	"github.com/sluicelimits/sluice/internal/control"
	"github.com/sluicelimits/sluice/internal/control/audit/bucket"
	"github.com/sluicelimits/sluice/internal/control/streamrecord"
	"github.com/sluicelimits/sluice/streams/archiver"
)

func main() { function.Main(environ.ParseArchiver, start) }

func start(process *function.Process, s *environ.Archiver) (function.Handler, error) {
	meter, err := process.Meter("")
	if err != nil {
		return nil, err
	}
	decoder, err := streamrecord.New(map[control.Table]string{
		control.Plans: s.Tables.Plans, control.Tenants: s.Tables.Tenants, control.Keys: s.Tables.Keys, control.Cells: s.Tables.Cells,
		control.Operations: s.Operations,
	})
	if err != nil {
		return nil, err
	}
	archive, err := bucket.New(bucket.Config{Client: bucket.NewClient(process.Env), Bucket: s.Bucket})
	if err != nil {
		return nil, err
	}
	a, err := archiver.New(archiver.Config{Archive: archive, Meter: meter, Log: process.Log})
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context, event []byte) ([]byte, error) { return a.Invoke(ctx, decoder, event) }, nil
}
