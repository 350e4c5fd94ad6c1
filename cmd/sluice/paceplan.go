package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/sluicelimits/sluice/internal/control"
	"github.com/sluicelimits/sluice/internal/control/client"
	"github.com/sluicelimits/sluice/internal/control/operate"
	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/plan/shares"
	"github.com/sluicelimits/sluice/pacer"
)

func newPacePlanCommand() *cobra.Command {
	c := group("pace-plan", "Set how processes divide a provider's limit among them")
	r := new(operate.PaceNameRequest)
	c.AddCommand(newPacePlanSetCommand(), newOperation(&cobra.Command{
		Use: "get NAME", SuggestFor: []string{"show"}, Short: "Print the plan that holds, and those that begin later",
		Example: "  sluice pace-plan get provider",
	}, operate.GetPacePlan, r, &operation{args: []*string{&r.Name}},
		func(w io.Writer, p *operate.PacePlanResponse) error {
			return table(w, pacePlanHead+" VERSION CHANGED BY WHY", pacePlanRows(p))
		}), newPacePlanListCommand(), newPacePlanRemoveCommand())
	return c
}

func newPacePlanSetCommand() *cobra.Command {
	var total string
	var from time.Time
	r := new(operate.PacePlanRequest)
	c := newOperation(&cobra.Command{
		Use: "set NAME", Short: "Set the total and the number of instances from a time on",
		Long: `Sets a plan: how many units of a provider's limit all instances may use together, and
how many instances divide them. 'sluice pace --pace-plan NAME' follows it, and so do programs with
package pacer. The first plan of a name holds at once. A later one holds from --from on, by default as
early as all instances can have read it; docs/consumer.md says what to change first.`,
		Example: "  sluice pace-plan set provider --total 500/s --instances 96 --reason 'contract 4711'\n" +
			"  sluice pace-plan set provider --total 250/s --instances 96 --from 2027-01-01T00:00:00Z \\\n" +
			"    --reason 'they halve our limit in January'",
	}, operate.SetPacePlan, r, &operation{args: []*string{&r.Name}, requestReason: &r.Reason,
		check: func() error {
			r.From = given(&from)
			return readPacePlan(r, total)
		}}, func(w io.Writer, i *control.Item) error {
		doc, err := operate.ReadPace(i.Body)
		if err != nil {
			return err
		}
		_, err = fmt.Fprintf(w, "pace plan %s: %d per %s for %s from %s on: version %d, by %s\n", shown(r.Name),
			doc.Total, shown(doc.Period), count(int(doc.Instances), "instance"), doc.From.Format(time.RFC3339Nano),
			i.Version, shown(i.Actor))
		return err
	})
	flags := c.Flags()
	flags.StringVar(&total, "total", "", "`LIMIT` of all instances together, such as 500/s (required)")
	numberFlag(flags, &r.Instances, "instances", 0, 1, pacer.MaxInstances, "`N` instances divide the total (required)")
	timeFlag(flags, &from, "from", "`TIME` from which on the plan holds, such as 2027-01-01T00:00:00Z (default: "+
		"as early as possible)")
	expectFlag(flags, &r.Expect)
	return c
}

// readPacePlan adds the total to a request, and checks what the server cannot say in the words of the flags.
func readPacePlan(r *operate.PacePlanRequest, total string) error {
	switch {
	case total == "":
		return errors.New("--total is missing: give one such as --total 500/s")
	case r.Instances == 0:
		return errors.New("--instances is missing: give the number of instances, such as --instances 96")
	}
	l, err := pacer.ParseLimit(total)
	if err != nil {
		return fmt.Errorf("--total: %s", strings.TrimPrefix(err.Error(), pacer.ErrConfig.Error()+": "))
	}
	r.Total, r.Period = l.Units, limit.DurationText(l.Period)
	return nil
}

const pacePlanHead = "PLAN TOTAL PERIOD INSTANCES FROM"

// pacePlanRow returns the first columns of a plan.
func pacePlanRow(name, period string, at *operate.PacePart) []string {
	return []string{name, strconv.FormatInt(at.Total, 10), period, strconv.FormatInt(at.Instances, 10),
		at.From.UTC().Format(time.RFC3339Nano)}
}

// pacePlanRows returns a row for each plan of a chain, that which holds first. The last one says who set it.
func pacePlanRows(p *operate.PacePlanResponse) (rows [][]string) {
	author := []string{strconv.FormatInt(p.Version, 10), day(p.ChangedAt), p.Actor, p.Reason}
	for at := &p.PacePart; at != nil; at = at.Before {
		rows = append([][]string{append(pacePlanRow(p.Name, p.Period, at), author...)}, rows...)
		author = make([]string, len(author))
	}
	return rows
}

func newPacePlanListCommand() *cobra.Command {
	return newListCommand(&cobra.Command{
		Use: "list", Short: "List the newest plan of each name", Example: "  sluice pace-plan list",
	}, control.Cells, pacePlanHead, func(i *control.Item) []string {
		name, ok := strings.CutPrefix(i.Key, shares.PacePrefix)
		if !ok {
			return nil
		}
		doc, err := operate.ReadPace(i.Body)
		if err != nil {
			return []string{name, "unreadable", "", "", ""}
		}
		return pacePlanRow(name, doc.Period, &doc.PacePart)
	})
}

func newPacePlanRemoveCommand() *cobra.Command {
	r := new(operate.RemovePacePlanRequest)
	o := &operation{args: []*string{&r.Name}, requestReason: &r.Reason}
	c := newOperation(&cobra.Command{
		Use: "remove NAME", Short: "Remove a plan, so that processes that follow it wait",
		Long: `Removes a plan. Processes that follow it read that within 10 s, get no units from it,
and wait; a process that is started without the plan fails. On a terminal the command asks before it
removes the plan; elsewhere it needs --yes.`,
		Example: "  sluice pace-plan remove provider --yes --reason 'contract 4711 has ended'",
	}, operate.RemovePacePlan, r, o, printWritten("pace plan %s is removed", &r.Name))
	o.confirm = func(c *cobra.Command) error {
		if r.Yes || !isTerminal(c.InOrStdin()) {
			return nil
		}
		r.Yes = true
		return askToConfirm(c, "Remove pace plan "+shown(r.Name)+"? Processes that follow it then wait. [y/N] ")
	}
	c.Flags().BoolVarP(&r.Yes, "yes", "y", false, "do not ask: remove the plan")
	expectFlag(c.Flags(), &r.Expect)
	return c
}

// pacePlan is the plan that a process follows.
type pacePlan struct {
	name  string
	index int64 // of the process, among the instances of the plan
	read  func(ctx context.Context) (*operate.PacePlanResponse, error)
}

// pacePlanAt returns a plan of a control plane.
func pacePlanAt(to *client.Client, name string, index int64) *pacePlan {
	return &pacePlan{name, index, func(ctx context.Context) (*operate.PacePlanResponse, error) {
		return client.Do(ctx, to, operate.GetPacePlan, &operate.PaceNameRequest{Name: name})
	}}
}

// limit returns the limit of all instances together, which is the Config.Limit of each.
func (p *pacePlan) limit(ctx context.Context) (pacer.Limit, error) {
	response, err := p.read(ctx)
	if err != nil {
		return pacer.Limit{}, fmt.Errorf("read pace plan %s: %w", p.name, err)
	}
	period, err := time.ParseDuration(response.Period)
	if err != nil {
		return pacer.Limit{}, fmt.Errorf("read pace plan %s: period %.40q: %w", p.name, response.Period, err)
	}
	return pacer.Limit{Units: response.Total, Period: period}, nil
}

// follow has a pacer that was made with limit and a Part without Instances follow the plan, until ctx ends. It calls
// failed with the error of each read that fails, and waits, after each other read, with the result of noPart.
func (p *pacePlan) follow(ctx context.Context, to *pacer.Pacer, limit pacer.Limit, failed func(error),
	waits func(string),
) {
	read := func(ctx context.Context) (pacer.Plan, error) {
		response, err := p.read(ctx)
		var refused *operate.Error
		switch {
		case errors.As(err, &refused) && refused.Code == operate.NotFound:
			return pacer.Plan{}, fmt.Errorf("%w: %w: this process waits until there is one", pacer.ErrNoPlan, err)
		case err != nil:
			return pacer.Plan{}, err
		}
		// With windows of the old length, this process would exceed the limit together with those that follow the plan.
		if period, err := time.ParseDuration(response.Period); err != nil || period != limit.Period {
			return pacer.Plan{}, fmt.Errorf("%w: its period is %.40s, and was %s when this process began: this "+
				"process waits; start it again", pacer.ErrNoPlan, response.Period, limit.Period)
		}
		waits(p.noPart(&response.PacePart, time.Now()))
		return *pacerPlan(&response.PacePart), nil
	}
	to.FollowPlan(ctx, operate.PaceReadEvery, read, failed)
}

// noPart returns why the process has no part of the plan at a time. It returns "" if it has a part, or if no plan has
// begun.
func (p *pacePlan) noPart(plan *operate.PacePart, now time.Time) string {
	holds := plan
	for holds.From.After(now) && holds.Before != nil {
		holds = holds.Before
	}
	if p.index < holds.Instances {
		return ""
	}
	return fmt.Sprintf("--index %d lies outside 0..%d, because pace plan %s has %s: this process waits until the plan "+
		"has more. Correct --index, or add instances with 'sluice pace-plan set %s'", p.index, holds.Instances-1,
		p.name,
		count(holds.Instances, "instance"), p.name)
}

func pacerPlan(p *operate.PacePart) *pacer.Plan {
	if p == nil {
		return nil
	}
	return &pacer.Plan{Total: p.Total, Instances: p.Instances, From: p.From, Before: pacerPlan(p.Before)}
}

// start begins to follow the plan. It writes to w why a read failed, and why the process has no part of the plan, each
// once for as long as it stays the same. The function that it returns ends it.
func (p *pacePlan) start(ctx context.Context, to *pacer.Pacer, limit pacer.Limit, w io.Writer) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	var following sync.WaitGroup
	failure, wait := "", ""
	following.Go(func() {
		p.follow(ctx, to, limit, func(err error) {
			text := fmt.Sprintf("pace plan %s stays as it was: %v", p.name, err)
			if errors.Is(err, pacer.ErrNoPlan) {
				text = fmt.Sprintf("pace plan %s: %s", p.name, strings.TrimPrefix(err.Error(),
					pacer.ErrNoPlan.Error()+": "))
				wait = ""
			}
			if text != failure {
				fmt.Fprintf(w, "sluice: %s\n", text)
				failure = text
			}
		}, func(text string) {
			if text != "" && text != wait {
				fmt.Fprintf(w, "sluice: %s\n", text)
			}
			wait = text
		})
	})
	return func() { cancel(); following.Wait() }
}
