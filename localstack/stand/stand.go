// Package stand deploys Sluice to a LocalStack, and calls the deployment as clients and operators do.
//
// It deploys the same as make deploy: the stacks that the CDK app in infra makes, here of the deployment file
// localstack/deployment.yaml. In front of the deployed functions it runs the local gateway of internal/gateway.
// That serves the APIs of the synthesized templates: a sample API in each cell, and the operators' APIs. LocalStack's
// own API Gateway supports no gateway responses of an authorizer, and does not tell a function who signed a call.
package stand

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
)

const (
	connections = 128             // how many idle connections to one host are kept
	answersIn   = 5 * time.Second // a running LocalStack answers within this time
)

// Options say where LocalStack is and what is deployed.
type Options struct {
	Endpoint string // the URL of LocalStack; required
	Redis    string // the host:port of the Redis that replaces ElastiCache, as the functions reach it; required
	Root     string // the root folder of the repository; required

	// Dir is the folder for templates, outputs and logs of tools. It is made if it does not exist. The default is
	// dist/localstack/HOST_PORT with the host and port of the endpoint.
	Dir string

	// Port is the port of the gateway of the control plane's operators' API. The following ports are those of each
	// cell's operators' API and sample API. If it is 0, every gateway takes any free port.
	Port int

	Log io.Writer // gets a line for each step; may be nil
}

// Operator is the user that calls the operators' APIs. The gateways check its signatures, and LocalStack checks none.
type Operator struct {
	ARN, ID     string
	Credentials aws.Credentials
}

// Stand is a deployment on a LocalStack. Its methods may be called concurrently, except for Deploy and Attach.
type Stand struct {
	Operator Operator

	o        Options
	endpoint string
	account  string
	client   *http.Client

	deployed deployed
	built    bool // whether the Lambda functions were built
	gateways *gateways
	ports    map[string]int // of the gateways, by stack
}

// Open returns a stand for a LocalStack that is running. The error says that there is none, or which option is wrong.
func Open(ctx context.Context, o Options) (*Stand, error) {
	u, err := url.Parse(o.Endpoint)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || strings.Trim(u.Path, "/") != "" {
		return nil, fmt.Errorf("LocalStack's endpoint %q must be a URL such as http://127.0.0.1:4566", o.Endpoint)
	}
	if _, _, err := net.SplitHostPort(o.Redis); err != nil {
		return nil, fmt.Errorf("the Redis %q must have the form host:port", o.Redis)
	}
	if o.Root == "" {
		return nil, errors.New("the repository's root is missing")
	}
	if o.Dir == "" {
		o.Dir = filepath.Join(o.Root, "dist", "localstack", strings.ReplaceAll(u.Host, ":", "_"))
	}
	for _, dir := range []*string{&o.Root, &o.Dir} {
		if *dir, err = filepath.Abs(*dir); err != nil {
			return nil, err
		}
	}
	if err := os.MkdirAll(o.Dir, 0o750); err != nil {
		return nil, err
	}
	if o.Log == nil {
		o.Log = io.Discard
	}
	s := &Stand{o: o, endpoint: strings.TrimSuffix(o.Endpoint, "/"), client: &http.Client{Timeout: time.Minute,
		Transport: transport()}, ports: map[string]int{}}
	if err := s.readAccount(ctx); err != nil {
		return nil, fmt.Errorf("no LocalStack answers at %s: %w; start one with localstack/up", s.endpoint, err)
	}
	s.Operator = Operator{
		ARN: "arn:aws:iam::" + s.account + ":user/operator", ID: "AIDAOPERATOR",
		Credentials: aws.Credentials{AccessKeyID: "operator", SecretAccessKey: rand.Text()},
	}
	return s, nil
}

// transport returns a transport that keeps enough idle connections for all callers. The default one keeps two to a
// host.
func transport() http.RoundTripper {
	t := http.DefaultTransport.(*http.Transport).Clone() //nolint:forcetypeassert // the standard library's own
	t.MaxIdleConns, t.MaxIdleConnsPerHost = 0, connections
	return t
}

// readAccount asks the endpoint for the caller's account, which needs no permission. The error says that it does not
// answer as AWS does.
func (s *Stand) readAccount(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, answersIn)
	defer cancel()
	var caller struct {
		Account string `xml:"GetCallerIdentityResult>Account"`
	}
	form := url.Values{"Action": {"GetCallerIdentity"}, "Version": {"2011-06-15"}}
	if err := s.query(ctx, "sts", "us-east-1", form, &caller); err != nil {
		return err
	}
	if s.account = caller.Account; s.account == "" {
		return errors.New("the answer has no account of the caller")
	}
	return nil
}

// Account returns the AWS account of the deployment.
func (s *Stand) Account() string { return s.account }

// AWS returns the configuration for a client of any service in a region.
func (s *Stand) AWS(region string) aws.Config {
	return aws.Config{
		Region: region, BaseEndpoint: &s.endpoint, HTTPClient: s.client,
		Credentials: credentials.NewStaticCredentialsProvider("test", "test", ""),
	}
}

// environment returns the environment of this process without its variables for AWS, the CDK and Sluice, and with
// variables that make AWS's tools call LocalStack.
func (s *Stand) environment(region string, more ...string) []string {
	var all []string
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, "AWS_") && !strings.HasPrefix(v, "SLUICE_") && !strings.HasPrefix(v, "CDK_") &&
			!strings.HasPrefix(v, "DEPLOYMENT=") {
			all = append(all, v)
		}
	}
	return append(append(all, "AWS_ENDPOINT_URL="+s.endpoint, "AWS_REGION="+region, "AWS_DEFAULT_REGION="+region,
		"AWS_ACCESS_KEY_ID=test", "AWS_SECRET_ACCESS_KEY=test",
		"AWS_CONFIG_FILE="+os.DevNull, "AWS_SHARED_CREDENTIALS_FILE="+os.DevNull,
		"AWS_EC2_METADATA_DISABLED=true"), more...)
}

func (s *Stand) logf(format string, args ...any) {
	fmt.Fprintf(s.o.Log, format+"\n", args...)
}
