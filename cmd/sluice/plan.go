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

	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v3"

	"github.com/sluicelimits/sluice/events"
	"github.com/sluicelimits/sluice/internal/configfile/configyaml"
	"github.com/sluicelimits/sluice/internal/control"
	"github.com/sluicelimits/sluice/internal/control/client"
	"github.com/sluicelimits/sluice/internal/control/operate"
	"github.com/sluicelimits/sluice/internal/plan"
)

func newPlanCommand() *cobra.Command {
	c := group("plan", "Apply plans files to the cells, and show the stored plans")
	c.AddCommand(newPlanApplyCommand(false), newPlanApplyCommand(true), newPlanListCommand(), newGetCommand(
		&cobra.Command{
			Use: "get PLAN", Short: "Print a plan in the form of a plans file",
			Long: "Prints a plan in the form of a plans file. With the id " + events.SettingsKey +
				" it prints\nipLimits, ipv6Prefix, anonymousPlan and routes.",
			Example: "  sluice plan get pro\n  sluice plan get " + events.SettingsKey,
		}, control.Plans), newPromoteCommand())
	return c
}

// group returns a command that only has subcommands.
func group(use, short string) *cobra.Command {
	return &cobra.Command{Use: use, Short: short}
}

const mergeLong = `Everything that the files do not name stays as it is on the server, also the settings
that the entry of a tenant or a key does not have; --prune removes it. A setting that an entry has is
replaced as a whole: 'overrides: []' removes all overrides.`

const applyLong = `Makes the cells enforce the plans, settings, tenants and keys of the files. All
files together are one configuration; "-" is standard input. The command prints the differences from
the server. On a terminal it asks before it writes.

` + mergeLong + `

Lines that begin with "!" say what is removed or weakened, or which counters start again from zero.
Such changes need --yes, or a yes on the terminal.`

const diffLong = `Compares plans files with the server, and writes nothing. The exit status is 1 if
an apply would be refused even with --yes. With --exit-code, it is 4 if the files differ from the
server.

` + mergeLong

type applyFlags struct {
	remote
	dryRun, exitCode bool
	prune            []string
}

// newPlanApplyCommand returns the command apply, or the command diff: an apply that never writes.
func newPlanApplyCommand(onlyDiff bool) *cobra.Command {
	f := applyFlags{dryRun: onlyDiff}
	c := &cobra.Command{
		Use: "apply FILE...", Short: "Make the cells enforce plans files", Long: applyLong,
		Example: "  sluice plan apply plans.yaml --reason 'pro gets 200 a second'\n" +
			"  sluice plan apply --prune=plans --yes plans.yaml --reason 'the plan basic ends'",
		RunE: func(c *cobra.Command, files []string) error { return f.run(c, files) },
	}
	if onlyDiff {
		c.Use, c.Short, c.Long = "diff FILE...", "Show what an apply of plans files would change", diffLong
		c.Example = "  sluice plan diff plans.yaml\n" +
			"  sluice plan diff --json plans.yaml | jq -r '.diff.changes[].losses[]?.text'"
		f.flags(c)
		c.Flags().BoolVar(&f.exitCode, "exit-code", false, "exit with 4 if the files differ from the server")
	} else {
		f.writes(c)
		c.Flags().BoolVar(&f.dryRun, "dry-run", false, "show what would change, and write nothing")
		c.Flags().BoolVarP(&f.yes, "yes", "y", false, "do not ask: remove, weaken and reset counters as shown")
	}
	c.Flags().StringSliceVar(&f.prune, "prune", nil, "remove from the server what the files do not have: in every "+
		"section, or in `SECTIONS`, such as --prune=plans,tenants")
	c.Flags().Lookup("prune").NoOptDefVal = pruneAll
	return c
}

// pruneAll is the value of --prune if no section is given.
const pruneAll = "all"

// sections returns the sections that --prune names.
func (f *applyFlags) sections() ([]client.Section, error) {
	var out []client.Section
	for _, name := range f.prune {
		switch s := client.Section(name); {
		case name == pruneAll:
			out = append(out, client.Sections()...)
		case slices.Contains(client.Sections(), s):
			out = append(out, s)
		default:
			var all []string
			for _, s := range client.Sections() {
				all = append(all, string(s))
			}
			return nil, usagef("--prune=%s: want %s, or all; put a space before FILE", name, strings.Join(all, ", "))
		}
	}
	return out, nil
}

// applied is the output of --json.
type applied struct {
	DryRun bool           `json:"dry_run"`
	Diff   *client.Diff   `json:"diff"`
	Result *client.Result `json:"result"`          // null if the command did not begin to write
	Error  *operate.Error `json:"error,omitempty"` // why the command stopped before it had written everything
}

// errDiffers makes a diff with --exit-code end with exitDiffers.
var errDiffers = errors.New("the files differ from the server")

func (f *applyFlags) run(c *cobra.Command, files []string) error {
	prune, err := f.sections()
	if err != nil {
		return err
	}
	if !f.dryRun && f.reason == "" && !isTerminal(c.InOrStdin()) {
		return f.why(c) // reports the missing reason before the files are read
	}
	sources, err := configyaml.ReadFiles(c.InOrStdin(), files...)
	if err != nil {
		return err
	}
	draft, err := plan.ReadDraft(time.Now(), sources...)
	if err != nil {
		return f.badFile(c, err)
	}
	to, err := f.connect(c)
	if err != nil {
		return err
	}
	diff, err := client.Compare(c.Context(), to, draft, prune...)
	var bad *plan.Error
	switch {
	case errors.As(err, &bad):
		return f.badFile(c, err)
	case err != nil:
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
		refused := operate.Refuse(operate.Invalid, "the files contradict what is on the server; nothing was written")
		refused.Problems = diff.Problems
		return f.failed(c, refused)
	case len(diff.Edits) == 0 || f.dryRun:
		return f.end(c, &out)
	}
	if err := f.confirm(c, diff); err != nil {
		return err
	}
	result, err := diff.Apply(c.Context(), to, f.reason, f.yes)
	if out.Result = &result; err != nil {
		return f.cut(c, &out, err)
	}
	return f.end(c, &out)
}

func (f *applyFlags) badFile(c *cobra.Command, err error) error {
	check := checkFlags{json: f.json}
	return check.refuse(c, err)
}

// warnings returns one line for each change of a diff that the operator has to confirm.
func warnings(diff *client.Diff) []string {
	var lines []string
	for _, l := range diff.Losses() {
		lines = append(lines, l.String())
	}
	return append(lines, diff.Afresh...)
}

// confirm makes sure that there is a reason, and that the operator agrees to the changes. It asks on a terminal.
// Otherwise, changes that remove or weaken something need --yes.
func (f *applyFlags) confirm(c *cobra.Command, diff *client.Diff) error {
	if err := f.why(c); err != nil {
		return err
	}
	if f.yes {
		return nil
	}
	lines := warnings(diff)
	if isTerminal(c.InOrStdin()) {
		question := "Apply these changes? [y/N] "
		if len(lines) > 0 {
			question = "Apply these changes, including those marked with \"!\"? [y/N] "
		}
		if err := askToConfirm(c, question); err != nil {
			return err
		}
		f.yes = true
		return nil
	}
	if len(lines) == 0 {
		return nil
	}
	refused := operate.Refuse(operate.Confirm, "the apply would remove or weaken something, or reset "+
		"counters: add --yes to confirm; nothing was written")
	refused.Problems = firstOf(lines)
	return f.failed(c, refused)
}

// cut reports what an apply has written before it ended with err, and returns err.
func (f *applyFlags) cut(c *cobra.Command, out *applied, err error) error {
	if f.json {
		out.Error = jsonError(err)
		return errors.Join(writeJSON(c.OutOrStdout(), out), err)
	}
	var refused *operate.Error
	if errors.As(err, &refused) && out.Result.Written == 0 && outcomes(out.Result, client.NotKnown) == "" {
		return err // its text says that nothing was written
	}
	if refused == nil {
		fmt.Fprintln(c.ErrOrStderr(), "The connection broke, and the server may have continued. The state of the "+
			"documents after that:")
	}
	for _, state := range []struct {
		client.State
		text string
	}{
		{client.Written, "written"}, {client.Already, "already as in the files"}, {client.NotWritten, "not written"},
		{client.NotKnown, "not known, because the answer was lost"},
	} {
		if names := outcomes(out.Result, state.State); names != "" {
			fmt.Fprintf(c.ErrOrStderr(), "%s: %s\n", state.text, names)
		}
	}
	fmt.Fprintln(c.ErrOrStderr(), "To write the rest, run the same command again.")
	return err
}

// outcomes returns the names of the documents in a state.
func outcomes(result *client.Result, state client.State) string {
	var names []string
	for _, d := range result.Documents {
		if d.State == state {
			names = append(names, documentName(d.Kind, d.ID))
		}
	}
	return strings.Join(firstOf(names), ", ")
}

// end prints the outcome.
func (f *applyFlags) end(c *cobra.Command, out *applied) error {
	var err error
	if f.json {
		err = writeJSON(c.OutOrStdout(), out)
	} else {
		_, err = fmt.Fprintln(c.OutOrStdout(), outcomeText(out))
	}
	if err == nil && f.exitCode && len(out.Diff.Edits) > 0 {
		return errDiffers
	}
	return err
}

func outcomeText(out *applied) string {
	switch {
	case out.Result != nil:
		text := "applied: " + count(out.Result.Written, "document") + " written"
		if same := out.Diff.Unchanged + out.Result.Unchanged; same == 1 {
			text += ", 1 was already as in the files"
		} else if same > 1 {
			text += fmt.Sprintf(", %d were already as in the files", same)
		}
		return text
	case len(out.Diff.Edits) > 0:
		return "dry run: nothing was written"
	}
	return "nothing to change"
}

// mostShown is the most documents, and the most warnings, of a diff that are listed.
const mostShown = 100

// firstOf returns the first mostShown lines, and then one that counts the others.
func firstOf(lines []string) []string {
	if more := len(lines) - mostShown; more > 0 {
		return append(lines[:mostShown:mostShown], fmt.Sprintf("and %d more (--json lists all)", more))
	}
	return lines
}

// documentName names a document in messages.
func documentName(kind plan.Kind, id string) string {
	if kind == plan.KindSettings {
		return string(kind)
	}
	return string(kind) + " " + shown(id)
}

func writeDiff(w io.Writer, d *client.Diff) error {
	var b strings.Builder
	totals := map[client.Action]int{}
	for i := range d.Edits {
		if totals[d.Edits[i].Action]++; i < mostShown {
			writeEdit(&b, &d.Edits[i])
		}
	}
	if more := len(d.Edits) - mostShown; more > 0 {
		fmt.Fprintf(&b, "… and %d more\n", more)
	}
	for _, line := range firstOf(warnings(d)) {
		fmt.Fprintf(&b, "! %s\n", shown(line))
	}
	for _, line := range firstOf(d.Damaged) {
		fmt.Fprintf(&b, "? left alone: %s\n", shown(line))
	}
	fmt.Fprintf(&b, "%d to create, %d to change, %d to delete, %d unchanged\n",
		totals[client.Create], totals[client.Change], totals[client.Delete], d.Unchanged)
	if stay := stayText(d); stay != "" {
		b.WriteString("not in the files, and left as they are: " + stay + "\n")
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// writeEdit prints how a document differs, and who changed it last.
func writeEdit(b *strings.Builder, e *client.Edit) {
	sign := map[client.Action]string{client.Create: "+", client.Change: "~", client.Delete: "-"}
	fmt.Fprintf(b, "%s %s\n", sign[e.Action], documentName(e.Kind, e.ID))
	for _, f := range e.Fields {
		b.WriteString("    " + fieldText(f) + "\n")
	}
	if e.Was == nil {
		return
	}
	fmt.Fprintf(b, "    version %d is %s\n", e.Was.Version, authorText(e.Was))
	// A tenant has two items. An operator's change writes both within seconds, with one actor and reason; then the
	// second one is not printed.
	if o := e.Own; o != nil && (o.Actor != e.Was.Actor || o.Reason != e.Was.Reason ||
		e.Was.ChangedAt.Sub(o.ChangedAt) > time.Minute) {
		fmt.Fprintf(b, "    overrides, boosts, cells and plan were last changed %s\n", authorText(o))
	}
}

func authorText(a *client.Author) string {
	return fmt.Sprintf("by %s at %s: %s", shown(a.Actor), day(a.ChangedAt), shown(a.Reason))
}

// stayText counts what the server has and the files do not have.
func stayText(d *client.Diff) string {
	var parts []string
	for _, s := range client.Sections() {
		n, name := d.Stay[s], string(s)
		switch {
		case n == 0:
			continue
		case s == client.AnonymousPlan || s == client.IPv6Prefix:
			parts = append(parts, name)
			continue
		case n == 1 && s != client.IPLimits:
			name = strings.TrimSuffix(name, "s")
		}
		parts = append(parts, fmt.Sprintf("%d %s", n, name))
	}
	return strings.Join(parts, ", ")
}

func newPlanListCommand() *cobra.Command {
	return newListCommand(&cobra.Command{
		Use: "list", Short: "List the plans",
		Example: "  sluice plan list\n  sluice plan list --json | jq -r '.items[].key'",
	}, control.Plans, "PLAN LIMITS", func(i *control.Item) []string {
		if d, _ := operate.DocumentOf(i.Table, i.Key, nil); d.Kind != plan.KindPlan {
			return nil
		}
		var p struct{ Limits []json.RawMessage }
		_ = json.Unmarshal(i.Body, &p) // a plan that cannot be read is shown with 0 limits
		return []string{i.Key, strconv.Itoa(len(p.Limits))}
	})
}

func newPromoteCommand() *cobra.Command {
	r := new(operate.PromoteRequest)
	return newOperation(&cobra.Command{
		Use: "promote PLAN LIMIT", Short: "Make a shadow limit of a plan enforce",
		Long: `Changes the mode of a shadow limit to enforce, for every tenant of the plan whose
overrides do not set a mode. The limit begins with empty counters.`,
		Example: "  sluice plan promote pro writes --reason 'a week without a false alarm'",
	}, operate.Promote, r, &operation{args: []*string{&r.Plan, &r.Limit}, requestReason: &r.Reason},
		printWritten("plan %s: %s enforces", &r.Plan, &r.Limit))
}

// writeItem prints a stored document as YAML, after a line that says who wrote it.
func writeItem(w io.Writer, i *control.Item) error {
	what := "changed"
	if i.Deleted {
		what = "deleted"
	}
	if _, err := fmt.Fprintf(w, "# version %d, %s by %s at %s: %s\n", i.Version, what, shown(i.Actor),
		day(i.ChangedAt), shown(i.Reason)); err != nil || i.Deleted {
		return err
	}
	var body yaml.Node // JSON is valid YAML, and a node keeps the spelling of numbers
	if err := yaml.Unmarshal(i.Body, &body); err != nil {
		return err
	}
	block(&body)
	e := yaml.NewEncoder(w)
	e.SetIndent(2)
	return errors.Join(e.Encode(&body), e.Close())
}

// block gives a node of JSON the block style of YAML, and moves the field id to the front of each mapping. The encoder
// still quotes texts where YAML needs it.
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
