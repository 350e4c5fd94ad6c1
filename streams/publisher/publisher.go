// Package publisher publishes the changes of plans, tenants and API keys. Each change is one event on a topic, however
// many tenants it concerns. SNS delivers the event to the queue of each cell and to other subscribers; in one process,
// package local does so.
//
// A batch of records has to be finished by the deadline of the context less [Config.Spare]. Below, this is the end of
// the time.
//
// Guarantees:
//
//   - A change is published at least once, with the same event each time. Changes of one item are published in their
//     order, each after the topic accepted the one before. Changes of different items share calls, up to the bounds of
//     a call.
//   - Events that a call did not publish are sent again, with growing waits, until the end of the time. The other
//     events do not wait for an event that the topic refuses.
//   - A record that cannot be read, and an event that the topic will never accept, become dead letters
//     ([delivery.Keeper]). They are counted, and later records do not wait for them. If storing a dead letter fails,
//     its record is delivered again.
//   - At the end of the time, the batch is delivered again from the first unfinished record on. Later records that are
//     already published are then published twice, which is harmless.
//
// Metrics: records_read, events_published, publish_calls, publish_retries (events that a call did not publish),
// records_kept (dead letters), records_again (delivered again), publish_seconds (from the write of a change to when the
// topic accepted it).
package publisher

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"time"

	"github.com/sluicelimits/sluice/events"
	"github.com/sluicelimits/sluice/internal/control"
	"github.com/sluicelimits/sluice/streams/delivery"
)

// Topic publishes messages.
type Topic interface {
	// Publish publishes at most events.MaxBatchEntries messages of together at most events.MaxBatchBytes. It returns
	// nil if all were accepted. Otherwise it returns an error for each message, nil for those that were accepted. An
	// error that wraps [events.ErrRefused] is permanent. After any other error the message may be published again; if
	// it was accepted all the same, subscribers get it twice.
	Publish(ctx context.Context, messages []events.Message) []error
}

// Config sets up a Publisher. All fields but the last three are required.
type Config struct {
	Topic Topic
	Keep  delivery.Keeper // stores dead letters
	Meter delivery.Meter

	Log   *slog.Logger     // default slog.Default()
	Now   func() time.Time // default time.Now
	Spare time.Duration    // the part of a call's time that is reserved for its answer; 0 means 1 s
}

// The waits before failed events are sent again. Each is made up to half longer or shorter at random.
const (
	firstWait = 50 * time.Millisecond
	lastWait  = 2 * time.Second
)

// Publisher publishes changes. It is safe for concurrent use. Make it with New.
type Publisher struct{ c Config }

// New makes a publisher.
func New(c Config) *Publisher {
	if c.Log == nil {
		c.Log = slog.Default()
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.Spare == 0 {
		c.Spare = time.Second
	}
	return &Publisher{c}
}

// waiting is an event that is still to be published.
type waiting struct {
	at      int // index of its record
	item    control.Ref
	written time.Time
	message events.Message
	sent    bool // the event was published, or became a dead letter
}

// run is the state of one call of Handle.
type run struct {
	*Publisher
	deliveries []control.Delivery
	open       []bool        // by record: it is not finished and must be delivered again
	wait       time.Duration // of the next pause, on average
	cause      error         // the last error
}

// Handle publishes the changes in a batch of records. It returns how many records, from the first on, are finished. All
// later ones must be delivered again, and the error says why. It is nil if all are finished.
func (p *Publisher) Handle(ctx context.Context, deliveries []control.Delivery) (done int, err error) {
	if deadline, ok := ctx.Deadline(); ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadline(ctx, deadline.Add(-p.c.Spare))
		defer cancel()
	}
	r := run{Publisher: p, deliveries: deliveries, open: make([]bool, len(deliveries)), wait: firstWait}
	p.c.Meter.Count("records_read", int64(len(deliveries)))
	p.c.Meter.Count("records_kept", 0)
	var queue []*waiting
	for i := range deliveries {
		if w := r.prepare(ctx, i); w != nil {
			queue = append(queue, w)
		}
	}
	for len(queue) > 0 {
		failed := r.round(ctx, queue)
		queue = unsent(queue)
		if failed && !r.pause(ctx) {
			break
		}
	}
	for _, w := range queue {
		r.open[w.at] = true
	}
	for done < len(r.open) && !r.open[done] {
		done++
	}
	again := len(deliveries) - done
	p.c.Meter.Count("records_again", int64(again))
	if again == 0 {
		return done, nil
	}
	p.c.Log.WarnContext(ctx, "records must be delivered again", "records", again, "of", len(deliveries), "error",
		r.cause)
	return done, fmt.Errorf("publish %d of %d records: %w", again, len(deliveries), r.cause)
}

// prepare returns the event of a record, or nil if nothing is to be published.
func (r *run) prepare(ctx context.Context, i int) *waiting {
	d := &r.deliveries[i]
	if d.Record == nil {
		r.deadLetter(ctx, i, d.Err, d.Raw)
		return nil
	}
	e := d.Record.Event()
	if e == nil {
		return nil
	}
	body, err := events.Encode(e)
	if err != nil {
		r.deadLetter(ctx, i, err, e.Body)
		return nil
	}
	return &waiting{at: i, item: d.Record.New.Ref(), written: e.Time,
		message: events.Message{Body: body, Attributes: events.Attributes(e.Header())}}
}

// deadLetter makes a dead letter of a record. If it cannot be stored, the record must be delivered again.
func (r *run) deadLetter(ctx context.Context, at int, why error, data []byte) {
	k := delivery.DeadLetter{By: "publisher", ID: r.deliveries[at].Sequence, At: r.c.Now(), Data: data,
		Reason: "no reason is known"}
	if why != nil {
		k.Reason = why.Error()
	}
	var bad *control.RecordError
	if rec := r.deliveries[at].Record; rec != nil {
		k.Table, k.Key = string(rec.New.Table), rec.New.Key
	} else if errors.As(why, &bad) {
		k.Table, k.Key = string(bad.Table), bad.Key
	}
	if err := r.c.Keep.Keep(ctx, k); err != nil {
		r.open[at] = true
		r.cause = fmt.Errorf("store record %q as a dead letter: %w", k.ID, err)
		return
	}
	r.c.Meter.Count("records_kept", 1)
	r.c.Log.ErrorContext(ctx, "a record was not published and became a dead letter", "table", k.Table, "sequence", k.ID,
		"error", why)
}

// round publishes the first waiting event of each item, because the events of one item must be published in their
// order. It reports whether an event must be sent again after a wait.
func (r *run) round(ctx context.Context, queue []*waiting) (failed bool) {
	had := make(map[control.Ref]bool, len(queue))
	var batch []*waiting
	bytes := 0
	flush := func() {
		if len(batch) > 0 && !r.publish(ctx, batch) {
			failed = true
		}
		batch, bytes = batch[:0], 0
	}
	for _, w := range queue {
		if had[w.item] {
			continue
		}
		had[w.item] = true
		size := len(w.message.Body) + events.AttributeBytes
		if len(batch) == events.MaxBatchEntries || bytes+size > events.MaxBatchBytes {
			flush()
		}
		if ctx.Err() != nil {
			r.cause = ctx.Err()
			return true
		}
		batch, bytes = append(batch, w), bytes+size
	}
	flush()
	return failed
}

// publish makes one call. It returns false if an event must be sent again. If the topic accepted nothing, publish also
// waits before it returns.
func (r *run) publish(ctx context.Context, batch []*waiting) bool {
	messages := make([]events.Message, len(batch))
	for i, w := range batch {
		messages[i] = w.message
	}
	r.c.Meter.Count("publish_calls", 1)
	errs := r.c.Topic.Publish(ctx, messages)
	now := r.c.Now()
	taken, again := int64(0), int64(0)
	for i, w := range batch {
		var err error
		if errs != nil {
			err = errNoAnswer
			if i < len(errs) {
				err = errs[i]
			}
		}
		switch {
		case err == nil:
			w.sent = true
			taken++
			r.c.Meter.Took("publish_seconds", now.Sub(w.written))
		case errors.Is(err, events.ErrRefused):
			w.sent = true
			r.deadLetter(ctx, w.at, err, w.message.Body)
		default:
			again++
			r.cause = err
		}
	}
	r.c.Meter.Count("events_published", taken)
	if again == 0 {
		r.wait = firstWait
		return true
	}
	r.c.Meter.Count("publish_retries", again)
	if taken == 0 {
		_ = r.pause(ctx) // if ctx has ended, round notices
	}
	return false
}

var errNoAnswer = errors.New("the topic's answer does not mention the event")

// pause waits before failed events are sent again. It returns false if ctx has ended.
func (r *run) pause(ctx context.Context) bool {
	t := time.NewTimer(r.wait/2 + rand.N(r.wait))
	defer t.Stop()
	r.wait = min(2*r.wait, lastWait)
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}

// unsent returns the events of the queue that were not sent, in their order.
func unsent(queue []*waiting) []*waiting {
	left := queue[:0]
	for _, w := range queue {
		if !w.sent {
			left = append(left, w)
		}
	}
	return left
}

// Invoke handles the event of a DynamoDB stream and answers in JSON; see [delivery.InvokeStream]. The decoder is not in
// Config, because a program that has decoded records calls Handle and needs none.
func (p *Publisher) Invoke(ctx context.Context, d delivery.Decoder, event []byte) ([]byte, error) {
	return delivery.InvokeStream(ctx, "publisher", d, event, p.Handle)
}
