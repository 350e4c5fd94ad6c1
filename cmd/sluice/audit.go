package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws"
	awsconfig "github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/credentials"
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
type auditSource struct {
	data, archive, tables, db, endpoint, region string
}

func (s *auditSource) flags(c *cobra.Command, f *pflag.FlagSet) {
	f.StringVar(&s.data, "data", "", "data folder `DIR` of a 'sluice dev', with its tables and its archive")
	f.StringVar(&s.archive, "archive", "", "the archive, `WHERE` is s3://BUCKET or a folder")
	f.StringVar(&s.endpoint, "aws-endpoint", "", "`URL` of a local substitute for S3 and DynamoDB (default: "+
		"AWS_ENDPOINT_URL, or AWS)")
	f.StringVar(&s.region, "region", "", "AWS `REGION` (default: that of the environment or profile)")
	c.Long += auditHelp
}

func (s *auditSource) tableFlags(f *pflag.FlagSet) {
	f.StringVar(&s.tables, "tables", "", "`PREFIX` of the names of the control tables in DynamoDB")
	f.StringVar(&s.db, "db", "", "`FILE` with the control tables of a 'sluice dev' that has ended")
}

// check returns an error unless the flags name exactly one archive and, if needsTables, exactly one source of tables.
func (s *auditSource) check(c *cobra.Command, needsTables bool) error {
	wrong := func(text string) error { return &usageError{c.CommandPath(), errors.New(text)} }
	tables := c.Flags().Changed("tables")
	switch {
	case s.data != "" && (s.archive != "" || s.db != "" || tables):
		return wrong("--data names archive and tables: leave out --archive, --tables and --db")
	case s.data == "" && s.archive == "":
		return wrong("name the archive: --data DIR, the data folder of a 'sluice dev', or --archive s3://BUCKET; a " +
			"'sluice dev' that runs without --data has no archive")
	case needsTables && s.data == "" && (s.db != "") == tables:
		return wrong("name the live tables: --tables PREFIX, or --db FILE")
	}
	if name, ok := strings.CutPrefix(s.archive, "s3://"); ok && (name == "" || strings.Contains(name, "/")) {
		return wrong("--archive: want s3://BUCKET, with nothing after the bucket's name")
	}
	if u, err := url.Parse(s.endpoint); s.endpoint != "" && (err != nil || u.Host == "" || u.Scheme != "http" &&
		u.Scheme != "https") {
		return wrong(fmt.Sprintf("--aws-endpoint %q is not a URL such as http://127.0.0.1:4566", s.endpoint))
	}
	return nil
}

// aws returns the configuration of AWS clients. For --aws-endpoint, made-up credentials are used if there are none.
func (s *auditSource) aws(ctx context.Context) (aws.Config, error) {
	var options []func(*awsconfig.LoadOptions) error
	if s.region != "" {
		options = append(options, awsconfig.WithRegion(s.region))
	}
	config, err := awsconfig.LoadDefaultConfig(ctx, options...)
	if err != nil {
		return aws.Config{}, fmt.Errorf("read the AWS configuration: %w", err)
	}
	if s.endpoint != "" {
		config.BaseEndpoint = &s.endpoint
		if config.Region == "" {
			config.Region = "us-east-1"
		}
		if os.Getenv("AWS_ACCESS_KEY_ID") == "" && os.Getenv("AWS_PROFILE") == "" {
			config.Credentials = credentials.NewStaticCredentialsProvider("local", "local", "")
		}
	}
	if config.Region == "" {
		return aws.Config{}, errors.New("no AWS region: set AWS_REGION, or --region")
	}
	return config, nil
}

// openArchive opens the archive to read it.
func (s *auditSource) openArchive(ctx context.Context) (audit.Archive, error) {
	if name, ok := strings.CutPrefix(s.archive, "s3://"); ok {
		config, err := s.aws(ctx)
		if err != nil {
			return nil, err
		}
		client := s3.NewFromConfig(config, func(o *s3.Options) {
			o.UsePathStyle = s.endpoint != "" || config.BaseEndpoint != nil
		})
		return bucket.New(bucket.Config{Client: client, Bucket: name})
	}
	dir := s.archive
	if s.data != "" {
		dir = filepath.Join(s.data, dataArchive)
	}
	if info, err := os.Stat(dir); err != nil || !info.IsDir() {
		return nil, fmt.Errorf("there is no archive: %s is not a folder; check --data or --archive", dir)
	}
	return audit.NewFolder(dir)
}

// openTables opens the live tables to read them.
func (s *auditSource) openTables(ctx context.Context) (tables audit.Tables, done func() error, err error) {
	file := s.db
	if s.data != "" {
		file = filepath.Join(s.data, dataTables)
	}
	if file == "" {
		config, err := s.aws(ctx)
		if err != nil {
			return nil, nil, err
		}
		t, err := dynamo.New(awsdynamodb.NewFromConfig(config), dynamo.Names(s.tables))
		return t, func() error { return nil }, err
	}
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
