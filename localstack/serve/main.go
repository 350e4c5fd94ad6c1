// Command serve deploys Sluice to the LocalStack of SLUICE_LOCALSTACK and runs gateways in front of it until it is
// interrupted. make localstack calls it.
package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/sluicelimits/sluice/localstack/stand"
)

const port = 8480 // the port of the first gateway

// plans are the plans that are applied, for the commands that are printed.
const plans = `
plans:
  - id: pro
    limits:
      - { id: burst, algorithm: token_bucket, rate: 4, period: 10s, burst: 4 }
      - { id: monthly, quota: { units: 1000, every: month } }
tenants:
  - { id: acme, plan: pro }
`

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Stdout)
	stop()
	if err != nil && !errors.Is(err, context.Canceled) {
		fmt.Fprintln(os.Stderr, "serve:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, out io.Writer) error {
	s, err := stand.Open(ctx, stand.Options{
		Endpoint: os.Getenv("SLUICE_LOCALSTACK"), Redis: os.Getenv("SLUICE_LOCALSTACK_REDIS"),
		Root: cmp.Or(os.Getenv("SLUICE_ROOT"), "."), Port: port, Log: os.Stderr,
	})
	if err != nil {
		return err
	}
	defer s.Close()
	if err := s.Deploy(ctx); err != nil {
		return err
	}
	if err := s.Join(ctx); err != nil {
		return err
	}
	if err := s.Apply(ctx, plans); err != nil {
		return err
	}
	key, err := s.Key(ctx, "acme")
	if err != nil {
		return err
	}
	o := s.Operator.Credentials
	fmt.Fprintf(out, "\nDeployed. As acme, 4 calls at once and 4 in 10 s, divided between the cells:\n\n")
	for _, c := range s.Cells() {
		fmt.Fprintf(out, "    for i in 1 2 3 4 5; do curl -si -H 'X-API-Key: %s' %s/product/1; done    # %s\n", key,
			s.API(c.ID), c.ID)
	}
	fmt.Fprintf(out, "\nAs its operator, in a second terminal:\n\n    export %s\n", strings.Join([]string{
		"SLUICE_ENDPOINT=" + s.Endpoint(), "AWS_REGION=" + s.Region(), "AWS_ACCESS_KEY_ID=" + o.AccessKeyID,
		"AWS_SECRET_ACCESS_KEY=" + o.SecretAccessKey,
	}, " "))
	fmt.Fprintf(out, "    %s tenant set acme --override '{ id: burst, rate: 40, burst: 40 }' --reason 'more for "+
		"acme'\n", s.Command())
	fmt.Fprintf(out, "    AWS_ENDPOINT_URL=%s %s audit verify --archive s3://%s --tables sluice-\n\nCtrl-C ends it.\n",
		os.Getenv("SLUICE_LOCALSTACK"), s.Command(), s.Bucket())
	<-ctx.Done()
	return ctx.Err()
}
