package main

import (
	"slices"
	"strings"
	"testing"

	"github.com/sluicelimits/sluice/internal/control/operate"
	"github.com/spf13/cobra"
)

// groups returns all commands that have subcommands, at every level.
func groups(c *cobra.Command) (out []*cobra.Command) {
	if c.HasAvailableSubCommands() {
		out = append(out, c)
	}
	for _, sub := range c.Commands() {
		out = append(out, groups(sub)...)
	}
	return out
}

// Guarantees that the commands which the page about permissions names exist.
func TestOperationsNameCommands(t *testing.T) {
	t.Parallel()
	for _, o := range slices.Concat(operate.ControlOperations(), operate.CellOperations()) {
		for _, name := range o.Commands {
			c, rest, err := newRootCommand().Find(strings.Fields(name))
			if err != nil || len(rest) > 0 || c.CommandPath() != "sluice "+name || c.HasAvailableSubCommands() {
				t.Errorf("the page says that %s is called by sluice %s, but there is no such command", o.Path, name)
			}
		}
	}
}

// Guarantees that a mistyped subcommand, at every level, is a usage error that suggests the right one.
func TestUnknownCommandsSuggest(t *testing.T) {
	t.Parallel()
	tried := 0
	for _, group := range groups(newRootCommand()) {
		path := strings.Fields(group.CommandPath())[1:]
		for _, sub := range group.Commands() {
			name := sub.Name()
			if !sub.IsAvailableCommand() {
				continue
			}
			tried++
			for _, typed := range []string{name[:1] + name[2:], strings.ToUpper(name), name[:len(name)-1] + "x"} {
				for _, first := range [][]string{path, append([]string{"help"}, path...)} {
					args := append(append([]string{}, first...), typed)
					got := sluice(t, "", args...)
					want := `unknown command "` + typed + `" for "` + group.CommandPath() + `": did you mean `
					if got.code != exitUsage || !strings.Contains(got.stderr, want) ||
						!strings.Contains(got.stderr, `"`+name+`"`) {
						t.Errorf("sluice %q: exit code %d: %s", args, got.code, got.stderr)
					}
				}
			}
		}
		got := sluice(t, "", append(path, "qqqqqqqq", "more")...)
		if got.code != exitUsage || !strings.Contains(got.stderr, `unknown command "qqqqqqqq"`) ||
			strings.Contains(got.stderr, "did you mean") {
			t.Errorf("sluice %q with a word unlike any subcommand: exit code %d: %s", path, got.code, got.stderr)
		}
	}
	if tried < 40 {
		t.Errorf("only %d subcommands were tried", tried)
	}
}

// Guarantees that commands that other programs have lead to those that Sluice has.
func TestNamesOfOtherPrograms(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ args, want string }{
		{"start", `unknown command "start" for "sluice": did you mean "dev" or "serve"?`},
		{"run", `unknown command "run" for "sluice": did you mean "dev" or "serve"?`},
		{"up --port 9000", `unknown command "up" for "sluice": did you mean "dev" or "serve"?`},
		{"plan show pro", `unknown command "show" for "sluice plan": did you mean "get"?`},
		{"tenant show acme", `unknown command "show" for "sluice tenant": did you mean "get"?`},
		{"pace-plan show provider", `unknown command "show" for "sluice pace-plan": did you mean "get"?`},
		{"audit list", `unknown command "list" for "sluice audit": did you mean "show"?`},
		{"audit log", `unknown command "log" for "sluice audit": did you mean "show"?`},
		{"peek acme", `unknown command "peek" for "sluice": did you mean "counter"?`},
	} {
		got := sluice(t, "", strings.Fields(tt.args)...)
		if got.code != exitUsage || !strings.Contains(got.stderr, tt.want) {
			t.Errorf("sluice %s: exit code %d: %s; want %s", tt.args, got.code, got.stderr, tt.want)
		}
	}
}

// An unknown command is reported also if flags follow it. Correct commands keep working.
func TestUnknownCommandWithFlags(t *testing.T) {
	got := sluice(t, "", "tenat", "list", "--json")
	if got.code != exitUsage || !strings.Contains(got.stderr, `did you mean "tenant"?`) {
		t.Errorf("tenat list --json: exit code %d: %s", got.code, got.stderr)
	}
	for _, args := range [][]string{{"tenant"}, {"help", "tenant", "list"}, {"help"}, {"completion"},
		{"help", "completion", "bash"}} {
		if got := sluice(t, "", args...); got.code != 0 || got.stdout == "" {
			t.Errorf("sluice %q: exit code %d, %s", args, got.code, got.stderr)
		}
	}
}
