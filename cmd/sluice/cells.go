package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/sluicelimits/sluice/internal/control/admin"
	"github.com/sluicelimits/sluice/internal/control/client"
	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/plan/shares"
)

func newCellCommand() *cobra.Command {
	c := group("cell", "Add, drain and remove cells, and show their shares")
	c.AddCommand(newCellListCommand(), newCellAddCommand(), newCellDrainCommand(), newCellRemoveCommand())
	return c
}

// cellHelp ends the help of the commands that ask the balancer for a change.
const cellHelp = ` The balancer carries out one request after the other, in two phases, so that the
limits hold at all times; 'sluice cell list' shows its progress.`

func newCellListCommand() *cobra.Command {
	var r remote
	c := &cobra.Command{
		Use: "list", Short: "List the cells: what operators asked for, and what the balancer has done",
		Long: `Lists the cells. The state "waiting" means that the balancer has not reached the
request yet, or has refused it. Items that the balancer cannot read are listed below the cells. If
the placement of a tenant cannot be read, nothing changes for that tenant.

The last line is about the shares of the limits that the cells may grant. The epoch is the number of
the newest shares. In the phase shrink, some shares become smaller, and the balancer waits until
each cell has acknowledged that; in the phase grow, others become larger. The phase steady means
that no change is under way.`,
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
					fmt.Fprintf(w, "shares: epoch %d, phase %s\n", a.Epoch, a.Phase)
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

// unreadable returns a line about an item of the table cells that the balancer cannot read.
func unreadable(u *admin.UnreadableCell) string {
	what := "cannot be read, so it is not carried out: "
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
		Use: "add CELL", Short: "Ask for a cell to serve requests, or change its weight",
		Long: "Asks for a cell to get a share of every limit, in proportion to its weight." + cellHelp + `

--ops is the URL that operators' commands call about the cell's counters. In a deployment, it must be the URL that API
Gateway gave the cell's operators' API, in the cell's region, since these calls are signed. For a cell of 'sluice dev',
it must be a URL of this machine. If the cell has another URL already, the new one is only written with --yes; without
--yes the exit status is 5.`,
		Example: "  sluice cell add eu-1 --ops https://abc.execute-api.eu-west-1.amazonaws.com/v1 --reason 'first " +
			"cell'\n" + "  sluice cell add us-1 --weight 3 --reason 'three quarters of the traffic'",
		Args: wantArgs(1, 1),
		RunE: func(c *cobra.Command, args []string) error {
			if weight < 1 {
				return &usageError{c.CommandPath(), fmt.Errorf("--weight %d is below 1", weight)}
			}
			if err := r.why(c); err != nil {
				return err
			}
			request := admin.AddCellRequest{Cell: args[0], Weight: weight, Ops: opsURL, Yes: r.yes, Reason: r.reason}
			return operate(c, &r, "cells/add", request, printWritten("cell "+shown(args[0])+": asked for"))
		},
	}
	r.writes(c)
	c.Flags().Int64Var(&weight, "weight", 1, "`WEIGHT` of the cell's share, relative to the other cells' weights")
	c.Flags().StringVar(&opsURL, "ops", "",
		"`URL` of the cell's operators' API: the output Ops of its stack (default: keep the present URL)")
	c.Flags().BoolVarP(&r.yes, "yes", "y", false, "let --ops replace another URL")
	return c
}

// waitsFor adds the flag --wait to a command that asks for a state of a cell.
func waitsFor(c *cobra.Command, wait *time.Duration, state string) {
	c.Flags().DurationVar(wait, "wait", 0, "wait until the cell is "+state+" and no shares are changing, for at most "+
		"`DURATION` (--wait alone: 30m)")
	c.Flags().Lookup("wait").NoOptDefVal = "30m"
}

// awaitCell waits until the list of cells says that a cell has a state and that no shares are changing, if wait is
// above 0. It prints each step on standard error.
func awaitCell(c *cobra.Command, r *remote, cell, state string, wait time.Duration) error {
	if wait <= 0 {
		return nil
	}
	to, err := r.connect(c)
	if err != nil {
		return err
	}
	ctx, stop := context.WithTimeout(c.Context(), wait)
	defer stop()
	for last := ""; ; {
		cells, err := client.Do[admin.CellsResponse](ctx, to, "cells/list", admin.CellsRequest{})
		switch {
		case ctx.Err() != nil && c.Context().Err() == nil:
			return fmt.Errorf("cell %s is not %s after %s: %s; 'sluice cell list' shows what the balancer awaits",
				shown(cell), state, wait, last)
		case err != nil:
			return r.failed(c, err)
		}
		at := slices.IndexFunc(cells.Cells, func(k admin.CellRow) bool { return k.Cell == cell })
		if at >= 0 && cells.Cells[at].State == state && cells.Phase == shares.Steady {
			return nil
		}
		now := "it is not in the list"
		if at >= 0 {
			now = fmt.Sprintf("state %s, phase %s %s", cells.Cells[at].State, cells.Phase, shown(cells.Note))
		}
		if now != last {
			fmt.Fprintf(c.ErrOrStderr(), "waiting for cell %s: %s\n", shown(cell), now)
			last = now
		}
		select {
		case <-ctx.Done():
		case <-time.After(askCellsEvery):
		}
	}
}

// askCellsEvery is how often awaitCell asks. A step of the balancer takes seconds.
const askCellsEvery = time.Second

func newCellDrainCommand() *cobra.Command {
	var r remote
	var wait time.Duration
	c := &cobra.Command{
		Use: "drain CELL", Short: "Ask for a cell's share to move to the other cells",
		Long: "Asks for a cell to stop serving, and for its share of every limit to move to the other cells." +
			cellHelp,
		Example: "  sluice cell drain us-1 --reason 'moves to us-2'",
		Args:    wantArgs(1, 1),
		RunE: func(c *cobra.Command, args []string) error {
			if err := r.why(c); err != nil {
				return err
			}
			err := operate(c, &r, "cells/drain", admin.CellRequest{Cell: args[0], Reason: r.reason},
				printWritten("cell "+shown(args[0])+": asked to drain"))
			if err == nil {
				err = awaitCell(c, &r, args[0], string(shares.Drained), wait)
			}
			return err
		},
	}
	r.writes(c)
	waitsFor(c, &wait, "drained")
	return c
}

func newCellRemoveCommand() *cobra.Command {
	var r remote
	var force bool
	var wait time.Duration
	c := &cobra.Command{
		Use: "remove CELL", Short: "Ask for a drained cell to be removed",
		Long: `Asks for a drained cell to be removed. --force removes a cell that has stopped for
good and cannot acknowledge that it is drained. If such a cell still runs, it goes on admitting
requests from its last share, in addition to the limits.` + cellHelp,
		Example: "  sluice cell remove us-1 --reason 'moved'\n  sluice cell remove us-1 --force --reason 'the " +
			"region is gone'",
		Args: wantArgs(1, 1),
		RunE: func(c *cobra.Command, args []string) error {
			if err := r.why(c); err != nil {
				return err
			}
			err := operate(c, &r, "cells/remove", admin.CellRequest{Cell: args[0], Force: force, Reason: r.reason},
				printWritten("cell "+shown(args[0])+": asked to be removed"))
			if err == nil {
				err = awaitCell(c, &r, args[0], "removed", wait)
			}
			return err
		},
	}
	r.writes(c)
	waitsFor(c, &wait, "removed")
	c.Flags().BoolVar(&force, "force", false, "do not wait for the cell's acknowledgement")
	return c
}

func newConfigCommand() *cobra.Command {
	c := group("config", "Show whether the cells have the present configuration")
	var r remote
	status := &cobra.Command{
		Use: "status [CELL]", Short: "Compare each cell's copy of the configuration with the control tables",
		Long: `Compares each cell's copy of plans, tenants and keys with the control tables. It shows
which changes have not arrived, and for how long, and which documents of a cell differ from
everything that was ever written (drift). It reads every document on both sides. The exit status is
1 if a cell did not answer or has drifted, or if an item of a control table cannot be read.`,
		Example: "  sluice config status\n  sluice config status eu-1 --json | jq '.cells[0].lag_s'",
		Args:    wantArgs(0, 1),
		RunE: func(c *cobra.Command, args []string) error {
			request, bad := admin.StatusRequest{}, 0
			if len(args) == 1 {
				request.Cell = args[0]
			}
			to, err := r.connect(c)
			if err != nil {
				return err
			}
			var damaged []string
			err = operateAt(c, &r, to, "config/status", request, writeStatus, func(a *admin.StatusResponse) {
				damaged = a.Damaged
				for _, k := range a.Cells {
					if k.Error != "" || k.Drifted > 0 {
						bad++
					}
				}
			})
			if err == nil && bad > 0 {
				err = fmt.Errorf("%s drifted or did not answer", count(bad, "cell"))
			}
			if err == nil && len(damaged) > 0 {
				err = errDamaged
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
		lag := limit.DurationText(time.Duration(k.LagS * float64(time.Second)).Round(time.Millisecond))
		if k.Behind > 0 {
			notes = append(notes, fmt.Sprintf("%s: the oldest change that has not arrived is %s", k.Cell, k.Oldest))
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
	return writeDamaged(w, a.Damaged)
}

func newShadowCommand() *cobra.Command {
	c := group("shadow", "Show what shadow limits would deny, and make them enforce")
	var r, p remote
	report := &cobra.Command{
		Use: "report", Short: "Show what shadow limits would have denied",
		Long: `Shows what shadow limits would have denied, as 'sluice dev' counted it. A deployment
counts it in the metric shadow_denied, which this command does not read.`,
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
		Use: "promote PLAN LIMIT", Short: "Make a shadow limit of a plan enforce",
		Long: `Changes the mode of a shadow limit to enforce. This holds for every tenant of the plan
whose overrides do not set a mode. The counters of the limit begin empty, because a shadow limit has
counters of its own.`,
		Example: "  sluice shadow promote pro writes --reason 'a week without a false alarm'",
		Args:    wantArgs(2, 2),
		RunE: func(c *cobra.Command, args []string) error {
			if err := p.why(c); err != nil {
				return err
			}
			return operate(c, &p, "limits/promote", admin.PromoteRequest{Plan: args[0], Limit: args[1],
				Reason: p.reason},
				printWritten("plan "+shown(args[0])+": "+shown(args[1])+" enforces"))
		},
	}
	p.writes(promote)
	c.AddCommand(report, promote)
	return c
}
