package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/sluicelimits/sluice/internal/stores"
	"github.com/sluicelimits/sluice/pacer"
	"github.com/sluicelimits/sluice/redisstore"
)

const paceLong = `Pass on lines of standard input no faster than a limit, or run a command for each
of them. The line becomes the command's last argument, or replaces each argument that is {}. A line
that begins with - is only used after an argument --.

A limit is a number of units and a period: 100/s, 5000/m, 1/h, 2/d, 10/500ms. With --redis, all
processes that give the same --name share it. With --pace-plan, processes divide a limit that
'sluice pace-plan set' keeps, each by its own --index. See docs/consumer.md.

The exit status is 1 if the command failed for a line.`

const paceExample = `  sluice pace --limit 5/s --parallel 10 -- curl -sO < urls.txt
  sluice pace --limit 100/s --redis 127.0.0.1:6379 --name provider -- ./send --id {} < ids.txt`

// paceFlags is the command line of pace.
type paceFlags struct {
	parallel    int
	limit       string
	spread      bool
	guard       pacer.Guard
	redis, name string

	plan   string // name of the plan that has the limit; "" if limit has it
	index  int64  // of this process, among the instances of the plan
	remote remote // where the plan is
}

// flags adds the flags.
func (f *paceFlags) flags(flags *pflag.FlagSet) {
	flags.StringVar(&f.limit, "limit", "", "pass on lines no faster than `LIMIT`, such as 100/s (required "+
		"without --pace-plan)")
	flags.BoolVar(&f.spread, "spread", false, "pass them on evenly over each window")
	durationFlag(flags, &f.guard.ClockError, "clock-error", 0, 0,
		"allow for clocks that differ by `TIME` from the provider's, in either direction")
	durationFlag(flags, &f.guard.MaxDelay, "max-delay", 0, 0,
		"allow for requests that arrive up to `TIME` after their turn")
	flags.StringVar(&f.redis, "redis", "", "share the limit through the Redis at `HOST:PORT`")
	flags.StringVar(&f.name, "name", "", "share the limit with all processes that give the same `NAME`")
	flags.StringVar(&f.plan, "pace-plan", "", "use a part of the limit of the plan `NAME` in the control plane")
	numberFlag(flags, &f.index, "index", -1, 0, pacer.MaxInstances-1,
		"`NUMBER` of this process among the instances of the plan, from 0 on")
	f.remote.connection(flags)
}

// checkLimit checks the flags about the limit.
func (f *paceFlags) checkLimit() error {
	switch {
	case f.limit == "" && f.plan == "":
		return errors.New("--limit is missing: give one such as --limit 100/s")
	case f.limit != "" && f.plan != "":
		return errors.New("--limit and --pace-plan cannot be combined: the plan has the limit")
	case (f.plan == "") != (f.index == -1):
		return errors.New("--pace-plan and --index need each other: the plan, and the number of this process")
	case f.plan != "" && f.redis != "":
		return errors.New("--redis and --pace-plan cannot be combined: processes either share a limit or divide it")
	case (f.redis == "") != (f.name == ""):
		return errors.New("--redis and --name need each other: where the limit is shared, and under which name")
	}
	if f.redis != "" {
		if err := stores.CheckRedis(f.redis); err != nil {
			return err
		}
	}
	if f.plan == "" {
		limit, err := pacer.ParseLimit(f.limit)
		if err != nil {
			return fmt.Errorf("--limit: %s", strings.TrimPrefix(err.Error(), pacer.ErrConfig.Error()+": "))
		}
		if err := f.checkGuard(limit.Period); err != nil {
			return err
		}
	}
	return nil
}

func (f *paceFlags) checkGuard(period time.Duration) error {
	if f.guard.ClockError >= period || 2*f.guard.ClockError+f.guard.MaxDelay >= period {
		return fmt.Errorf("--clock-error %s and --max-delay %s leave nothing of a window of %s: twice the first and "+
			"the second must be less than the window", f.guard.ClockError, f.guard.MaxDelay, period)
	}
	return nil
}

// pacer makes a pacer of flags that check accepts. The function that it returns closes the pacer and its store.
func (f *paceFlags) pacer(c *cobra.Command) (p *pacer.Pacer, closeAll func(), err error) {
	config := pacer.Config{Guard: f.guard}
	var plan *pacePlan
	if f.plan != "" {
		to, err := f.remote.connect(c)
		if err != nil {
			return nil, nil, err
		}
		plan = pacePlanAt(to, f.plan, f.index)
		if config.Limit, err = plan.limit(c.Context()); err != nil {
			return nil, nil, err
		}
		if err := f.checkGuard(config.Limit.Period); err != nil {
			return nil, nil, usage(err)
		}
		config.Part = &pacer.Part{Index: f.index}
	} else if config.Limit, err = pacer.ParseLimit(f.limit); err != nil {
		return nil, nil, err
	}
	if f.spread {
		config.Smoothing = pacer.Spread
	}
	closeStore := func() {}
	if f.redis != "" {
		store, err := redisstore.New(c.Context(), redisstore.Config{Addrs: []string{f.redis}})
		if err != nil {
			return nil, nil, err
		}
		closeStore = func() { _ = store.Close() }
		if err := store.Ping(c.Context()); err != nil {
			closeStore()
			return nil, nil, stores.NoRedis(f.redis, err)
		}
		config.Shared = &pacer.Shared{Ledger: store.Ledger(), Key: f.name}
	}
	if p, err = pacer.New(config); err != nil {
		closeStore()
		return nil, nil, usage(err)
	}
	endPlan := func() {}
	if plan != nil {
		endPlan = plan.start(c.Context(), p, config.Limit, c.ErrOrStderr())
	}
	return p, func() { endPlan(); p.Close(); closeStore() }, nil
}

func newPaceCommand() *cobra.Command {
	var f paceFlags
	c := &cobra.Command{
		Use:     "pace {--limit LIMIT | --pace-plan NAME --index N} [-- COMMAND [ARGUMENT...]]",
		Short:   "Pass on lines, or run a command for each line, no faster than a limit",
		Long:    paceLong,
		Example: paceExample,
		Args:    cobra.ArbitraryArgs,
		RunE:    func(c *cobra.Command, command []string) error { return f.run(c, command) },
	}
	flags := c.Flags()
	f.flags(flags)
	numberFlag(flags, &f.parallel, "parallel", 1, 1, 10_000, "run up to `N` commands at the same time")
	return c
}

func (f *paceFlags) run(c *cobra.Command, command []string) error {
	if err := f.check(command); err != nil {
		return usage(err)
	}
	p, closePacer, err := f.pacer(c)
	if err != nil {
		return err
	}
	defer closePacer()
	l := &pacedLines{p: p, in: c.InOrStdin(), command: command, out: c.OutOrStdout(), errs: c.ErrOrStderr(),
		slots: make(chan struct{}, f.parallel)}
	return l.run(c.Context())
}

func (f *paceFlags) check(command []string) error {
	if f.parallel > 1 && len(command) == 0 {
		return errors.New("--parallel has no use without a command")
	}
	if len(command) > 0 {
		if err := checkCommand(command[0]); err != nil {
			return err
		}
	}
	return f.checkLimit()
}

// checkCommand reports that a program does not exist, or may not be run.
func checkCommand(program string) error {
	_, err := exec.LookPath(program)
	if err == nil {
		return nil
	}
	if e := new(exec.Error); errors.As(err, &e) {
		err = e.Err
	}
	return fmt.Errorf("the command %q cannot be run: %w: correct the name, or give the path of the program",
		program, err)
}

// pacedLines passes on lines at the pace of a limit.
type pacedLines struct {
	p       *pacer.Pacer
	in      io.Reader
	command []string      // with its arguments; without a command, lines are written to out
	slots   chan struct{} // holds one element for each command that runs

	mu          sync.Mutex // held while writing to out and errs
	out, errs   io.Writer
	ran, failed int // guarded by mu
}

// run passes on all lines, or until ctx ends. It waits for commands that run.
func (l *pacedLines) run(ctx context.Context) error {
	in := bufio.NewReader(l.in)
	var running sync.WaitGroup
	var stopped error
	for stopped == nil {
		line, err := in.ReadString('\n')
		if err != nil && err != io.EOF {
			stopped = fmt.Errorf("read standard input: %w", err)
			break
		}
		if line == "" {
			break
		}
		stopped = l.pass(ctx, strings.TrimSuffix(line, "\n"), &running)
	}
	running.Wait()
	switch {
	case ctx.Err() != nil:
		return errors.New("interrupted")
	case stopped != nil:
		return stopped
	case l.failed > 0:
		return fmt.Errorf("%d of %d commands failed", l.failed, l.ran)
	}
	return nil
}

// pass passes on one line when its turn has come. It first waits for a free slot, so that a permit is only acquired for
// a command that can run at once.
func (l *pacedLines) pass(ctx context.Context, line string, running *sync.WaitGroup) error {
	select {
	case l.slots <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	args, err := argumentsFor(l.command, line)
	if err != nil {
		<-l.slots
		l.ended(line, err)
		return nil
	}
	var permit pacer.Permit
	for !permit.InTime() {
		permit.Release() // the process was suspended until it was too late to pass on the line
		if permit, err = l.p.Acquire(ctx, "", 1); err != nil {
			<-l.slots
			return err
		}
	}
	if len(l.command) == 0 {
		defer func() { <-l.slots }()
		if _, err := fmt.Fprintln(l.out, line); err != nil {
			return fmt.Errorf("write a line: %w", err)
		}
		return nil
	}
	running.Go(func() {
		defer func() { <-l.slots }()
		l.ended(line, l.runCommand(ctx, args))
	})
	return nil
}

// ended counts a command, and prints why it failed.
func (l *pacedLines) ended(line string, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ran++
	if err != nil {
		l.failed++
		fmt.Fprintf(l.errs, "sluice: %s for %q: %v\n", l.command[0], line, err)
	}
}

// argumentsFor returns the arguments of a command with the line in the place of each {}, or at the end. It refuses a
// line that the command would read as an option, because whoever writes the lines could then choose what it does.
func argumentsFor(command []string, line string) ([]string, error) {
	if len(command) == 0 {
		return nil, nil
	}
	args := slices.Clone(command[1:])
	first := len(args)
	for i := range args {
		if args[i] == "{}" {
			args[i], first = line, min(first, i)
		}
	}
	if first == len(args) {
		args = append(args, line)
	}
	if strings.HasPrefix(line, "-") && !slices.Contains(args[:first], "--") {
		return nil, errors.New(`not run: it would read the line as an option, because the line begins with "-". ` +
			`If the command takes --, give it before the place of the line`)
	}
	return args, nil
}

// commandEnd is how long a command may take to end after SIGTERM, before it is killed.
const commandEnd = 5 * time.Second

// runCommand runs the command with the arguments. It prints the command's output after the command has ended, so that
// the outputs of commands do not mix.
func (l *pacedLines) runCommand(ctx context.Context, args []string) error {
	var out, errs bytes.Buffer
	c := exec.CommandContext(ctx, l.command[0], args...) //nolint:gosec // to run the user's command is its purpose
	c.Stdout, c.Stderr = &out, &errs
	c.Cancel, c.WaitDelay = func() error { return c.Process.Signal(syscall.SIGTERM) }, commandEnd
	err := c.Run()
	l.mu.Lock()
	defer l.mu.Unlock()
	_, lost := l.out.Write(out.Bytes())
	_, _ = l.errs.Write(errs.Bytes())
	if err == nil && lost != nil {
		err = fmt.Errorf("write the command's output: %w", lost)
	}
	return err
}
