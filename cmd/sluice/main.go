// Command sluice runs Sluice on this machine, checks and simulates plans files, and operates a deployed Sluice.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"runtime/debug"
	"strconv"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	_ "golang.org/x/crypto/x509roots/fallback" // for the image, which holds nothing but this program

	"github.com/sluicelimits/sluice/internal/configfile"
	"github.com/sluicelimits/sluice/internal/control/operate"
	"github.com/sluicelimits/sluice/internal/plan"
)

// Exit codes.
const (
	exitFailed = 1 // the command failed, or it found problems in what it checked
	exitUsage  = 2 // the command line is wrong; nothing was done

	exitConflict = 3 // another operator changed the same item first; nothing was overwritten
	exitDiffers  = 4 // `plan diff --exit-code` found that the files and the server differ
	exitConfirm  = 5 // the change removes or weakens something and nobody confirmed it; nothing was written

	exitUnchecked = 6 // `doctor` could check none of its assumptions
)

func main() { os.Exit(run(os.Args[1:])) }

func run(args []string) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	root := newRootCommand()
	root.SetArgs(args)
	c, err := root.ExecuteContextC(ctx)
	if err != nil && !errors.Is(err, errDiffers) { // the printed diff already says what differs
		fmt.Fprint(os.Stderr, message(err))
	}
	if exitCode(err) == exitUsage {
		fmt.Fprintf(os.Stderr, "Run '%s --help' for usage.\n", c.CommandPath())
	}
	return exitCode(err)
}

// message returns what is printed of an error. Problems in files come first, without a prefix: each of their lines
// begins with file:line:column, which terminals and editors can open.
func message(err error) string {
	var bad *plan.Error
	if !errors.As(err, &bad) || err.Error() != bad.Error() {
		return fmt.Sprintf("sluice: %v\n", err)
	}
	return fmt.Sprintf("%v\nsluice: %s\n", bad, count(len(bad.Problems), "problem"))
}

// exitCode returns the exit code of a process whose command returned err.
func exitCode(err error) int {
	var u *usageError
	var refused *operate.Error
	switch {
	case err == nil:
		return 0
	case errors.As(err, &u):
		return exitUsage
	case errors.Is(err, errDiffers):
		return exitDiffers
	case errors.Is(err, errUnchecked):
		return exitUnchecked
	case errors.As(err, &refused) && refused.Code == operate.Conflict:
		return exitConflict
	case errors.As(err, &refused) && refused.Code == operate.Confirm:
		return exitConfirm
	default:
		return exitFailed
	}
}

// usageError is a wrong command line.
type usageError struct{ error }

func (e *usageError) Unwrap() error { return e.error }

// usage returns err as the error of a wrong command line, or nil if err is nil.
func usage(err error) error {
	if err == nil {
		return nil
	}
	return &usageError{err}
}

// usagef returns the error of a wrong command line.
func usagef(format string, args ...any) error { return usage(fmt.Errorf(format, args...)) }

func newRootCommand() *cobra.Command {
	root := &cobra.Command{
		Use:           "sluice",
		Short:         "Per-tenant rate limits and quotas for APIs",
		Version:       version(debug.ReadBuildInfo),
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE:          func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	root.SetFlagErrorFunc(func(c *cobra.Command, err error) error {
		if unknown := knownCommand(c, c.Flags().Args()); c.HasSubCommands() && unknown != nil {
			err = unknown // the misspelled command may well have the flag
		} else if flag := nearestFlag(c, err); flag != "" {
			err = fmt.Errorf("%w: did you mean %s?", err, flag)
		}
		return usage(err)
	})
	root.AddCommand(newDevCommand(), newProxyCommand(), newServeCommand(), newCheckCommand(), newExplainCommand(),
		newSimulateCommand(), newPaceCommand(), newPacePlanCommand(), newKeyCommand())
	root.AddCommand(newPlanCommand(), newTenantCommand(), newBoostCommand(), newCounterCommand(), newCellCommand(),
		newAuditCommand(), newCostCommand(), newDoctorCommand(), newVersionCommand(), newManCommand())
	root.CompletionOptions.HiddenDefaultCmd = true
	root.InitDefaultCompletionCmd()
	root.InitDefaultHelpCmd()
	refuseUnknown(root)
	root.SetUsageTemplate(strings.ReplaceAll(root.UsageTemplate(), "FlagUsages |",
		fmt.Sprintf("FlagUsagesWrapped %d |", helpWidth)))
	return root
}

// helpWidth is the most characters in a line about a flag, unless one word is longer.
const helpWidth = 100

// refuseUnknown makes an unknown subcommand of c, or of a command below c, a usage error that suggests similar names. A
// command that does not check its arguments accepts those that its Use names.
func refuseUnknown(c *cobra.Command) {
	switch {
	case c.HasSubCommands():
		c.SuggestionsMinimumDistance = 2 // names that differ in at most 2 letters are suggested; cobra's default
		c.Args = knownCommand
		if !c.Runnable() {
			c.RunE = func(c *cobra.Command, _ []string) error { return c.Help() }
		}
	case c.Name() == "help" && c.Parent() == c.Root():
		c.Args = func(c *cobra.Command, args []string) error {
			if found, rest, err := c.Root().Find(args); err == nil && found.HasSubCommands() {
				return knownCommand(found, rest)
			}
			return nil
		}
	case c.Args == nil:
		c.Args = wantArgs
	}
	for _, sub := range c.Commands() {
		refuseUnknown(sub)
	}
}

// knownCommand checks the arguments of a command that has subcommands. Cobra calls it only if the first argument names
// no subcommand, so any argument is an error.
func knownCommand(c *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	text := fmt.Sprintf("unknown command %q for %q", args[0], c.CommandPath())
	var like []string
	for _, name := range c.SuggestionsFor(args[0]) {
		like = append(like, strconv.Quote(name))
	}
	if last := len(like) - 1; last > 0 {
		like = append(like[:last-1], like[last-1]+" or "+like[last])
	}
	if len(like) > 0 {
		text += ": did you mean " + strings.Join(like, ", ") + "?"
	}
	return usagef("%s", text)
}

// nearestFlag returns the flag of c that was probably meant, if err says that a flag is unknown. Otherwise, or if no
// flag has a similar name, it returns "".
func nearestFlag(c *cobra.Command, err error) string {
	var unknown *pflag.NotExistError
	if !errors.As(err, &unknown) {
		return ""
	}
	var names []string
	c.Flags().VisitAll(func(f *pflag.Flag) {
		if !f.Hidden {
			names = append(names, f.Name)
		}
	})
	if near := configfile.Nearest(unknown.GetSpecifiedName(), names); near != "" {
		return "--" + near
	}
	return ""
}

// wantArgs accepts the arguments that the Use of a command names. The error names them, too, and an example.
func wantArgs(c *cobra.Command, args []string) error {
	_, takes, _ := strings.Cut(c.Use, " ")
	if takes == "" {
		return usage(cobra.NoArgs(c, args))
	}
	words := strings.Fields(takes)
	least := len(words) - strings.Count(takes, " [") - strings.Count(takes[:1], "[")
	if len(args) >= least && (len(args) <= len(words) || strings.HasSuffix(takes, "...")) {
		return nil
	}
	example, _, _ := strings.Cut(strings.TrimSpace(c.Example), "\n")
	return usagef("want %s, got %s; for example: %s", takes, count(len(args), "argument"), example)
}
