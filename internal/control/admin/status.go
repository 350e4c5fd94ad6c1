package admin

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"
	"time"

	"github.com/sluicelimits/sluice/internal/cell/cellconfig"
	"github.com/sluicelimits/sluice/internal/control"
	"github.com/sluicelimits/sluice/internal/control/call"
	"github.com/sluicelimits/sluice/internal/plan"
)

// CellTable is what of a cell's config table is read for its status; a cellconfig.Store is one.
type CellTable interface {
	Head(ctx context.Context) (cellconfig.Head, error)
	Log(ctx context.Context, after, upTo int64) ([]cellconfig.Entry, error)
	List(ctx context.Context, kind cellconfig.Kind) iter.Seq2[cellconfig.Document, error]
}

// StatusRequest asks for all cells, or one.
type StatusRequest struct {
	Cell string `json:"cell,omitempty"`
}

// CellStatus is how far a cell's copy is.
type CellStatus struct {
	Cell      string     `json:"cell"`
	Head      int64      `json:"head"`                 // number of the last entry of its change log
	ChangedAt *time.Time `json:"changed_at,omitempty"` // of that entry
	Documents int        `json:"documents"`            // tombstones not included
	Behind    int        `json:"behind"`               // documents whose newest version has not arrived
	LagS      float64    `json:"lag_s"`                // seconds since the oldest of these was written
	Oldest    string     `json:"oldest,omitempty"`     // that document
	Drifted   int        `json:"drifted"`              // what nobody wrote so; see ConfigStatus
	Drift     []string   `json:"drift,omitempty"`      // of these the first 20, one sentence each
	Error     string     `json:"error,omitempty"`      // it could not be asked; what is above says nothing then
}

// StatusResponse is the cells by name, and what they are compared with.
type StatusResponse struct {
	Documents int          `json:"documents"` // in the control tables, tombstones not included
	Cells     []CellStatus `json:"cells"`
}

// ConfigStatus compares each cell's copy with the control tables, whole: it reads every document of both. What is
// written meanwhile may count as behind.
//
// It counts as drifted: documents of the same version and another content, of a later version, or of no item; keys that
// are not the same under their hashes, by which requests find them, and hashes of no key; documents with a number above
// that of the last log entry, shares and placements too; and rows that are no documents.
func (s *Service) ConfigStatus(ctx context.Context, _ string, r *StatusRequest) (*StatusResponse, error) {
	if len(s.c.CellTables) == 0 {
		return nil, call.Refuse(call.Unsupported, "no cell's table can be read from here")
	}
	if _, ok := s.c.CellTables[r.Cell]; r.Cell != "" && !ok {
		return nil, call.Refuse(call.NotFound, "the table of cell %q cannot be read from here", r.Cell)
	}
	want, out := map[cellconfig.Ref]control.Item{}, &StatusResponse{Cells: []CellStatus{}}
	for _, t := range []control.Table{control.Plans, control.Tenants, control.Keys} {
		for item, err := range control.All(ctx, s.c.Tables, t) {
			if items, whole := control.BadItems(err); err != nil && whole && !slices.ContainsFunc(items, isCompared) {
				s.c.Log.ErrorContext(ctx, "items cannot be read, and are left out", "table", t, "error", err)
				continue
			}
			if err != nil {
				return nil, s.failed(ctx, "list "+string(t), err)
			}
			if d, ok := DocumentOf(item.Table, item.Key, nil); ok {
				want[cellconfig.Ref{Kind: d.Kind, ID: d.ID}] = item
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

// isCompared reports whether the status of a cell says something about an item.
func isCompared(i *control.BadItemError) bool {
	_, ok := DocumentOf(i.Table, i.Key, nil)
	return ok
}

func (s *Service) cellStatus(ctx context.Context, cell string, want map[cellconfig.Ref]control.Item) CellStatus {
	st, table := CellStatus{Cell: cell}, s.c.CellTables[cell]
	failed := func(err error) CellStatus {
		s.c.Log.WarnContext(ctx, "a cell's table did not answer", "cell", cell, "error", err)
		return CellStatus{Cell: cell, Error: "the table did not answer"}
	}
	head, err := table.Head(ctx)
	if err != nil && !errors.Is(err, cellconfig.ErrEmpty) {
		return failed(err)
	}
	st.Head = head.Seq
	if head.Seq > 0 {
		entries, err := table.Log(ctx, head.Seq-1, head.Seq)
		if err != nil {
			return failed(err)
		}
		if len(entries) == 1 {
			st.ChangedAt = &entries[0].At
		}
	}
	have := make(map[cellconfig.Ref]int64, len(want))
	found := lookup{head: head.Seq, keys: map[string]*cellconfig.Document{}}
	// Keys come before their hashes: a hash that lacks its key then is forged, or was written meanwhile.
	for _, kind := range []plan.Kind{plan.KindPlan, plan.KindSettings, plan.KindTenant, plan.KindKey,
		cellconfig.KindKeyHash, cellconfig.KindShares, cellconfig.KindPlacement} {
		for d, err := range table.List(ctx, kind) {
			var row *cellconfig.BadRow
			switch {
			case errors.As(err, &row):
				st.drifted("%s is a row that is no document: %v",
					nameOf(cellconfig.Ref{Kind: row.Kind, ID: row.Key[1]}), row.Err)
				continue
			case err != nil:
				return failed(err)
			}
			found.add(&st, &d)
			switch kind {
			case plan.KindPlan, plan.KindSettings, plan.KindTenant, plan.KindKey:
				have[d.Ref] = d.Version
				st.document(want, &d)
			}
		}
	}
	found.unhashed(&st)
	if len(found.above) > 0 {
		if head, err = table.Head(ctx); err != nil && !errors.Is(err, cellconfig.ErrEmpty) {
			return failed(err)
		}
		found.beyond(&st, head.Seq)
	}
	st.compare(want, have, s.c.Now())
	return st
}

// document compares a document of the cell with its item.
func (st *CellStatus) document(want map[cellconfig.Ref]control.Item, d *cellconfig.Document) {
	if !d.Deleted {
		st.Documents++
	}
	item, known := want[d.Ref]
	switch name := nameOf(d.Ref); {
	case !known:
		st.drifted("%s is in no control table", name)
	case d.Version > item.Version:
		st.drifted("%s has version %d, the control table %d", name, d.Version, item.Version)
	case d.Version == item.Version && (d.Deleted != item.Deleted || !bytes.Equal(d.Body, item.Body)):
		st.drifted("%s of version %d has another content", name, d.Version)
	}
}

// nameOf is a document's name as operators may see it: without the hash of a key.
func nameOf(ref cellconfig.Ref) string {
	if ref.Kind == cellconfig.KindKeyHash {
		return "a key under its hash"
	}
	return plan.Document{Kind: ref.Kind, ID: ref.ID}.Name()
}

// lookup is how the readers of a cell's table find what is in it.
type lookup struct {
	head  int64                           // number of the last log entry, when the listing began
	keys  map[string]*cellconfig.Document // by hash, as long as no document under the hash was seen
	above []cellconfig.Document           // with a number above head, without their bodies
}

// add looks at a document. Keys come before hashes.
func (l *lookup) add(st *CellStatus, d *cellconfig.Document) {
	if d.Seq > l.head {
		l.above = append(l.above, cellconfig.Document{Ref: d.Ref, Seq: d.Seq})
	}
	if hash := d.KeyHash(); hash != "" {
		l.keys[hash] = d
	}
	if d.Kind != cellconfig.KindKeyHash || d.Deleted {
		return
	}
	key := l.keys[d.ID]
	delete(l.keys, d.ID)
	switch {
	case d.Seq > l.head: // written meanwhile; else beyond reports it
	case key == nil:
		st.drifted("a key is found by its hash and is not among the cell's keys")
	case !bytes.Equal(key.Body, d.Body):
		st.drifted("%s has another content under its hash", nameOf(key.Ref))
	}
}

// unhashed reports the keys that requests do not find.
func (l *lookup) unhashed(st *CellStatus) {
	var names []string
	for _, key := range l.keys {
		names = append(names, nameOf(key.Ref))
	}
	slices.Sort(names)
	for _, name := range names {
		st.drifted("%s is not found by its hash", name)
	}
}

// beyond reports the documents with a number above that of the last log entry. The head is read after them.
func (l *lookup) beyond(st *CellStatus, head int64) {
	for i := range l.above {
		if d := &l.above[i]; d.Seq > head {
			st.drifted("%s says that it came with log entry %d, and the last one is %d: nobody can load it",
				nameOf(d.Ref), d.Seq, head)
		}
	}
}

func (st *CellStatus) drifted(format string, args ...any) {
	if st.Drifted++; st.Drifted <= 20 {
		st.Drift = append(st.Drift, fmt.Sprintf(format, args...))
	}
}

// compare counts what has not arrived.
func (st *CellStatus) compare(want map[cellconfig.Ref]control.Item, have map[cellconfig.Ref]int64, now time.Time) {
	var oldest *control.Item
	for ref, item := range want {
		version, there := have[ref]
		if version >= item.Version || !there && item.Deleted {
			continue
		}
		st.Behind++
		if oldest == nil || item.ChangedAt.Before(oldest.ChangedAt) || item.ChangedAt.Equal(oldest.ChangedAt) &&
			item.Key < oldest.Key {
			oldest = &item
		}
	}
	if oldest != nil {
		st.LagS = max(now.Sub(oldest.ChangedAt).Seconds(), 0)
		st.Oldest = name(oldest.Table, oldest.Key)
	}
}

// ShadowLimit is what one shadow limit did, over all tenants.
type ShadowLimit struct {
	Limit    string `json:"limit"`
	Admitted uint64 `json:"admitted"` // requests that it would have let through, too
	Denied   uint64 `json:"denied"`   // requests that were admitted, and that it would have denied
}

// ShadowReport is what shadow limits did.
type ShadowReport struct {
	Window string        `json:"window"` // what time it is about, in words
	Limits []ShadowLimit `json:"limits"` // by id
}

// ShadowReportRequest asks for all of them.
type ShadowReportRequest struct{}

// ShadowReport says what shadow limits would have denied, where this process has seen the requests itself. In AWS the
// counts are metrics: nothing here reads CloudWatch.
func (s *Service) ShadowReport(ctx context.Context, _ string, _ *ShadowReportRequest) (*ShadowReport, error) {
	if s.c.Shadow == nil {
		return nil, call.Refuse(call.Unsupported, "what shadow limits would have denied is not counted here: in AWS "+
			"each cell's metric shadow_denied has it, and its log lines by limit")
	}
	r, err := s.c.Shadow(ctx)
	if err != nil {
		return nil, s.failed(ctx, "count what shadows did", err)
	}
	return r, nil
}
