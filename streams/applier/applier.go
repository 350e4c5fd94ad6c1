// Package applier writes the changes that arrive in a cell's queue to the cell's configuration.
//
// Guarantees:
//
//   - Only items of the control tables are applied, never the content of a message: see below.
//   - A document is replaced if and only if the item is newer. Messages may arrive twice, in any order, late, and at
//     several appliers at once. If an applier ends after its write, repeating the write is harmless.
//   - The changes of one call are written in as few transactions as possible, each with its entry of the change log. A
//     message is finished when its transaction is.
//   - An event of an unknown type or version, and a message that is not an event or not a document, become dead letters
//     ([delivery.Keeper]). They are counted and finished, and other messages do not wait for them. If storing a dead
//     letter fails, its message is delivered again.
//   - Shares and placements that this version cannot read become dead letters, too. They never replace documents that
//     it can read, so the shares that the cell knows stay in force. Reconcile writes the newer ones to the cell once
//     they can be read.
//   - If the table does not accept a transaction, all messages that are not known to be finished are delivered again:
//     after a second, and then less and less often ([RetryAfter]).
//
// # What is trusted
//
// The applier uses a message only as a notice that an item has changed. If it used the content, whoever may publish to
// the topic or send to the queue could make an API key or remove a limit. The applier therefore reads each item that a
// message names from its control table, with a consistent read, and applies what it finds, which may be newer than the
// message. It applies nothing that the control tables do not have: no higher version, and no other content. A genuine
// event that somebody sends again does no harm.
//
// A message becomes a dead letter and counts as forged (events_forged) if there is no such item, if the item has a
// lower version, or if the item has another content in the same version. This works for messages of every release,
// however long they were in the queue. Messages need no signature.
//
// The alternative is that the publisher and the balancer sign events. A signature would save the read, which costs 1
// read unit for each 4 KB and a round trip to the control region. But a signing key would have to be created,
// restricted to two roles, distributed to every cell, and rotated; and unsigned messages of the previous release would
// still need the read. A signature also proves only that a version was written, not that it still exists: after a
// restore of the control tables, signed events would bring back versions that the restore removed.
//
// While the control region does not answer, messages wait in the queue and are delivered again. Nothing can be changed
// during that time, and no decision waits for it.
//
// Metrics: messages_read, documents_applied, messages_old (the cell has the version, or a newer one), messages_other
// (events without a document), events_unknown, events_forged, messages_kept (all dead letters, including those of the
// two metrics before), messages_again (to be delivered again), apply_seconds (from the write of a change in the control
// tables to when it was in the cell's table).
package applier

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/sluicelimits/sluice/events"
	"github.com/sluicelimits/sluice/internal/cell/table"
	"github.com/sluicelimits/sluice/internal/control"
	"github.com/sluicelimits/sluice/streams/delivery"
)

// Tables is the part of [control.Tables] that the applier uses.
type Tables interface {
	Get(ctx context.Context, t control.Table, key string) (control.Item, error)
}

// acknowledger is the part of an [Acknowledger] that Invoke uses.
type acknowledger interface {
	Prepare(ctx context.Context) error
	Run(ctx context.Context) (wrote bool, err error)
}

// Config sets up an Applier. Cell, Tables, Store, Keep and Meter are required.
type Config struct {
	Cell   string // id of the cell, for dead letters
	Tables Tables // the control tables
	Store  table.Store
	Keep   delivery.Keeper
	Meter  delivery.Meter

	Acknowledger acknowledger // called by Invoke; if nil, Invoke does not acknowledge shares
	Delayer      Delayer      // called by Invoke; if nil, failed messages come after the queue's visibility timeout

	Log    *slog.Logger     // default slog.Default()
	Now    func() time.Time // default time.Now; log entries have this time, too
	Random func() float64   // 0 up to 1, for the jitter of Delayer's delays; default rand.Float64
	Spare  time.Duration    // the part of a call's time that is reserved for its answer; 0 means 1 s
}

// Applier applies events to one cell. It is safe for concurrent use. Make it with New.
type Applier struct{ c Config }

// New makes an applier.
func New(c Config) *Applier {
	if c.Log == nil {
		c.Log = slog.Default()
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.Random == nil {
		c.Random = rand.Float64
	}
	if c.Spare == 0 {
		c.Spare = time.Second
	}
	return &Applier{c}
}

// report is a message that reports the change of an item.
type report struct {
	message *delivery.Message
	event   *events.Changed
	item    control.Ref
}

// change is the document that a message names, as the control tables have it.
type change struct {
	message  *delivery.Message
	key      string // of the item
	document table.Document
	written  time.Time // when the item was written
}

// run is the state of one call of Handle.
type run struct {
	*Applier
	failed     []string // ids of the messages that must be delivered again
	cause      error    // why the last of them failed
	unreadable []unreadable
}

// unreadable is a document that this version of the software cannot read, and the reason.
type unreadable struct {
	change
	why error
}

// Handle applies the changes that messages report. It returns the ids of the messages that must be delivered again, and
// the error says why. It is nil if there are none.
func (a *Applier) Handle(ctx context.Context, messages []delivery.Message) (failed []string, err error) {
	ctx, cancel := a.inTime(ctx)
	defer cancel()
	return a.handle(ctx, messages)
}

// inTime returns a context that ends before the call's answer is due.
func (a *Applier) inTime(ctx context.Context) (context.Context, context.CancelFunc) {
	if deadline, ok := ctx.Deadline(); ok {
		return context.WithDeadline(ctx, deadline.Add(-a.c.Spare))
	}
	return context.WithCancel(ctx)
}

// handle implements Handle. The caller bounds its time.
func (a *Applier) handle(ctx context.Context, messages []delivery.Message) (failed []string, err error) {
	r := run{Applier: a}
	a.c.Meter.Count("messages_read", int64(len(messages)))
	a.c.Meter.Count("events_unknown", 0)
	a.c.Meter.Count("events_forged", 0)
	a.c.Meter.Count("messages_kept", 0)
	var all []report
	for i := range messages {
		if m, ok := r.read(ctx, &messages[i]); ok {
			all = append(all, m)
		}
	}
	items := a.readItems(ctx, all)
	changes := make([]change, 0, len(all))
	for i := range all {
		if c, ok := r.documentFor(ctx, &all[i], items[all[i].item]); ok {
			changes = append(changes, c)
		}
	}
	r.apply(ctx, changes)
	for i := range r.unreadable {
		r.rejectUnreadable(ctx, &r.unreadable[i])
	}
	a.c.Meter.Count("messages_again", int64(len(r.failed)))
	if len(r.failed) == 0 {
		return nil, nil
	}
	a.c.Log.WarnContext(ctx, "messages must be delivered again", "messages", len(r.failed), "of", len(messages),
		"error",
		r.cause)
	return r.failed, fmt.Errorf("apply %d of %d messages: %w", len(r.failed), len(messages), r.cause)
}

// read decodes a message. It returns false if the message reports no change of an item that the cell has.
func (r *run) read(ctx context.Context, m *delivery.Message) (report, bool) {
	e, err := events.Decode(m.Body)
	if err != nil {
		r.deadLetter(ctx, m, "", err)
		return report{}, false
	}
	switch e := e.(type) {
	case *events.Changed:
		d := table.DocumentOf(e)
		of, key, ok := table.ItemOf(d.Ref)
		if !ok {
			r.deadLetter(ctx, m, e.Key, fmt.Errorf("no control table has documents of kind %s", d.Kind))
			return report{}, false
		}
		return report{m, e, control.Ref{Table: of, Key: key}}, true
	case *events.Raw:
		r.c.Meter.Count("events_unknown", 1)
		r.deadLetter(ctx, m, "", fmt.Errorf("an event of an unknown type or version: %s version %d", e.Head.Type,
			e.Head.Version))
	default: // an event for other subscribers
		r.c.Meter.Count("messages_other", 1)
	}
	return report{}, false
}

// readsAtOnce is how many items are read concurrently. The control tables may be in a distant region, where one read
// after the other would take too long.
const readsAtOnce = 16

// found is the result of reading an item.
type found struct {
	control.Item
	err error
}

// readItems reads each item that messages name, once.
func (a *Applier) readItems(ctx context.Context, all []report) map[control.Ref]*found {
	items := make(map[control.Ref]*found, len(all))
	var reads sync.WaitGroup
	slots := make(chan struct{}, readsAtOnce)
	for i := range all {
		at := all[i].item
		if items[at] != nil {
			continue
		}
		f := &found{}
		items[at] = f
		slots <- struct{}{}
		reads.Go(func() {
			defer func() { <-slots }()
			f.Item, f.err = a.c.Tables.Get(ctx, at.Table, at.Key)
		})
	}
	reads.Wait()
	return items
}

// documentFor compares the item that a message names with the message, and returns the document that the cell must
// have. It returns false if there is none.
func (r *run) documentFor(ctx context.Context, t *report, f *found) (change, bool) {
	switch {
	case errors.Is(f.err, control.ErrBadItem):
		r.deadLetter(ctx, t.message, t.event.Key, f.err)
		return change{}, false
	case f.err != nil && !errors.Is(f.err, control.ErrNotFound):
		r.redeliver(t.message, f.err)
		return change{}, false
	}
	if why := forged(t, f); why != nil {
		r.c.Meter.Count("events_forged", 1)
		r.deadLetter(ctx, t.message, t.event.Key, why)
		return change{}, false
	}
	if err := f.Verify(); err != nil { // as in the publisher: an item that Sluice did not write reaches no cell
		r.deadLetter(ctx, t.message, t.event.Key, err)
		return change{}, false
	}
	c := change{t.message, t.event.Key, table.DocumentOf(f.Event()), f.ChangedAt}
	if err := table.Readable(&c.document); err != nil {
		r.unreadable = append(r.unreadable, unreadable{c, err})
		return change{}, false
	}
	return c, true
}

// forged returns how a message contradicts its item, or nil if it does not. A message about an earlier version than the
// item's cannot be checked; this does no harm, because only the item is applied.
func forged(t *report, f *found) error {
	const forged = "the event was forged, or the control tables were restored to an earlier time"
	switch e := t.event; {
	case f.err != nil:
		return fmt.Errorf("%s: there is no item %s/%q", forged, t.item.Table, t.item.Key)
	case e.ItemVersion > f.Version:
		return fmt.Errorf("%s: it reports version %d, and %s/%q has version %d",
			forged, e.ItemVersion, t.item.Table, t.item.Key, f.Version)
	case e.ItemVersion == f.Version && (e.Hash != f.Hash || e.Deleted != f.Deleted || !sameBody(e.Body, f.Body)):
		return fmt.Errorf("%s: version %d of %s/%q has another content", forged, f.Version, t.item.Table, t.item.Key)
	}
	return nil
}

// sameBody reports whether the body of a message is that of the item. A transport may have changed white space and
// escapes of the message (see [events.Changed]). If the bytes differ, sameBody therefore compares the canonical form,
// in which the item is stored.
func sameBody(message, item []byte) bool {
	if bytes.Equal(message, item) {
		return true
	}
	again, err := events.Canonical(message)
	return err == nil && bytes.Equal(again, item)
}

// rejectUnreadable makes a dead letter of a message whose document this version cannot read, and leaves the cell's
// document unchanged. A cell without any shares gets a tombstone, which says that shares exist that the cell cannot
// read. Otherwise the cell might take itself for the only one.
func (r *run) rejectUnreadable(ctx context.Context, u *unreadable) {
	if u.document.Kind == table.KindShares {
		got, err := r.c.Store.Get(ctx, u.document.Ref)
		if err == nil && len(got) == 1 && got[0].Version == 0 {
			_, err = table.Apply(ctx, r.c.Store, []table.Document{table.Unknown(u.document)}, r.c.Now)
		}
		if err != nil {
			r.redeliver(u.message, err)
			return
		}
	}
	r.deadLetter(ctx, u.message, u.key, fmt.Errorf("%w; the cell keeps the document that it has", u.why))
}

// deadLetter makes a dead letter of a message. If it cannot be stored, the message must be delivered again.
func (r *run) deadLetter(ctx context.Context, m *delivery.Message, key string, why error) {
	err := r.c.Keep.Keep(ctx, delivery.DeadLetter{
		By: "applier", Cell: r.c.Cell, ID: m.ID, Key: key, Reason: why.Error(), At: r.c.Now(), Data: m.Body,
	})
	if err != nil {
		r.redeliver(m, fmt.Errorf("store message %s as a dead letter: %w", m.ID, err))
		return
	}
	r.c.Meter.Count("messages_kept", 1)
	r.c.Log.ErrorContext(ctx, "a message was not applied and became a dead letter", "message", m.ID, "error", why)
}

// redeliver notes that a message must be delivered again, and why.
func (r *run) redeliver(m *delivery.Message, why error) {
	r.failed = append(r.failed, m.ID)
	r.cause = why
}

// apply writes the changes together. If the store refuses a document, apply finds it by halving the list, so that all
// others are written.
func (r *run) apply(ctx context.Context, changes []change) {
	if len(changes) == 0 {
		return
	}
	documents := make([]table.Document, len(changes))
	for i := range changes {
		documents[i] = changes[i].document
	}
	seen := &recorder{Store: r.c.Store, committed: map[version]state{}}
	_, err := table.Apply(ctx, seen, documents, r.c.Now)
	now := r.c.Now()
	r.c.Meter.Count("documents_applied", int64(seen.documents))
	var left []change
	for _, c := range changes {
		v := version{c.document.Ref, c.document.Version}
		switch {
		case seen.committed[v] == written:
			r.c.Meter.Took("apply_seconds", now.Sub(c.written))
			seen.committed[v] = counted
		case seen.committed[v] == counted: // repeated in the same batch
			r.c.Meter.Count("messages_old", 1)
		case err != nil:
			left = append(left, c)
		default:
			r.c.Meter.Count("messages_old", 1)
		}
	}
	switch n := len(left); {
	case err == nil || n == 0:
	case !errors.Is(err, table.ErrInvalid):
		for _, c := range left {
			r.redeliver(c.message, err)
		}
	case n == 1:
		r.deadLetter(ctx, left[0].message, left[0].key, err)
	default:
		r.apply(ctx, left[:n/2])
		r.apply(ctx, left[n/2:])
	}
}

// version identifies a version of a document.
type version struct {
	ref     table.Ref
	version int64
}

// state says whether a version was written, and whether it was counted.
type state int

const (
	written state = iota + 1
	counted
)

// recorder is a store that remembers what was written through it.
type recorder struct {
	table.Store
	committed map[version]state
	documents int
}

// Commit implements [table.Store].
func (r *recorder) Commit(ctx context.Context, step table.Step) error {
	if err := r.Store.Commit(ctx, step); err != nil {
		return err
	}
	for i := range step.Documents {
		d := &step.Documents[i]
		if d.Kind != table.KindKeyHash {
			r.committed[version{d.Ref, d.Version}] = written
			r.documents++
		}
	}
	return nil
}

// Invoke handles the event of an SQS queue and answers in JSON. It acknowledges shares that the messages bring, and
// sets when the messages that must be delivered again become visible ([RetryAfter]). It returns an error if the event
// is not one of a queue, or if all messages must be delivered again because of the shares.
func (a *Applier) Invoke(ctx context.Context, event []byte) ([]byte, error) {
	messages, err := delivery.ParseMessages(event)
	if err != nil {
		return nil, fmt.Errorf("applier: %w", err)
	}
	failed, err := a.applyAndAcknowledge(ctx, messages, a.c.Acknowledger != nil && concerned(event))
	a.delay(ctx, messages, failed)
	if err != nil {
		return nil, err
	}
	return delivery.Answer(failed)
}

// applyAndAcknowledge handles messages, and returns the ids of those that must be delivered again. After an error these
// are all. shares says that the messages may bring shares or placements.
func (a *Applier) applyAndAcknowledge(
	ctx context.Context, messages []delivery.Message, shares bool,
) (failed []string, err error) {
	ctx, cancel := a.inTime(ctx)
	defer cancel()
	if shares {
		if err := a.c.Acknowledger.Prepare(ctx); err != nil {
			return ids(messages), err
		}
	}
	failed, _ = a.handle(ctx, messages) // handle has logged the error
	if !shares {
		return failed, nil
	}
	switch _, err := a.c.Acknowledger.Run(ctx); {
	case errors.Is(err, control.ErrBadItem):
		// Another delivery of the messages would not help.
		a.c.Log.ErrorContext(ctx, "the shares are not acknowledged", "error", err)
	case err != nil:
		return ids(messages), err
	}
	return failed, nil
}

func ids(messages []delivery.Message) []string {
	all := make([]string, len(messages))
	for i := range messages {
		all[i] = messages[i].ID
	}
	return all
}
