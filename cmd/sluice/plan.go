package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/schollz/progressbar/v3"
	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v3"

	"github.com/sluicelimits/sluice/events"
	"github.com/sluicelimits/sluice/internal/admin"
	"github.com/sluicelimits/sluice/internal/admin/call"
	"github.com/sluicelimits/sluice/internal/admin/client"
	"github.com/sluicelimits/sluice/internal/control"
	"github.com/sluicelimits/sluice/internal/plan"
)

func newPlanCommand() *cobra.Command {
	c := group("plan", "Bring plans files to the cells, and show what is there")
	c.AddCommand(newPlanApplyCommand(false), newPlanApplyCommand(true), newPlanListCommand(), newPlanGetCommand())
	return c
}

// group is a command that only has others.
func group(use, short string) *cobra.Command {
	return &cobra.Command{Use: use, Short: short, Args: usageArgs(cobra.NoArgs), RunE: func(c *cobra.Command, _ []string) error { return c.Help() }}
}

const applyLong = `Makes the plans, settings, tenants and keys of the files what the cells enforce. Several files are read as one
configuration; "-" is standard input.

First the files are checked, as by 'sluice check', and compared with what is there. The differences are printed, and on a
terminal the command asks before it writes. What does not differ costs no write, so an apply that was cut is repeated.
A document that another operator changed in between is not overwritten.

What the files do not have stays, unless --prune is given; a tenant's suspension and boosts, and a key's revocation, stay
in any case unless the files name them. Counters that would begin anew, since what a limit is has changed, are named, and
need --yes.`

type applyFlags struct {
	remote
	dryRun, prune bool
}

// newPlanApplyCommand makes apply, or diff, which is an apply that never writes.
func newPlanApplyCommand(onlyDiff bool) *cobra.Command {
	f := applyFlags{dryRun: onlyDiff}
	c := &cobra.Command{
		Use: "apply FILE...", Short: "Make what plans files say what the cells enforce", Long: applyLong,
		Example: "  sluice plan apply plans.yaml --reason 'pro gets 200 a second'\n  sluice plan apply --dry-run plans.yaml tenants.yaml\n" +
			"  sluice plan apply --prune --yes plans.yaml --reason 'the plan basic ends'\n  generate-plans | sluice plan apply --yes - --reason nightly",
		Args: usageArgs(cobra.MinimumNArgs(1)),
		RunE: func(c *cobra.Command, files []string) error { return f.run(c, files) },
		ValidArgsFunction: func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
			return planExtensions, cobra.ShellCompDirectiveFilterFileExt
		},
	}
	if onlyDiff {
		c.Use, c.Short = "diff FILE...", "Show what an apply of plans files would change"
		c.Long = "Compares plans files with what is there, and writes nothing. The exit status is 1 where an apply would be refused."
		c.Example = "  sluice plan diff plans.yaml\n  sluice plan diff --json plans.yaml | jq '.changes[].id'"
		f.flags(c)
	} else {
		f.writes(c)
		c.Flags().BoolVar(&f.dryRun, "dry-run", false, "show what would change, and write nothing")
		c.Flags().BoolVarP(&f.yes, "yes", "y", false, "do not ask, and let counters begin anew")
	}
	c.Flags().BoolVar(&f.prune, "prune", false, "delete plans and tenants that the files do not have")
	return c
}

// applied is the machine form of an apply.
type applied struct {
	DryRun bool           `json:"dry_run"`
	Diff   *client.Diff   `json:"diff"`
	Result *client.Result `json:"result"` // null where nothing was tried
}

func (f *applyFlags) run(c *cobra.Command, files []string) error {
	if !f.dryRun && f.reason == "" && !isTerminal(c.InOrStdin()) {
		return f.why(c) // before anything is read
	}
	sources, err := plan.ReadFiles(c.InOrStdin(), files...)
	if err != nil {
		return err
	}
	documents, err := plan.Split(time.Now(), sources...)
	if err != nil {
		return f.badFile(c, err)
	}
	to, err := f.connect(c)
	if err != nil {
		return err
	}
	diff, err := client.Compare(c.Context(), to, documents, f.prune)
	if err != nil {
		return f.failed(c, err)
	}
	if !f.json {
		if err := writeDiff(c.OutOrStdout(), diff); err != nil {
			return err
		}
	}
	out := applied{DryRun: f.dryRun, Diff: diff}
	switch {
	case len(diff.Problems) > 0:
		refused := call.Refuse(call.Invalid, "the files do not fit what is there; nothing was written")
		refused.Problems = diff.Problems
		return f.failed(c, refused)
	case len(diff.Edits) == 0 || f.dryRun:
		return f.end(c, &out)
	}
	if err := f.confirm(c, diff); err != nil {
		return err
	}
	result, err := f.write(c, to, diff)
	if out.Result = &result; err != nil {
		return f.failed(c, err)
	}
	return f.end(c, &out)
}

func (f *applyFlags) badFile(c *cobra.Command, err error) error {
	check := checkFlags{json: f.json}
	return check.refuse(c, err)
}

// confirm asks where somebody is there to answer, and makes sure that what is lost is meant.
func (f *applyFlags) confirm(c *cobra.Command, diff *client.Diff) error {
	if err := f.why(c); err != nil {
		return err
	}
	if f.yes {
		return nil
	}
	if isTerminal(c.InOrStdin()) {
		answer, err := askFor(c, "Apply these changes? [y/N] ")
		if err != nil {
			return err
		}
		if answer != "y" && answer != "Y" && answer != "yes" {
			return errors.New("not applied; nothing was written")
		}
		f.yes = true
		return nil
	}
	refused := call.Refuse(call.Confirm, "counters would begin anew: say --yes if they may; nothing was written")
	refused.Problems = diff.Afresh
	deletes := 0
	for _, e := range diff.Edits {
		if e.Action == client.Delete {
			deletes++
		}
	}
	if deletes > 0 {
		refused.Message = fmt.Sprintf("%s would be deleted: say --yes if they may; nothing was written", count(deletes, "document"))
	}
	if deletes > 0 || len(diff.Afresh) > 0 {
		return f.failed(c, refused)
	}
	return nil
}

func (f *applyFlags) write(c *cobra.Command, to *client.Client, diff *client.Diff) (client.Result, error) {
	var bar *progressbar.ProgressBar
	if out := c.ErrOrStderr(); isTerminal(out) && !f.json {
		bar = progressbar.NewOptions(len(diff.Edits), progressbar.OptionSetWriter(out), progressbar.OptionSetDescription("applying"),
			progressbar.OptionShowCount(), progressbar.OptionShowIts(), progressbar.OptionSetItsString("documents"),
			progressbar.OptionClearOnFinish(), progressbar.OptionFullWidth())
	}
	result, err := diff.Apply(c.Context(), to, f.reason, f.yes, func(n int) {
		if bar != nil {
			_ = bar.Add(n) // a bar that cannot be drawn is not missed
		}
	})
	if bar != nil {
		_ = bar.Finish() // as above
	}
	return result, err
}

// end says what came of it.
func (f *applyFlags) end(c *cobra.Command, out *applied) error {
	if f.json {
		return writeJSON(c.OutOrStdout(), out)
	}
	text := "nothing to change"
	switch {
	case out.Result != nil:
		text = "applied: " + count(out.Result.Written, "document") + " written"
	case len(out.Diff.Edits) > 0:
		text = "dry run: nothing was written"
	}
	_, err := fmt.Fprintln(c.OutOrStdout(), text)
	return err
}

// mostShown bounds how many documents of a diff are listed.
const mostShown = 100

func writeDiff(w io.Writer, d *client.Diff) error {
	var b strings.Builder
	sign := map[client.Action]string{client.Create: "+", client.Change: "~", client.Delete: "-"}
	totals := map[client.Action]int{}
	for i, e := range d.Edits {
		if totals[e.Action]++; i >= mostShown {
			continue
		}
		name := string(e.Kind)
		if e.Kind != plan.KindSettings {
			name += " " + shown(e.ID)
		}
		fmt.Fprintf(&b, "%s %s\n", sign[e.Action], name)
		for _, f := range e.Fields {
			fmt.Fprintf(&b, "    %s: %s → %s\n", shown(f.Path), orNone(f.Before), orNone(f.After))
		}
	}
	if more := len(d.Edits) - mostShown; more > 0 {
		fmt.Fprintf(&b, "… and %d more\n", more)
	}
	for i, line := range d.Afresh {
		if i == mostShown {
			fmt.Fprintf(&b, "! and %d more\n", len(d.Afresh)-mostShown)
			break
		}
		fmt.Fprintf(&b, "! %s\n", shown(line))
	}
	for i, line := range d.Damaged {
		if i == mostShown {
			fmt.Fprintf(&b, "? and %d more that cannot be read\n", len(d.Damaged)-mostShown)
			break
		}
		fmt.Fprintf(&b, "? left alone: %s\n", shown(line))
	}
	fmt.Fprintf(&b, "%d to create, %d to change, %d to delete, %d unchanged", totals[client.Create], totals[client.Change], totals[client.Delete], d.Unchanged)
	if d.Elsewhere > 0 {
		fmt.Fprintf(&b, ", %d not in the files stay", d.Elsewhere)
	}
	b.WriteByte('\n')
	_, err := io.WriteString(w, b.String())
	return err
}

func orNone(value string) string {
	if value == "" {
		return "none"
	}
	return shown(value)
}

func newPlanListCommand() *cobra.Command {
	var r remote
	c := &cobra.Command{
		Use: "list", Short: "List the plans", Long: "Lists the plans that are in force, with who changed each last, and why.",
		Example: "  sluice plan list\n  sluice plan list --json | jq -r '.items[].key'",
		Args:    usageArgs(cobra.NoArgs),
		RunE: func(c *cobra.Command, _ []string) error {
			return listing(c, &r, control.Plans, "PLAN LIMITS VERSION CHANGED BY WHY", func(i *call.Item) []string {
				if i.Key == events.SettingsKey || i.Key == events.CanaryKey {
					return nil
				}
				var p struct{ Limits []json.RawMessage }
				_ = json.Unmarshal(i.Body, &p) // one that cannot be read has none to count
				return []string{i.Key, strconv.Itoa(len(p.Limits)), strconv.FormatInt(i.Version, 10), day(i.ChangedAt), i.Actor, i.Reason}
			})
		},
	}
	r.flags(c)
	return c
}

func newPlanGetCommand() *cobra.Command {
	var r remote
	c := &cobra.Command{
		Use: "get PLAN", Short: "Print a plan as it is stored",
		Long:    "Prints a plan in the form of a plans file. The id " + events.SettingsKey + " is that of ipLimits, anonymousPlan and routes.",
		Example: "  sluice plan get pro\n  sluice plan get " + events.SettingsKey,
		Args:    usageArgs(cobra.ExactArgs(1)),
		RunE: func(c *cobra.Command, args []string) error {
			return operate(c, &r, "documents/get", admin.GetRequest{Table: control.Plans, Key: args[0]}, writeItem)
		},
	}
	r.flags(c)
	return c
}

// writeItem prints a stored document as YAML, below who wrote it.
func writeItem(w io.Writer, i *call.Item) error {
	what := "changed"
	if i.Deleted {
		what = "deleted"
	}
	if _, err := fmt.Fprintf(w, "# version %d, %s by %s at %s: %s\n", i.Version, what, shown(i.Actor), day(i.ChangedAt), shown(i.Reason)); err != nil || i.Deleted {
		return err
	}
	var body yaml.Node // JSON is YAML, and a node keeps numbers as they are written
	if err := yaml.Unmarshal(i.Body, &body); err != nil {
		return err
	}
	block(&body)
	e := yaml.NewEncoder(w)
	e.SetIndent(2)
	return errors.Join(e.Encode(&body), e.Close())
}

// block takes the style of JSON off a node, and begins what has an id with it; what has to be quoted still is.
func block(n *yaml.Node) {
	n.Style = 0
	for i := 0; n.Kind == yaml.MappingNode && i+1 < len(n.Content); i += 2 {
		if n.Content[i].Value == "id" {
			pair := []*yaml.Node{n.Content[i], n.Content[i+1]}
			n.Content = append(pair, slices.Delete(n.Content, i, i+2)...)
		}
	}
	for _, inner := range n.Content {
		block(inner)
	}
}
