package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"strings"
	"time"

	awsconfig "github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/sluicelimits/sluice/pacer"
	"github.com/sluicelimits/sluice/pacer/sqsworker"
)

// work runs the command for each message of the queue until ctx ends.
func (f *paceFlags) work(ctx context.Context, p *pacer.Pacer, runs *commandRuns) error {
	var options []func(*awsconfig.LoadOptions) error
	if region := queueRegion(f.queue); region != "" {
		options = append(options, awsconfig.WithRegion(region))
	}
	config, err := awsconfig.LoadDefaultConfig(ctx, options...)
	if err != nil {
		return err
	}
	handle := func(ctx context.Context, m *types.Message) error {
		count := m.Attributes[string(types.MessageSystemAttributeNameApproximateReceiveCount)]
		return runs.run(ctx, *m.Body, runs.command[1:], "SLUICE_MESSAGE_ID="+*m.MessageId,
			"SLUICE_RECEIVE_COUNT="+count)
	}
	counts, err := sqsworker.Run(ctx, sqsworker.Config{
		Client: sqs.NewFromConfig(config), Queue: f.queue, Pacer: p, Handle: handle, Parallel: f.parallel,
		Visibility: f.visibility, Drain: min(f.drain, f.visibility), Log: slog.New(slog.NewTextHandler(runs, nil)),
	})
	if err != nil {
		return err
	}
	fmt.Fprintf(runs.errs, "sluice: %s handled, %d failed\n", count(counts.Deleted, "message"), counts.Failed)
	return nil
}

func (f *paceFlags) checkQueue(command []string) error {
	u, err := url.Parse(f.queue)
	switch {
	case err != nil || u.Host == "" || u.Scheme != "https" && u.Scheme != "http":
		return fmt.Errorf("--queue %q is not the URL of a queue", f.queue)
	case len(command) == 0:
		return errors.New("the command is missing: give it after --")
	case f.visibility < 10*time.Second || f.visibility > 12*time.Hour || f.visibility%time.Second != 0:
		return fmt.Errorf("--visibility %s is not whole seconds from 10s to 12h", f.visibility)
	case f.drain < time.Second:
		return fmt.Errorf("--drain %s is below 1s", f.drain)
	}
	return nil
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
