// Package publisher tells cells and subscribers what changed in the control tables: each change is one event on a
// topic, whatever the number of tenants that it concerns.
//
// It holds:
//
//   - A change is published at least once, the same event each time. Those of one item are published in the order in
//     which they were made, each after the one before has arrived; those of different items go together, packed to what
//     one call takes.
//   - What a call did not take is published again with growing waits until the time is over. A topic that refuses one
//     event does not hold up the others.
//   - A record that cannot be read, and an event that the topic will never take, are kept ([kept.Keeper]) and counted,
//     and stop nothing behind them. One that cannot even be kept is delivered again.
//   - What is not done when the time is over is delivered again, from the first such record of the batch on. Records
//     behind it that were published are then published twice, which is harmless.
//
// Metrics: records_read, events_published, publish_calls, publish_retries (events that a call did not take),
// records_kept, records_again (delivered again), publish_seconds (from the write of a change to when the topic had it).
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
	"github.com/sluicelimits/sluice/streams/kept"
	"github.com/sluicelimits/sluice/streams/streamevent"
)

// ErrRefused is wrapped by the error of a message that a topic will never take.
var ErrRefused = errors.New("refused by the topic")

// Message is an event on its way.
type Message struct {
	Body       []byte
	Attributes map[string]string // see events.Attributes
}

// Topic takes messages.
type Topic interface {
	// Publish publishes messages: at most events.MaxBatchEntries, and together of at most events.MaxBatchBytes. It
	// returns nil where all were taken, or else an error for each message, nil for those that were. One that wraps
	// ErrRefused is for ever; any other message may be published again, and one that was taken all the same is then
	// there twice.
	Publish(ctx context.Context, messages []Message) []error
}

// Meter counts; a *telemetry.Meter is one.
type Meter interface {
	Count(name string, n int64)
	Took(name string, d time.Duration)
}

// Config sets up a Publisher. All but the last three are required.
type Config struct {
	Topic Topic
	Keep  kept.Keeper
	Meter Meter

	Log   *slog.Logger     // default slog.Default()
	Now   func() time.Time // default time.Now
	Spare time.Duration    // of a call's time is left for its answer; 0 is 1 s
}

// The waits between calls that a topic did not take, each up to half longer or shorter.
const (
	firstWait = 50 * time.Millisecond
	lastWait  = 2 * time.Second
)

// Publisher publishes changes. It is safe for concurrent use. Make it with New.
type Publisher struct{ c Config }

// New makes a publisher. The error names the field that is missing.
func New(c Config) (*Publisher, error) {
	switch {
	case c.Topic == nil:
		return nil, errors.New("publisher: Topic is missing")
	case c.Keep == nil:
		return nil, errors.New("publisher: Keep is missing")
	case c.Meter == nil:
		return nil, errors.New("publisher: Meter is missing")
	}
	if c.Log == nil {
		c.Log = slog.Default()
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.Spare == 0 {
		c.Spare = time.Second
	}
	return &Publisher{c}, nil
}

// item is that of a control table.
type item struct {
	table control.Table
	key   string
}

// waiting is an event that is to be published.
type waiting struct {
	at      int // of its record
	item    item
	written time.Time
	message Message
	sent    bool // or kept
}

// run is the work on one batch.
type run struct {
	*Publisher
	deliveries []control.Delivery
	open       []bool // by record: it must come again
	wait       time.Duration
	cause      error // the last
}

// Handle publishes what a batch of records tells, and returns how many of them, from the first on, need not come again:
// all behind them must. The error is why, and nil where all are done.
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
	p.c.Log.WarnContext(ctx, "records have to come again", "records", again, "of", len(deliveries), "error", r.cause)
	return done, fmt.Errorf("publish %d of %d records: %w", again, len(deliveries), r.cause)
}

// prepare is the event of a record; nil where there is none to publish.
func (r *run) prepare(ctx context.Context, i int) *waiting {
	d := &r.deliveries[i]
	if d.Record == nil {
		r.keep(ctx, i, d.Err, d.Raw)
		return nil
	}
	e := d.Record.Event()
	if e == nil {
		return nil
	}
	body, err := events.Encode(e)
	if err != nil {
		r.keep(ctx, i, err, e.Body)
		return nil
	}
	return &waiting{at: i, item: item{d.Record.New.Table, d.Record.New.Key}, written: e.Time,
		message: Message{Body: body, Attributes: events.Attributes(e.Header())}}
}

// keep keeps what a record brought; where that cannot be done, it must come again.
func (r *run) keep(ctx context.Context, at int, why error, data []byte) {
	k := kept.Item{By: "publisher", ID: r.deliveries[at].Sequence, At: r.c.Now(), Data: data,
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
		r.cause = fmt.Errorf("keep record %q: %w", k.ID, err)
		return
	}
	r.c.Meter.Count("records_kept", 1)
	r.c.Log.ErrorContext(ctx, "a record was kept and not published", "table", k.Table, "sequence", k.ID, "error", why)
}

// round publishes the first event of each item that has any, and reports whether one of them has to go again after a
// wait.
func (r *run) round(ctx context.Context, queue []*waiting) (failed bool) {
	had := make(map[item]bool, len(queue))
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

// publish is one call; false: some of it has to go again. While nothing of a call is taken, the next one waits.
func (r *run) publish(ctx context.Context, batch []*waiting) bool {
	messages := make([]Message, len(batch))
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
		case errors.Is(err, ErrRefused):
			w.sent = true
			r.keep(ctx, w.at, err, w.message.Body)
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
		_ = r.pause(ctx) // its end shows in the caller's context
	}
	return false
}

var errNoAnswer = errors.New("the topic said nothing of it")

// pause waits before what failed goes again; false: the time is over.
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

// unsent is what is left of the queue, in its order.
func unsent(queue []*waiting) []*waiting {
	left := queue[:0]
	for _, w := range queue {
		if !w.sent {
			left = append(left, w)
		}
	}
	return left
}

// Invoke handles the event of a DynamoDB stream and answers in JSON; see [streamevent.Invoke].
func (p *Publisher) Invoke(ctx context.Context, d streamevent.Decoder, event []byte) ([]byte, error) {
	return streamevent.Invoke(ctx, "publisher", d, event, p.Handle)
}
