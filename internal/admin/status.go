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

	"github.com/sluicelimits/sluice/internal/admin/call"
	"github.com/sluicelimits/sluice/internal/cellconfig"
	"github.com/sluicelimits/sluice/internal/control"
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
	Drifted   int        `json:"drifted"`              // documents that nobody wrote so: of the same version and another content, of a later one, or unknown
	Drift     []string   `json:"drift,omitempty"`      // of these the first 20, one sentence each
	Error     string     `json:"error,omitempty"`      // it could not be asked; what is above says nothing then
}

// StatusResponse is the cells by name, and what they are compared with.
type StatusResponse struct {
	Documents int          `json:"documents"` // in the control tables, tombstones not included
	Cells     []CellStatus `json:"cells"`
}

// ConfigStatus compares each cell's copy with the control tables, whole: it reads every document of both. What is written
// meanwhile may count as behind.
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
	for _, kind := range []plan.Kind{plan.KindPlan, plan.KindSettings, plan.KindTenant, plan.KindKey} {
		for d, err := range table.List(ctx, kind) {
			if err != nil {
				return failed(err)
			}
			have[d.Ref] = d.Version
			if !d.Deleted {
				st.Documents++
			}
			item, known := want[d.Ref]
			switch name := (plan.Document{Kind: d.Kind, ID: d.ID}).Name(); {
			case !known:
				st.drifted("%s is in no control table", name)
			case d.Version > item.Version:
				st.drifted("%s has version %d, the control table %d", name, d.Version, item.Version)
			case d.Version == item.Version && (d.Deleted != item.Deleted || !bytes.Equal(d.Body, item.Body)):
				st.drifted("%s of version %d has another content", name, d.Version)
			}
		}
	}
	st.compare(want, have, s.c.Now())
	return st
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
		if oldest == nil || item.ChangedAt.Before(oldest.ChangedAt) || item.ChangedAt.Equal(oldest.ChangedAt) && item.Key < oldest.Key {
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
		return nil, call.Refuse(call.Unsupported, "what shadow limits would have denied is not counted here: in AWS each cell's metric shadow_denied has it, and its log lines by limit")
	}
	r, err := s.c.Shadow(ctx)
	if err != nil {
		return nil, s.failed(ctx, "count what shadows did", err)
	}
	return r, nil
}
