// Package stand deploys Sluice to a LocalStack, and drives what is deployed as clients and operators would.
//
// What it deploys is what make deploy deploys: the CDK program of infra, of the deployment file
// localstack/deployment.yaml. In front of the deployed functions it puts the local gateway, which serves the
// synthesized templates: that of a sample API in each cell, and those of the operators' APIs. LocalStack's own API
// Gateway knows neither an authorizer's gateway responses nor who signed a call.
package stand

import (
	"context"
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
	operatorName = "operator"
	iamRegion    = "us-east-1"
	connections  = 128             // that are kept to one host
	answersIn    = 5 * time.Second // what a LocalStack that is there takes at most to say so
)

// Options say where LocalStack is and what is deployed.
type Options struct {
	Endpoint string // of LocalStack; required
	Redis    string // host:port of the Redis that stands in for ElastiCache, as the functions see it; required
	Root     string // of the repository; required
	// for templates, outputs and logs of tools; made where it is missing; default dist/localstack/HOST_PORT of the
	// endpoint
	Dir string
	// of the first gateway, the others follow: operators' of the control plane, then each cell's and its sample API's;
	// 0: any
	Port int
	Log  io.Writer // gets a line for each step; may be nil
}

// Operator is who calls the operators' APIs.
type Operator struct {
	ARN, ID     string
	Credentials aws.Credentials
}

// Stand is a deployment on a LocalStack. Its methods may be called at once, but for those that deploy.
type Stand struct {
	Operator Operator // once Deploy has returned

	o        Options
	endpoint string
	account  string
	client   *http.Client

	deployed deployed
	built    bool // the Lambdas were built
	gateways *gateways
	missing  []string       // behaviours of AWS that the endpoint was found not to have, a sentence each
	ports    map[string]int // of the gateways, by stack
}

// Open finds a LocalStack. The error says that there is none, or what is wrong with the options.
func Open(ctx context.Context, o Options) (*Stand, error) {
	u, err := url.Parse(o.Endpoint)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || strings.Trim(u.Path, "/") != "" {
		return nil, fmt.Errorf("LocalStack's endpoint %q is to be a URL such as http://127.0.0.1:4566", o.Endpoint)
	}
	if _, _, err := net.SplitHostPort(o.Redis); err != nil {
		return nil, fmt.Errorf("the Redis %q is to be host:port", o.Redis)
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
	if err := s.answers(ctx); err != nil {
		return nil, fmt.Errorf("no LocalStack answers at %s: %w; localstack/up brings one up", s.endpoint, err)
	}
	return s, nil
}

// transport keeps as many connections as there are callers: the default keeps two to a host.
func transport() http.RoundTripper {
	t := http.DefaultTransport.(*http.Transport).Clone() //nolint:forcetypeassert // the standard library's own
	t.MaxIdleConns, t.MaxIdleConnsPerHost = 0, connections
	return t
}

// answers is nil where the endpoint says who calls it, as AWS does: that needs no permission.
func (s *Stand) answers(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, answersIn)
	defer cancel()
	var caller struct {
		Account string `xml:"GetCallerIdentityResult>Account"`
	}
	form := url.Values{"Action": {"GetCallerIdentity"}, "Version": {"2011-06-15"}}
	if err := s.query(ctx, "sts", iamRegion, form, &caller); err != nil {
		return err
	}
	if s.account = caller.Account; s.account == "" {
		return errors.New("it does not say who calls it")
	}
	return nil
}

// Account is that of the endpoint's callers.
func (s *Stand) Account() string { return s.account }

// AWS is what a client of any service in a region is made with.
func (s *Stand) AWS(region string) aws.Config {
	return aws.Config{
		Region: region, BaseEndpoint: &s.endpoint, HTTPClient: s.client,
		Credentials: credentials.NewStaticCredentialsProvider("test", "test", ""),
	}
}

// Environment is the process's own, without what says anything of AWS or of Sluice, and with what leads AWS's tools to
// LocalStack.
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
