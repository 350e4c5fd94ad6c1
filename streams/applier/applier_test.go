package applier_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sluicelimits/sluice/events"
	"github.com/sluicelimits/sluice/internal/cell/table"
	"github.com/sluicelimits/sluice/internal/control"
	"github.com/sluicelimits/sluice/internal/plan"
	"github.com/sluicelimits/sluice/internal/plan/shares"
	"github.com/sluicelimits/sluice/streams/applier"
	"github.com/sluicelimits/sluice/streams/delivery"
	"github.com/sluicelimits/sluice/streams/streamstest"
)

var errAway = errors.New("the table is unavailable")

// world is an applier with a table that can fail.
type world struct {
	*table.Memory
	t       *testing.T
	applier *applier.Applier
	meter   streamstest.Meter
	keep    streamstest.Keeper
	now     time.Time
	ids     int

	mu     sync.Mutex
	items  map[string]control.Item // of the control tables, by table/key
	away   error                   // of the control tables
	reads  int
	before func(step *table.Step) error // called before a commit
	after  func(step *table.Step) error // called after a commit that was made: its answer is lost
}

func (w *world) Commit(ctx context.Context, step table.Step) error {
	w.mu.Lock()
	before, after := w.before, w.after
	w.mu.Unlock()
	if before != nil {
		if err := before(&step); err != nil {
			return err
		}
	}
	err := w.Memory.Commit(ctx, step)
	if err == nil && after != nil {
		err = after(&step)
	}
	return err
}

func newWorld(t *testing.T) *world {
	t.Helper()
	memory := table.NewMemory(0)
	w := &world{Memory: memory, t: t, now: streamstest.Written.Add(2 * time.Second), items: map[string]control.Item{}}
	w.applier = w.newApplier()
	return w
}

// newApplier returns a further applier of the same cell.
func (w *world) newApplier() *applier.Applier {
	a := applier.New(applier.Config{Cell: "eu-1", Tables: tables{w}, Store: w, Keep: &w.keep, Meter: &w.meter,
		Log: slog.New(slog.DiscardHandler), Now: func() time.Time { return w.now }})
	return a
}

// tables holds the control tables of a world.
type tables struct{ *world }

func (t tables) Get(ctx context.Context, table control.Table, key string) (control.Item, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.reads++
	i, ok := t.items[string(table)+"/"+key]
	switch {
	case ctx.Err() != nil:
		return control.Item{}, ctx.Err()
	case t.away != nil:
		return control.Item{}, t.away
	case !ok:
		return control.Item{}, fmt.Errorf("get: %w", control.ErrNotFound)
	}
	return i, nil
}

// storeItem adds the item of a record to the control tables, unless they have a newer version.
func (w *world) storeItem(d control.Delivery) {
	w.mu.Lock()
	defer w.mu.Unlock()
	i := d.Record.New
	if at := string(i.Table) + "/" + i.Key; w.items[at].Version < i.Version {
		w.items[at] = i
	}
}

// messages returns the messages of records, each with an id of its own, and adds the items to the control tables.
func (w *world) messages(deliveries ...control.Delivery) []delivery.Message {
	w.t.Helper()
	var out []delivery.Message
	for _, d := range deliveries {
		w.storeItem(d)
		body, err := events.Encode(d.Record.Event())
		if err != nil {
			w.t.Fatal(err)
		}
		out = append(out, w.message(string(body)))
	}
	return out
}

func (w *world) message(body string) delivery.Message {
	w.ids++
	return delivery.Message{ID: fmt.Sprintf("m%d", w.ids), Body: []byte(body)}
}

// handle fails unless exactly these messages have to be delivered again.
func (w *world) handle(messages []delivery.Message, again ...string) {
	w.t.Helper()
	failed, err := w.applier.Handle(w.t.Context(), messages)
	if !slices.Equal(failed, again) || (err == nil) != (len(again) == 0) {
		w.t.Fatalf("%q have to come again, %v; want %q", failed, err, again)
	}
}

// at fails unless the document has the given version; 0 means that it does not exist.
func (w *world) at(kind table.Kind, id string, version int64) table.Document {
	w.t.Helper()
	d, err := w.Get(w.t.Context(), table.Ref{Kind: kind, ID: id})
	if err != nil || d[0].Version != version {
		w.t.Fatalf("%s %q is at version %d, %v; want %d", kind, id, d[0].Version, err, version)
	}
	return d[0]
}

// head returns the number of transactions.
func (w *world) head() int64 {
	h, err := w.Head(w.t.Context())
	if err != nil && !errors.Is(err, table.ErrEmpty) {
		w.t.Fatal(err)
	}
	return h.Seq
}

func tenant(t *testing.T, id string, versions int) []control.Delivery {
	var bodies []string
	for v := range versions {
		bodies = append(bodies, fmt.Sprintf(`{"id":%q,"plan":"p%d"}`, id, v+1))
	}
	return streamstest.History(t, control.Tenants, id, bodies...)
}

func key(t *testing.T, id, hash string) []control.Delivery {
	return streamstest.History(t, control.Keys, id,
		fmt.Sprintf(`{"id":%q,"hash":%q,"pepper":"p","tenant":"acme"}`, id, strings.Repeat(hash, 64)))
}

// Guarantees that all changes of one call are one transaction, with each document as it was written, and that the time
// until it is measured.
func TestApply(t *testing.T) {
	w := newWorld(t)
	w.handle(w.messages(slices.Concat(
		streamstest.History(t, control.Plans, "p1", `{"id":"p1"}`),
		streamstest.History(t, control.Plans, events.SettingsKey, `{"routes":[]}`),
		streamstest.History(t, control.Plans, events.CanaryKey, `{"at":"now"}`),
		streamstest.History(t, control.Cells, events.SharesKey, `{"version":2}`),
		tenant(t, "acme", 2), key(t, "k1", "a"),
	)...))
	w.at(plan.KindPlan, "p1", 1)
	w.at(plan.KindSettings, plan.SettingsID, 1)
	w.at("canary", "canary", 1)
	w.at("shares", "shares", 1)
	w.at(plan.KindKey, "k1", 1)
	if d := w.at(plan.KindTenant, "acme", 2); string(d.Body) != `{"id":"acme","plan":"p2"}` {
		t.Errorf("the tenant is %s", d.Body)
	}
	if w.head() != 1 {
		t.Errorf("%d transactions, want 1", w.head())
	}
	w.meter.Want(t, map[string]int64{"messages_read": 7, "documents_applied": 6, "messages_old": 1, "messages_kept": 0,
		"messages_again": 0, "events_unknown": 0})
	if took := w.meter.Times("apply_seconds"); len(took) != 6 || took[0] != 2*time.Second {
		t.Errorf("apply_seconds %v", took)
	}
}

// Guarantees that the same batch twice writes once.
func TestSameBatchTwice(t *testing.T) {
	w := newWorld(t)
	batch := w.messages(slices.Concat(tenant(t, "a", 1), tenant(t, "b", 1))...)
	w.handle(append(batch, batch...))
	w.meter.Want(t, map[string]int64{"documents_applied": 2, "messages_old": 2})
	w.handle(batch)
	w.handle(append(batch, batch...))
	if w.head() != 1 {
		t.Errorf("%d transactions, want 1", w.head())
	}
	w.meter.Want(t, map[string]int64{"documents_applied": 2, "messages_old": 8})
	if took := w.meter.Times("apply_seconds"); len(took) != 2 {
		t.Errorf("apply_seconds %v, want one for each document", took)
	}
}

// Guarantees that batches in reverse order end in the newest versions, tombstones included, and that no older version
// comes back.
func TestBatchesInReverse(t *testing.T) {
	w := newWorld(t)
	gone := streamstest.History(t, control.Tenants, "gone", `{"id":"gone"}`, "")
	all := slices.Concat(tenant(t, "a", 4), gone)
	slices.Reverse(all)
	for _, d := range all {
		w.handle(w.messages(d))
	}
	w.at(plan.KindTenant, "a", 4)
	if d := w.at(plan.KindTenant, "gone", 2); !d.Deleted {
		t.Errorf("a deleted tenant is back: %+v", d)
	}
	if w.head() != 2 {
		t.Errorf("%d transactions, want 2", w.head())
	}
}

// Guarantees that an event of an unknown version or type becomes a dead letter, is counted and not delivered again, and
// that the others are applied.
func TestRecordOfAnUnknownVersion(t *testing.T) {
	w := newWorld(t)
	const next = `{"type":"tenant.changed","version":2,"id":"tenants/a/1","time":"2026-11-21T18:00:00.000000Z",` +
		`"what":"ever"}`
	const odd = `{"type":"moon.changed","version":1,"id":"x","time":"2026-11-21T18:00:00.000000Z"}`
	w.handle(slices.Concat([]delivery.Message{w.message(next)}, w.messages(tenant(t, "b", 1)...),
		[]delivery.Message{w.message(odd)}))
	w.at(plan.KindTenant, "b", 1)
	w.meter.Want(t, map[string]int64{"events_unknown": 2, "messages_kept": 2, "documents_applied": 1,
		"messages_again": 0})
	items := w.keep.Items()
	if len(items) != 2 || string(items[0].Data) != next || items[0].Cell != "eu-1" ||
		!strings.Contains(items[0].Reason, "tenant.changed version 2") {
		t.Errorf("kept %+v", items)
	}
}

// Guarantees that messages that are not events, or whose document no cell could use, become dead letters and are not
// delivered again.
func TestPoisonMessages(t *testing.T) {
	w := newWorld(t)
	wrapped := `{"Type":"Notification","Message":"{}"}` // without raw delivery
	noHash := control.Item{Table: control.Keys, Key: "k1", Version: 1, Actor: "tester", Reason: "test",
		ChangedAt: streamstest.Written, Body: []byte(`{"id":"k1","tenant":"acme"}`)}
	noHash.Hash = noHash.ComputeHash()
	bad := w.messages(control.Delivery{Record: &control.Record{New: noHash}})
	none := []delivery.Message{w.message("not JSON"), w.message(wrapped)}
	w.handle(slices.Concat(w.messages(tenant(t, "b", 1)...), none, bad))
	w.at(plan.KindTenant, "b", 1)
	w.at(plan.KindKey, "k1", 0)
	w.meter.Want(t, map[string]int64{"messages_kept": 3, "documents_applied": 1, "messages_again": 0})
}

// Guarantees that messages with shares and placements that this version cannot read become dead letters and are logged,
// and never replace those of the cell, which stay in force, after a restart, too. Later messages are applied.
func TestUnreadableShares(t *testing.T) {
	placement := shares.PlacementKey("acme")
	const first, second = `{"version":2,"tenant":"acme","generations":[{"epoch":0,"from":1}]}`,
		`{"version":2,"tenant":"acme","generations":[{"epoch":3,"from":7}]}`
	for _, tt := range []struct {
		name             string
		key              string
		good, bad, again string
	}{
		{"shares of a newer layout", events.SharesKey, `{"version":2}`, `{"version":3,"epoch":9}`,
			`{"version":2,"done":["x"]}`},
		{"shares of no layout", events.SharesKey, `{"version":2}`, `{}`, `{"version":2,"done":["x"]}`},
		{"shares that were deleted", events.SharesKey, `{"version":2}`, "", `{"version":2,"done":["x"]}`},
		{"a placement of a newer layout", placement, first, `{"version":3,"tenant":"acme"}`, second},
		{"a placement of no layout", placement, first, `{"anything":1}`, second},
		{"a placement of another tenant", placement, first, strings.Replace(second, "acme", "other", 1), second},
		{"a placement that was deleted", placement, first, "", second},
	} {
		t.Run(tt.name, func(t *testing.T) {
			ref, _ := table.RefOf(control.Cells, tt.key)
			history := streamstest.History(t, control.Cells, tt.key, tt.good, tt.bad, tt.again)
			w := newWorld(t)
			w.handle(w.messages(history[0]))
			w.handle(w.messages(history[1], history[1]))
			if d := w.at(ref.Kind, ref.ID, 1); string(d.Body) != string(history[0].Record.New.Body) {
				t.Errorf("the cell has %s", d.Body)
			}
			w.meter.Want(t, map[string]int64{"messages_kept": 2, "documents_applied": 1, "messages_again": 0})
			if items := w.keep.Items(); len(items) != 2 || items[0].Key != tt.key || items[0].Reason == "" {
				t.Errorf("kept %+v", items)
			}
			w.handle(w.messages(history[2]))
			w.at(ref.Kind, ref.ID, 3)

			// A cell that has no placement of a tenant knows that there was none. One that has no shares knows nothing.
			w = newWorld(t)
			w.handle(w.messages(history[1]))
			if tt.key == placement {
				w.at(ref.Kind, ref.ID, 0)
			} else if d := w.at(ref.Kind, ref.ID, 2); !d.Deleted {
				t.Errorf("the cell has %+v, want that it knows of no shares", d)
			}
			w.meter.Want(t, map[string]int64{"messages_kept": 1, "messages_again": 0})
			w.handle(w.messages(history[2]))
			w.at(ref.Kind, ref.ID, 3)
		})
	}
}

// Guarantees that unreadable shares are delivered again if the cell's table does not say whether it has shares.
func TestUnreadableSharesComeAgain(t *testing.T) {
	w := newWorld(t)
	bad := w.messages(streamstest.History(t, control.Cells, events.SharesKey, `{"version":3}`)...)
	w.before = func(*table.Step) error { return errAway }
	w.handle(bad, bad[0].ID)
	w.before = nil
	w.handle(bad)
	w.at("shares", "shares", 1)
}

// Guarantees that a message that cannot be stored as a dead letter is delivered again, and no other message.
func TestPoisonThatCannotBeKept(t *testing.T) {
	w := newWorld(t)
	w.keep.Away(errAway)
	bad := w.message("not JSON")
	w.handle(append(w.messages(tenant(t, "b", 1)...), bad), bad.ID)
	w.at(plan.KindTenant, "b", 1)
	w.keep.Away(nil)
	w.handle([]delivery.Message{bad})
}

// Guarantees that a document that is refused only in its transaction, here the second of two keys with one hash, is
// found among others, all of which are applied.
func TestRefusedDocument(t *testing.T) {
	w := newWorld(t)
	w.handle(w.messages(key(t, "k1", "a")...))
	var batch []control.Delivery
	for i := range 9 {
		batch = append(batch, tenant(t, fmt.Sprintf("t%d", i), 1)...)
	}
	thief := w.messages(key(t, "k2", "a")...)
	w.handle(slices.Concat(w.messages(batch[:6]...), thief, thief, w.messages(batch[6:]...)))
	for i := range 9 {
		w.at(plan.KindTenant, fmt.Sprintf("t%d", i), 1)
	}
	w.at(plan.KindKey, "k2", 0)
	if items := w.keep.Items(); len(items) != 2 || items[0].ID != thief[0].ID || items[0].Key != "k2" ||
		strings.Contains(items[0].Reason, "aaaa") {
		t.Errorf("kept %+v", items)
	}
}

// Guarantees that events for other subscribers are finished and do not become dead letters.
func TestOtherEvents(t *testing.T) {
	w := newWorld(t)
	at := streamstest.Written
	body, err := events.Encode(&events.AuditRecord{Time: at, Table: events.Tenants, Key: "acme", ItemVersion: 1,
		Actor: "jo", Reason: "new", After: []byte(`{}`), Hash: strings.Repeat("d", 64)})
	if err != nil {
		t.Fatal(err)
	}
	w.handle([]delivery.Message{w.message(string(body))})
	w.meter.Want(t, map[string]int64{"messages_other": 1, "messages_kept": 0})
}

// Guarantees that messages are delivered again while the table is throttled, and are applied after that.
func TestTableThrottled(t *testing.T) {
	w := newWorld(t)
	w.before = func(*table.Step) error { return errAway }
	batch := w.messages(tenant(t, "a", 1)[0], tenant(t, "b", 1)[0])
	w.handle(batch, batch[0].ID, batch[1].ID)
	if w.head() != 0 {
		t.Error("the applier wrote although the table was throttled")
	}
	w.before = nil
	w.handle(batch)
	w.at(plan.KindTenant, "b", 1)
	w.meter.Want(t, map[string]int64{"messages_again": 2, "messages_kept": 0, "documents_applied": 2})
}

// Guarantees that if one of several transactions of a batch fails, only its own messages are delivered again.
func TestOneOfSeveralTransactionsFails(t *testing.T) {
	w := newWorld(t)
	w.before = func(step *table.Step) error {
		if step.Entry.Seq == 2 {
			return errAway
		}
		return nil
	}
	var batch []control.Delivery
	for i := range 100 {
		batch = append(batch, tenant(t, fmt.Sprintf("t%03d", i), 1)...)
	}
	messages := w.messages(batch...)
	failed, err := w.applier.Handle(t.Context(), messages)
	if err == nil || len(failed) != 4 || failed[0] != messages[96].ID {
		t.Fatalf("%q, %v; want those of the second transaction", failed, err)
	}
	w.at(plan.KindTenant, "t095", 1)
}

// Guarantees that an applier that dies during a transaction leaves all of it or nothing, and that the redelivered
// messages end in the same state in both cases.
func TestApplierDiesInMidTransaction(t *testing.T) {
	for _, tt := range []struct {
		name string
		died func(w *world)
		head int64 // after its death
	}{
		{"before it is written", func(w *world) { w.before = func(*table.Step) error { return context.Canceled } },
			0},
		{"after it is written", func(w *world) { w.after = func(*table.Step) error { return context.Canceled } },
			1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld(t)
			batch := w.messages(slices.Concat(tenant(t, "a", 1), tenant(t, "b", 2), key(t, "k1", "a"))...)
			tt.died(w)
			if failed, err := w.applier.Handle(t.Context(), batch); len(failed) != len(batch) || err == nil {
				t.Fatalf("%q come again, %v; want all", failed, err)
			}
			if w.head() != tt.head {
				t.Fatalf("%d transactions, want %d", w.head(), tt.head)
			}
			w.before, w.after = nil, nil
			w.applier = w.newApplier()
			w.handle(batch)
			w.at(plan.KindTenant, "a", 1)
			w.at(plan.KindTenant, "b", 2)
			w.at(plan.KindKey, "k1", 1)
			w.at(table.KindKeyHash, strings.Repeat("a", 64), 1)
			if w.head() != 1 {
				t.Errorf("%d transactions, want 1", w.head())
			}
		})
	}
}

// Guarantees that two concurrent appliers, with the same and with different messages, lose nothing, leave no gap in the
// log, and end in the newest versions.
func TestTwoAppliersAtOnce(t *testing.T) {
	w := newWorld(t)
	const tenants, versions = 8, 6
	batches := make([][]delivery.Message, 0, 2*versions)
	for v := range versions {
		var batch []control.Delivery
		for i := range tenants {
			batch = append(batch, tenant(t, fmt.Sprintf("t%d", i), versions)[v])
		}
		batches = append(batches, w.messages(batch...))
	}
	var all sync.WaitGroup
	for n := range 3 {
		a := w.newApplier()
		all.Go(func() {
			for i := range batches {
				at := i
				if n > 0 { // another order
					at = len(batches) - 1 - i
				}
				if failed, err := a.Handle(t.Context(), batches[at]); err != nil {
					t.Errorf("%q come again: %v", failed, err)
				}
			}
		})
	}
	all.Wait()
	for i := range tenants {
		w.at(plan.KindTenant, fmt.Sprintf("t%d", i), versions)
	}
	log, err := w.Log(t.Context(), 0, w.head())
	if err != nil || int64(len(log)) != w.head() {
		t.Fatalf("%d entries of %d, %v", len(log), w.head(), err)
	}
	last := map[table.Ref]int64{}
	for _, e := range log {
		for _, c := range e.Changes {
			if c.Version <= last[c.Ref] {
				t.Errorf("entry %d: %s %q went from %d to %d", e.Seq, c.Kind, c.ID, last[c.Ref], c.Version)
			}
			last[c.Ref] = c.Version
		}
	}
}

// Guarantees that clocks decide nothing: versions win by their numbers if they are written by a clock an hour behind,
// and then ahead, and applied by one an hour behind.
func TestClocksAnHourOff(t *testing.T) {
	w := newWorld(t)
	w.now = streamstest.Written.Add(-time.Hour)
	h := tenant(t, "a", 3)
	h[1].Record.New.ChangedAt = streamstest.Written.Add(-time.Hour)
	h[0].Record.New.ChangedAt = streamstest.Written.Add(time.Hour)
	for i := range h[:2] {
		h[i].Record.New.Hash = h[i].Record.New.ComputeHash()
	}
	for _, i := range []int{1, 0, 2, 1} {
		w.handle(w.messages(h[i]))
	}
	w.at(plan.KindTenant, "a", 3)
	if took := w.meter.Times("apply_seconds"); len(took) != 2 || took[0] != -time.Hour {
		t.Errorf("apply_seconds %v", took)
	}
}

// Guarantees that an applier answers before its deadline.
func TestTimeIsOver(t *testing.T) {
	w := newWorld(t)
	// less than the time that is reserved for the answer
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	batch := w.messages(tenant(t, "a", 1)...)
	if failed, err := w.applier.Handle(ctx, batch); len(failed) != 1 || !errors.Is(err, context.DeadlineExceeded) ||
		ctx.Err() != nil {
		t.Errorf("with little time left, the messages to deliver again are %q, %v", failed, err)
	}
}

// Guarantees that Lambda gets the ids of the messages to deliver again, and that an event that is not from SQS is an
// error.
func TestInvoke(t *testing.T) {
	w := newWorld(t)
	m := w.messages(tenant(t, "a", 1)...)[0]
	event, err := json.Marshal(map[string]any{"Records": []map[string]string{
		{"messageId": m.ID, "body": string(m.Body), "eventSource": "aws:sqs"},
		{"messageId": "bad", "body": "{", "eventSource": "aws:sqs"},
	}})
	if err != nil {
		t.Fatal(err)
	}
	w.keep.Away(errAway)
	if out, err := w.applier.Invoke(t.Context(), event); err != nil ||
		string(out) != `{"batchItemFailures":[{"itemIdentifier":"bad"}]}` {
		t.Errorf("%s, %v", out, err)
	}
	w.keep.Away(nil)
	if out, err := w.applier.Invoke(t.Context(), event); err != nil || string(out) != `{"batchItemFailures":[]}` {
		t.Errorf("%s, %v", out, err)
	}
	if out, err := w.applier.Invoke(t.Context(), []byte(`{}`)); !errors.Is(err, delivery.ErrMalformed) {
		t.Errorf("%s, %v", out, err)
	}
}

// FuzzHandle guarantees that no message makes the applier panic, and that each message is applied, ignored, made a dead
// letter, or delivered again.
func FuzzHandle(f *testing.F) {
	for _, d := range streamstest.History(f, control.Tenants, "acme", `{"id":"acme"}`, "") {
		body, err := events.Encode(d.Record.Event())
		if err != nil {
			f.Fatal(err)
		}
		f.Add(body)
	}
	f.Add([]byte(`{"type":"a","version":9}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		w := newWorld(t)
		w.handle([]delivery.Message{{ID: "m", Body: body}})
		if n := w.meter.Of("documents_applied") + w.meter.Of("messages_other") + w.meter.Of("messages_kept"); n != 1 {
			t.Fatalf("the message has %d outcomes, want 1: %q", n, body)
		}
	})
}
