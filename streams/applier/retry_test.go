package applier_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/sluicelimits/sluice/events"
	"github.com/sluicelimits/sluice/internal/aws/grants"
	"github.com/sluicelimits/sluice/internal/cell/table"
	"github.com/sluicelimits/sluice/internal/control"
	"github.com/sluicelimits/sluice/streams/applier"
	"github.com/sluicelimits/sluice/streams/delivery"
	"github.com/sluicelimits/sluice/streams/streamstest"
)

// queue is the queue from which the messages come.
type queue struct {
	delays []delivery.Delay
	err    error
	late   bool // the call came when the time of the function's call was over
}

func (q *queue) Delay(ctx context.Context, delays []delivery.Delay) error {
	q.delays = append(q.delays, delays...)
	q.late = q.late || ctx.Err() != nil
	return q.err
}

// withQueue makes the world's applier tell a queue which messages it failed on. The log is written to the result.
func (w *world) withQueue(q *queue, acknowledger applier.AnyAcknowledger) *strings.Builder {
	w.t.Helper()
	log := &strings.Builder{}
	a := applier.New(applier.Config{Cell: "eu-1", Tables: tables{w}, Store: w, Keep: &w.keep, Meter: &w.meter,
		Log: slog.New(slog.NewTextHandler(log, nil)), Delayer: q, Random: func() float64 { return 0 },
		Acknowledger: acknowledger})
	w.applier = a
	return log
}

// received returns the event of messages that were received for the n-th, n+1-th, ... time. The receipt of a message is
// its id in upper case.
func received(t *testing.T, n int, messages []delivery.Message) []byte {
	t.Helper()
	records := make([]map[string]any, len(messages))
	for i, m := range messages {
		records[i] = map[string]any{"messageId": m.ID, "body": string(m.Body), "eventSource": "aws:sqs",
			"receiptHandle": strings.ToUpper(m.ID),
			"attributes":    map[string]string{"ApproximateReceiveCount": strconv.Itoa(n + i)}}
	}
	event, err := json.Marshal(map[string]any{"Records": records})
	if err != nil {
		t.Fatal(err)
	}
	return event
}

// Guarantees that messages become visible again soon after the table was away, each by how often it was received, and
// not only after the queue's visibility timeout. Messages that were handled are left alone.
func TestFailedMessagesComeSoon(t *testing.T) {
	w, q := newWorld(t), &queue{}
	w.withQueue(q, nil)
	w.before = func(*table.Step) error { return errAway }
	batch := append(w.messages(tenant(t, "a", 1)[0], tenant(t, "b", 1)[0], tenant(t, "c", 1)[0]), w.message("poison"))
	const answer = `{"batchItemFailures":[{"itemIdentifier":"m1"},{"itemIdentifier":"m2"},{"itemIdentifier":"m3"}]}`
	if out, err := w.applier.Invoke(t.Context(), received(t, 1, batch)); err != nil || string(out) != answer {
		t.Fatalf("%s, %v; want %s", out, err, answer)
	}
	if got, want := fmt.Sprint(q.delays), "[{M1 1s} {M2 2s} {M3 4s}]"; got != want {
		t.Errorf("the messages are visible again as %s, want %s", got, want)
	}
	w.before, q.delays = nil, nil
	if out, err := w.applier.Invoke(t.Context(), received(t, 1, batch)); err != nil || len(q.delays) != 0 {
		t.Errorf("the table is back: %s, %v; %v are delayed", out, err, q.delays)
	}
}

// failing is an Acknowledger that fails.
type failing struct{ prepare, run error }

func (f failing) Prepare(context.Context) error     { return f.prepare }
func (f failing) Run(context.Context) (bool, error) { return false, f.run }

// Guarantees that all messages of a call come again soon if the shares among them could not be stored or acknowledged,
// also those that were applied: Lambda delivers all of them again. Shares that nobody can read hold nothing up.
func TestUnacknowledgedSharesComeSoon(t *testing.T) {
	for name, tt := range map[string]struct {
		failing
		again int
	}{
		"before they are applied": {failing{prepare: errAway}, 2},
		"after they are applied":  {failing{run: errAway}, 2},
		"unreadable":              {failing{run: fmt.Errorf("%w", control.ErrBadItem)}, 0},
		"acknowledged":            {failing{}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			w, q := newWorld(t), &queue{}
			w.withQueue(q, tt.failing)
			batch := w.messages(tenant(t, "a", 1)[0],
				streamstest.History(t, control.Cells, events.SharesKey, `{"version":2}`)[0])
			out, err := w.applier.Invoke(t.Context(), received(t, 3, batch))
			if (err != nil) != (tt.again > 0) || len(q.delays) != tt.again {
				t.Errorf("%s, %v; %v are delayed, want %d", out, err, q.delays, tt.again)
			}
			if tt.again == 2 && fmt.Sprint(q.delays) != "[{M1 4s} {M2 8s}]" {
				t.Errorf("the messages are visible again as %v", q.delays)
			}
		})
	}
}

// Guarantees that the messages are reported to Lambda as failed, and that a log entry says why they come late, if the
// queue cannot be told.
func TestQueueAway(t *testing.T) {
	w, q := newWorld(t), &queue{err: errors.New("the queue is away")}
	log := w.withQueue(q, nil)
	w.before = func(*table.Step) error { return errAway }
	out, err := w.applier.Invoke(t.Context(), received(t, 1, w.messages(tenant(t, "a", 1)...)))
	if err != nil || string(out) != `{"batchItemFailures":[{"itemIdentifier":"m1"}]}` {
		t.Errorf("%s, %v", out, err)
	}
	if !strings.Contains(log.String(), "the queue is away") {
		t.Errorf("the log does not say that the queue was away: %s", log)
	}
}

// Guarantees that a message whose event has no receipt, or no count of receives, is left to the visibility timeout.
func TestUnknownReceipt(t *testing.T) {
	w, q := newWorld(t), &queue{}
	w.withQueue(q, nil)
	w.before = func(*table.Step) error { return errAway }
	batch := w.messages(tenant(t, "a", 1)[0], tenant(t, "b", 1)[0])
	event := strings.NewReplacer(`"M1"`, `""`, `"ApproximateReceiveCount":"2"`, `"ApproximateReceiveCount":"often"`).
		Replace(string(received(t, 1, batch)))
	if out, err := w.applier.Invoke(t.Context(), []byte(event)); err != nil || len(q.delays) != 0 {
		t.Errorf("%s, %v; %v are delayed", out, err, q.delays)
	}
}

// Guarantees that the queue is told also if a table uses up the time of the function's call.
func TestQueueIsToldInTime(t *testing.T) {
	w, q := newWorld(t), &queue{}
	w.withQueue(q, nil)
	// less than the time that is reserved for the answer, so that no time is left for the tables
	ctx, cancel := context.WithTimeout(t.Context(), 900*time.Millisecond)
	defer cancel()
	if out, err := w.applier.Invoke(ctx, received(t, 1, w.messages(tenant(t, "a", 1)...))); err != nil ||
		len(q.delays) != 1 || q.late {
		t.Errorf("%s, %v; %v are delayed, late %t", out, err, q.delays, q.late)
	}
}

// Guarantees that a message is tried again about as soon as the outage was long; that it reaches the dead-letter queue
// no sooner than by the visibility timeout alone; and that it does so before the queue drops it for its age.
func TestRetryAfter(t *testing.T) {
	f, _ := grants.Of("applier")
	q := f.Queue
	var soonest, latest time.Duration
	for n := 1; n <= q.MaxReceives; n++ {
		low, high := applier.RetryAfter(n, 0), applier.RetryAfter(n, 0.999)
		if low < time.Second || low > soonest+time.Second || high < low || high > low+low/4+time.Second/2 ||
			low%time.Second != 0 || high%time.Second != 0 {
			t.Fatalf("after receive %d, a message is visible again after %s to %s; %s have passed", n, low, high,
				soonest)
		}
		soonest, latest = soonest+low, latest+high
	}
	if alone := time.Duration(q.MaxReceives) * q.Visibility; soonest < alone {
		t.Errorf("a message becomes a dead letter after %s, by the visibility timeout alone after %s", soonest, alone)
	}
	if latest > q.Retention*3/4 {
		t.Errorf("a message becomes a dead letter after up to %s, and is dropped after %s", latest, q.Retention)
	}
	if got := applier.RetryAfter(0, 0); got != time.Second {
		t.Errorf("after no receive: %s", got)
	}
}
