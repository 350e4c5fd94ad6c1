package control

import (
	"encoding/json"
	"fmt"

	"github.com/sluicelimits/sluice/events"
)

// Record is one change as it comes out of a feed: the item before and after.
type Record struct {
	Sequence string // where it stands in its feed; increases for each key, and is compared by nobody but the feed
	Old      *Item  // nil: New is the first version
	New      Item
}

// Check returns an error that wraps ErrBadItem unless New is in order, its hash included, and the version after Old.
// Old's own content is not judged: a version that takes the place of one altered by hand must get through.
func (r *Record) Check() error {
	if err := r.New.Verify(); err != nil {
		return err
	}
	n := &r.New
	switch {
	case r.Old == nil && n.Version == 1:
		return nil
	case r.Old == nil:
		return fmt.Errorf("%s/%q: %w: version %d has taken the place of none", n.Table, n.Key, ErrBadItem, n.Version)
	case r.Old.Table != n.Table || r.Old.Key != n.Key:
		return fmt.Errorf("%s/%q: %w: it has taken the place of %s/%q", n.Table, n.Key, ErrBadItem, r.Old.Table,
			r.Old.Key)
	case r.Old.Version != n.Version-1 || r.Old.Hash != n.PrevHash:
		return fmt.Errorf("%s/%q: %w: version %d has taken the place of version %d, and is not linked to it", n.Table,
			n.Key, ErrBadItem, n.Version, r.Old.Version)
	}
	return nil
}

// Event is what the publisher tells the cells and subscribers; nil where nobody is told, see events.ChangedType. It is
// the same each time. It always fits into a message.
func (r *Record) Event() *events.Changed { return r.New.Event() }

// Event is what tells of this version of the item; nil where nobody is told. Reconcile sends it again.
func (i *Item) Event() *events.Changed {
	t, ok := events.ChangedType(i.Table, i.Key)
	if !ok {
		return nil
	}
	return &events.Changed{
		Type: t, Key: i.Key, ItemVersion: i.Version, Time: i.ChangedAt, Deleted: i.Deleted, Hash: i.Hash, Body: i.Body,
	}
}

// Audit is the record that the archiver keeps under [ObjectName].
func (r *Record) Audit() *events.AuditRecord {
	var before json.RawMessage
	if r.Old != nil {
		before = r.Old.Body
	}
	return r.New.record(before)
}

// Delivery is what a feed hands to its consumers: a record, or one that cannot be read, which must neither stop those
// behind it nor be dropped.
type Delivery struct {
	Sequence string  // names the record to the feed, to have it again; empty where not even that can be read
	Record   *Record // nil with Err
	Err      error   // a *RecordError
	Raw      []byte  // with Err: the record as it came, to be kept
}

// RecordError is a record that cannot be read. What is not known of it is empty.
type RecordError struct {
	Table    Table
	Key      string
	Sequence string
	Err      error // wraps ErrBadItem
}

func (e *RecordError) Error() string {
	return fmt.Sprintf("record %q of %q/%.140q: %v", e.Sequence, e.Table, e.Key, e.Err)
}

// Unwrap is the cause.
func (e *RecordError) Unwrap() error { return e.Err }
