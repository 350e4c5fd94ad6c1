// Package applier brings the changes that a cell's queue carries into the cell's configuration.
//
// It holds:
//
//   - A document is replaced iff the event is newer than it. Messages may come twice, in any order, late, and to several appliers
//     at once; one that died after it had written is repeated harmlessly.
//   - What one call brings is written in as few transactions as it fits, each with its entry of the change log. A message is done
//     when its transaction is.
//   - An event of an unknown type or version, and a message that is no event or no document, are kept ([kept.Keeper]) and
//     counted, and are then done: they stop nothing. One that cannot even be kept comes again.
//   - Shares and placements that this version cannot read are kept, too, and never replace those that it can: what the cell
//     knows of its shares stays in force. Reconcile brings them when they can be read.
//   - Where the table does not take a transaction, all messages that are not known to be done come again.
//
// Metrics: messages_read, documents_applied, messages_old (nothing newer in them), messages_other (events that are no document's),
// events_unknown, messages_kept (those included), messages_again, apply_seconds (from the write of a change in the control
// tables to when the cell had it).
package applier

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/sluicelimits/sluice/events"
	"github.com/sluicelimits/sluice/internal/cellconfig"
	"github.com/sluicelimits/sluice/internal/celldoc"
	"github.com/sluicelimits/sluice/streams/kept"
	"github.com/sluicelimits/sluice/streams/sqsevent"
)

// Meter counts; a *telemetry.Meter is one.
type Meter interface {
	Count(name string, n int64)
	Took(name string, d time.Duration)
}

// Config sets up an Applier. All but the last three are required.
type Config struct {
	Cell  string // its id, for what is kept
	Store cellconfig.Store
	Keep  kept.Keeper
	Meter Meter

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

// change is a message's document.
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

// Handle applies what messages bring, and returns the ids of those that must come again; the error is why, and nil where there
// are none.
func (a *Applier) Handle(ctx context.Context, messages []sqsevent.Message) (failed []string, err error) {
	if deadline, ok := ctx.Deadline(); ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadline(ctx, deadline.Add(-a.c.Spare))
		defer cancel()
	}
	r := run{Applier: a}
	a.c.Meter.Count("messages_read", int64(len(messages)))
	a.c.Meter.Count("events_unknown", 0)
	a.c.Meter.Count("messages_kept", 0)
	changes := make([]change, 0, len(messages))
	for i := range messages {
		if c, ok := r.read(ctx, &messages[i]); ok {
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
	a.c.Log.WarnContext(ctx, "messages have to come again", "messages", len(r.failed), "of", len(messages), "error", r.cause)
	return r.failed, fmt.Errorf("apply %d of %d messages: %w", len(r.failed), len(messages), r.cause)
}

// read is the document of a message; false where there is none to apply.
func (r *run) read(ctx context.Context, m *sqsevent.Message) (change, bool) {
	e, err := events.Decode(m.Body)
	if err != nil {
		r.keep(ctx, m, "", err)
		return change{}, false
	}
	switch e := e.(type) {
	case *events.Changed:
		c := change{m, celldoc.Of(e), e.Time}
		err := c.document.Check()
		if err == nil {
			if err = celldoc.Readable(&c.document); err != nil {
				r.unreadable = append(r.unreadable, unreadable{c, e.Key, err})
				return change{}, false
			}
		}
		if err != nil {
			r.keep(ctx, m, e.Key, err)
			return change{}, false
		}
		return c, true
	case *events.Raw:
		r.c.Meter.Count("events_unknown", 1)
		r.keep(ctx, m, "", fmt.Errorf("an event of an unknown type or version: %s version %d", e.Head.Type, e.Head.Version))
	default: // of other subscribers
		r.c.Meter.Count("messages_other", 1)
	}
	return change{}, false
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

// apply applies the changes together. Where a document is refused, which nothing before it could see, it is found by halves, so
// that the others are applied.
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
			seen.committed[v] = told
		case seen.committed[v] == told: // a duplicate in the same batch
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

// state is what became of a version: nothing that is known, or it was written, or that was also told.
type state int

const (
	written state = iota + 1
	told
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
