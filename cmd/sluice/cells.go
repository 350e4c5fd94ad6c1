package main

import (
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/sluicelimits/sluice/internal/control/admin"
)

func newCellCommand() *cobra.Command {
	c := group("cell", "Add, drain and remove cells, and show their shares")
	c.AddCommand(newCellListCommand(), newCellAddCommand(), newCellDrainCommand(), newCellRemoveCommand())
	return c
}

const cellHelp = " The balancer carries requests out one after the\nother, in two phases, so that the limits hold " +
	"meanwhile; 'sluice cell list' shows how far it is."

func newCellListCommand() *cobra.Command {
	var r remote
	c := &cobra.Command{
		Use: "list", Short: "List the cells: what was asked for, and what the balancer made of it",
		Long: "Lists the cells. A state of waiting says that the balancer has not come to the request, or has " +
			"refused it.\n" + "Items that it cannot read are listed below the cells. Nothing changes for the tenant " +
			"of a placement that cannot be read.",
		Example: "  sluice cell list",
		Args:    usageArgs(cobra.NoArgs),
		RunE: func(c *cobra.Command, _ []string) error {
			return operate(c, &r, "cells/list", admin.CellsRequest{}, func(w io.Writer, a *admin.CellsResponse) error {
				rows := make([][]string, len(a.Cells))
				for i, k := range a.Cells {
					awaited := ""
					if k.Awaited {
						awaited = "yes"
					}
					rows[i] = []string{k.Cell, k.State, strconv.FormatInt(k.Share, 10), string(k.Asked),
						strconv.FormatInt(k.Version, 10), awaited, day(k.ChangedAt), k.Actor}
				}
				if err := table(w, "CELL STATE WEIGHT ASKED VERSION AWAITED CHANGED BY", rows); err != nil {
					return err
				}
				if a.Epoch != 0 || a.Note != "" {
					fmt.Fprintf(w, "epoch %d, %s\n", a.Epoch, a.Phase)
				}
				if a.Note != "" {
					fmt.Fprintln(w, "note: "+shown(a.Note))
				}
				for _, u := range a.Unreadable {
					fmt.Fprintln(w, unreadable(&u))
				}
				return nil
			})
		},
	}
	r.flags(c)
	return c
}

// unreadable is a line about an item of the table cells that cannot be read.
func unreadable(u *admin.UnreadableCell) string {
	what := "cannot be read, so nothing of it is carried out: "
	if u.Key != "" {
		what += u.Key + ", version " + strconv.FormatInt(u.Version, 10)
	}
	if u.Tenant != "" {
		what += ", the placement of tenant " + shown(u.Tenant)
	}
	if u.Key != "" {
		what += ": "
	}
	return what + shown(u.Error)
}

func newCellAddCommand() *cobra.Command {
	var r remote
	var weight int64
	var opsURL string
	c := &cobra.Command{
		Use: "add CELL", Short: "Ask for a cell to serve, or for another weight",
		Long: "Asks for a cell to get a share of every limit, in proportion to its weight." + cellHelp + `

--ops is where operators' calls about counters of the cell go, signed. It must be the URL that API Gateway itself gives
the cell's operators' API, in the cell's region; of a 'sluice dev', a URL of this machine. Where it takes the place of
another URL, nothing is written without --yes, and the exit status is 5.`,
		Example: "  sluice cell add eu-1 --ops https://abc.execute-api.eu-west-1.amazonaws.com/v1 --reason 'first " +
			"cell'\n" + "  sluice cell add us-1 --weight 3 --reason 'three quarters of the traffic'",
		Args: usageArgs(cobra.ExactArgs(1)),
		RunE: func(c *cobra.Command, args []string) error {
			if weight < 1 {
				return &usageError{c.CommandPath(), fmt.Errorf("--weight %d is below 1", weight)}
			}
			if err := r.why(c); err != nil {
				return err
			}
			request := admin.AddCellRequest{Cell: args[0], Weight: weight, Ops: opsURL, Yes: r.yes, Reason: r.reason}
			return operate(c, &r, "cells/add", request, written("cell "+shown(args[0])+": asked for"))
		},
	}
	r.writes(c)
	c.Flags().Int64Var(&weight, "weight", 1, "`WEIGHT` of its share, beside those of the other cells")
	c.Flags().StringVar(&opsURL, "ops", "",
		"`URL` of its operators' API, as the stack's output Ops has it (default: as before)")
	c.Flags().BoolVarP(&r.yes, "yes", "y", false, "let the URL of --ops take the place of another one")
	return c
}

func newCellDrainCommand() *cobra.Command {
	var r remote
	c := &cobra.Command{
		Use: "drain CELL", Short: "Ask for a cell's share to go to the others",
		Long:    "Asks for a cell to serve no more." + cellHelp,
		Example: "  sluice cell drain us-1 --reason 'moves to us-2'",
		Args:    usageArgs(cobra.ExactArgs(1)),
		RunE: func(c *cobra.Command, args []string) error {
			if err := r.why(c); err != nil {
				return err
			}
			return operate(c, &r, "cells/drain", admin.CellRequest{Cell: args[0], Reason: r.reason},
				written("cell "+shown(args[0])+": asked to drain"))
		},
	}
	r.writes(c)
	return c
}

func newCellRemoveCommand() *cobra.Command {
	var r remote
	var force bool
	c := &cobra.Command{
		Use: "remove CELL", Short: "Ask for a drained cell to be forgotten",
		Long: "Asks for a drained cell to be forgotten. --force removes one that has stopped for good and can no " +
			"longer be heard: if it still\n" + "runs, what its last share grants comes on top of the limits." +
			cellHelp,
		Example: "  sluice cell remove us-1 --reason 'moved'\n  sluice cell remove us-1 --force --reason 'the " +
			"region is gone'",
		Args: usageArgs(cobra.ExactArgs(1)),
		RunE: func(c *cobra.Command, args []string) error {
			if err := r.why(c); err != nil {
				return err
			}
			return operate(c, &r, "cells/remove", admin.CellRequest{Cell: args[0], Force: force, Reason: r.reason},
				written("cell "+shown(args[0])+": asked to be removed"))
		},
	}
	r.writes(c)
	c.Flags().BoolVar(&force, "force", false, "do not wait to hear from the cell")
	return c
}

func newConfigCommand() *cobra.Command {
	c := group("config", "Show how far the cells' configuration is")
	var r remote
	status := &cobra.Command{
		Use: "status [CELL]", Short: "Compare each cell's copy of the configuration with the control tables",
		Long: "Compares each cell's copy of plans, tenants and keys with the control tables: what has not arrived, " +
			"for how long, and what\n" + "nobody wrote so. The exit status is 1 where a cell cannot be asked or has " +
			"drifted. It reads every document of both.",
		Example: "  sluice config status\n  sluice config status eu-1 --json | jq '.cells[0].lag_s'",
		Args:    usageArgs(cobra.MaximumNArgs(1)),
		RunE: func(c *cobra.Command, args []string) error {
			request, bad := admin.StatusRequest{}, 0
			if len(args) == 1 {
				request.Cell = args[0]
			}
			to, err := r.connect(c)
			if err != nil {
				return err
			}
			err = operateAt(c, &r, to, "config/status", request, writeStatus, func(a *admin.StatusResponse) {
				for _, k := range a.Cells {
					if k.Error != "" || k.Drifted > 0 {
						bad++
					}
				}
			})
			if err == nil && bad > 0 {
				err = fmt.Errorf("%s drifted or did not answer", count(bad, "cell"))
			}
			return err
		},
	}
	r.flags(status)
	c.AddCommand(status)
	return c
}

func writeStatus(w io.Writer, a *admin.StatusResponse) error {
	rows := make([][]string, len(a.Cells))
	var notes []string
	for i, k := range a.Cells {
		if k.Error != "" {
			rows[i] = []string{k.Cell, k.Error, "", "", "", "", ""}
			continue
		}
		changed := ""
		if k.ChangedAt != nil {
			changed = day(*k.ChangedAt)
		}
		lag := (time.Duration(k.LagS * float64(time.Second))).Round(time.Millisecond).String()
		if k.Behind > 0 {
			notes = append(notes, fmt.Sprintf("%s: %s is the oldest that has not arrived", k.Cell, k.Oldest))
		}
		for _, d := range k.Drift {
			notes = append(notes, k.Cell+": "+d)
		}
		rows[i] = []string{k.Cell, strconv.FormatInt(k.Head, 10), changed, fmt.Sprintf("%d of %d", k.Documents,
			a.Documents), strconv.Itoa(k.Behind), lag, strconv.Itoa(k.Drifted)}
	}
	if err := table(w, "CELL HEAD CHANGED DOCUMENTS BEHIND LAG DRIFTED", rows); err != nil {
		return err
	}
	for _, n := range notes {
		fmt.Fprintln(w, shown(n))
	}
	return nil
}

func newShadowCommand() *cobra.Command {
	c := group("shadow", "See what shadow limits would deny, and have them enforce")
	var r, p remote
	report := &cobra.Command{
		Use: "report", Short: "Show what shadow limits would have denied",
		Long: "Shows what shadow limits would have denied. 'sluice dev' counts the requests that it has seen " +
			"itself; in AWS the counts are\n" + "the metric shadow_denied, which this command does not read.",
		Example: "  sluice shadow report",
		Args:    usageArgs(cobra.NoArgs),
		RunE: func(c *cobra.Command, _ []string) error {
			return operate(c, &r, "shadow/report", admin.ShadowReportRequest{},
				func(w io.Writer, a *admin.ShadowReport) error {
					rows := make([][]string, len(a.Limits))
					for i, l := range a.Limits {
						rows[i] = []string{l.Limit, strconv.FormatUint(l.Admitted, 10),
							strconv.FormatUint(l.Denied, 10)}
					}
					if err := table(w, "LIMIT ADMITTED WOULD-DENY", rows); err != nil {
						return err
					}
					_, err := fmt.Fprintln(w, shown(a.Window))
					return err
				})
		},
	}
	r.flags(report)
	promote := &cobra.Command{
		Use: "promote PLAN LIMIT", Short: "Have a shadow limit of a plan enforce",
		Long: "Makes the mode of a shadow limit enforce, for every tenant of the plan that has no mode of its own. " +
			"Its counters begin empty:\n" + "those of a shadow are counted apart.",
		Example: "  sluice shadow promote pro writes --reason 'a week without a false alarm'",
		Args:    usageArgs(cobra.ExactArgs(2)),
		RunE: func(c *cobra.Command, args []string) error {
			if err := p.why(c); err != nil {
				return err
			}
			return operate(c, &p, "limits/promote", admin.PromoteRequest{Plan: args[0], Limit: args[1],
				Reason: p.reason},
				written("plan "+shown(args[0])+": "+shown(args[1])+" enforces"))
		},
	}
	p.writes(promote)
	c.AddCommand(report, promote)
	return c
}
