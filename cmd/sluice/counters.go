package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/sluicelimits/sluice/internal/aws/executeapi"
	"github.com/sluicelimits/sluice/internal/control/admin"
	"github.com/sluicelimits/sluice/internal/control/client"
	"github.com/sluicelimits/sluice/internal/control/ops"
	"github.com/sluicelimits/sluice/internal/plan/shares"
)

const countersHelp = `

Counters are those of one cell: the only one that serves, or that of --cell. Of several, the tenant's home cell counts
its quotas, and each counts its own part of other limits. Without --path they are those of the limits per tenant. With
--path, and --method, --subject, --key-id and --ip as need be, they are those that such a request would be charged to.
With --ip-limits and --ip they are those of ipLimits, which have no tenant. Each use is an item in the table operations,
and so in the audit trail; an address is there by its keyed hash only.`

// countersFlags say which counters are meant.
type countersFlags struct {
	remote
	cell, ops string
	ipLimits  bool
	counters  ops.Counters
}

func (f *countersFlags) flags(c *cobra.Command, changes bool) {
	c.Long += countersHelp
	if changes {
		f.writes(c)
	} else {
		f.remote.flags(c)
		c.Flags().StringVar(&f.reason, "reason", "", "`WHY`, for the record (default: peek)")
	}
	flags := c.Flags()
	whose := "the only one, else it must be said"
	if !changes {
		whose = "the only one, else the tenant's home"
	}
	flags.StringVar(&f.cell, "cell", "", "`CELL` whose counters are meant (default: "+whose+")")
	flags.StringVar(&f.ops, "ops-endpoint", "", "`URL` of the cell's operators' API, which may be a custom "+
		"domain of yours (default: SLUICE_OPS_ENDPOINT, or as 'sluice cell add' stored it)")
	flags.StringVar(&f.counters.Method, "method", "", "`METHOD` of the request (default GET)")
	flags.StringVar(&f.counters.Path, "path", "", "`PATH` of the request")
	flags.StringVar(&f.counters.Subject, "subject", "", "`SUBJECT` of the request")
	flags.StringVar(&f.counters.APIKey, "key-id", "", "`ID` of the request's API key")
	flags.StringVar(&f.counters.Address, "ip", "", "source `ADDRESS` of the request; on record is its keyed hash")
	flags.BoolVar(&f.ipLimits, "ip-limits", false, "counters of ipLimits for --ip: no TENANT, only a LIMIT")
}

// takes is which arguments are right: a tenant and a limit, or with --ip-limits a limit; the limit may be left out
// where it need not be named.
func (f *countersFlags) takes(named bool) cobra.PositionalArgs {
	return usageArgs(func(_ *cobra.Command, args []string) error {
		most, form := 2, "TENANT [LIMIT]"
		if f.ipLimits {
			most, form = 1, "[LIMIT]"
			if f.counters.Address == "" {
				return errors.New("--ip-limits goes with --ip")
			}
		}
		least := most - 1
		if named {
			least, form = most, strings.NewReplacer("[", "", "]", "").Replace(form)
		}
		if len(args) < least || len(args) > most {
			return fmt.Errorf("want %s, got %d arguments", form, len(args))
		}
		return nil
	})
}

// name says which counters the arguments mean.
func (f *countersFlags) name(args []string) {
	if !f.ipLimits {
		f.counters.Tenant, args = args[0], args[1:]
	}
	if len(args) > 0 {
		f.counters.Limit = args[0]
	}
}

// run calls the cell's ops function.
func (f *countersFlags) run(c *cobra.Command, does string) error {
	to, err := f.connectOps(c, does == "peek")
	if err != nil {
		return err
	}
	f.counters.Reason = f.reason
	return operateAt(c, &f.remote, to, "counters/"+does, &f.counters, writeCounters)
}

// connectOps is a client of the cell's ops function: below the admin endpoint, unless the cell has a URL of its own.
func (f *countersFlags) connectOps(c *cobra.Command, looks bool) (*client.Client, error) {
	own := f.ops
	if own == "" {
		own = os.Getenv("SLUICE_OPS_ENDPOINT")
	}
	if own != "" {
		return f.at(c, own, cmp.Or(f.tokenFile, os.Getenv(tokenFileVariable)))
	}
	to, err := f.connect(c)
	if err != nil {
		return nil, err
	}
	request := admin.CellsRequest{Tenant: f.counters.Tenant}
	cells, err := client.Do[admin.CellsResponse](c.Context(), to, "cells/list", request)
	if err != nil {
		cells = &admin.CellsResponse{} // whoever answers below says what is wrong
	}
	if f.cell == "" {
		if f.cell, err = f.choose(c, cells, looks); err != nil {
			return nil, err
		}
	}
	for i := range cells.Cells {
		if row := &cells.Cells[i]; row.Cell == f.cell && row.Ops != "" {
			if err := checkStoredOps(row, to.Signs()); err != nil {
				return nil, err
			}
			return f.at(c, row.Ops, "") // the token that the command line names is for the endpoint that it names
		}
	}
	return to.At("ops", f.cell), nil
}

// checkStoredOps checks the URL that the admin endpoint tells of a cell. Others than the operator chose the URL, so a
// signed call goes only to API Gateway in the cell's region. What answers on this machine without a signature may be
// another user's program: calls that it leads to stay on this machine, and carry no signature. The operator's own
// choice, by --ops-endpoint or SLUICE_OPS_ENDPOINT, is not checked so: it may be a custom domain.
func checkStoredOps(row *admin.CellRow, signed bool) error {
	err := fmt.Errorf("%.80q is not of this machine, as the admin endpoint is", row.Ops)
	if signed {
		var stage executeapi.Stage
		stage, err = executeapi.ParseStage(row.Ops)
		if err == nil && row.Region != "" && row.Region != stage.Region {
			err = fmt.Errorf("%s is in %s, and the cell is in %s", row.Ops, stage.Region, row.Region)
		}
	} else if u, bad := url.Parse(row.Ops); bad == nil && client.Local(u) {
		err = nil
	}
	if err == nil {
		return nil
	}
	const what = "the URL that is stored for operators' calls about cell %s: %w; nothing was sent there. " +
		"--ops-endpoint or SLUICE_OPS_ENDPOINT says where to call, and 'sluice cell add --ops' stores another URL"
	return fmt.Errorf(what, shown(row.Cell), err)
}

// choose picks the cell where the command line names none: the only one that serves. Where several serve, a look goes
// to the tenant's home and says so, and what changes counters is refused: the operator must know in which cell.
func (f *countersFlags) choose(c *cobra.Command, cells *admin.CellsResponse, looks bool) (string, error) {
	if cells.Alone != "" {
		return cells.Alone, nil
	}
	var serving []string
	for i := range cells.Cells {
		switch row := &cells.Cells[i]; row.State {
		case string(shares.Joining), string(shares.Active), string(shares.Draining):
			serving = append(serving, row.Cell)
		}
	}
	names := strings.Join(serving, ", ")
	switch {
	case len(serving) == 0:
		return aloneCell, nil
	case len(serving) == 1:
		return serving[0], nil
	case looks && cells.Home != "":
		fmt.Fprintf(c.ErrOrStderr(), "sluice: counters of cell %s, the home of tenant %q: it counts the quotas, "+
			"and of other limits its own part; --cell shows another of %s\n", cells.Home, f.counters.Tenant, names)
		return cells.Home, nil
	}
	home := ""
	if cells.Home != "" {
		home = fmt.Sprintf("; %s is the home of tenant %q, which counts its quotas", cells.Home, f.counters.Tenant)
	}
	err := fmt.Errorf("several cells count: say which with --cell, one of %s%s", names, home)
	return "", &usageError{c.CommandPath(), err}
}

func writeCounters(w io.Writer, r *ops.Response) error {
	rows := make([][]string, len(r.Counters))
	head := "LIMIT WINDOW ALGORITHM MODE USED OF REMAINING RESETS"
	for i, k := range r.Counters {
		rows[i] = []string{k.Limit, k.Tier, k.Algorithm, k.Mode, strconv.FormatInt(k.Used, 10),
			strconv.FormatInt(k.Capacity, 10),
			strconv.FormatInt(k.Remaining, 10), day(k.ResetAt)}
		if k.UsedBefore != nil {
			head = "LIMIT WINDOW ALGORITHM MODE USED OF REMAINING RESETS BEFORE"
			rows[i] = append(rows[i], strconv.FormatInt(*k.UsedBefore, 10))
		}
	}
	if err := table(w, head, rows); err != nil {
		return err
	}
	for _, n := range r.Notes {
		fmt.Fprintf(w, "note: %s\n", n)
	}
	_, err := fmt.Fprintf(w, "operation %s\n", r.Operation)
	return err
}

func newPeekCommand() *cobra.Command {
	var f countersFlags
	c := &cobra.Command{
		Use: "peek TENANT [LIMIT]", Short: "Show what of a tenant's limits is used in a cell",
		Long: "Shows counters, and changes none.",
		Example: "  sluice peek acme\n  sluice peek acme put-product --method PUT --path /product/1 --cell eu-1\n  " +
			"sluice peek --ip-limits --ip 192.0.2.1",
		Args: f.takes(false),
		RunE: func(c *cobra.Command, args []string) error {
			f.name(args)
			return f.run(c, "peek")
		},
	}
	f.flags(c, false)
	return c
}

func newResetCommand() *cobra.Command {
	var f countersFlags
	c := &cobra.Command{
		Use: "reset TENANT LIMIT", Short: "Empty a counter of a tenant in a cell",
		Long: "Makes a counter as if it had never been used. What instances have leased then may be spent on top, " +
			"or come back from what is\n" + "counted later, until the leases end, within 10 s; of a token_bucket it " +
			"stays used until then.",
		Example: "  sluice reset acme burst --reason 'their loop is fixed'\n  sluice reset acme monthly --cell eu-1 " +
			"--reason 'our test used it up'",
		Args: f.takes(true),
		RunE: func(c *cobra.Command, args []string) error {
			if err := f.why(c); err != nil {
				return err
			}
			f.name(args)
			return f.run(c, "reset")
		},
	}
	f.flags(c, true)
	return c
}

func newRefundCommand() *cobra.Command {
	var f countersFlags
	c := &cobra.Command{
		Use: "refund TENANT LIMIT", Short: "Give units back to a tenant in a cell",
		Long: "Gives units back in the windows that are open now. A counter does not go below zero. Of a log and of " +
			"sliding_buckets the newest\n" + "units come back first; a leaky_bucket's slot comes nearer. A " +
			"token_bucket refills by itself, and can be reset or boosted.",
		Example: "  sluice refund acme monthly --units 5000 --cell eu-1 --reason 'retries of our outage'",
		Args:    f.takes(true),
		RunE: func(c *cobra.Command, args []string) error {
			if f.counters.Units < 1 {
				return &usageError{c.CommandPath(), fmt.Errorf("--units %d is below 1", f.counters.Units)}
			}
			if err := f.why(c); err != nil {
				return err
			}
			f.name(args)
			return f.run(c, "refund")
		},
	}
	f.flags(c, true)
	c.Flags().Int64Var(&f.counters.Units, "units", 0, "how many `UNITS` come back to each window of the limit "+
		"(required)")
	return c
}
