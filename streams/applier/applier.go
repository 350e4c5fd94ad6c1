// Package applier brings the changes that a cell's queue carries into the cell's configuration.
//
// It holds:
//
//   - What is applied is an item of the control tables, and never a message: see below.
//   - A document is replaced iff the item is newer than it. Messages may come twice, in any order, late, and to several
//     appliers at once; one that died after it had written is repeated harmlessly.
//   - What one call brings is written in as few transactions as it fits, each with its entry of the change log. A
//     message is done when its transaction is.
//   - An event of an unknown type or version, and a message that is no event or no document, are kept ([kept.Keeper])
//     and counted, and are then done: they stop nothing. One that cannot even be kept comes again.
//   - Shares and placements that this version cannot read are kept, too, and never replace those that it can: what the
//     cell knows of its shares stays in force. Reconcile brings them when they can be read.
//   - Where the table does not take a transaction, all messages that are not known to be done come again.
//
// # What is believed
//
// A message says only that an item has changed. Whoever may publish on the topic, or send to the queue, could
// otherwise make an API key or remove a limit. So the applier reads each item that messages name from its control
// table, consistently, and applies what is there, which may be newer than the message. Nothing is applied that the
// control tables do not have: no version above theirs, and no other content. An event that was true once does no harm
// when somebody sends it again.
//
// A message is kept and counted as forged (events_forged) if there is no such item, if the item has a lower version,
// or if the item has another content in the same version. Messages of every release are settled in this way, however
// long they lay in the queue. They need no mark of who sent them.
//
// The alternative is a signature by the publisher and the balancer. It saves the read, which is 1 read unit for each
// 4 KB and a round trip to the control region. It needs a key that somebody makes, that only two roles may use, that
// every cell knows, and that is replaced from time to time; and messages of the release before would have to be
// settled by reading all the same. A signature also says that a version was written, not that it is still there:
// after a restore of the control tables, signed events would bring back what was lost.
//
// While the control region does not answer, messages wait in the queue and come again. Nothing can be changed then
// either, and no decision waits for that.
//
// Metrics: messages_read, documents_applied, messages_old (nothing newer in them), messages_other (events that are no
// document's), events_unknown, events_forged, messages_kept (those of both included), messages_again, apply_seconds
// (from the write of a change in the control tables to when the cell had it).
package applier

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/sluicelimits/sluice/events"
	"github.com/sluicelimits/sluice/internal/cell/cellconfig"
	"github.com/sluicelimits/sluice/internal/control"
	"github.com/sluicelimits/sluice/internal/control/celldoc"
	"github.com/sluicelimits/sluice/streams/kept"
	"github.com/sluicelimits/sluice/streams/sqsevent"
)

// Meter counts; a *telemetry.Meter is one.
type Meter interface {
	Count(name string, n int64)
	Took(name string, d time.Duration)
}

// Tables is the part of control.Tables that is used.
type Tables interface {
	Get(ctx context.Context, t control.Table, key string) (control.Item, error)
}

// Config sets up an Applier. All but the last three are required.
type Config struct {
	Cell   string // its id, for what is kept
	Tables Tables // those of the control plane
	Store  cellconfig.Store
	Keep   kept.Keeper
	Meter  Meter

	Log   *slog.Logger     // default slog.Default()
	Now   func() time.Time // default time.Now; of log entries, too
	Spare time.Duration    // of a call's time is left for its answer; 0 is 1 s
}

// Applier applies events to one cell. It is safe for concurrent use. Make it with New.
type Applier struct{ c Config }

// New makes an applier. The error names the field that is missing.
func New(c Config) (*Applier, error) {
	switch {
	case c.Cell == "":
		return nil, errors.New("applier: Cell is missing")
	case c.Tables == nil:
		return nil, errors.New("applier: Tables is missing")
	case c.Store == nil:
		return nil, errors.New("applier: Store is missing")
	case c.Keep == nil:
		return nil, errors.New("applier: Keep is missing")
	case c.Meter == nil:
		return nil, errors.New("applier: Meter is missing")
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
	return &Applier{c}, nil
}

// told is a message that says that an item has changed.
type told struct {
	message *sqsevent.Message
	event   *events.Changed
	item    item
}

// item names one of a control table.
type item struct {
	table control.Table
	key   string
}

// change is a message's document, as the control tables have it.
type change struct {
	message  *sqsevent.Message
	document cellconfig.Document
	written  time.Time
}

// run is the work on one batch.
type run struct {
	*Applier
	failed     []string
	cause      error
	unreadable []unreadable
}

// unreadable is a document that this version cannot read, and why.
type unreadable struct {
	change
	key string // of the item
	why error
}

// Handle applies what messages bring, and returns the ids of those that must come again; the error is why, and nil
// where there are none.
func (a *Applier) Handle(ctx context.Context, messages []sqsevent.Message) (failed []string, err error) {
	if deadline, ok := ctx.Deadline(); ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadline(ctx, deadline.Add(-a.c.Spare))
		defer cancel()
	}
	r := run{Applier: a}
	a.c.Meter.Count("messages_read", int64(len(messages)))
	a.c.Meter.Count("events_unknown", 0)
	a.c.Meter.Count("events_forged", 0)
	a.c.Meter.Count("messages_kept", 0)
	var all []told
	for i := range messages {
		if m, ok := r.read(ctx, &messages[i]); ok {
			all = append(all, m)
		}
	}
	items := a.look(ctx, all)
	changes := make([]change, 0, len(all))
	for i := range all {
		if c, ok := r.settle(ctx, &all[i], items[all[i].item]); ok {
			changes = append(changes, c)
		}
	}
	r.apply(ctx, changes)
	for i := range r.unreadable {
		r.leave(ctx, &r.unreadable[i])
	}
	a.c.Meter.Count("messages_again", int64(len(r.failed)))
	if len(r.failed) == 0 {
		return nil, nil
	}
	a.c.Log.WarnContext(ctx, "messages have to come again", "messages", len(r.failed), "of", len(messages), "error",
		r.cause)
	return r.failed, fmt.Errorf("apply %d of %d messages: %w", len(r.failed), len(messages), r.cause)
}

// read is what a message says; false where that is nothing about an item that the cell has.
func (r *run) read(ctx context.Context, m *sqsevent.Message) (told, bool) {
	e, err := events.Decode(m.Body)
	if err != nil {
		r.keep(ctx, m, "", err)
		return told{}, false
	}
	switch e := e.(type) {
	case *events.Changed:
		d := celldoc.Of(e)
		table, key, ok := celldoc.Item(d.Ref)
		if !ok {
			r.keep(ctx, m, e.Key, fmt.Errorf("no item is a document of kind %s", d.Kind))
			return told{}, false
		}
		return told{m, e, item{table, key}}, true
	case *events.Raw:
		r.c.Meter.Count("events_unknown", 1)
		r.keep(ctx, m, "", fmt.Errorf("an event of an unknown type or version: %s version %d", e.Head.Type,
			e.Head.Version))
	default: // of other subscribers
		r.c.Meter.Count("messages_other", 1)
	}
	return told{}, false
}

// readsAtOnce is how many items are read at the same time: the control tables may be far away.
const readsAtOnce = 16

// found is an item as it was read.
type found struct {
	control.Item
	err error
}

// look reads each item that messages name, once.
func (a *Applier) look(ctx context.Context, all []told) map[item]*found {
	items := make(map[item]*found, len(all))
	var reads sync.WaitGroup
	room := make(chan struct{}, readsAtOnce)
	for i := range all {
		at := all[i].item
		if items[at] != nil {
			continue
		}
		f := &found{}
		items[at] = f
		room <- struct{}{}
		reads.Go(func() {
			defer func() { <-room }()
			f.Item, f.err = a.c.Tables.Get(ctx, at.table, at.key)
		})
	}
	reads.Wait()
	return items
}

// settle is the document that a cell is to have after a message, from the item that the message names; false where
// there is none.
func (r *run) settle(ctx context.Context, t *told, f *found) (change, bool) {
	switch {
	case errors.Is(f.err, control.ErrBadItem):
		r.keep(ctx, t.message, t.event.Key, f.err)
		return change{}, false
	case f.err != nil && !errors.Is(f.err, control.ErrNotFound):
		r.again(t.message, f.err)
		return change{}, false
	}
	if why := forged(t, f); why != nil {
		r.c.Meter.Count("events_forged", 1)
		r.keep(ctx, t.message, t.event.Key, why)
		return change{}, false
	}
	c := change{t.message, celldoc.Of(f.Event()), f.ChangedAt}
	err := f.Verify() // as the publisher does: what was written by hand reaches no cell
	if err == nil {
		err = c.document.Check()
	}
	if err != nil {
		r.keep(ctx, t.message, t.event.Key, err)
		return change{}, false
	}
	if err := celldoc.Readable(&c.document); err != nil {
		r.unreadable = append(r.unreadable, unreadable{c, t.event.Key, err})
		return change{}, false
	}
	return c, true
}

// forged says why a message is not true; nil where nothing speaks against it. Of an item that is newer than the
// message there is nothing to compare, and the message is not used.
func forged(t *told, f *found) error {
	const forged = "the event was forged, or the control tables were restored to an earlier time"
	switch e := t.event; {
	case f.err != nil:
		return fmt.Errorf("%s: there is no item %s/%q", forged, t.item.table, t.item.key)
	case e.ItemVersion > f.Version:
		return fmt.Errorf("%s: it tells of version %d, and %s/%q is at version %d",
			forged, e.ItemVersion, t.item.table, t.item.key, f.Version)
	case e.ItemVersion == f.Version && (e.Hash != f.Hash || e.Deleted != f.Deleted || !bytes.Equal(e.Body, f.Body)):
		return fmt.Errorf("%s: version %d of %s/%q has another content", forged, f.Version, t.item.table, t.item.key)
	}
	return nil
}

// leave keeps the message of a document that this version cannot read: what the cell has stays. A cell that has no
// shares at all is told that there are some and that it does not know them. Otherwise one that may be alone would take
// them for absent.
func (r *run) leave(ctx context.Context, u *unreadable) {
	if u.document.Kind == celldoc.KindShares {
		got, err := r.c.Store.Get(ctx, u.document.Ref)
		if err == nil && len(got) == 1 && got[0].Version == 0 {
			_, err = cellconfig.Apply(ctx, r.c.Store, []cellconfig.Document{celldoc.Unknown(u.document)}, r.c.Now)
		}
		if err != nil {
			r.again(u.message, err)
			return
		}
	}
	r.keep(ctx, u.message, u.key, fmt.Errorf("%w; what the cell has stays in force", u.why))
}

// keep keeps a message; where that cannot be done, it must come again.
func (r *run) keep(ctx context.Context, m *sqsevent.Message, key string, why error) {
	err := r.c.Keep.Keep(ctx, kept.Item{
		By: "applier", Cell: r.c.Cell, ID: m.ID, Key: key, Reason: why.Error(), At: r.c.Now(), Data: m.Body,
	})
	if err != nil {
		r.again(m, fmt.Errorf("keep message %s: %w", m.ID, err))
		return
	}
	r.c.Meter.Count("messages_kept", 1)
	r.c.Log.ErrorContext(ctx, "a message was kept and not applied", "message", m.ID, "error", why)
}

func (r *run) again(m *sqsevent.Message, why error) {
	r.failed = append(r.failed, m.ID)
	r.cause = why
}

// apply applies the changes together. Where a document is refused, which nothing before it could see, it is found by
// halves, so that the others are applied.
func (r *run) apply(ctx context.Context, changes []change) {
	if len(changes) == 0 {
		return
	}
	documents := make([]cellconfig.Document, len(changes))
	for i := range changes {
		documents[i] = changes[i].document
	}
	seen := &watched{Store: r.c.Store, committed: map[version]state{}}
	_, err := cellconfig.Apply(ctx, seen, documents, r.c.Now)
	now := r.c.Now()
	r.c.Meter.Count("documents_applied", int64(seen.documents))
	var left []change
	for _, c := range changes {
		v := version{c.document.Ref, c.document.Version}
		switch {
		case seen.committed[v] == written:
			r.c.Meter.Took("apply_seconds", now.Sub(c.written))
			seen.committed[v] = counted
		case seen.committed[v] == counted: // a duplicate in the same batch
			r.c.Meter.Count("messages_old", 1)
		case err != nil:
			left = append(left, c)
		default:
			r.c.Meter.Count("messages_old", 1)
		}
	}
	switch n := len(left); {
	case err == nil || n == 0:
	case !errors.Is(err, cellconfig.ErrInvalid):
		for _, c := range left {
			r.again(c.message, err)
		}
	case n == 1:
		r.keep(ctx, left[0].message, left[0].document.ID, err)
	default:
		r.apply(ctx, left[:n/2])
		r.apply(ctx, left[n/2:])
	}
}

// version is one of a document.
type version struct {
	ref     cellconfig.Ref
	version int64
}

// state is what became of a version: nothing that is known, or it was written, or that was also counted.
type state int

const (
	written state = iota + 1
	counted
)

// watched is a store that remembers what was written through it.
type watched struct {
	cellconfig.Store
	committed map[version]state
	documents int
}

// Commit implements [cellconfig.Store].
func (w *watched) Commit(ctx context.Context, step cellconfig.Step) error {
	if err := w.Store.Commit(ctx, step); err != nil {
		return err
	}
	for i := range step.Documents {
		d := &step.Documents[i]
		if d.Kind != cellconfig.KindKeyHash {
			w.committed[version{d.Ref, d.Version}] = written
			w.documents++
		}
	}
	return nil
}

// Invoke handles the event of an SQS queue and answers in JSON. The error is for what is no such event.
func (a *Applier) Invoke(ctx context.Context, event []byte) ([]byte, error) {
	messages, err := sqsevent.Parse(event)
	if err != nil {
		return nil, fmt.Errorf("applier: %w", err)
	}
	failed, _ := a.Handle(ctx, messages) // the error was logged, and the answer says it
	return sqsevent.Answer(failed)
}
