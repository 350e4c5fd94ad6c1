package publisher_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluicelimits/sluice/events"
	"github.com/sluicelimits/sluice/internal/control"
	"github.com/sluicelimits/sluice/internal/control/dynamo"
	"github.com/sluicelimits/sluice/internal/testkit/soak"
	"github.com/sluicelimits/sluice/streams/publisher"
	"github.com/sluicelimits/sluice/streams/streamstest"
)

var errThrottled = errors.New("throttled")

// world is a publisher with a topic that has the limits of SNS.
type world struct {
	t     *testing.T
	p     *publisher.Publisher
	meter streamstest.Meter
	keep  streamstest.Keeper

	mu    sync.Mutex
	taken []*events.Changed
	calls int
	fail  func(call int, e *events.Changed) error // the error of an event in a call, counted from 1
	whole func(call int) error                    // the error of a whole call
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{t: t}
	w.p = publisher.New(publisher.Config{
		Topic: w, Keep: &w.keep, Meter: &w.meter, Log: slog.New(slog.DiscardHandler),
		Now: func() time.Time { return streamstest.Written.Add(time.Second) },
	})
	return w
}

func (w *world) Publish(ctx context.Context, messages []events.Message) []error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.calls++
	size := 0
	for _, m := range messages {
		size += len(m.Body) + events.AttributeBytes
	}
	if len(messages) == 0 || len(messages) > events.MaxBatchEntries || size > events.MaxBatchBytes {
		w.t.Errorf("a call of %d messages and %d bytes", len(messages), size)
	}
	errs := make([]error, len(messages))
	for i, m := range messages {
		e, err := events.Decode(m.Body)
		if err != nil {
			w.t.Fatal(err)
		}
		changed, ok := e.(*events.Changed)
		if !ok || m.Attributes["type"] != string(changed.Type) {
			w.t.Fatalf("%T with attributes %v", e, m.Attributes)
		}
		if err = ctx.Err(); err == nil && w.whole != nil {
			err = w.whole(w.calls)
		}
		if err == nil && w.fail != nil {
			err = w.fail(w.calls, changed)
		}
		if errs[i] = err; err == nil {
			w.taken = append(w.taken, changed)
		}
	}
	return errs
}

// ids returns the ids of all accepted events, in order.
func (w *world) ids() []string {
	var ids []string
	for _, e := range w.taken {
		ids = append(ids, e.Header().ID)
	}
	return ids
}

func (w *world) wantPublished(ids ...string) {
	w.t.Helper()
	if got := w.ids(); !slices.Equal(got, ids) {
		w.t.Errorf("published %q, want %q", got, ids)
	}
}

func (w *world) handle(want int, deliveries ...control.Delivery) {
	w.t.Helper()
	done, err := w.p.Handle(w.t.Context(), deliveries)
	if done != want || (err == nil) != (want == len(deliveries)) {
		w.t.Fatalf("%d of %d done, %v; want %d", done, len(deliveries), err, want)
	}
}

func tenant(t *testing.T, id string, versions int) []control.Delivery {
	var bodies []string
	for v := range versions {
		bodies = append(bodies, fmt.Sprintf(`{"id":%q,"plan":"p%d"}`, id, v+1))
	}
	return streamstest.History(t, control.Tenants, id, bodies...)
}

// poison is a record that cannot be read.
func poison(sequence string) control.Delivery {
	return control.Delivery{Sequence: sequence, Raw: []byte(`{"odd":1}`), Err: &control.RecordError{
		Table: control.Tenants, Key: "odd", Sequence: sequence, Err: fmt.Errorf("%w: wrong hash", control.ErrBadItem)}}
}

// Guarantees that a change of a plan is one event, however many tenants have the plan, and that changes that cells do
// not need are no events.
func TestOneEventForEachChange(t *testing.T) {
	w := newWorld(t)
	batch := slices.Concat(
		streamstest.History(t, control.Plans, "pro", `{"id":"pro"}`),
		streamstest.History(t, control.Operations, "op1", `{"what":"reset"}`),
		streamstest.History(t, control.Cells, "eu-1", `{"weight":1}`),
		streamstest.History(t, control.Tenants, "acme", `{"id":"acme"}`, ""),
	)
	w.handle(5, batch...)
	w.wantPublished("plans/pro/1", "tenants/acme/1", "tenants/acme/2")
	if last := w.taken[2]; !last.Deleted || last.Body != nil {
		t.Errorf("the tombstone is %+v", last)
	}
	w.meter.Want(t, map[string]int64{"records_read": 5, "events_published": 3, "publish_calls": 2, "records_kept": 0,
		"records_again": 0})
	if took := w.meter.Times("publish_seconds"); len(took) != 3 || took[0] != time.Second {
		t.Errorf("publish_seconds %v", took)
	}
}

// Guarantees that a burst is sent in as few calls as SNS allows: ten events or 256 KB each.
func TestPacking(t *testing.T) {
	w := newWorld(t)
	var batch []control.Delivery
	for i := range 500 {
		batch = append(batch, tenant(t, fmt.Sprintf("t%d", i), 1)...)
	}
	w.handle(500, batch...)
	if w.calls != 50 || len(w.taken) != 500 {
		t.Errorf("%d events in %d calls, want 500 in 50", len(w.taken), w.calls)
	}
	large := newWorld(t)
	batch = nil
	for i := range 4 {
		body := fmt.Sprintf(`{"id":"p%d","x":%q}`, i, strings.Repeat("x", 120<<10))
		batch = append(batch, streamstest.History(t, control.Plans, fmt.Sprintf("p%d", i), body)...)
	}
	large.handle(4, batch...)
	if large.calls != 2 || len(large.taken) != 4 {
		t.Errorf("%d large events in %d calls, want 4 in 2", len(large.taken), large.calls)
	}
}

// Guarantees that a poison record in a batch becomes a dead letter, whole and with what is known about it, is counted,
// and does not stop the other records.
func TestPoisonRecordInMidBatch(t *testing.T) {
	w := newWorld(t)
	batch := slices.Concat(tenant(t, "a", 1), []control.Delivery{poison("7")}, tenant(t, "b", 1))
	w.handle(3, batch...)
	w.wantPublished("tenants/a/1", "tenants/b/1")
	items := w.keep.Items()
	if len(items) != 1 || items[0].ID != "7" || items[0].Table != "tenants" || items[0].Key != "odd" ||
		string(items[0].Data) != `{"odd":1}` ||
		!strings.Contains(items[0].Reason, "wrong hash") || items[0].By != "publisher" {
		t.Errorf("kept %+v", items)
	}
	w.meter.Want(t, map[string]int64{"records_kept": 1, "records_again": 0})
}

// Guarantees that a poison record that cannot be stored as a dead letter is delivered again, with all records after it,
// so that it is never dropped.
func TestPoisonThatCannotBeKept(t *testing.T) {
	w := newWorld(t)
	away := errors.New("queue away")
	w.keep.Away(away)
	batch := slices.Concat(tenant(t, "a", 1), []control.Delivery{poison("7")}, tenant(t, "b", 1))
	done, err := w.p.Handle(t.Context(), batch)
	if done != 1 || !errors.Is(err, away) {
		t.Fatalf("%d done, %v; want 1, %v", done, err, away)
	}
	w.wantPublished("tenants/a/1", "tenants/b/1")
	w.meter.Want(t, map[string]int64{"records_kept": 0, "records_again": 2})
	w.keep.Away(nil)
	w.handle(2, batch[done:]...)
	if len(w.keep.Items()) != 1 {
		t.Errorf("kept %v", w.keep.Items())
	}
}

// Guarantees that the same batch twice gives the same events twice, byte for byte, so that subscribers can recognise
// them.
func TestSameBatchTwice(t *testing.T) {
	w := newWorld(t)
	batch := tenant(t, "a", 2)
	w.handle(2, batch...)
	w.handle(2, batch...)
	w.wantPublished("tenants/a/1", "tenants/a/2", "tenants/a/1", "tenants/a/2")
	one, err := events.Encode(w.taken[0])
	if err != nil {
		t.Fatal(err)
	}
	again, err := events.Encode(w.taken[2])
	if err != nil || string(one) != string(again) {
		t.Errorf("%v\n%s\n%s", err, one, again)
	}
}

// Guarantees that calls are repeated with growing waits while SNS throttles, and that all events arrive after that.
func TestThrottled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.whole = func(call int) error {
			if call <= 20 {
				return errThrottled
			}
			return nil
		}
		var batch []control.Delivery
		for i := range 30 {
			batch = append(batch, tenant(t, fmt.Sprintf("t%d", i), 1)...)
		}
		began := time.Now()
		w.handle(30, batch...)
		took := time.Since(began)
		if len(w.taken) != 30 || took < 15*time.Second || took > 80*time.Second {
			t.Errorf("%d events were published after %s", len(w.taken), took)
		}
		w.meter.Want(t, map[string]int64{"publish_calls": 23, "publish_retries": 200, "events_published": 30})
	})
}

// Guarantees that a publisher that is throttled answers before its deadline, and that all records that were not
// accepted are delivered again.
func TestThrottledUntilTheTimeIsOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.fail = func(_ int, e *events.Changed) error {
			if e.Key == "b" {
				return errThrottled
			}
			return nil
		}
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		defer cancel()
		batch := slices.Concat(tenant(t, "a", 1), tenant(t, "b", 2), tenant(t, "c", 1))
		began := time.Now()
		done, err := w.p.Handle(ctx, batch)
		if done != 1 || !errors.Is(err, errThrottled) && !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("%d done, %v; want 1", done, err)
		}
		if took := time.Since(began); took > 29*time.Second || took < 20*time.Second {
			t.Errorf("it took %s, want most of 29s", took)
		}
		w.wantPublished("tenants/a/1", "tenants/c/1")
	})
}

// Guarantees that an event that the topic will never accept becomes a dead letter, and that the next versions of its
// item are sent.
func TestRefusedEvent(t *testing.T) {
	w := newWorld(t)
	w.fail = func(_ int, e *events.Changed) error {
		if e.Header().ID == "tenants/a/1" {
			return fmt.Errorf("%w: InvalidParameter", events.ErrRefused)
		}
		return nil
	}
	w.handle(3, slices.Concat(tenant(t, "a", 2), tenant(t, "b", 1))...)
	w.wantPublished("tenants/b/1", "tenants/a/2")
	if items := w.keep.Items(); len(items) != 1 || items[0].Key != "a" ||
		!strings.Contains(string(items[0].Data), `"plan":"p1"`) {
		t.Errorf("kept %+v", items)
	}
	w.meter.Want(t, map[string]int64{"events_published": 2, "records_kept": 1})
}

// Guarantees that the events of one item are sent in the order of their versions, whatever fails in between, and that
// none is left out.
func TestOrderOfEachItem(t *testing.T) {
	for seed := range soak.Times(uint64(50)) {
		synctest.Test(t, func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 1))
			w := newWorld(t)
			w.fail = func(int, *events.Changed) error {
				if r.IntN(3) == 0 {
					return errThrottled
				}
				return nil
			}
			queues := map[string][]control.Delivery{}
			for i := range 7 {
				key := fmt.Sprintf("t%d", i)
				queues[key] = tenant(t, key, 1+r.IntN(5))
			}
			var batch []control.Delivery
			for len(queues) > 0 { // in order for each item, in any order between items
				key := fmt.Sprintf("t%d", r.IntN(7))
				if q := queues[key]; len(q) > 0 {
					batch, queues[key] = append(batch, q[0]), q[1:]
				} else {
					delete(queues, key)
				}
			}
			w.handle(len(batch), batch...)
			last := map[string]int64{}
			for _, e := range w.taken {
				if e.ItemVersion != last[e.Key]+1 {
					t.Fatalf("seed %d: %s version %d after %d", seed, e.Key, e.ItemVersion, last[e.Key])
				}
				last[e.Key] = e.ItemVersion
			}
			if len(w.taken) != len(batch) {
				t.Fatalf("seed %d: %d events of %d records", seed, len(w.taken), len(batch))
			}
		})
	}
}

// Guarantees that messages for which the topic returns no outcome are published again.
func TestShortAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		short := topicFunc(func(ctx context.Context, m []events.Message) []error {
			if len(m) > 1 {
				_ = w.Publish(ctx, m[:1])
				return []error{nil}
			}
			return w.Publish(ctx, m)
		})
		p := publisher.New(publisher.Config{Topic: short, Keep: &w.keep, Meter: &w.meter,
			Log: slog.New(slog.DiscardHandler)})
		if done, err := p.Handle(t.Context(), slices.Concat(tenant(t, "a", 1), tenant(t, "b", 1))); done != 2 ||
			err != nil {
			t.Fatal(done, err)
		}
		w.wantPublished("tenants/a/1", "tenants/b/1")
	})
}

type topicFunc func(context.Context, []events.Message) []error

func (f topicFunc) Publish(ctx context.Context, m []events.Message) []error { return f(ctx, m) }

// decoded is a decoder that returns these records.
type decoded []control.Delivery

func (d decoded) Decode([]byte) ([]control.Delivery, error) { return d, nil }

// Guarantees that Lambda gets the sequence number of the first record to deliver again, and an empty list if there is
// none: anything else would repeat the batch for ever, or lose it.
func TestInvoke(t *testing.T) {
	w := newWorld(t)
	out, err := w.p.Invoke(t.Context(), decoded(tenant(t, "a", 2)), nil)
	if err != nil || string(out) != `{"batchItemFailures":[]}` {
		t.Errorf("%s, %v", out, err)
	}
	w.keep.Away(errors.New("away"))
	batch := slices.Concat(tenant(t, "a", 1), []control.Delivery{poison("7"), poison("8")})
	out, err = w.p.Invoke(t.Context(), decoded(batch), nil)
	if err != nil || string(out) != `{"batchItemFailures":[{"itemIdentifier":"7"}]}` {
		t.Errorf("%s, %v", out, err)
	}
	if out, err = w.p.Invoke(t.Context(), decoded{poison("")}, nil); err == nil {
		t.Errorf("%s for a record that cannot be named", out)
	}
}

// Guarantees that records of other tables, and items that a time to live has removed, are harmless: they become dead
// letters, and are not published.
func TestForeignRecords(t *testing.T) {
	w := newWorld(t)
	d := dynamo.NewDecoder(map[control.Table]string{control.Tenants: "tenants"})
	const record = `{"eventName":%q,"eventSource":"aws:dynamodb",` +
		`"eventSourceARN":"arn:aws:dynamodb:eu-west-1:123456789012:table/%s/stream/2026-11-21T00:00:00.000",` +
		`"userIdentity":{"type":"Service","principalId":"dynamodb.amazonaws.com"},"dynamodb":{"SequenceNumber":"%d",` +
		`"Keys":{"id":{"S":"acme"}},"OldImage":{"id":{"S":"acme"}}}}`
	event := `{"Records":[` + fmt.Sprintf(record, "INSERT", "other", 1) + "," +
		fmt.Sprintf(record, "REMOVE", "tenants", 2) + `]}`
	out, err := w.p.Invoke(t.Context(), d, []byte(event))
	if err != nil || string(out) != `{"batchItemFailures":[]}` || w.calls != 0 {
		t.Errorf("%s, %v, %d calls", out, err, w.calls)
	}
	if items := w.keep.Items(); len(items) != 2 || items[0].ID != "1" || items[1].Key != "acme" {
		t.Errorf("kept %+v", items)
	}
	if out, err := w.p.Invoke(t.Context(), d, []byte(`{"detail":"a schedule"}`)); err == nil {
		t.Errorf("the answer to an event that is not a batch is %s", out)
	}
}
