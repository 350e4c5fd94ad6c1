package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/url"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"

	awsconfig "github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
	"github.com/spf13/cobra"

	"github.com/sluicelimits/sluice/pacer/sqsworker"
)

const workLong = `Run a command for each message of an SQS queue, no faster than a limit.

The command gets the message's body on its standard input, and the variables SLUICE_MESSAGE_ID and
SLUICE_RECEIVE_COUNT. If its exit code is 0, the message is deleted. Otherwise the message is
received again after --visibility. Messages are only received if they may be sent at once. The limit
is as in 'sluice pace'. After SIGTERM or SIGINT nothing more is received, and commands that run may go
on for --drain. See docs/consumer.md.

Credentials come from where every AWS tool looks for them, and so does the region, unless the
queue's URL names it. The credentials must allow sqs:ReceiveMessage, sqs:DeleteMessage and
sqs:ChangeMessageVisibility on the queue.`

const workExample = `  sluice work --queue https://sqs.eu-west-1.amazonaws.com/123456789012/jobs --limit 100/s -- ./send
  sluice work --queue "$QUEUE" --limit 50/s --redis redis:6379 --name provider -- ./send --json`

// workFlags is the command line of work.
type workFlags struct {
	pacedLimit

	queue             string
	parallel          int
	visibility, drain time.Duration
}

func newWorkCommand() *cobra.Command {
	var f workFlags
	c := &cobra.Command{
		Use:     "work --queue URL {--limit LIMIT | --pace-plan NAME --index N} -- COMMAND [ARGUMENT...]",
		Short:   "Run a command for each message of an SQS queue, no faster than a limit",
		Long:    workLong,
		Example: workExample,
		Args:    cobra.ArbitraryArgs,
		RunE:    func(c *cobra.Command, command []string) error { return f.run(c, command) },
	}
	flags := c.Flags()
	flags.StringVar(&f.queue, "queue", "", "receive messages of the queue at `URL` (required)")
	f.flags(flags, "handle messages")
	flags.IntVar(&f.parallel, "parallel", 10, "run up to `N` commands at the same time")
	flags.DurationVar(&f.visibility, "visibility", 30*time.Second,
		"hide received messages for `TIME`; a command that takes longer is ended")
	flags.DurationVar(&f.drain, "drain", 20*time.Second, "let commands go on for `TIME` after SIGTERM")
	return c
}

func (f *workFlags) run(c *cobra.Command, command []string) error {
	if err := f.check(command); err != nil {
		return &usageError{c.CommandPath(), err}
	}
	p, closePacer, err := f.pacer(c)
	if err != nil {
		return err
	}
	defer closePacer()
	var options []func(*awsconfig.LoadOptions) error
	if region := queueRegion(f.queue); region != "" {
		options = append(options, awsconfig.WithRegion(region))
	}
	config, err := awsconfig.LoadDefaultConfig(c.Context(), options...)
	if err != nil {
		return err
	}
	h := &messageCommand{command: command, out: c.OutOrStdout(), errs: c.ErrOrStderr()}
	counts, err := sqsworker.Run(c.Context(), sqsworker.Config{
		Client: sqs.NewFromConfig(config), Queue: f.queue, Pacer: p, Handle: h.handle, Parallel: f.parallel,
		Visibility: f.visibility, Drain: min(f.drain, f.visibility),
		Log: slog.New(slog.NewTextHandler(h.logs(), nil)),
	})
	if err != nil {
		return err
	}
	fmt.Fprintf(c.ErrOrStderr(), "sluice: %d messages handled, %d failed\n", counts.Deleted, counts.Failed)
	return nil
}

func (f *workFlags) check(command []string) error {
	u, err := url.Parse(f.queue)
	switch {
	case f.queue == "":
		return errors.New("--queue is missing: give the queue's URL")
	case err != nil || u.Host == "" || u.Scheme != "https" && u.Scheme != "http":
		return fmt.Errorf("--queue %q is not the URL of a queue", f.queue)
	case len(command) == 0:
		return errors.New("the command is missing: give it after --")
	case f.parallel < 1 || f.parallel > 10_000:
		return fmt.Errorf("--parallel %d is outside 1..10000", f.parallel)
	case f.visibility < 10*time.Second || f.visibility > 12*time.Hour || f.visibility%time.Second != 0:
		return fmt.Errorf("--visibility %s is not whole seconds from 10s to 12h", f.visibility)
	case f.drain < time.Second:
		return fmt.Errorf("--drain %s is below 1s", f.drain)
	}
	if err := checkCommand(command[0]); err != nil {
		return err
	}
	return f.pacedLimit.check()
}

// queueRegion returns the region of a queue's usual URL, https://sqs.REGION.amazonaws.com/…, or "".
func queueRegion(queue string) string {
	u, err := url.Parse(queue)
	if err != nil {
		return ""
	}
	parts := strings.Split(u.Hostname(), ".")
	if len(parts) < 4 || parts[0] != "sqs" || parts[2] != "amazonaws" {
		return ""
	}
	return parts[1]
}

// messageCommand runs a command for each message.
type messageCommand struct {
	command   []string // with its arguments
	out, errs io.Writer

	mu sync.Mutex // held while writing to out and errs
}

// commandEnd is how long a command may take to end after SIGTERM, before it is killed.
const commandEnd = 5 * time.Second

// handle runs the command, and prints its output after it has ended, so that the outputs of commands do not mix.
func (h *messageCommand) handle(ctx context.Context, m *types.Message) error {
	var out, errs bytes.Buffer
	//nolint:gosec // to run the user's command is its purpose
	c := exec.CommandContext(ctx, h.command[0], h.command[1:]...)
	c.Stdin, c.Stdout, c.Stderr = strings.NewReader(*m.Body), &out, &errs
	c.Cancel, c.WaitDelay = func() error { return c.Process.Signal(syscall.SIGTERM) }, commandEnd
	count := m.Attributes[string(types.MessageSystemAttributeNameApproximateReceiveCount)]
	c.Env = append(os.Environ(), "SLUICE_MESSAGE_ID="+*m.MessageId, "SLUICE_RECEIVE_COUNT="+count)
	err := c.Run()
	h.mu.Lock()
	defer h.mu.Unlock()
	_, lost := h.out.Write(out.Bytes())
	_, _ = h.errs.Write(errs.Bytes())
	if err == nil && lost != nil {
		err = fmt.Errorf("write the command's output: %w", lost)
	}
	return err
}

// logs returns a writer that takes turns with the output of commands.
func (h *messageCommand) logs() io.Writer { return lockedWriter{h} }

type lockedWriter struct{ h *messageCommand }

func (w lockedWriter) Write(text []byte) (int, error) {
	w.h.mu.Lock()
	defer w.h.mu.Unlock()
	return w.h.errs.Write(text)
}
