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

// Filter says which changes are shown. Its zero value is all of them.
type Filter struct {
	Table    control.Table // with Key or alone
	Key      string
	Version  int64     // of that item; 0 is all
	From, To time.Time // when it was made, by its writer's clock: From included, To not; zero is no bound
	Actor    string    // who made it: a part of the name, whatever its case

	// Skip is asked for each version of an item that is there, once, and leaves out those of which it returns true,
	// which are not read; nil leaves out none.
	Skip func(table control.Table, key string) bool
}

// Check returns an error unless the filter makes sense.
func (f *Filter) Check() error {
	switch {
	case f.Table == "" && f.Key != "", f.Key == "" && f.Version != 0:
		return errors.New("a key needs its table, and a version its item")
	case f.Table != "" && events.CheckTable(f.Table) != nil:
		return events.CheckTable(f.Table)
	case f.Key != "" && events.CheckKey(f.Table, f.Key) != nil:
		return events.CheckKey(f.Table, f.Key)
	case f.Version < 0 || f.Version > events.MaxVersion:
		return errors.New("a version is 1 or more")
	case !f.From.IsZero() && !f.To.IsZero() && !f.From.Before(f.To):
		return errors.New("nothing is from one time on and before another that is not after it")
	}
	return nil
}

// skew is by how much clocks of writers may be behind the archive's without a change being left out for its time.
const skew = 24 * time.Hour

// leavesOut reports whether what is known before reading leaves something out.
func (f *Filter) leavesOut(n *name) bool {
	if n.table == "" || n.oldest() == nil || !f.From.IsZero() && n.oldest().PutAt.Before(f.From.Add(-skew)) {
		return true
	}
	return f.Skip != nil && f.Skip(n.table, n.key)
}

// Shown is one change as the archive has it.
type Shown struct {
	Name   string              // of the object
	Record *events.AuditRecord // nil: it cannot be read, and Err says so
	Err    error               // also where it can be read, and is not what its writer hashed
	Hidden bool                // by a delete marker
	Others bool                // there are other contents of this name: they were put later, and are not shown
	Unread bool                // there are versions of this name that nobody can read, beside the record
}

// most is how many bytes of records are held to be sorted. What is beyond it is read twice.
const most = 64 << 20

// Show tells the changes that pass the filter, oldest first, to yield until that returns false. It does not compare
// them with each other or with the tables, as [Verify] does.
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
	var failed error
	err := names(ctx, a, prefix, "", func(n *name) bool {
		if f.leavesOut(n) {
			return true
		}
		m := &match{name: n}
		if failed = m.read(ctx, a); failed != nil || !m.passes(&f) {
			return failed == nil
		}
		if held += len(n.name) + m.size; held > most {
			m.shown = nil // read again
		}
		found = append(found, m)
		return true
	})
	if err := errors.Join(failed, err); err != nil {
		return err
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

// match is a change on its way to be shown.
type match struct {
	*name
	at    time.Time // it was made, or else put
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

// passes reports whether a change is asked for. One that cannot be read may be any.
func (m *match) passes(f *Filter) bool {
	r := m.shown.Record
	if r == nil {
		return true
	}
	return !r.Time.Before(f.From) && (f.To.IsZero() || r.Time.Before(f.To)) &&
		strings.Contains(strings.ToLower(r.Actor), strings.ToLower(f.Actor))
}
