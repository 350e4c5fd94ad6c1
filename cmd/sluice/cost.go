package main

import (
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"github.com/sluicelimits/sluice/internal/dev/cost"
)

const costLong = `Calculate the monthly cost of a deployment, line by line, from AWS's list prices
and from measurements of Sluice. Nothing is sent anywhere, and no AWS account is looked at. The prices
come with this program. --deployment FILE takes from a deployment file what a bill depends on; other
flags replace what it says. See docs/cost.md.`

const costExample = `  sluice cost --rps 50 --deployment infra/deployment.yaml
  sluice cost --rps 2000 --tenants 500 --cells 2 --profile full --region eu-west-1 --json`

// costFlags is the command line of cost.
type costFlags struct {
	profile, deployment string
	json                bool
	w                   cost.Workload
}

func newCostCommand() *cobra.Command {
	f := costFlags{w: cost.NewWorkload(0)}
	c := &cobra.Command{
		Use:     "cost",
		Short:   "Calculate the monthly cost of a deployment",
		Long:    costLong,
		Example: costExample,
		RunE:    func(c *cobra.Command, _ []string) error { return f.run(c) },
	}
	w, flags := &f.w, c.Flags()
	flags.Float64Var(&w.RPS, "rps", 0, "`N` requests per second, on average over the month and over all cells; 0: an "+
		"idle deployment (required)")
	flags.Int64Var(&w.Tenants, "tenants", w.Tenants, "`N` active tenants")
	flags.Int64Var(&w.Cells, "cells", w.Cells, "`N` cells")
	wordFlag(c, &f.profile, "profile", string(w.Profile), "profile of the cells: small or full", "small", "full")
	flags.StringVar(&w.Region, "region", w.Region, "AWS `REGION` whose prices are used")
	flags.BoolVar(&w.Leases, "leases", w.Leases, "decide from leased units; false: a call to a store for each decision")
	flags.Float64Var(&w.DeniedShare, "denied-share", 0, "`SHARE` of the requests that are denied, 0 to 1")
	flags.Float64Var(&w.Peak, "peak", w.Peak, "`RATIO` of the requests per second at the busiest time to the average")
	durationFlag(flags, &w.Duration, "duration", 0, 0,
		"average billed time of the authorizer per request, such as 5ms "+
			"(default: calculated from its calls to stores)")
	flags.Int64Var(&w.Changes, "changes", w.Changes, "`N` changes of plans, tenants and keys a day")
	durationFlag(flags, &w.Canary, "canary", w.Canary, 0, "time between two runs of the canary; 0: no canary")
	flags.StringVar(&w.Node, "node", w.Node, "`TYPE` of the cache nodes in a full cell")
	flags.BoolVar(&w.Quotas, "quotas", false, "requests also charge a quota, in a full cell")
	flags.Int64Var(&w.NAT, "nat", 0, "`N` NAT gateways in each full cell")
	flags.BoolVar(&w.Dashboard, "dashboard", false, "there is a dashboard in CloudWatch")
	flags.BoolVar(&w.CustomerKeys, "customer-keys", false, "data is encrypted with customer managed KMS keys")
	flags.BoolVar(&w.Anchors, "anchors", w.Anchors,
		"the audit trail has signed anchors (control.audit.anchors of the deployment file)")
	flags.BoolVar(&w.PlatformLogs, "platform-logs", w.PlatformLogs, "Lambda's own log lines for each call are kept")
	flags.StringVar(&f.deployment, "deployment", "", "deployment `FILE` with the cells to pay for")
	flags.BoolVar(&f.json, "json", false, "print JSON")
	return c
}

func (f *costFlags) run(c *cobra.Command) error {
	if err := f.readDeployment(c); err != nil {
		return err
	}
	if !c.Flags().Changed("rps") {
		return usagef("--rps is missing: give the requests per second, or 0 for an idle deployment")
	}
	f.w.Profile = cost.Profile(f.profile)
	prices, err := cost.ListPrices()
	if err != nil {
		return err
	}
	bill, err := cost.New(&f.w, prices)
	var wrong *cost.WorkloadError
	switch {
	case errors.As(err, &wrong):
		return usagef("--%w", wrong)
	case err != nil:
		return err
	}
	if f.json {
		return bill.WriteJSON(c.OutOrStdout())
	}
	return bill.WriteText(c.OutOrStdout())
}

// readDeployment sets the flags that are not given, by the deployment file.
func (f *costFlags) readDeployment(c *cobra.Command) error {
	if f.deployment == "" {
		return nil
	}
	file, err := os.Open(f.deployment)
	if err != nil {
		return fmt.Errorf("--deployment: %w", err)
	}
	defer func() { _ = file.Close() }() // the file was only read
	text, err := io.ReadAll(io.LimitReader(file, cost.MaxFileBytes+1))
	if err != nil {
		return fmt.Errorf("--deployment: %w", err)
	}
	values, err := cost.ReadDeployment(f.deployment, text, c.Flags().Changed)
	if err != nil {
		return err
	}
	for name, v := range values {
		if err := c.Flags().Set(name, v); err != nil {
			return fmt.Errorf("--deployment %s: --%s: %w", f.deployment, name, err)
		}
	}
	return nil
}
