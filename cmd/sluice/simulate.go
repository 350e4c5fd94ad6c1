package main

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/sluicelimits/sluice/internal/dev/simulate"
)

const simulateLong = `Replay access logs through the limits of a plans file, by the times in the
logs, and report what would have been allowed and denied: by limit, by tenant, by address, and in the
worst minutes. Nothing is sent anywhere. Logs are in the Common or Combined Log Format, plain or gzip;
"-" is standard input.

--tenant-from says where the tenant of a line is found:

  user           the user that the server authenticated: the third field of a line
  address        each client address is a tenant
  path:REGEX     a group of a regular expression, matched with the path: the group named tenant, or
                 else the first group
  target:REGEX   like path:, matched with path and query
  fixed:NAME     one tenant for all requests
  none           no line has a tenant

Without --tenant-from, it is user if the plans file has tenants, and none otherwise. A denial is
counted for the limit that bound. ALLOWED counts requests that all limits admitted; APPLIED also counts
those that were denied or refused for another reason. Up to some 300,000 lines may be in any order. See
docs/try.md.`

const simulateExample = `  sluice simulate --plans plans.yaml --log access.log.1.gz --log access.log --json
  sluice simulate --plans plans.yaml --log access.log --tenant-from 'path:^/orgs/([^/]+)/' --default-plan free`

// simulateFlags is the command line of simulate.
type simulateFlags struct {
	plans, logs             []string
	tenantFrom, defaultPlan string
	json                    bool
	top                     int
	counterMiB              int64
}

func newSimulateCommand() *cobra.Command {
	var f simulateFlags
	c := &cobra.Command{
		Use:     "simulate --plans FILE --log FILE [LOG...]",
		Short:   "Replay access logs and report what the limits would have done",
		Long:    simulateLong,
		Example: simulateExample,
		Args:    cobra.ArbitraryArgs,
		RunE:    func(c *cobra.Command, more []string) error { return f.run(c, more) },
	}
	flags := c.Flags()
	flags.StringArrayVar(&f.plans, "plans", nil, "plans `FILE`; may be repeated: all files are one configuration")
	flags.StringArrayVar(&f.logs, "log", nil, "access log `FILE`, plain or gzip, or - for standard input; may be "+
		"repeated")
	flags.StringVar(&f.tenantFrom, "tenant-from", "", "where the tenant of a line is found: `HOW` is listed above")
	flags.StringVar(&f.defaultPlan, "default-plan", "", "`PLAN` of tenants that the plans file does not name")
	flags.BoolVar(&f.json, "json", false, "write the report to standard output as JSON")
	numberFlag(flags, &f.top, "top", 20, 1, 100_000, "list up to `N` tenants, and as many addresses")
	numberFlag(flags, &f.counterMiB, "counter-memory", simulate.DefaultStoreBytes>>20, 1, 1<<20,
		"most memory for counters, in `MIB`")
	return c
}

func (f *simulateFlags) run(c *cobra.Command, args []string) error {
	f.logs = append(f.logs, args...)
	o, err := f.options()
	if err != nil {
		return usage(err)
	}
	if o.Config, err = loadPlans(c, f.plans); err != nil {
		return err
	}
	report, err := simulate.Run(c.Context(), o)
	switch {
	case c.Context().Err() != nil:
		return errors.New("interrupted")
	case errors.Is(err, simulate.ErrUnknownPlan), errors.Is(err, simulate.ErrUnknownTenant):
		return usage(err)
	case err != nil:
		return err
	}
	if err := report.Unusable(); err != nil {
		return err
	}
	if f.json {
		err = writeJSON(c.OutOrStdout(), report)
	} else {
		err = report.WriteText(c.OutOrStdout())
	}
	if err != nil {
		return err
	}
	if len(report.Incomplete) > 0 {
		return fmt.Errorf("the report is incomplete, because logs could not be read to their ends: %s",
			strings.Join(report.Incomplete, "; "))
	}
	return nil
}

// options checks the flags and makes the options of the simulation. It opens no file.
func (f *simulateFlags) options() (simulate.Options, error) {
	o := simulate.Options{DefaultPlan: f.defaultPlan, Top: f.top, StoreBytes: f.counterMiB << 20}
	switch {
	case len(f.plans) == 0:
		return o, errors.New("--plans is missing: name the file with the limits to try")
	case len(f.logs) == 0:
		return o, errors.New("--log is missing: name the access log to replay")
	}
	if f.tenantFrom != "" {
		from, err := simulate.ParseTenantFrom(f.tenantFrom)
		if err != nil {
			return o, fmt.Errorf("--tenant-from: %w", err)
		}
		o.TenantFrom = &from
	}
	for _, name := range f.logs {
		o.Logs = append(o.Logs, simulate.FileLog(name))
	}
	return o, nil
}
