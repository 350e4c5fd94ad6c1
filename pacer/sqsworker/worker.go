// Package sqsworker handles the messages of an SQS queue no faster than a provider allows.
//
// A common worker receives messages first, and makes those visible again that it may not send yet. That is a trap. SQS
// counts each of the repeated receives, so healthy messages reach the dead-letter queue (maxReceiveCount is 1,000 at
// most). Until then they are in flight, and a queue allows 120,000 messages in flight.
//
// A worker of this package takes units from a [pacer.Pacer] first, and receives only as many messages as it has units
// for. Each message is therefore received once, unless its handling fails. Messages wait in the queue, where they cost
// nothing.
//
// If the queue was empty, the worker waits for the next message without holding units, because others may need them.
// It then takes the units for this one message. If it does not get them within a third of the visibility timeout, it
// makes the message visible again. Only in this case is a receive wasted, and for one message at a time.
package sqsworker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/sluicelimits/sluice/pacer"
)

// Client is the part of *sqs.Client that this package uses.
type Client interface {
	ReceiveMessage(context.Context, *sqs.ReceiveMessageInput, ...func(*sqs.Options)) (*sqs.ReceiveMessageOutput, error)
	DeleteMessage(context.Context, *sqs.DeleteMessageInput, ...func(*sqs.Options)) (*sqs.DeleteMessageOutput, error)
	ChangeMessageVisibility(
		context.Context, *sqs.ChangeMessageVisibilityInput, ...func(*sqs.Options),
	) (*sqs.ChangeMessageVisibilityOutput, error)
}

// Config sets up a worker. Fields without a stated default are required, except Key.
type Config struct {
	Client Client
	Queue  string // URL of the queue
	Pacer  *pacer.Pacer
	Key    string // of the worker's requests, in the pacer

	// Handle handles one message. If it returns nil, the message is deleted. If it returns an error, the message stays
	// in flight until its visibility timeout ends, and is then received again. Handle must end within the visibility
	// timeout.
	Handle func(ctx context.Context, m *types.Message) error

	Cost int64 // of one message, in units; default 1

	// Parallel is the number of messages that are handled at once, 1..10,000; default 10.
	Parallel int

	// Visibility is the visibility timeout of received messages, 10 s to 12 h in whole seconds; default 30 s.
	Visibility time.Duration

	Log *slog.Logger // default slog.Default()
}

const (
	mostAtOnce   = 10               // the largest number of messages in one receive
	longPoll     = 20 * time.Second // the longest time that SQS waits for a message
	firstBackoff = time.Second      // wait after a call to SQS that failed; doubled each time
	lastBackoff  = time.Minute
)

// complete sets the defaults, and returns an error if a field is missing or out of its range.
func (c *Config) complete() error {
	if c.Cost == 0 {
		c.Cost = 1
	}
	if c.Parallel == 0 {
		c.Parallel = 10
	}
	if c.Visibility == 0 {
		c.Visibility = 30 * time.Second
	}
	if c.Log == nil {
		c.Log = slog.Default()
	}
	switch {
	case c.Client == nil || c.Queue == "" || c.Pacer == nil || c.Handle == nil:
		return errors.New("sqsworker: Config needs Client, Queue, Pacer and Handle")
	case c.Cost < 1 || c.Cost > pacer.MaxUnits:
		return fmt.Errorf("sqsworker: a cost of %d is not within 1..%d", c.Cost, int64(pacer.MaxUnits))
	case c.Parallel < 1 || c.Parallel > 10_000:
		return fmt.Errorf("sqsworker: Parallel of %d is not within 1..10000", c.Parallel)
	case c.Visibility < 10*time.Second || c.Visibility > 12*time.Hour || c.Visibility%time.Second != 0:
		return fmt.Errorf("sqsworker: a visibility timeout of %s is not whole seconds within 10s..12h", c.Visibility)
	}
	return nil
}

// worker is the state of one call of Run.
type worker struct {
	Config
	slots   chan struct{} // holds an element for each message that is being handled
	running sync.WaitGroup
	batch   int // number of messages to ask for next; 0: the queue was empty
}

// Run handles messages until ctx ends. It then waits for the messages that are being handled, and returns nil. The
// contexts of their handlers end with ctx. Run returns an error at once if the configuration is wrong, if a message
// costs more than the pacer's limit, or if the pacer is closed. Calls to SQS that fail are logged and repeated.
func Run(ctx context.Context, c Config) error {
	if err := c.complete(); err != nil {
		return err
	}
	w := &worker{Config: c, slots: make(chan struct{}, c.Parallel), batch: 1}
	defer w.running.Wait()
	backoff := firstBackoff
	for ctx.Err() == nil {
		err := w.round(ctx)
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, pacer.ErrNever), errors.Is(err, pacer.ErrClosed), errors.Is(err, pacer.ErrCost):
			return err
		case err == nil:
			backoff = firstBackoff
			continue
		}
		c.Log.Warn("no messages were received; trying again", "queue", c.Queue, "after", backoff, "error", err)
		select {
		case <-ctx.Done():
		case <-time.After(backoff):
		}
		backoff = min(2*backoff, lastBackoff)
	}
	return nil
}

// round receives some messages once, and begins to handle them.
func (w *worker) round(ctx context.Context) error {
	if w.batch == 0 {
		return w.waitForOne(ctx)
	}
	n := w.takeSlots(ctx, w.batch)
	if n == 0 {
		return ctx.Err()
	}
	permits, err := w.takeUnits(ctx, n)
	if err != nil {
		w.freeSlots(n)
		return err
	}
	w.freeSlots(n - len(permits))
	messages, err := w.receive(ctx, len(permits), 0)
	for i := range permits {
		if i < len(messages) {
			w.begin(ctx, &messages[i], permits[i])
			continue
		}
		permits[i].Release()
		w.freeSlots(1)
	}
	switch {
	case err != nil:
		return err
	case len(messages) == 0:
		w.batch = 0
	case len(messages) == len(permits):
		w.batch = min(2*w.batch, mostAtOnce)
	default:
		w.batch = len(messages)
	}
	return nil
}

// takeSlots waits for one slot, and takes up to n if more are free. It returns 0 if ctx ends.
func (w *worker) takeSlots(ctx context.Context, n int) (taken int) {
	select {
	case w.slots <- struct{}{}:
	case <-ctx.Done():
		return 0
	}
	for taken = 1; taken < n; taken++ {
		select {
		case w.slots <- struct{}{}:
		default:
			return taken
		}
	}
	return taken
}

func (w *worker) freeSlots(n int) {
	for range n {
		<-w.slots
	}
}

// takeUnits waits for the units of one message, and takes the units of up to n messages if they are free.
func (w *worker) takeUnits(ctx context.Context, n int) ([]pacer.Permit, error) {
	first, err := w.Pacer.Acquire(ctx, w.Key, w.Cost)
	if err != nil {
		return nil, err
	}
	permits := []pacer.Permit{first}
	for len(permits) < n {
		more, ok := w.Pacer.TryAcquire(w.Cost)
		if !ok {
			break
		}
		permits = append(permits, more)
	}
	return permits, nil
}

// receive receives up to n messages.
func (w *worker) receive(ctx context.Context, n int, wait time.Duration) ([]types.Message, error) {
	out, err := w.Client.ReceiveMessage(ctx, &sqs.ReceiveMessageInput{
		QueueUrl: aws.String(w.Queue), MaxNumberOfMessages: int32(n),
		VisibilityTimeout:           int32(w.Visibility / time.Second),
		WaitTimeSeconds:             int32(wait / time.Second),
		MessageSystemAttributeNames: []types.MessageSystemAttributeName{types.MessageSystemAttributeNameAll},
		MessageAttributeNames:       []string{"All"},
	})
	if err != nil {
		return nil, fmt.Errorf("receive messages: %w", err)
	}
	return out.Messages, nil
}

// waitForOne waits for a message of a queue that was empty, and takes the units for it afterwards.
func (w *worker) waitForOne(ctx context.Context) error {
	if w.takeSlots(ctx, 1) == 0 {
		return ctx.Err()
	}
	messages, err := w.receive(ctx, 1, longPoll)
	if err != nil || len(messages) == 0 {
		w.freeSlots(1)
		return err
	}
	w.batch = 1
	within, cancel := context.WithTimeout(ctx, w.Visibility/3)
	defer cancel()
	permit, err := w.Pacer.Acquire(within, w.Key, w.Cost)
	if err == nil {
		w.begin(ctx, &messages[0], permit)
		return nil
	}
	w.freeSlots(1)
	if _, back := w.Client.ChangeMessageVisibility(context.WithoutCancel(ctx), &sqs.ChangeMessageVisibilityInput{
		QueueUrl: aws.String(w.Queue), ReceiptHandle: messages[0].ReceiptHandle, VisibilityTimeout: 0,
	}); back != nil {
		w.Log.Warn("a message stays in flight until its visibility timeout ends", "queue", w.Queue, "error", back)
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return nil // the next round waits for the units before it receives a message
	}
	return err
}

// begin handles a message in a goroutine.
func (w *worker) begin(ctx context.Context, m *types.Message, permit pacer.Permit) {
	received := time.Now()
	w.running.Go(func() {
		defer w.freeSlots(1)
		if err := w.handle(ctx, m, permit, received); err != nil {
			w.Log.Warn("a message was not handled; it is received again when its visibility timeout ends",
				"queue", w.Queue, "message", aws.ToString(m.MessageId), "error", err)
		}
	})
}

func (w *worker) handle(ctx context.Context, m *types.Message, permit pacer.Permit, received time.Time) error {
	if !time.Now().Before(permit.UseBy()) { // the receive took so long that the window is over
		permit.Release()
		within, cancel := context.WithDeadline(ctx, received.Add(w.Visibility/3))
		defer cancel()
		if _, err := w.Pacer.Acquire(within, w.Key, w.Cost); err != nil {
			return err
		}
	}
	if err := w.Handle(ctx, m); err != nil {
		return err
	}
	_, err := w.Client.DeleteMessage(context.WithoutCancel(ctx), &sqs.DeleteMessageInput{
		QueueUrl: aws.String(w.Queue), ReceiptHandle: m.ReceiptHandle,
	})
	if err != nil {
		return fmt.Errorf("delete a message that was handled: %w", err)
	}
	return nil
}
