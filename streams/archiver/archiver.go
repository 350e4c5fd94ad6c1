// Package archiver keeps the audit trail: each version of each item of the control tables becomes an object that is
// never overwritten. Package audit describes the archive.
//
// Guarantees:
//
//   - The order in which records arrive does not matter, nor how often they arrive. Reading a stream again from its
//     beginning changes nothing.
//   - If the object of a record exists and has another content, one of the two was not written by this program. The
//     archiver raises an alarm, leaves the object, rejects the record, and goes on.
//   - If the object of a record exists and cannot be read, the archiver did not write it. The archiver raises the same
//     alarm, writes the record as a new version of the object, because the two cannot be compared, and goes on.
//   - A record that cannot be read is rejected. Rejected records are stored in the archive (audit.Reject), complete and
//     under the same lock. If storing a rejected record fails, the record is delivered again.
//   - If the archive refuses, throttles or does not answer, nothing is lost: when the call's time is over, the batch is
//     delivered again from the first record that is not stored.
//
// Metrics: records_read, objects_made, objects_equal (the record's object existed with the same content),
// records_unequal and records_unreadable (both need alarms), records_again (delivered again), archive_seconds (from the
// write of a change to when it was in the archive).
package archiver

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/sluicelimits/sluice/events"
	"github.com/sluicelimits/sluice/internal/control"
	"github.com/sluicelimits/sluice/internal/control/audit"
	"github.com/sluicelimits/sluice/streams/delivery"
)

// Config sets up an Archiver. Archive and Meter are required.
type Config struct {
	Archive audit.Archive
	Meter   delivery.Meter

	Log      *slog.Logger     // default slog.Default()
	Now      func() time.Time // default time.Now
	Parallel int              // objects that are written concurrently; 0 means 8
	Spare    time.Duration    // the part of a call's time that is reserved for its answer; 0 means 1 s
}

// Archiver archives changes. It is safe for concurrent use. Make it with [New].
type Archiver struct{ c Config }

// New makes an archiver.
func New(c Config) *Archiver {
	if c.Log == nil {
		c.Log = slog.Default()
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.Parallel == 0 {
		c.Parallel = 8
	}
	if c.Spare == 0 {
		c.Spare = time.Second
	}
	return &Archiver{c}
}

// Handle archives a batch of records. It returns how many records, from the first on, are finished. All later ones must
// be delivered again, and the error says why. It is nil if all are finished.
func (a *Archiver) Handle(ctx context.Context, deliveries []control.Delivery) (done int, err error) {
	if deadline, ok := ctx.Deadline(); ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadline(ctx, deadline.Add(-a.c.Spare))
		defer cancel()
	}
	for _, name := range []string{"objects_made", "objects_equal", "records_unequal", "records_unreadable"} {
		a.c.Meter.Count(name, 0)
	}
	a.c.Meter.Count("records_read", int64(len(deliveries)))
	failed := make([]error, len(deliveries))
	places := make(chan struct{}, a.c.Parallel)
	var wg sync.WaitGroup
	for i := range deliveries {
		places <- struct{}{}
		wg.Go(func() {
			defer func() { <-places }()
			failed[i] = a.archive(ctx, &deliveries[i])
		})
	}
	wg.Wait()
	for done < len(failed) && failed[done] == nil {
		done++
	}
	again := len(deliveries) - done
	a.c.Meter.Count("records_again", int64(again))
	if again == 0 {
		return done, nil
	}
	a.c.Log.WarnContext(ctx, "records must be delivered again", "records", again, "of", len(deliveries), "error",
		failed[done])
	return done, fmt.Errorf("archive %d of %d records: %w", again, len(deliveries), failed[done])
}

// archive archives or rejects a record. If it returns an error, the record must be delivered again.
func (a *Archiver) archive(ctx context.Context, d *control.Delivery) (err error) {
	defer func() {
		// a panic in a goroutine would end the process, and would do so again with each delivery
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v", p)
		}
	}()
	if err := ctx.Err(); err != nil {
		return err
	}
	if d.Record == nil {
		return a.rejectUnreadable(ctx, d, d.Err, d.Raw)
	}
	record := d.Record.Audit()
	data, err := events.Encode(record)
	if err == nil {
		err = d.Record.Check() // checked although decoders check it, because nothing can be removed from the archive
	}
	if err != nil {
		raw, failed := json.Marshal(d.Record)
		if failed != nil { // the body is not JSON
			raw = d.Record.New.Body
		}
		return a.rejectUnreadable(ctx, d, err, raw)
	}
	made, err := a.c.Archive.Put(ctx, control.ObjectName(record.Table, record.Key, record.ItemVersion), data)
	switch {
	case errors.Is(err, audit.ErrUnequal):
		return a.rejectUnequal(ctx, d, record, err, data)
	case errors.Is(err, audit.ErrUnreadable):
		return a.cover(ctx, d, record, err, data)
	case err != nil:
		return err
	case made:
		a.countMade(record)
	default:
		a.c.Meter.Count("objects_equal", 1)
	}
	return nil
}

func (a *Archiver) countMade(r *events.AuditRecord) {
	a.c.Meter.Count("objects_made", 1)
	a.c.Meter.Took("archive_seconds", a.c.Now().Sub(r.Time))
}

// cover writes a record as a new version of an object that cannot be read, and raises the alarm.
func (a *Archiver) cover(ctx context.Context, d *control.Delivery, r *events.AuditRecord, why error,
	data []byte) error {
	object := control.ObjectName(r.Table, r.Key, r.ItemVersion)
	if err := a.c.Archive.Cover(ctx, object, data); err != nil {
		return err
	}
	a.countMade(r)
	a.c.Meter.Count("records_unequal", 1)
	a.c.Log.ErrorContext(ctx,
		"an object that cannot be read has the name of this version, and this program did not write it: the "+
			"record was written as a newer version of the object", "table", r.Table, "item", fmt.Sprintf("%q", r.Key),
		"version", r.ItemVersion, "sequence", d.Sequence, "object", object, "error", why)
	return nil
}

// rejectUnequal rejects a record whose object has another content, and raises the alarm. An operator must compare the
// two.
func (a *Archiver) rejectUnequal(ctx context.Context, d *control.Delivery, r *events.AuditRecord, why error,
	data []byte) error {
	err := audit.Reject(ctx, a.c.Archive, audit.Rejected{
		Reason: audit.Unequal, Table: r.Table, Key: r.Key, Version: r.ItemVersion, Sequence: d.Sequence,
		Error: why.Error(), Raw: data,
	})
	if err != nil {
		return err
	}
	a.c.Meter.Count("records_unequal", 1)
	a.c.Log.ErrorContext(ctx,
		"the archive has another record of this version: one of the two was not written by this program",
		"table", r.Table, "item", fmt.Sprintf("%q", r.Key), "version", r.ItemVersion, "sequence", d.Sequence, "hash",
		r.Hash)
	return nil
}

// rejectUnreadable rejects a record that cannot be read.
func (a *Archiver) rejectUnreadable(ctx context.Context, d *control.Delivery, why error, raw []byte) error {
	r := audit.Rejected{Reason: audit.Unreadable, Sequence: d.Sequence, Raw: raw, Error: "no reason is known"}
	if why != nil {
		r.Error = why.Error()
	}
	var bad *control.RecordError
	if errors.As(why, &bad) {
		r.Table, r.Key = bad.Table, bad.Key
	} else if d.Record != nil {
		r.Table, r.Key, r.Version = d.Record.New.Table, d.Record.New.Key, d.Record.New.Version
	}
	if err := audit.Reject(ctx, a.c.Archive, r); err != nil {
		return err
	}
	a.c.Meter.Count("records_unreadable", 1)
	a.c.Log.ErrorContext(ctx, "a record cannot be read, and was rejected", "table", r.Table, "item",
		fmt.Sprintf("%.140q", r.Key),
		"sequence", d.Sequence, "object", r.Name(), "error", r.Error)
	return nil
}

// Invoke handles the event of a DynamoDB stream and answers in JSON; see [delivery.InvokeStream].
func (a *Archiver) Invoke(ctx context.Context, d delivery.Decoder, event []byte) ([]byte, error) {
	return delivery.InvokeStream(ctx, "archiver", d, event, a.Handle)
}
