// Command sluice runs and operates Sluice: the whole of it in one process, checks of plans files, simulations.
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
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/sluicelimits/sluice/internal/control/call"
)

// Exit codes.
const (
	exitFailed = 1 // the command ran and failed, or what it checked is bad
	exitUsage  = 2 // the command line is wrong; nothing was done

	exitConflict = 3 // another operator changed it; nothing was overwritten
	exitDiffers  = 4 // `plan diff --exit-code` found that the files and the server differ
	exitConfirm  = 5 // it takes something away, and neither --yes nor a terminal said that it may; nothing was written
)

func main() { os.Exit(run(os.Args[1:])) }

func run(args []string) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	root := newRootCommand()
	root.SetArgs(args)
	err := root.ExecuteContext(ctx)
	var u *usageError
	switch {
	case err == nil, errors.Is(err, errDiffers): // the diff says how
	case errors.As(err, &u):
		fmt.Fprintf(os.Stderr, "sluice: %v\nRun '%s --help' for usage.\n", u.err, u.command)
	default:
		fmt.Fprintf(os.Stderr, "sluice: %v\n", err)
	}
	return exitCode(err)
}

// exitCode is what a process ends with whose command gave err.
func exitCode(err error) int {
	var u *usageError
	var refused *call.Error
	switch {
	case err == nil:
		return 0
	case errors.As(err, &u):
		return exitUsage
	case errors.Is(err, errDiffers):
		return exitDiffers
	case errors.As(err, &refused) && refused.Code == call.Conflict:
		return exitConflict
	case errors.As(err, &refused) && refused.Code == call.Confirm:
		return exitConfirm
	default:
		return exitFailed
	}
}

// usageError is a wrong command line.
type usageError struct {
	command string
	err     error
}

func (e *usageError) Error() string { return e.err.Error() }
func (e *usageError) Unwrap() error { return e.err }

func newRootCommand() *cobra.Command {
	root := &cobra.Command{
		Use:           "sluice",
		Short:         "Per-tenant rate limits and quotas for APIs, exact and without servers",
		Version:       version(debug.ReadBuildInfo),
		SilenceUsage:  true,
		SilenceErrors: true,
		Args:          usageArgs(cobra.NoArgs),
		RunE:          func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	root.SetFlagErrorFunc(func(c *cobra.Command, err error) error {
		if unknown := knownCommand(c, c.Flags().Args()); c.HasSubCommands() && unknown != nil {
			err = unknown // the flag is perhaps the right command's
		}
		return &usageError{c.CommandPath(), err}
	})
	root.AddCommand(newDevCommand(), newServeCommand(), newCheckCommand(), newExplainCommand(), newSimulateCommand(),
		newFleetCommand(),
		newPaceCommand(), newKeyCommand())
	root.AddCommand(newPlanCommand(), newTenantCommand(), newBoostCommand(), newPeekCommand(), newResetCommand(),
		newRefundCommand(),
		newShadowCommand(), newCellCommand(), newConfigCommand(), newAuditCommand(), newCostCommand(time.Now),
		newDoctorCommand())
	root.InitDefaultCompletionCmd()
	root.InitDefaultHelpCmd()
	refuseUnknown(root)
	completeFilesAlone(root)
	return root
}

// refuseUnknown makes an unknown subcommand a usage error that suggests the right one, below c and at c itself.
func refuseUnknown(c *cobra.Command) {
	switch {
	case c.HasSubCommands():
		c.SuggestionsMinimumDistance = 2 // the most letters that differ; cobra's own default
		c.Args = usageArgs(knownCommand)
		if !c.Runnable() {
			c.RunE = func(c *cobra.Command, _ []string) error { return c.Help() }
		}
	case c.Name() == "help" && c.Parent() == c.Root():
		c.Args = func(c *cobra.Command, args []string) error {
			if of, rest, err := c.Root().Find(args); err == nil && of.HasSubCommands() {
				return usageArgs(knownCommand)(of, rest)
			}
			return nil
		}
	}
	for _, sub := range c.Commands() {
		refuseUnknown(sub)
	}
}

// completeFilesAlone keeps shells from offering files for what is none, in c and below: cobra offers them wherever
// nothing says what is offered. A flag whose value is named FILE, or with a FILE in it, is left as it is; DIR is
// completed with folders.
func completeFilesAlone(c *cobra.Command) {
	if c.ValidArgsFunction == nil && !c.HasSubCommands() {
		c.ValidArgsFunction = cobra.NoFileCompletions
	}
	c.LocalFlags().VisitAll(func(f *pflag.Flag) {
		switch name, _ := pflag.UnquoteUsage(f); {
		case strings.Contains(name, "FILE"), name == "BOOTSTRAP", name == "WHERE":
		case name == "DIR":
			_ = c.MarkFlagDirname(f.Name) // fails only for a flag that does not exist
		default:
			// It fails where the flag has a completion, which then stays.
			_ = c.RegisterFlagCompletionFunc(f.Name, cobra.NoFileCompletions)
		}
	})
	for _, sub := range c.Commands() {
		completeFilesAlone(sub)
	}
}

// knownCommand is the check of a command's arguments where it has subcommands: whatever is there is no subcommand.
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
	return errors.New(text)
}

// usageArgs makes a wrong number of arguments a usage error.
func usageArgs(check cobra.PositionalArgs) cobra.PositionalArgs {
	return func(c *cobra.Command, args []string) error {
		if err := check(c, args); err != nil {
			return &usageError{c.CommandPath(), err}
		}
		return nil
	}
}
