// Command sluice runs and operates Sluice: the whole of it in one process, checks of plans files, simulations.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/sluicelimits/sluice/internal/admin/call"
)

// Exit codes.
const (
	exitFailed = 1 // the command ran and failed, or what it checked is bad
	exitUsage  = 2 // the command line is wrong; nothing was done

	exitConflict = 3 // another operator changed it; nothing was overwritten
	exitDiffers  = 4 // of `plan diff --exit-code`: the files differ from what is there
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
	root.SetFlagErrorFunc(func(c *cobra.Command, err error) error { return &usageError{c.CommandPath(), err} })
	root.AddCommand(newDevCommand(), newCheckCommand(), newExplainCommand(), newSimulateCommand(), newKeyCommand())
	root.AddCommand(newPlanCommand(), newTenantCommand(), newBoostCommand(), newPeekCommand(), newResetCommand(), newRefundCommand(),
		newShadowCommand(), newCellCommand(), newConfigCommand(), newAuditCommand(), newCostCommand())
	return root
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
