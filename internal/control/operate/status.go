package operate

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"
	"time"

	"github.com/sluicelimits/sluice/internal/cell/table"
	"github.com/sluicelimits/sluice/internal/control"
	"github.com/sluicelimits/sluice/internal/plan"
)

// CellTable is the part of a cell's config table that ConfigStatus reads; a table.Store implements it.
type CellTable interface {
	Head(ctx context.Context) (table.Head, error)
	Log(ctx context.Context, after, upTo int64) ([]table.Entry, error)
	List(ctx context.Context, kind table.Kind) iter.Seq2[table.Document, error]
}

// StatusRequest asks for the status of one cell, or of all if Cell is "".
type StatusRequest struct {
	Cell string `json:"cell,omitempty"`
}

// CellStatus compares a cell's copy with the control tables.
type CellStatus struct {
	Cell      string     `json:"cell"`
	Head      int64      `json:"head"`                 // number of the last entry of its change log
	ChangedAt *time.Time `json:"changed_at,omitempty"` // of that entry
	Documents int        `json:"documents"`            // tombstones not included
	Behind    int        `json:"behind"`               // documents whose newest version has not arrived in the cell
	LagS      float64    `json:"lag_s"`                // seconds since the oldest of these was written
	// the document that was written first among those that have not arrived
	Oldest  string   `json:"oldest,omitempty"`
	Drifted int      `json:"drifted"`         // number of differences that no write explains; see ConfigStatus
	Drift   []string `json:"drift,omitempty"` // the first 20 of these differences, one sentence each
	// why the cell's table could not be read; the other fields are then zero
	Error string `json:"error,omitempty"`
}

// StatusResponse holds the status of each cell, sorted by name.
type StatusResponse struct {
	Documents int          `json:"documents"` // in the control tables, tombstones not included
	Cells     []CellStatus `json:"cells"`
	Damaged   []string     `json:"damaged,omitempty"` // items that cannot be read, one sentence each
}

// ConfigStatus compares the whole copy of each cell with the control tables: it reads every document of both.
// Documents that are written during the comparison may count as behind.
//
// It counts as drift: documents with the version of their item and another content, with a later version, or without
// an item; keys that differ from their copies under their hashes, which requests read; hashes without a key;
// documents, including shares and placements, whose number is above the number of the last log entry; and rows that
// are not documents.
func (s *Control) ConfigStatus(ctx context.Context, _ string, r *StatusRequest) (*StatusResponse, error) {
	if len(s.c.CellTables) == 0 {
		return nil, Refuse(Unsupported, "the tables of the cells cannot be read from here")
	}
	if _, ok := s.c.CellTables[r.Cell]; r.Cell != "" && !ok {
		return nil, Refuse(NotFound, "the table of cell %q cannot be read from here", r.Cell)
	}
	want, out := map[table.Ref]*control.Item{}, &StatusResponse{Cells: []CellStatus{}}
	for _, t := range Tables() {
		for item, err := range control.All(ctx, s.c.Tables, t) {
			if items, whole := control.BadItems(err); err != nil && whole {
				s.c.Log.ErrorContext(ctx, "items of a control table cannot be read and are left out", "table", t,
					"error", err)
				for _, bad := range items {
					if d, ok := DocumentOf(bad.Table, bad.Key, nil); ok {
						want[table.Ref{Kind: d.Kind, ID: d.ID}] = nil
						out.Damaged = append(out.Damaged, bad.Error())
					}
				}
				continue
			}
			if err != nil {
				return nil, s.tableError(ctx, "list "+string(t), err)
			}
			if d, ok := DocumentOf(item.Table, item.Key, nil); ok {
				want[table.Ref{Kind: d.Kind, ID: d.ID}] = &item
				if !item.Deleted {
					out.Documents++
				}
			}
		}
	}
	for _, cell := range slices.Sorted(maps.Keys(s.c.CellTables)) {
		if r.Cell == "" || r.Cell == cell {
			out.Cells = append(out.Cells, s.cellStatus(ctx, cell, want))
		}
	}
	return out, nil
}

// cellStatus compares a cell with the items that it should have; nil stands for an item that cannot be read.
func (s *Control) cellStatus(ctx context.Context, cell string, want map[table.Ref]*control.Item) CellStatus {
	st, store := CellStatus{Cell: cell}, s.c.CellTables[cell]
	failed := func(err error) CellStatus {
		s.c.Log.WarnContext(ctx, "the config table of a cell cannot be read", "cell", cell, "error", err)
		return CellStatus{Cell: cell, Error: "the table did not answer"}
	}
	head, err := store.Head(ctx)
	if err != nil && !errors.Is(err, table.ErrEmpty) {
		return failed(err)
	}
	st.Head = head.Seq
	if head.Seq > 0 {
		entries, err := store.Log(ctx, head.Seq-1, head.Seq)
		if err != nil {
			return failed(err)
		}
		if len(entries) == 1 {
			st.ChangedAt = &entries[0].At
		}
	}
	have := make(map[table.Ref]int64, len(want))
	found := lookup{head: head.Seq, keys: map[string]*table.Document{}}
	// Keys are listed before hashes. A hash without a key is therefore forged, or was written in between.
	for _, kind := range slices.Concat(plan.Kinds, []table.Kind{table.KindKeyHash, table.KindShares,
		table.KindPlacement}) {
		for d, err := range store.List(ctx, kind) {
			var row *table.BadRow
			switch {
			case errors.As(err, &row):
				st.addDrift("%s is a row that is not a document: %v",
					nameOf(table.Ref{Kind: row.Kind, ID: row.Key[1]}), row.Err)
				continue
			case err != nil:
				return failed(err)
			}
			found.add(&st, &d)
			if slices.Contains(plan.Kinds, kind) {
				have[d.Ref] = d.Version
				st.compareDocument(want, &d)
			}
		}
	}
	found.reportUnhashed(&st)
	if len(found.above) > 0 {
		if head, err = store.Head(ctx); err != nil && !errors.Is(err, table.ErrEmpty) {
			return failed(err)
		}
		found.reportBeyondHead(&st, head.Seq)
	}
	st.countBehind(want, have, s.c.Now())
	return st
}

// compareDocument compares a document of the cell with its item.
func (st *CellStatus) compareDocument(want map[table.Ref]*control.Item, d *table.Document) {
	if !d.Deleted {
		st.Documents++
	}
	item, known := want[d.Ref]
	switch name := nameOf(d.Ref); {
	case !known:
		st.addDrift("%s is in no control table", name)
	case item == nil: // nothing can be said of the document
	case d.Version > item.Version:
		st.addDrift("%s has version %d, the control table %d", name, d.Version, item.Version)
	case d.Version == item.Version && (d.Deleted != item.Deleted || !bytes.Equal(d.Body, item.Body)):
		st.addDrift("%s of version %d has another content", name, d.Version)
	}
}

// nameOf names a document for operators. It leaves out the hash of a key.
func nameOf(ref table.Ref) string {
	if ref.Kind == table.KindKeyHash {
		return "a key under its hash"
	}
	return plan.Document{Kind: ref.Kind, ID: ref.ID}.Name()
}

// lookup finds documents that readers of the cell's table do not load, or load with another content.
type lookup struct {
	head  int64                      // number of the last log entry when the listing began
	keys  map[string]*table.Document // keys by hash, until a document under the hash is seen
	above []table.Document           // documents with a number above head, without their bodies
}

// add checks a document. Keys must be added before hashes.
func (l *lookup) add(st *CellStatus, d *table.Document) {
	if d.Seq > l.head {
		l.above = append(l.above, table.Document{Ref: d.Ref, Seq: d.Seq})
	}
	if hash := d.KeyHash(); hash != "" {
		l.keys[hash] = d
	}
	if d.Kind != table.KindKeyHash || d.Deleted {
		return
	}
	key := l.keys[d.ID]
	delete(l.keys, d.ID)
	switch {
	case d.Seq > l.head: // written in between, or reported by reportBeyondHead
	case key == nil:
		st.addDrift("a hash leads to a key that is not among the cell's keys")
	case !bytes.Equal(key.Body, d.Body):
		st.addDrift("%s has another content under its hash", nameOf(key.Ref))
	}
}

// reportUnhashed reports the keys that have no document under their hash, so that requests do not find them.
func (l *lookup) reportUnhashed(st *CellStatus) {
	var names []string
	for _, key := range l.keys {
		names = append(names, nameOf(key.Ref))
	}
	slices.Sort(names)
	for _, name := range names {
		st.addDrift("%s has no document under its hash, so requests do not find it", name)
	}
}

// reportBeyondHead reports the documents whose number is above that of the last log entry. head must be read after
// them.
func (l *lookup) reportBeyondHead(st *CellStatus, head int64) {
	for i := range l.above {
		if d := &l.above[i]; d.Seq > head {
			st.addDrift("%s has the number of log entry %d, but the last entry is %d, so no reader loads it",
				nameOf(d.Ref), d.Seq, head)
		}
	}
}

func (st *CellStatus) addDrift(format string, args ...any) {
	if st.Drifted++; st.Drifted <= 20 {
		st.Drift = append(st.Drift, fmt.Sprintf(format, args...))
	}
}

// countBehind counts the documents whose newest version has not arrived, and finds the oldest of these versions.
func (st *CellStatus) countBehind(
	want map[table.Ref]*control.Item, have map[table.Ref]int64, now time.Time,
) {
	var oldest *control.Item
	for ref, item := range want {
		version, there := have[ref]
		if item == nil || version >= item.Version || !there && item.Deleted {
			continue
		}
		st.Behind++
		if oldest == nil || item.ChangedAt.Before(oldest.ChangedAt) || item.ChangedAt.Equal(oldest.ChangedAt) &&
			item.Key < oldest.Key {
			oldest = item
		}
	}
	if oldest != nil {
		st.LagS = max(now.Sub(oldest.ChangedAt).Seconds(), 0)
		st.Oldest = name(oldest.Table, oldest.Key)
	}
}
