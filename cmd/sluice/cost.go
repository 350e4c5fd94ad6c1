package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/sluicelimits/sluice/internal/dev/cost"
)

const costLong = `Say what a month of a deployment costs, by line, from list prices of AWS and from what was measured here. Nothing is sent
anywhere, and no account is looked at.

Prices are those that came with this program, each as of its own day, and the bill says how old they are; a file with
--price-file replaces some of them, or adds a region (--print-prices shows its form). What is assumed stands beside
each line and below the table. What the API costs without Sluice is shown apart.`

const costExample = `  sluice cost --rps 50 --tenants 20
  sluice cost --rps 0                          # a deployment that nobody uses
  sluice cost --rps 2000 --tenants 500 --cells 2 --profile full --region eu-west-1 --json
  sluice cost --rps 1000000 --tenants 10000 --profile full --peak 1 --published`

// costFlags is the command line of cost.
type costFlags struct {
	rps, denied, peak            string
	profile, api, priceFile      string
	json, published, printPrices bool
	w                            cost.Workload
	now                          func() time.Time
}

// newCostCommand makes the cost command, which reads now for the ages of prices.
func newCostCommand(now func() time.Time) *cobra.Command {
	f := costFlags{w: cost.NewWorkload(nil), now: now}
	c := &cobra.Command{
		Use:     "cost --rps N",
		Short:   "Say what a month costs, by line",
		Long:    costLong,
		Example: costExample,
		Args:    usageArgs(cobra.NoArgs),
		RunE:    func(c *cobra.Command, _ []string) error { return f.run(c) },
	}
	w, flags := &f.w, c.Flags()
	flags.StringVar(&f.rps, "rps", "", "requests per second, `N` on average over the month and all cells; 0 is an "+
		"idle deployment")
	flags.Int64Var(&w.Tenants, "tenants", w.Tenants, "active tenants, `N`")
	flags.Int64Var(&w.Cells, "cells", w.Cells, "cells, `N`")
	flags.StringVar(&f.profile, "profile", string(w.Profile), "how cells are made: small or full")
	flags.StringVar(&f.api, "api", string(w.API), "what is in front: rest, http or websocket (of which a request is "+
		"a connection)")
	flags.StringVar(&w.Region, "region", w.Region, "`REGION` of AWS, of which there are prices")
	flags.BoolVar(&w.Leases, "leases", w.Leases, "limits are leased; false asks the stores for each decision")
	flags.StringVar(&f.denied, "denied-share", "0", "`SHARE` of the requests that is denied, 0 to 1")
	flags.StringVar(&f.peak, "peak", "2", "`RATIO` of the busiest time to the average")
	flags.DurationVar(&w.Duration, "duration", 0, "billed time of a request on average, such as 5ms (default: by "+
		"what stores are called for)")
	flags.Int64Var(&w.Changes, "changes", w.Changes, "changes of plans, tenants and keys a day, `N`")
	flags.DurationVar(&w.Canary, "canary", w.Canary, "time between two runs of the canary; 0 is none")
	flags.StringVar(&w.Node, "node", w.Node, "`TYPE` of the cache's nodes, in a full cell")
	flags.BoolVar(&w.Quotas, "quotas", false, "requests are under a quota, too, in a full cell")
	flags.Int64Var(&w.NAT, "nat", 0, "NAT gateways in each full cell, `N`")
	flags.BoolVar(&w.WAF, "waf", false, "a web ACL with a rate rule is on the API")
	flags.BoolVar(&w.Dashboard, "dashboard", false, "there is a dashboard in CloudWatch")
	flags.BoolVar(&w.CustomerKeys, "customer-keys", false, "data is encrypted by KMS keys of your own")
	flags.BoolVar(&w.Anchors, "anchors", w.Anchors,
		"the audit trail has signed anchors (control.audit.anchors of the deployment file)")
	flags.BoolVar(&w.PlatformLogs, "platform-logs", w.PlatformLogs, "Lambda's own log lines for each call are kept")
	flags.BoolVar(&w.FreeTier, "free-tier", false, "take off what AWS gives away each month without an end date")
	flags.StringVar(&f.priceFile, "price-file", "", "`FILE` with prices that replace those of this program")
	flags.BoolVar(&f.printPrices, "print-prices", false, "print the prices of this program, as a form for "+
		"--price-file, and nothing else")
	flags.BoolVar(&f.published, "published", false, "print a published bill beside it, for its design point")
	flags.BoolVar(&f.json, "json", false, "write JSON")
	_ = c.MarkFlagFilename("price-file", "yaml", "yml", "json") // fails only for a flag that does not exist
	_ = c.RegisterFlagCompletionFunc("profile", cobra.FixedCompletions([]string{"small", "full"},
		cobra.ShellCompDirectiveNoFileComp))
	_ = c.RegisterFlagCompletionFunc("api", cobra.FixedCompletions([]string{"rest", "http", "websocket"},
		cobra.ShellCompDirectiveNoFileComp))
	return c
}

func (f *costFlags) run(c *cobra.Command) error {
	if f.printPrices {
		_, err := io.WriteString(c.OutOrStdout(), cost.ListedPrices())
		return err
	}
	if err := f.numbers(); err != nil {
		return &usageError{c.CommandPath(), err}
	}
	prices, err := f.prices()
	if err != nil {
		return err
	}
	bill, err := cost.New(&f.w, prices)
	var wrong *cost.WorkloadError
	switch {
	case errors.As(err, &wrong):
		return &usageError{c.CommandPath(), errors.New("--" + wrong.Error())}
	case err != nil:
		return err
	}
	var published *cost.Comparison
	if f.published {
		if published, err = bill.Compare(); err != nil {
			return &usageError{c.CommandPath(), fmt.Errorf("--published: %w", err)}
		}
	}
	if f.json {
		return bill.WriteJSON(c.OutOrStdout(), published, f.now())
	}
	return bill.WriteText(c.OutOrStdout(), published, f.now())
}

// numbers reads those that are exact decimals.
func (f *costFlags) numbers() (err error) {
	if f.rps == "" {
		return errors.New("--rps is needed: requests per second, 0 for an idle deployment")
	}
	if f.w.RPS, err = cost.ParseNumber(f.rps); err != nil {
		return fmt.Errorf("--rps: %w", err)
	}
	if f.w.DeniedShare, err = cost.ParseNumber(f.denied); err != nil {
		return fmt.Errorf("--denied-share: %w", err)
	}
	if f.w.Peak, err = cost.ParseNumber(f.peak); err != nil {
		return fmt.Errorf("--peak: %w", err)
	}
	f.w.Profile, f.w.API = cost.Profile(f.profile), cost.API(f.api)
	return nil
}

// prices are those of the program, with a file's in their place.
func (f *costFlags) prices() (*cost.Prices, error) {
	listed, err := cost.ListPrices()
	if err != nil || f.priceFile == "" {
		return listed, err
	}
	file, err := os.Open(f.priceFile)
	if err != nil {
		return nil, fmt.Errorf("--price-file: %w", err)
	}
	defer func() { _ = file.Close() }() // it was only read
	var text strings.Builder
	if _, err := io.Copy(&text, io.LimitReader(file, cost.MaxFileBytes+1)); err != nil {
		return nil, fmt.Errorf("--price-file: %w", err)
	}
	return cost.ReadPrices(listed, f.priceFile, []byte(text.String()))
}
