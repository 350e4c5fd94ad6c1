package audit

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/sluicelimits/sluice/events"
	"github.com/sluicelimits/sluice/internal/control"
)

// Filter selects the changes that are shown. Its zero value selects all of them.
type Filter struct {
	Table    control.Table // with or without Key
	Key      string
	Version  int64     // of that item; 0: all versions
	From, To time.Time // by the writer's clock: From ≤ time < To; zero: no bound
	Actor    string    // part of the actor's name, in any case

	// Skip leaves out the versions of items for which it returns true, without reading them. It is called once for
	// each version. nil leaves out none.
	Skip func(table control.Table, key string) bool
}

// Check returns an error unless the fields of the filter are consistent.
func (f *Filter) Check() error {
	switch {
	case f.Table == "" && f.Key != "", f.Key == "" && f.Version != 0:
		return errors.New("a filter with a key needs a table, and a filter with a version needs a key")
	case f.Table != "" && events.CheckTable(f.Table) != nil:
		return events.CheckTable(f.Table)
	case f.Key != "" && events.CheckKey(f.Table, f.Key) != nil:
		return events.CheckKey(f.Table, f.Key)
	case f.Version < 0 || f.Version > events.MaxVersion:
		return errors.New("the version of a filter must be at least 1")
	case !f.From.IsZero() && !f.To.IsZero() && !f.From.Before(f.To):
		return errors.New("the filter's end time must be after its start time")
	}
	return nil
}

// skew is the most by which writers' clocks may be ahead of the archive's. Beyond it, From may leave out their
// changes.
const skew = 24 * time.Hour

// leavesOut reports whether the filter excludes a name before it is read.
func (f *Filter) leavesOut(n *name) bool {
	if n.table == "" || n.oldest() == nil || !f.From.IsZero() && n.oldest().PutAt.Before(f.From.Add(-skew)) {
		return true
	}
	return f.Skip != nil && f.Skip(n.table, n.key)
}

// Shown is one change in the archive.
type Shown struct {
	Name   string              // of the object
	Record *events.AuditRecord // nil: the record cannot be read, see Err
	Err    error               // also set if the record can be read and was altered
	Hidden bool                // by a delete marker
	Others bool                // the name has later versions with other contents, which are not shown
	Unread bool                // besides the record, the name has versions that cannot be read
}

// most is the largest size, in bytes, of the records that are kept in memory while they are sorted. Further records
// are read twice.
const most = 64 << 20

// Show passes the changes that the filter selects to yield, oldest first, until yield returns false. Unlike [Verify],
// it does not compare them with each other or with the tables.
func Show(ctx context.Context, a Archive, f Filter, yield func(Shown) bool) error {
	if err := f.Check(); err != nil {
		return err
	}
	prefix := control.ObjectPrefix
	switch {
	case f.Version > 0:
		prefix = control.ObjectName(f.Table, f.Key, f.Version)
	case f.Key != "":
		prefix = control.ObjectFolder(f.Table, f.Key)
	case f.Table != "":
		prefix += string(f.Table) + "/"
	}
	var found []*match
	held := 0
	for n, err := range names(ctx, a, prefix, "") {
		if err != nil {
			return err
		}
		if f.leavesOut(n) {
			continue
		}
		m := &match{name: n}
		if err := m.read(ctx, a); err != nil {
			return err
		}
		if !m.passes(&f) {
			continue
		}
		if held += len(n.name) + m.size; held > most {
			m.shown = nil // read again
		}
		found = append(found, m)
	}
	slices.SortFunc(found, func(x, y *match) int {
		return cmp.Or(x.at.Compare(y.at), strings.Compare(x.name.name, y.name.name))
	})
	for _, m := range found {
		if m.shown == nil {
			if err := m.read(ctx, a); err != nil {
				return err
			}
		}
		if !yield(*m.shown) {
			return nil
		}
		m.shown = nil
	}
	return nil
}

// match is a change that the filter selects.
type match struct {
	*name
	at    time.Time // when the change was made, or, if unknown, when its object was put
	size  int
	shown *Shown
}

func (m *match) read(ctx context.Context, a Archive) error {
	c, err := m.name.read(ctx, a)
	if err != nil {
		return err
	}
	m.shown = &Shown{Name: m.name.name, Record: c.record, Err: c.why, Hidden: m.hidden, Others: c.replaced}
	m.shown.Unread = c.record != nil && len(c.passed) > 0
	m.at, m.size = c.entry.PutAt, len(c.object.Data)
	if c.gone {
		m.shown.Err = ErrNotFound
	}
	if c.record != nil {
		i := control.FromAudit(c.record)
		m.at, m.shown.Err = c.record.Time, i.Verify()
	}
	return nil
}

// passes reports whether the filter selects a change. A change that cannot be read is always selected.
func (m *match) passes(f *Filter) bool {
	r := m.shown.Record
	if r == nil {
		return true
	}
	return !r.Time.Before(f.From) && (f.To.IsZero() || r.Time.Before(f.To)) &&
		strings.Contains(strings.ToLower(r.Actor), strings.ToLower(f.Actor))
}
