package control

import (
	"encoding/json"
	"fmt"

	"github.com/sluicelimits/sluice/events"
)

// Record is one change in a feed: the item before and after.
type Record struct {
	Sequence string // position in the feed; increases for each key; only the feed compares positions
	Old      *Item  // nil: New is the first version
	New      Item
}

// Check returns an error that wraps ErrBadItem unless New is valid, including its hash, and follows Old. It does not
// check the content of Old, since a version that replaces an altered one must pass.
func (r *Record) Check() error {
	if err := r.New.Verify(); err != nil {
		return err
	}
	n := &r.New
	switch {
	case r.Old == nil && n.Version == 1:
		return nil
	case r.Old == nil:
		return fmt.Errorf("%s/%q: %w: version %d replaces no version, although it is not the first", n.Table, n.Key,
			ErrBadItem, n.Version)
	case r.Old.Table != n.Table || r.Old.Key != n.Key:
		return fmt.Errorf("%s/%q: %w: it replaces the other item %s/%q", n.Table, n.Key, ErrBadItem, r.Old.Table,
			r.Old.Key)
	case r.Old.Version != n.Version-1 || r.Old.Hash != n.PrevHash:
		return fmt.Errorf("%s/%q: %w: version %d replaces version %d, but is not linked to it", n.Table,
			n.Key, ErrBadItem, n.Version, r.Old.Version)
	}
	return nil
}

// Event returns the event that the publisher sends to the cells and subscribers; nil if no event is sent about such
// items, see events.ChangedType. Each call returns an equal event, which always fits into a message.
func (r *Record) Event() *events.Changed { return r.New.Event() }

// Event returns the event about this version of the item; nil if no event is sent about such items.
func (i *Item) Event() *events.Changed {
	t, ok := events.ChangedType(i.Table, i.Key)
	if !ok {
		return nil
	}
	return &events.Changed{
		Type: t, Key: i.Key, ItemVersion: i.Version, Time: i.ChangedAt, Deleted: i.Deleted, Hash: i.Hash, Body: i.Body,
	}
}

// Audit returns the record that the archiver stores under [ObjectName].
func (r *Record) Audit() *events.AuditRecord {
	var before json.RawMessage
	if r.Old != nil {
		before = r.Old.Body
	}
	return r.New.record(before)
}

// Delivery is what a feed gives to its consumers: a record, or a record that cannot be read. Consumers must neither
// stop at such a record nor drop it.
type Delivery struct {
	Sequence string  // the record's position in the feed; empty if it cannot be read
	Record   *Record // nil if Err is set; its Check has passed
	Err      error   // a *RecordError
	Raw      []byte  // if Err is set: the record as it arrived, for a dead letter
}

// RecordError says why a record cannot be read. Unknown fields are empty.
type RecordError struct {
	Table    Table
	Key      string
	Sequence string
	Err      error // wraps ErrBadItem
}

func (e *RecordError) Error() string {
	return fmt.Sprintf("record %q of %q/%.140q: %v", e.Sequence, e.Table, e.Key, e.Err)
}

// Unwrap returns Err.
func (e *RecordError) Unwrap() error { return e.Err }
