// Package sqsworker handles the messages of an SQS queue no faster than a provider allows.
//
// A common worker receives messages first, and makes those visible again that it may not send yet. That is a trap. SQS
// counts each of the repeated receives, so healthy messages reach the dead-letter queue (maxReceiveCount is 1,000 at
// most). Until then they are in flight, and a queue allows 120,000 messages in flight.
//
// A worker of this package takes units from a [pacer.Pacer] first, and receives only as many messages as it has units
// for. It gives back units for which there was no message. Each message is therefore received once, unless its handling
// fails or a process ends while it has the message. Messages wait in the queue, where they cost nothing.
//
// # What this costs
//
// Units are good until their window ends, so a worker cannot wait for a message for longer than that. It asks an empty
// queue at least once per [Config.Idle], and each time holds the units of one message for the time of the call. If
// windows are longer than two seconds, SQS waits for a message for up to 5 s within the window (long polling), so there
// are fewer calls.
//
// A message can arrive so late that its units are no longer good, because the call of SQS was slow. The worker then
// takes new units for it. Meanwhile it extends the visibility timeout, so that waiting, also for a store that is
// unavailable, does not count as another receive.
//
// # Failures
//
// A message whose handling fails stays in flight until its visibility timeout ends, and is then received again. Its
// receive count rises, and the queue's redrive policy decides after how many receives it becomes a dead letter. The
// worker has no rule of its own for such messages. The queue needs a redrive policy: without one, a message that can
// never be handled uses units for as long as the queue keeps it.
//
// SQS may deliver a message twice, and a message is handled again if the process ends before its deletion. Handlers
// must bear that.
//
// In a FIFO queue, messages of one group that are received together are handled at the same time, unless
// [Config.Parallel] is 1.
package sqsworker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/sluicelimits/sluice/pacer"
)

// Client is the part of *sqs.Client that this package uses. The role of a worker needs sqs:ReceiveMessage,
// sqs:DeleteMessage and sqs:ChangeMessageVisibility on the queue.
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
	// in flight until its visibility timeout ends, and is then received again. ctx ends with the visibility timeout,
	// because another worker may receive the message then.
	Handle func(ctx context.Context, m *types.Message) error

	Cost int64 // of one message, in units; default 1

	// Parallel is the number of messages that are handled at once, 1..10,000; default 10.
	Parallel int

	// Visibility is the visibility timeout of received messages, 10 s to 12 h in whole seconds; default 30 s.
	Visibility time.Duration

	// Drain is how long handlers may go on after the context of Run has ended, at most Visibility, which is also the
	// default. Then their contexts end, too.
	Drain time.Duration

	// Idle is the longest pause between two calls to an empty queue, 50 ms to 1 min; default 1 s. The first pauses are
	// shorter, because SQS may overlook a message once.
	Idle time.Duration

	Log *slog.Logger // default slog.Default()
}

// Counts are numbers of messages and calls of one Run.
type Counts struct {
	Received int64 // messages
	Deleted  int64 // of Received: messages that were handled and deleted
	Failed   int64 // of Received: messages that were not handled, or were handled but not deleted
	BadCalls int64 // calls of ReceiveMessage that failed
	// GivenBack are those of Failed that were made visible again because they got no units: Run or the pacer ended
	// while they waited, or they waited for 11 h.
	GivenBack int64
}

const (
	mostAtOnce   = 10                    // the largest number of messages in one receive
	longPoll     = 5 * time.Second       // the longest time that SQS waits for a message; it delays the end of Run
	callTime     = 10 * time.Second      // the longest time of a call to SQS, in addition to its own waiting
	firstIdle    = 50 * time.Millisecond // pause after the first call to which there was no message
	firstBackoff = time.Second           // wait after a call to SQS that failed; doubled each time
	lastBackoff  = time.Minute

	// longestHold is how long a message is kept in flight while it waits for units. SQS allows 12 h in all.
	longestHold = 11 * time.Hour
)

// complete sets the defaults, and returns an error if a field is missing or out of its range.
func (c *Config) complete() error {
	c.Cost, c.Parallel = cmp.Or(c.Cost, 1), cmp.Or(c.Parallel, 10)
	c.Visibility = cmp.Or(c.Visibility, 30*time.Second)
	c.Drain, c.Idle = cmp.Or(c.Drain, c.Visibility), cmp.Or(c.Idle, time.Second)
	c.Log = cmp.Or(c.Log, slog.Default())
	switch {
	case c.Client == nil || c.Queue == "" || c.Pacer == nil || c.Handle == nil:
		return errors.New("sqsworker: Config needs Client, Queue, Pacer and Handle")
	case c.Cost < 1 || c.Cost > pacer.MaxUnits:
		return fmt.Errorf("sqsworker: a cost of %d is not within 1..%d", c.Cost, int64(pacer.MaxUnits))
	case c.Parallel < 1 || c.Parallel > 10_000:
		return fmt.Errorf("sqsworker: Parallel of %d is not within 1..10000", c.Parallel)
	}
	return c.checkTimes()
}

func (c *Config) checkTimes() error {
	switch {
	case c.Visibility < 10*time.Second || c.Visibility > 12*time.Hour || c.Visibility%time.Second != 0:
		return fmt.Errorf("sqsworker: a visibility timeout of %s is not whole seconds within 10s..12h", c.Visibility)
	case c.Drain < 0 || c.Drain > c.Visibility:
		return fmt.Errorf("sqsworker: Drain of %s is not within 0s..%s, the visibility timeout", c.Drain, c.Visibility)
	case c.Idle < firstIdle || c.Idle > time.Minute:
		return fmt.Errorf("sqsworker: Idle of %s is not within %s..1m", c.Idle, firstIdle)
	}
	return nil
}

// worker is the state of one call of Run.
type worker struct {
	Config
	slots   chan struct{} // holds an element for each message that is being handled
	running sync.WaitGroup
	batch   int           // number of messages to ask for next, 1..mostAtOnce
	idle    time.Duration // pause before the next call; 0 at the beginning, and if the last call brought messages

	received, deleted, failed, badCalls, givenBack atomic.Int64
}

// Run handles messages until ctx ends. It then receives no more, waits for the messages that are being handled for as
// long as Config.Drain allows, and returns a nil error. A message that still waits for units is made visible again: its
// receive was of no use. Run returns an error at once if the configuration is wrong, if a message costs
// more than the pacer's limit, or if the pacer is closed. Calls to SQS that fail are logged and repeated. While the
// store of a shared limit is unavailable, Run waits, and receives nothing.
func Run(ctx context.Context, c Config) (Counts, error) {
	if err := c.complete(); err != nil {
		return Counts{}, err
	}
	w := &worker{Config: c, slots: make(chan struct{}, c.Parallel), batch: 1}
	handling, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	defer context.AfterFunc(ctx, func() { time.AfterFunc(w.Drain, stop) })()
	err := w.receiveUntil(ctx, handling)
	w.running.Wait()
	return Counts{Received: w.received.Load(), Deleted: w.deleted.Load(), Failed: w.failed.Load(),
		BadCalls: w.badCalls.Load(), GivenBack: w.givenBack.Load()}, err
}

// receiveUntil receives messages until ctx ends, and begins to handle them with the context handling.
func (w *worker) receiveUntil(ctx, handling context.Context) error {
	backoff := firstBackoff
	for ctx.Err() == nil {
		var wait time.Duration
		err := w.round(ctx, handling)
		switch {
		case ctx.Err() != nil:
			return nil //nolint:nilerr // the error says that ctx has ended, as the caller wants
		case errors.Is(err, pacer.ErrNever), errors.Is(err, pacer.ErrClosed), errors.Is(err, pacer.ErrCost):
			return err
		case err != nil:
			w.Log.Warn("no messages were received; trying again", "queue", w.Queue, "after", backoff, "error", err)
			wait, backoff = backoff, min(2*backoff, lastBackoff)
		default:
			wait, backoff = w.idle, firstBackoff
		}
		if wait > 0 {
			select {
			case <-ctx.Done():
			case <-time.After(wait):
			}
		}
	}
	return nil
}

// round takes units, receives at most as many messages as they are for, and begins to handle them.
func (w *worker) round(ctx, handling context.Context) error {
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
	wait := w.pollTime(&permits[0])
	visible := time.Now().Add(w.Visibility)
	messages, err := w.receive(ctx, len(permits), wait)
	for i := range permits {
		if i < len(messages) {
			w.begin(ctx, handling, &messages[i], permits[i], visible)
			continue
		}
		permits[i].Release()
		w.freeSlots(1)
	}
	switch {
	case err != nil:
		w.badCalls.Add(1)
		return err
	case len(messages) == 0 && wait > 0:
		w.batch, w.idle = 1, firstIdle
	case len(messages) == 0:
		w.batch, w.idle = 1, min(max(2*w.idle, firstIdle), w.Idle)
	case len(messages) == len(permits):
		w.batch, w.idle = min(2*w.batch, mostAtOnce), 0
	default:
		w.batch, w.idle = len(messages), 0
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

// pollTime returns how long SQS may wait for a message, in whole seconds: a second less than the permit is good, and 0
// if the latest call brought messages.
func (w *worker) pollTime(permit *pacer.Permit) time.Duration {
	if w.idle == 0 {
		return 0
	}
	return min(max(time.Until(permit.UseBy())-time.Second, 0).Truncate(time.Second), longPoll)
}

// receive receives up to n messages. The end of ctx does not interrupt the call: SQS may have delivered messages
// already, which would then stay in flight without being handled.
func (w *worker) receive(ctx context.Context, n int, wait time.Duration) ([]types.Message, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), wait+callTime)
	defer cancel()
	out, err := w.Client.ReceiveMessage(ctx, &sqs.ReceiveMessageInput{
		QueueUrl: aws.String(w.Queue), MaxNumberOfMessages: int32(n),
		VisibilityTimeout:           int32(w.Visibility / time.Second),
		WaitTimeSeconds:             int32(wait / time.Second),
		MessageSystemAttributeNames: []types.MessageSystemAttributeName{types.MessageSystemAttributeNameAll},
		MessageAttributeNames:       []string{"All"},
	}, once)
	if err != nil {
		return nil, fmt.Errorf("receive messages: %w", err)
	}
	w.received.Add(int64(len(out.Messages)))
	return out.Messages, nil
}

// once keeps the SDK from repeating a call. If only the reply to a receive is lost, a second receive brings further
// messages for the same units.
func once(o *sqs.Options) { o.RetryMaxAttempts = 1 }

// begin handles a message in a goroutine. SQS makes the message visible again at the given time.
func (w *worker) begin(ctx, handling context.Context, m *types.Message, permit pacer.Permit, visible time.Time) {
	w.running.Go(func() {
		defer w.freeSlots(1)
		if err := w.handle(ctx, handling, m, permit, visible); err != nil {
			w.failed.Add(1)
			w.Log.Warn("a message was not handled, or not deleted; SQS delivers it again", "queue", w.Queue,
				"message", aws.ToString(m.MessageId), "error", err)
			return
		}
		w.deleted.Add(1)
	})
}

// handle handles a message, and deletes it.
func (w *worker) handle(
	ctx, handling context.Context, m *types.Message, permit pacer.Permit, visible time.Time,
) (err error) {
	end := time.Now().Add(longestHold)
	for !permit.InTime() { // a call to SQS took so long that the window is over
		permit.Release()
		if permit, visible, err = w.waitForUnits(ctx, m, visible, end); err != nil {
			return err
		}
	}
	if !time.Now().Before(visible) {
		permit.Release()
		return errors.New("its visibility timeout ended before it could be sent")
	}
	handling, cancel := context.WithDeadline(handling, visible)
	defer cancel()
	if err := w.Handle(handling, m); err != nil {
		return err
	}
	deleting, cancel := context.WithTimeout(context.WithoutCancel(ctx), callTime)
	defer cancel()
	if _, err = w.Client.DeleteMessage(deleting, &sqs.DeleteMessageInput{
		QueueUrl: aws.String(w.Queue), ReceiptHandle: m.ReceiptHandle,
	}); err != nil {
		return fmt.Errorf("delete a message that was handled: %w", err)
	}
	return nil
}

// waitForUnits waits until a received message may be sent, and keeps it in flight meanwhile. It also returns the time
// at which SQS makes the message visible again. If ctx ends, or if the wait does not end before the given time, it
// makes the message visible at once.
func (w *worker) waitForUnits(
	ctx context.Context, m *types.Message, visible, end time.Time,
) (pacer.Permit, time.Time, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	// Not a deadline, because Acquire refuses at once what comes too late for a deadline.
	defer time.AfterFunc(time.Until(end), cancel).Stop()
	held, stop := context.WithCancel(ctx)
	extended := make(chan time.Time, 1)
	go func() { extended <- w.keepInFlight(held, m, visible) }()
	permit, err := w.Pacer.Acquire(ctx, w.Key, w.Cost)
	stop()
	visible = <-extended
	if err != nil && w.setVisibility(ctx, m, 0) == nil {
		w.givenBack.Add(1)
	}
	return permit, visible, err
}

// keepInFlight extends a message's visibility timeout whenever a third of it has passed, until ctx ends. If that fails,
// it tries again, each time after half of the time that is left, but at least a second. It returns the time at which
// SQS makes the message visible again.
func (w *worker) keepInFlight(ctx context.Context, m *types.Message, visible time.Time) time.Time {
	for {
		select {
		case <-ctx.Done():
			return visible
		case <-time.After(max(min(w.Visibility/3, time.Until(visible)/2), time.Second)):
		}
		if now := time.Now(); w.setVisibility(ctx, m, w.Visibility) == nil {
			visible = now.Add(w.Visibility)
		} else if !now.Before(visible) {
			return visible
		}
	}
}

// setVisibility makes a message visible again after some time. It logs an error.
func (w *worker) setVisibility(ctx context.Context, m *types.Message, after time.Duration) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), callTime)
	defer cancel()
	_, err := w.Client.ChangeMessageVisibility(ctx, &sqs.ChangeMessageVisibilityInput{
		QueueUrl: aws.String(w.Queue), ReceiptHandle: m.ReceiptHandle, VisibilityTimeout: int32(after / time.Second),
	})
	if err != nil {
		w.Log.Warn("the visibility timeout of a message was not changed", "queue", w.Queue,
			"message", aws.ToString(m.MessageId), "error", err)
	}
	return err
}
