package main

import (
	"cmp"
	"fmt"
	"io"
	"math"
	"net/url"
	"os"
	"strconv"
	"strings"

	"github.com/sluicelimits/sluice/internal/control/client"
	"github.com/sluicelimits/sluice/internal/control/operate"
	"github.com/sluicelimits/sluice/internal/dev"
	"github.com/sluicelimits/sluice/internal/plan/shares"
	"github.com/spf13/cobra"
)

const countersHelp = `

The command looks at one cell: --cell, or the only cell that serves. If several serve, the tenant's
home cell counts its quotas, and each cell counts its own share of every other limit. Without --path,
the command looks at the limits that count per tenant. With --path, it looks at the counters that a
request to that path would be charged to. Counters per address cannot be reached. Each use is in the
audit trail.`

// countersFlags name the counters that a command works on.
type countersFlags struct {
	remote
	cell, ops string
	counters  operate.Counters
}

func newCounterCommand() *cobra.Command {
	c := group("counter", "Show how much of a tenant's limits is used, empty a counter, give units back")
	c.SuggestFor = []string{"peek", "reset", "refund"}
	c.AddCommand(newCountersCommand(&cobra.Command{
		Use: "peek TENANT [LIMIT]", Short: "Show how much of a tenant's limits is used in a cell, and change nothing",
		Example: "  sluice counter peek acme\n" +
			"  sluice counter peek acme put-product --method PUT --path /product/1 --cell eu-1",
	}, operate.Peek), newCountersCommand(&cobra.Command{
		Use: "reset TENANT LIMIT", Short: "Empty a counter of a tenant in a cell",
		Long: `Sets a counter back to unused. Instances may still hold leased units of the counter.
Until these leases end, within 10 seconds, such units may be spent in addition to the limit, or be
given back and so lower what is counted after the reset. For a token_bucket, leased units stay used
until their leases end.`,
		Example: "  sluice counter reset acme burst --reason 'their loop is fixed'\n" +
			"  sluice counter reset acme monthly --cell eu-1 --reason 'our test used it up'",
	}, operate.Reset), newCountersCommand(&cobra.Command{
		Use: "refund TENANT LIMIT", Short: "Give units back to a tenant in a cell",
		Long: `Gives units back to the open windows of a limit. A counter does not go below zero. The next
free time of a leaky_bucket moves nearer. A token_bucket, a sliding_log and sliding_buckets cannot
be refunded: they can be reset or boosted instead.`,
		Example: "  sluice counter refund acme monthly --units 5000 --cell eu-1 --reason 'retries of our outage'",
	}, operate.Refund))
	return c
}

// newCountersCommand makes c the command that calls an operation on the counters of a cell.
func newCountersCommand(
	c *cobra.Command, which operate.Typed[operate.Counters, operate.CountersResponse],
) *cobra.Command {
	f := new(countersFlags)
	peeks := !which.Writes
	c.Long = cmp.Or(c.Long, c.Short+".") + countersHelp
	flags := c.Flags()
	cellDefault := "the only cell that serves; required if there are several"
	if peeks {
		f.remote.flags(c)
		flags.StringVar(&f.reason, "reason", "", "`WHY` you look, for the audit trail (default: peek)")
		cellDefault = "the only cell that serves, or else the tenant's home cell"
	} else {
		f.writes(c)
	}
	if c.Name() == "refund" {
		numberFlag(flags, &f.counters.Units, "units", 0, 1, math.MaxInt64,
			"give `UNITS` back to each window of the limit (required)")
	}
	flags.StringVar(&f.cell, "cell", "", "`CELL` whose counters are meant (default: "+cellDefault+")")
	flags.StringVar(&f.ops, "ops-endpoint", "", "`URL` of the cell's operators' API, which may be a custom "+
		"domain of yours (default: SLUICE_OPS_ENDPOINT, or the URL that 'sluice cell add' stored)")
	flags.StringVar(&f.counters.Method, "method", "", "`METHOD` of the request (default GET)")
	flags.StringVar(&f.counters.Path, "path", "", "`PATH` of the request")
	flags.StringVar(&f.counters.Subject, "subject", "", "`SUBJECT` of the request")
	flags.StringVar(&f.counters.APIKey, "key-id", "", "`ID` of the request's API key")
	c.Args = wantArgs
	c.RunE = func(c *cobra.Command, args []string) error {
		if c.Name() == "refund" && f.counters.Units == 0 {
			return usagef("--units is missing: give the number of units, such as --units 5000")
		}
		if !peeks {
			if err := f.why(c); err != nil {
				return err
			}
		}
		f.counters.Tenant = args[0]
		if len(args) > 1 {
			f.counters.Limit = args[1]
		}
		to, err := f.connectOps(c, peeks)
		if err != nil {
			return err
		}
		f.counters.Reason = f.reason
		return perform(c, &f.remote, to, which, &f.counters, writeCounters)
	}
	return c
}

// connectOps returns a client of the cell's ops function. The function has a URL of its own, or else a path below the
// admin endpoint. readOnly says that the operation changes no counter.
func (f *countersFlags) connectOps(c *cobra.Command, readOnly bool) (*client.Client, error) {
	if endpoint := cmp.Or(f.ops, os.Getenv("SLUICE_OPS_ENDPOINT")); endpoint != "" {
		return f.at(c, endpoint)
	}
	to, err := f.connect(c)
	if err != nil {
		return nil, err
	}
	request := &operate.CellsRequest{Tenant: f.counters.Tenant}
	cells, err := client.Do(c.Context(), to, operate.Cells, request)
	if err != nil {
		cells = &operate.CellsResponse{} // the call of the operation reports what is wrong
	}
	if f.cell == "" {
		if f.cell, err = f.choose(c, cells, readOnly); err != nil {
			return nil, err
		}
	}
	for i := range cells.Cells {
		if row := &cells.Cells[i]; row.Cell == f.cell && row.Ops != "" {
			if err := checkStoredOps(row, to.Signs()); err != nil {
				return nil, err
			}
			return f.at(c, row.Ops)
		}
	}
	return to.At("ops", f.cell), nil
}

// checkStoredOps checks the URL of a cell's operators' API that the admin endpoint returned. Somebody else may have
// stored that URL. A signed call is therefore only made to API Gateway in the cell's region. An admin endpoint on this
// machine, which is called without a signature, may be another user's program, so an unsigned call is only made to
// this machine. A URL from --ops-endpoint or SLUICE_OPS_ENDPOINT is not checked: it may be a custom domain.
func checkStoredOps(row *operate.CellRow, signed bool) error {
	err := fmt.Errorf("%.80q is not a URL of this machine, and the admin endpoint is on this machine", row.Ops)
	if signed {
		var stage operate.Stage
		stage, err = operate.ParseStage(row.Ops)
		if err == nil && row.Region != "" && row.Region != stage.Region {
			err = fmt.Errorf("%s is in %s, and the cell is in %s", row.Ops, stage.Region, row.Region)
		}
	} else if u, bad := url.Parse(row.Ops); bad == nil && client.Local(u) {
		err = nil
	}
	if err == nil {
		return nil
	}
	const what = "the stored URL of the operators' API of cell %s cannot be used: %w; nothing was sent there. " +
		"Name a URL with --ops-endpoint or SLUICE_OPS_ENDPOINT, or store another one with 'sluice cell add --ops'"
	return fmt.Errorf(what, shown(row.Cell), err)
}

// choose picks a cell if --cell is not given: the only cell that serves. If several cells serve, it picks the tenant's
// home cell for an operation that changes nothing, and prints that; it refuses an operation that changes counters,
// since the operator must know in which cell.
func (f *countersFlags) choose(c *cobra.Command, cells *operate.CellsResponse, readOnly bool) (string, error) {
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
		return dev.AloneCell, nil
	case len(serving) == 1:
		return serving[0], nil
	case readOnly && cells.Home != "":
		fmt.Fprintf(c.ErrOrStderr(), "sluice: these are the counters of cell %s, the home cell of tenant %q: it "+
			"counts the quotas, and its own share of other limits; --cell selects one of %s\n", cells.Home,
			f.counters.Tenant, names)
		return cells.Home, nil
	}
	home := ""
	if cells.Home != "" {
		home = fmt.Sprintf("; %s is the home cell of tenant %q, and counts its quotas", cells.Home, f.counters.Tenant)
	}
	return "", usagef("several cells serve, each with its own counters: select one with --cell: %s%s", names, home)
}

func writeCounters(w io.Writer, r *operate.CountersResponse) error {
	rows := make([][]string, len(r.Counters))
	head := "LIMIT WINDOW ALGORITHM MODE USED OF REMAINING RESETS"
	for i, k := range r.Counters {
		rows[i] = []string{k.Limit, k.Tier, k.Algorithm, k.Mode, strconv.FormatInt(k.Used, 10),
			strings.TrimSpace(strconv.FormatInt(k.Capacity, 10) + " " + k.Unit),
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
	_, err := fmt.Fprintf(w, "recorded in the audit trail as operations/%s\n", r.Operation)
	return err
}
