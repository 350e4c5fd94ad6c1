package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws"
	awsconfig "github.com/aws/aws-sdk-go-v2/config"
	awsdynamodb "github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/sluicelimits/sluice/internal/control/audit"
	"github.com/sluicelimits/sluice/internal/control/audit/bucket"
	"github.com/sluicelimits/sluice/internal/control/dynamo"
	"github.com/sluicelimits/sluice/internal/control/embedded"
)

// Names in the data folder of `sluice dev`, which package devcells writes.
const (
	dataTables  = "control.db"
	dataArchive = "audit"
)

const auditHelp = `

--data names the data folder of a 'sluice dev'. --archive s3://BUCKET names the audit trail of a
deployment, which is read with the AWS credentials of the environment or profile. See docs/audit.md.`

func newAuditCommand() *cobra.Command {
	c := group("audit", "Show who changed what and when, and check that nobody has rewritten it")
	c.AddCommand(newAuditShowCommand(), newAuditVerifyCommand())
	return c
}

// auditSource names the archive and the control tables.
type auditSource struct{ data, archive, tables string }

func (s *auditSource) flags(c *cobra.Command, f *pflag.FlagSet) {
	f.StringVar(&s.data, "data", "", "data folder `DIR` of a 'sluice dev', with its tables and its archive")
	f.StringVar(&s.archive, "archive", "", "the archive, `WHERE` is s3://BUCKET or a folder (default: that of --data)")
	c.Long += auditHelp
}

// check returns an error unless the flags name an archive and, if the command has --tables, the live tables.
func (s *auditSource) check(c *cobra.Command) error {
	tables := c.Flags().Lookup("tables")
	switch name, ok := strings.CutPrefix(s.archive, "s3://"); {
	case s.data == "" && s.archive == "":
		return usagef("name the archive: --data DIR, the data folder of a 'sluice dev', or --archive s3://BUCKET; a " +
			"'sluice dev' that runs without --data has no archive")
	case tables != nil && (s.data != "") == tables.Changed:
		return usagef("name the live tables: either --tables PREFIX, or --data DIR")
	case ok && (name == "" || strings.Contains(name, "/")):
		return usagef("--archive: want s3://BUCKET, with nothing after the bucket's name")
	}
	return nil
}

// awsConfig returns the configuration of AWS clients.
func awsConfig(ctx context.Context) (aws.Config, error) {
	config, err := awsconfig.LoadDefaultConfig(ctx)
	if err != nil {
		return aws.Config{}, fmt.Errorf("read the AWS configuration: %w", err)
	}
	if config.Region == "" {
		return aws.Config{}, errors.New("no AWS region: set AWS_REGION")
	}
	return config, nil
}

// openArchive opens the archive to read it.
func (s *auditSource) openArchive(ctx context.Context) (audit.Archive, error) {
	if name, ok := strings.CutPrefix(s.archive, "s3://"); ok {
		config, err := awsConfig(ctx)
		if err != nil {
			return nil, err
		}
		client := s3.NewFromConfig(config, func(o *s3.Options) {
			o.UsePathStyle = config.BaseEndpoint != nil // a local substitute that AWS_ENDPOINT_URL names
		})
		return bucket.New(client, name), nil
	}
	dir := cmp.Or(s.archive, filepath.Join(s.data, dataArchive))
	if info, err := os.Stat(dir); err != nil || !info.IsDir() {
		return nil, fmt.Errorf("there is no archive: %s is not a folder; check --data or --archive", dir)
	}
	return audit.NewFolder(dir), nil
}

// openTables opens the live tables to read them.
func (s *auditSource) openTables(ctx context.Context) (tables audit.Tables, done func() error, err error) {
	if s.data == "" {
		config, err := awsConfig(ctx)
		if err != nil {
			return nil, nil, err
		}
		t := dynamo.New(awsdynamodb.NewFromConfig(config), dynamo.Names(s.tables))
		return t, func() error { return nil }, nil
	}
	file := filepath.Join(s.data, dataTables)
	if _, err := os.Stat(file); errors.Is(err, fs.ErrNotExist) { // embedded.Open would create the file
		return nil, nil, fmt.Errorf("there are no control tables: the file %s does not exist", file)
	}
	t, err := embedded.Open(file)
	if errors.Is(err, embedded.ErrInUse) {
		return nil, nil, fmt.Errorf("%w: end the 'sluice dev' that runs, and verify its audit trail then", err)
	}
	if err != nil {
		return nil, nil, err
	}
	return t, t.Close, nil
}
