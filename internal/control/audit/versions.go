package audit

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"time"

	"github.com/sluicelimits/sluice/events"
	"github.com/sluicelimits/sluice/internal/control"
)

// name is one name in the archive, with those of its versions that are checked.
type name struct {
	name     string
	table    control.Table // empty if it is not the name of an item
	key      string
	version  int64
	versions []Entry // versions with content, newest first; if there are many, only the newest and the oldest
	more     bool    // versions between these were left out
	hidden   bool    // a delete marker exists

	// from is the earliest time at which a writer of Sluice can have put the object; zero if unknown. Versions that
	// were put earlier are not in versions.
	from  time.Time
	early *Entry // the first version that was put before from, or nil
}

// Number of versions of a name that are checked: the newest, which are compared with the object, and the oldest, one
// of which is the object. Whoever writes more versions has replaced the object.
const (
	maxNewest = 8
	maxOldest = 8
)

// names groups the entries of a list by name. It ends after an error.
func names(ctx context.Context, a Archive, prefix, after string) iter.Seq2[*name, error] {
	return func(yield func(*name, error) bool) {
		var n *name
		for e, err := range a.List(ctx, prefix, after) {
			if err != nil {
				yield(nil, err)
				return
			}
			if n == nil || n.name != e.Name {
				if n != nil && !yield(n, nil) {
					return
				}
				n = newName(e.Name)
			}
			n.add(e)
		}
		if n != nil {
			yield(n, nil)
		}
	}
}

func newName(of string) *name {
	n := &name{name: of}
	if t, key, version, err := control.ParseObjectName(of); err == nil {
		n.table, n.key, n.version = t, key, version
	} else if day, list, ok := parseAnchorName(of); ok && list == "" {
		at, _ := time.Parse(dayForm, day)
		n.from = at.Add(-MostSkew)
	}
	return n
}

// add adds the next older entry.
func (n *name) add(e Entry) {
	switch {
	case e.DeleteMarker:
		n.hidden = true
		return
	case e.PutAt.Before(n.from):
		n.early = &e
		return
	}
	if n.versions = append(n.versions, e); len(n.versions) > maxNewest+maxOldest {
		n.versions, n.more = slices.Delete(n.versions, maxNewest, maxNewest+1), true
	}
}

// oldest returns the first version with content. It returns nil if no version has content.
func (n *name) oldest() *Entry {
	if len(n.versions) == 0 {
		return nil
	}
	return &n.versions[len(n.versions)-1]
}

// content is what was read of a name.
type content struct {
	*name
	entry    *Entry // the version that is the object; nil: the name has only delete markers
	object   Object
	record   *events.AuditRecord // nil: the object holds no valid record, for the reason why
	why      error
	fetched  bool // object was read
	gone     bool // the object was removed after it was listed
	passed   []passed
	replaced bool
	repeated int64
}

// passed is a version that was passed over: it cannot be read, or is not what its name requires.
type passed struct {
	Entry
	why error
	sum string // hash of its content; empty if unknown
}

// read reads a name's versions and the record that they must hold. The record is the first version, since it was there
// before anybody wrote the others. Only a version that cannot be read is passed over, since the archiver puts the
// record over such a version, and over no other.
func (n *name) read(ctx context.Context, a Archive) (*content, error) {
	if n.table == "" {
		return &content{name: n, replaced: n.more}, nil
	}
	c, err := n.fetch(ctx, a, events.MaxAuditBytes, func(_ Object, err error) error {
		if errors.Is(err, ErrUnreadable) {
			return err
		}
		return nil
	})
	if err == nil && c.fetched {
		c.record, c.why = decode(n, c.object.Data)
	}
	return c, err
}

// fetch reads a name's versions. The first version that accept accepts is the object. accept gets the version's
// content, or the error of reading it: that wraps ErrTooLarge if the version has more than most bytes, and
// ErrUnreadable otherwise. accept returns nil, or why the version is passed over. If no version is accepted, the object
// is the first one, without content.
func (n *name) fetch(ctx context.Context, a Archive, most int64, accept func(Object, error) error) (*content, error) {
	c := &content{name: n, replaced: n.more}
	for i, e := range slices.Backward(n.versions) {
		o, err := getAtMost(ctx, a, e, most)
		switch {
		case errors.Is(err, ErrNotFound):
			c.entry, c.gone = &n.versions[i], true
			return c, nil
		case err != nil && !errors.Is(err, ErrUnreadable) && !errors.Is(err, ErrTooLarge):
			return nil, err
		}
		if why := accept(o, err); why != nil {
			p := passed{Entry: e, why: why}
			if err == nil {
				p.sum = sumOf(o.Data)
			}
			c.passed = append(c.passed, p)
			continue
		}
		c.entry, c.object, c.why, c.fetched = &n.versions[i], o, err, err == nil
		return c, c.compare(ctx, a, n.versions[:i])
	}
	if c.entry = n.oldest(); c.entry != nil {
		c.why = c.passed[0].why
	}
	return c, nil
}

// getAtMost reads a version of at most most bytes.
func getAtMost(ctx context.Context, a Archive, e Entry, most int64) (Object, error) {
	if e.SizeBytes > most {
		return Object{}, fmt.Errorf("%w: it has %d bytes, want at most %d", ErrTooLarge, e.SizeBytes, most)
	}
	return a.Get(ctx, e)
}

// compare compares the object with the newer versions.
func (c *content) compare(ctx context.Context, a Archive, newer []Entry) error {
	for _, e := range newer {
		if e.SizeBytes != c.entry.SizeBytes {
			c.replaced = true
			continue
		}
		if !c.fetched {
			continue
		}
		o, err := a.Get(ctx, e)
		switch {
		case errors.Is(err, ErrNotFound):
		case errors.Is(err, ErrUnreadable):
			c.passed = append(c.passed, passed{Entry: e, why: err})
		case err != nil:
			return err
		case bytes.Equal(o.Data, c.object.Data):
			c.repeated++
		default:
			c.replaced = true
		}
	}
	return nil
}

// decode reads the record that an object of this name must hold.
func decode(n *name, data []byte) (*events.AuditRecord, error) {
	e, err := events.Decode(data)
	if err != nil {
		return nil, err
	}
	r, ok := e.(*events.AuditRecord)
	if !ok {
		h := e.Header()
		return nil, fmt.Errorf("it holds %s in version %d, want %s in version %d", h.Type, h.Version,
			events.AuditRecorded, events.Version)
	}
	if r.Table != n.table || r.Key != n.key || r.ItemVersion != n.version {
		return nil, fmt.Errorf("it holds the record of version %d of %s/%q", r.ItemVersion, r.Table, r.Key)
	}
	return r, nil
}

// Objects that are read concurrently, and names whose objects are read before they are passed on in their order: enough
// that the wait for the last read of them takes little of the time, and few enough for memory, where they may have up
// to MaxAuditBytes each.
const (
	parallel  = 32
	readAhead = 128
)

// contents reads what the names with a prefix hold, in their order. It ends after an error.
func contents(ctx context.Context, a Archive, prefix string) iter.Seq2[*content, error] {
	return func(yield func(*content, error) bool) {
		var listed []*name
		flush := func() bool {
			read := make([]*content, len(listed))
			err := control.Concurrently(len(listed), parallel, func(i int) (err error) {
				read[i], err = listed[i].read(ctx, a)
				return err
			})
			listed = listed[:0]
			if err = cmp.Or(err, ctx.Err()); err != nil {
				yield(nil, err)
				return false
			}
			for _, c := range read {
				if !yield(c, nil) {
					return false
				}
			}
			return true
		}
		for n, err := range names(ctx, a, prefix, "") {
			if err != nil {
				yield(nil, err)
				return
			}
			if listed = append(listed, n); len(listed) == readAhead && !flush() {
				return
			}
		}
		flush()
	}
}
