package main

import (
	"context"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"time"

	"github.com/sluicelimits/sluice/internal/control"
	"github.com/sluicelimits/sluice/internal/control/client"
	"github.com/sluicelimits/sluice/internal/control/operate"
	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/plan/shares"
	"github.com/spf13/cobra"
)

// cellHelp ends the help of the commands that ask the balancer for a change.
const cellHelp = `

The balancer carries out one request after the other; 'sluice cell list' shows its progress.`

func newCellCommand() *cobra.Command {
	c := group("cell", "Add, drain and remove cells, and compare what they have")
	drain, remove := new(operate.CellRequest), new(operate.CellRequest)
	draining := newCellWaitCommand(&cobra.Command{
		Use: "drain CELL", Short: "Ask for a cell's share to move to the other cells",
		Long: "Asks for a cell to stop serving, and for its share of every limit to move to the other cells." +
			cellHelp,
		Example: "  sluice cell drain us-1 --reason 'moves to us-2'",
	}, operate.DrainCell, drain, string(shares.Drained), "cell %s: asked to drain")
	removing := newCellWaitCommand(&cobra.Command{
		Use: "remove CELL", Short: "Ask for a drained cell to be removed",
		Long: `Asks for a drained cell to be removed. --force removes a cell that has stopped for
good and cannot acknowledge that it is drained. If such a cell still runs, it goes on admitting
requests from its last share, in addition to the limits.` + cellHelp,
		Example: "  sluice cell remove us-1 --reason 'moved'\n" +
			"  sluice cell remove us-1 --force --reason 'the region is gone'",
	}, operate.RemoveCell, remove, "removed", "cell %s: asked to be removed")
	removing.Flags().BoolVar(&remove.Force, "force", false, "do not wait for the cell's acknowledgement")
	c.AddCommand(newCellListCommand(), newCellStatusCommand(), newCellAddCommand(), draining, removing)
	return c
}

func newCellListCommand() *cobra.Command {
	r := new(operate.CellsRequest)
	return newOperation(&cobra.Command{
		Use: "list", Short: "List the cells: what operators asked for, and what the balancer has done",
		Long: `Lists the cells. The state "waiting" means that the balancer has not reached the
request yet, or has refused it. The last line has the epoch, which is the number of the newest shares,
and the phase. In the phase shrink, the balancer waits until each cell has acknowledged a smaller
share; in the phase grow, others become larger; in the phase steady, no change is under way.`,
		Example: "  sluice cell list",
	}, operate.Cells, r, &operation{}, writeCells)
}

func writeCells(w io.Writer, a *operate.CellsResponse) error {
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
}

// unreadable returns a line about an item of the table cells that the balancer cannot read.
func unreadable(u *operate.UnreadableCell) string {
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
	r := new(operate.AddCellRequest)
	c := newOperation(&cobra.Command{
		Use: "add CELL", Short: "Ask for a cell to serve requests, or change its weight",
		Long: "Asks for a cell to get a share of every limit, in proportion to its weight." + cellHelp + `

--ops is the URL that operators' commands call about the cell's counters: the one that API Gateway
gave the cell's operators' API, or for a cell of 'sluice dev', one of this machine. To replace another
URL, add --yes.`,
		Example: "  sluice cell add eu-1 --ops https://abc.execute-api.eu-west-1.amazonaws.com/v1 --reason 'first " +
			"cell'\n" + "  sluice cell add us-1 --weight 3 --reason 'three quarters of the traffic'",
	}, operate.AddCell, r, &operation{args: []*string{&r.Cell}, requestReason: &r.Reason},
		printWritten("cell %s: asked for", &r.Cell))
	numberFlag(c.Flags(), &r.Weight, "weight", 1, 1, math.MaxInt64,
		"`WEIGHT` of the cell's share, relative to the other cells' weights")
	c.Flags().StringVar(&r.Ops, "ops", "",
		"`URL` of the cell's operators' API: the output Ops of its stack (default: keep the present URL)")
	c.Flags().BoolVarP(&r.Yes, "yes", "y", false, "let --ops replace another URL")
	return c
}

// newCellWaitCommand makes c a command that asks for a state of a cell, and waits for it with the flag --wait.
func newCellWaitCommand(
	c *cobra.Command, which operate.Typed[operate.CellRequest, control.Item], r *operate.CellRequest,
	state, done string,
) *cobra.Command {
	wait := new(time.Duration)
	o := &operation{args: []*string{&r.Cell}, requestReason: &r.Reason}
	o.then = func(c *cobra.Command) error { return awaitCell(c, &o.remote, r.Cell, state, *wait) }
	c = newOperation(c, which, r, o, printWritten(done, &r.Cell))
	durationFlag(c.Flags(), wait, "wait", 0, 0,
		"wait until the cell is "+state+" and no shares are changing, for at most "+
			"`DURATION` (--wait alone: 30m)")
	c.Flags().Lookup("wait").NoOptDefVal = "30m"
	return c
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
		cells, err := client.Do(ctx, to, operate.Cells, &operate.CellsRequest{})
		switch {
		case ctx.Err() != nil && c.Context().Err() == nil:
			return fmt.Errorf("cell %s is not %s after %s: %s; 'sluice cell list' shows what the balancer awaits",
				shown(cell), state, wait, last)
		case err != nil:
			return r.failed(c, err)
		}
		at := slices.IndexFunc(cells.Cells, func(k operate.CellRow) bool { return k.Cell == cell })
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

func newCellStatusCommand() *cobra.Command {
	r := new(operate.StatusRequest)
	return newOperation(&cobra.Command{
		Use: "status [CELL]", Short: "Compare each cell's copy of the configuration with the control tables",
		Long: `Compares each cell's copy of plans, tenants and keys with the control tables: which
changes have not arrived, and for how long, and which documents of a cell differ from everything that
was ever written (drift). The exit status is 1 if a cell did not answer or has drifted, or if an item
of a control table cannot be read.`,
		Example: "  sluice cell status\n  sluice cell status eu-1 --json | jq '.cells[0].lag_s'",
	}, operate.ConfigStatus, r, &operation{args: []*string{&r.Cell}}, writeStatus,
		func(a *operate.StatusResponse) error {
			bad := 0
			for _, k := range a.Cells {
				if k.Error != "" || k.Drifted > 0 {
					bad++
				}
			}
			switch {
			case bad > 0:
				return fmt.Errorf("%s drifted or did not answer", count(bad, "cell"))
			case len(a.Damaged) > 0:
				return errDamaged
			}
			return nil
		})
}

func writeStatus(w io.Writer, a *operate.StatusResponse) error {
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
