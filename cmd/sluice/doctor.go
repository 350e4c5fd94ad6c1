package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awsconfig "github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/service/appconfig"
	"github.com/aws/aws-sdk-go-v2/service/cloudwatch"
	"github.com/aws/aws-sdk-go-v2/service/iam"
	"github.com/aws/aws-sdk-go-v2/service/kms"
	"github.com/aws/aws-sdk-go-v2/service/lambda"
	"github.com/aws/aws-sdk-go-v2/service/servicequotas"
	"github.com/aws/aws-sdk-go-v2/service/sns"
	"github.com/spf13/cobra"

	"github.com/sluicelimits/sluice/internal/configfile"
	"github.com/sluicelimits/sluice/internal/control/admin"
	"github.com/sluicelimits/sluice/internal/control/client"
	"github.com/sluicelimits/sluice/internal/dev"
	"github.com/sluicelimits/sluice/internal/dev/doctor"
	"github.com/sluicelimits/sluice/internal/request/loopback"
)

const doctorLong = `Check what Sluice assumes about AWS and AWS's documentation leaves open. For each
assumption, the command prints whether it holds, what it saw, and what to do. It changes nothing, and
skips what needs an argument that is not given, or a permission. See docs/assumptions.md.

URL is a route of the API behind the authorizer (wss://… for a WebSocket API). It gets one GET without
a credential. With --key-file and --charge N, up to N GETs carry the key, until two are denied, and
each is charged to the key's tenant: use a test tenant with a small limit.

The exit status is 1 if an assumption does not hold, 2 for a wrong command line, and 6 if no
assumption could be checked.`

const doctorExample = `  sluice doctor https://abc.execute-api.eu-west-1.amazonaws.com/v1/orders --key-file key.txt
  sluice doctor --prefix sluice --region eu-west-1 --cell eu-1 --cell us-1=us-east-1 --json`

// keyVariable is the environment variable with the API key if --key-file is not given.
const keyVariable = "SLUICE_KEY"

// doctorFlags is the command line of doctor.
type doctorFlags struct {
	remote

	keyFile, prefix, namespace, awsEndpoint string
	charge                                  int
	cells                                   []string
}

func newDoctorCommand() *cobra.Command {
	var f doctorFlags
	c := &cobra.Command{
		Use: "doctor [URL]", Short: "Check Sluice's assumptions about AWS against an account and a deployment",
		Long: doctorLong, Example: doctorExample,
		RunE: func(c *cobra.Command, args []string) error { return f.run(c, args) },
	}
	flags := c.Flags()
	flags.StringVar(&f.keyFile, "key-file", "",
		"`FILE` whose first line is an API key (default: the key in "+keyVariable+")")
	flags.IntVar(&f.charge, "charge", 0, "make up to `N` calls with the key, charged to its tenant, 0..1000")
	flags.StringVar(&f.endpoint, "endpoint", "", "`URL` of the operators' API (default: SLUICE_ENDPOINT)")
	flags.StringVar(&f.tokenFile, "token-file", "",
		"`FILE` with the token of 'sluice dev' (default: "+dev.TokenFileVariable+", or the file for the endpoint)")
	flags.BoolVar(&f.signs, "sign", false, "sign calls to an operators' API on this machine, too (default: "+
		"SLUICE_SIGN)")
	flags.StringVar(&f.prefix, "prefix", "",
		"also check the AWS account, and the deployment there whose names begin with `PREFIX`, usually sluice")
	flags.StringVar(&f.region, "region", "",
		"AWS `REGION` of the control plane (default: that of the environment or profile)")
	flags.StringArrayVar(&f.cells, "cell", nil,
		"`ID[=REGION]` of a cell in the account; may be repeated (default region: --region)")
	flags.StringVar(&f.namespace, "metrics-namespace", "Sluice", "`NAMESPACE` of metrics in the deployment file")
	flags.StringVar(&f.awsEndpoint, "aws-endpoint", "",
		"`URL` of a local substitute for AWS (default: AWS_ENDPOINT_URL, or AWS)")
	flags.BoolVar(&f.json, "json", false, "print one JSON document")
	return c
}

// diagnosis is an assumption and the finding about it, as --json prints them.
type diagnosis struct {
	ID         string `json:"id"`
	Assumption string `json:"assumption"`
	doctor.Finding
}

func (f *doctorFlags) run(c *cobra.Command, args []string) error {
	t, err := f.target(c, args)
	if err != nil {
		return err
	}
	var all []diagnosis
	found := map[doctor.Result]int{}
	for _, a := range doctor.Assumptions() {
		d := diagnosis{a.ID, a.Says, a.Check(c.Context(), t)}
		all, found[d.Result] = append(all, d), found[d.Result]+1
	}
	if f.json {
		err = writeJSON(c.OutOrStdout(), map[string]any{"checks": all})
	} else {
		err = writeDiagnoses(c.OutOrStdout(), all, found)
	}
	if n := found[doctor.DoesNotHold]; err == nil && n > 0 {
		err = fmt.Errorf("found %s that does not hold", count(n, "assumption"))
		if n > 1 {
			err = fmt.Errorf("found %d assumptions that do not hold", n)
		}
	}
	if err == nil && found[doctor.CouldNotTell] == len(all) {
		err = errUnchecked
	}
	return err
}

var errUnchecked = errors.New("no assumption could be checked: the line do: of each says what its check needs")

func writeDiagnoses(w io.Writer, all []diagnosis, found map[doctor.Result]int) error {
	for _, d := range all {
		fmt.Fprintf(w, "%-15s %s\n", d.Result, d.ID)
		writeWrapped(w, "", d.Assumption)
		writeWrapped(w, "saw: ", shown(d.Saw))
		if d.Do != "" {
			writeWrapped(w, "do:  ", shown(d.Do))
		}
	}
	_, err := fmt.Fprintf(w, "%d assumptions: %d hold, %d do not hold, %d could not be checked\n",
		len(all), found[doctor.Holds], found[doctor.DoesNotHold], found[doctor.CouldNotTell])
	return err
}

// writeWrapped writes a text, indented, in lines of at most 110 characters unless one word is longer.
func writeWrapped(w io.Writer, label, text string) {
	const indent, width = 16, 110
	line := strings.Repeat(" ", indent) + label
	rest := strings.Repeat(" ", len(line))
	for word := range strings.FieldsSeq(text) {
		if len(line)+len(word) > width && strings.TrimSpace(line) != "" {
			fmt.Fprintln(w, strings.TrimRight(line, " "))
			line = rest
		}
		line += word + " "
	}
	fmt.Fprintln(w, strings.TrimRight(line, " "))
}

// target collects what the checks look at: it calls the API, and prepares clients for the operators' API and AWS.
func (f *doctorFlags) target(c *cobra.Command, args []string) (*doctor.Target, error) {
	usage := func(format string, args ...any) error {
		return &usageError{c.CommandPath(), fmt.Errorf(format, args...)}
	}
	var to *url.URL
	if len(args) == 1 {
		var err error
		if to, err = apiURL(args[0]); err != nil {
			return nil, usage("%w", err)
		}
	}
	if f.charge < 0 || f.charge > 1000 {
		return nil, usage("--charge %d is outside 0..1000", f.charge)
	}
	if f.prefix == "" && len(f.cells) > 0 {
		return nil, usage("--cell needs --prefix, which names the deployment")
	}
	key, err := f.key()
	if err != nil {
		return nil, err
	}
	t := &doctor.Target{}
	if t.Operators, err = f.operators(c); err != nil {
		return nil, err
	}
	if f.prefix != "" {
		if t.Account, err = f.account(c.Context()); err != nil {
			return nil, err
		}
	}
	if to != nil {
		t.Calls = doctor.Call(c.Context(), caller(), to, key, f.charge)
	}
	t.Now = time.Now()
	return t, nil
}

// caller returns the client that calls the API. It follows no redirect, so that the key is sent to the given URL only.
func caller() *http.Client {
	return &http.Client{
		Timeout:       30 * time.Second, // API Gateway answers within 29 seconds
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// apiURL parses the URL of a route. It accepts plain HTTP for this machine only, so that no key is sent unencrypted.
func apiURL(text string) (*url.URL, error) {
	u, err := url.Parse(text)
	switch {
	case err != nil || u.Host == "" || u.User != nil || u.Fragment != "":
	case u.Scheme == "https", u.Scheme == "wss", loopback.Host(u.Hostname()) &&
		(u.Scheme == "http" || u.Scheme == "ws"):
		return u, nil
	}
	const want = "https://abc.execute-api.eu-west-1.amazonaws.com/v1/orders"
	return nil, fmt.Errorf("%.200q: want the URL of a route, such as %s (wss for a WebSocket API; http only for this "+
		"machine)", text, want)
}

// key reads the API key from --key-file or from the environment. It returns "" if neither has one.
func (f *doctorFlags) key() (string, error) {
	if f.keyFile == "" {
		return os.Getenv(keyVariable), nil
	}
	text, err := os.ReadFile(f.keyFile)
	if err != nil {
		return "", fmt.Errorf("--key-file %s: %w", f.keyFile, configfile.Advise(err))
	}
	line, _, _ := strings.Cut(string(text), "\n")
	if line = strings.TrimSpace(line); line == "" {
		return "", fmt.Errorf("--key-file %s: the first line is empty; want an API key there", f.keyFile)
	}
	return line, nil
}

// operators returns the operators' API of --endpoint or the environment; nil if there is none.
func (f *doctorFlags) operators(c *cobra.Command) (*doctor.Operators, error) {
	endpoint := cmp.Or(f.endpoint, os.Getenv("SLUICE_ENDPOINT"))
	if endpoint == "" {
		return nil, nil
	}
	to, err := f.at(c, endpoint, cmp.Or(f.tokenFile, os.Getenv(dev.TokenFileVariable)))
	if err != nil {
		return nil, err
	}
	u, err := url.Parse(endpoint)
	if err != nil {
		return nil, &usageError{c.CommandPath(), err}
	}
	o := &doctor.Operators{Cells: func(ctx context.Context) (*admin.CellsResponse, error) {
		return client.Do[admin.CellsResponse](ctx, to, "cells/list", admin.CellsRequest{})
	}}
	if dated, err := doctor.Get(c.Context(), caller(), u, ""); err == nil { // Cells reports an endpoint that is away
		o.Dated = dated
	}
	return o, nil
}

// account returns the account that the AWS credentials belong to.
func (f *doctorFlags) account(ctx context.Context) (*doctor.Account, error) {
	var options []func(*awsconfig.LoadOptions) error
	if f.region != "" {
		options = append(options, awsconfig.WithRegion(f.region))
	}
	config, err := awsconfig.LoadDefaultConfig(ctx, options...)
	switch {
	case err != nil:
		return nil, fmt.Errorf("read the AWS configuration: %w", err)
	case config.Region == "":
		return nil, errors.New("no AWS region: set AWS_REGION, or --region")
	}
	if f.awsEndpoint != "" {
		config.BaseEndpoint = &f.awsEndpoint
	}
	a := &doctor.Account{Prefix: f.prefix, Region: config.Region, Namespace: f.namespace,
		In: func(region string) doctor.Services { return services(config, region) }}
	for _, text := range f.cells {
		id, region, _ := strings.Cut(text, "=")
		a.Cells = append(a.Cells, doctor.Cell{ID: id, Region: cmp.Or(region, config.Region)})
	}
	return a, nil
}

func services(config aws.Config, region string) doctor.Services {
	config = config.Copy()
	config.Region = region
	return doctor.Services{
		Lambda: lambda.NewFromConfig(config), Metrics: cloudwatch.NewFromConfig(config),
		Topics: sns.NewFromConfig(config), Keys: kms.NewFromConfig(config), Roles: iam.NewFromConfig(config),
		Quotas: servicequotas.NewFromConfig(config), Modes: appconfig.NewFromConfig(config),
	}
}
