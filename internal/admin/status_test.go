package admin_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"strings"
	"testing"
	"time"

	"github.com/sluicelimits/sluice/internal/admin"
	"github.com/sluicelimits/sluice/internal/admin/call"
	"github.com/sluicelimits/sluice/internal/cellconfig"
	"github.com/sluicelimits/sluice/internal/control"
)

// cellTable is a cell's copy.
type cellTable struct {
	head      int64
	documents []cellconfig.Document
	err       error
}

func (c *cellTable) Head(context.Context) (cellconfig.Head, error) {
	if c.head == 0 && c.err == nil {
		return cellconfig.Head{}, cellconfig.ErrEmpty
	}
	return cellconfig.Head{Incarnation: "i", Seq: c.head}, c.err
}

func (c *cellTable) Log(_ context.Context, after, upTo int64) ([]cellconfig.Entry, error) {
	if after != upTo-1 {
		return nil, errors.New("more than the last entry was asked for")
	}
	return []cellconfig.Entry{{Seq: upTo, At: noon.Add(-time.Minute)}}, nil
}

func (c *cellTable) List(_ context.Context, kind cellconfig.Kind) iter.Seq2[cellconfig.Document, error] {
	return func(yield func(cellconfig.Document, error) bool) {
		for _, d := range c.documents {
			if d.Kind == kind && !yield(d, nil) {
				return
			}
		}
	}
}

// copied is a copy of all that is stored.
func (w *world) copied() *cellTable {
	w.Helper()
	c := &cellTable{head: 7}
	for _, t := range []control.Table{control.Plans, control.Tenants, control.Keys} {
		for item, err := range control.All(w.Context(), w.tables, t) {
			if err != nil {
				w.Fatal(err)
			}
			d, _ := admin.DocumentOf(t, item.Key, item.Body)
			c.documents = append(c.documents, cellconfig.Document{Ref: cellconfig.Ref{Kind: d.Kind, ID: d.ID}, Version: item.Version, Deleted: item.Deleted, Body: item.Body})
		}
	}
	return c
}

// Guarantees that the status tells a cell that has all from one that lags, has drifted, is empty or does not answer: else an
// operator trusts a change that has not arrived.
func TestConfigStatus(t *testing.T) {
	w := newWorld(t)
	w.seed(plans)
	late, drifted := w.copied(), w.copied()
	now := noon.Add(90 * time.Second)
	w.config.Now = func() time.Time { return now }
	w.remake()
	if _, err := w.Suspend(t.Context(), ann, &admin.TenantRequest{Tenant: "acme", Reason: "x"}); err != nil {
		t.Fatal(err)
	}
	same := w.copied()
	for i := range drifted.documents {
		switch d := &drifted.documents[i]; d.ID {
		case "pro":
			d.Body = []byte(`{"id":"pro","limits":[]}`)
		case "free":
			d.Version = 9
		case "acme":
			d.ID = "acne"
		}
	}
	w.config.CellTables = map[string]admin.CellTable{"a-same": same, "b-late": late, "c-drifted": drifted, "d-empty": &cellTable{}, "e-away": &cellTable{err: errAway}}
	w.config.Now = func() time.Time { return now.Add(10 * time.Second) }
	w.remake()
	out, err := w.ConfigStatus(t.Context(), ann, &admin.StatusRequest{})
	if err != nil || out.Documents != 5 {
		t.Fatalf("got %+v, %v", out, err)
	}
	var got []string
	for _, c := range out.Cells {
		got = append(got, fmt.Sprintf("%s head %d has %d, %d behind for %gs (%s), drift %q %s", c.Cell, c.Head, c.Documents, c.Behind, c.LagS, c.Oldest, c.Drift, c.Error))
	}
	const want = `a-same head 7 has 5, 0 behind for 0s (), drift [] 
b-late head 7 has 5, 1 behind for 10s (tenant "acme"), drift [] 
c-drifted head 7 has 5, 1 behind for 10s (tenant "acme"), drift ["plan \"free\" has version 9, the control table 1" "plan \"pro\" of version 1 has another content" "tenant \"acne\" is in no control table"] 
d-empty head 0 has 0, 5 behind for 100s (settings), drift [] 
e-away head 0 has 0, 0 behind for 0s (), drift [] the table did not answer`
	if all := strings.Join(got, "\n"); all != want {
		t.Errorf("got\n%s\nwant\n%s", all, want)
	}
	if one, err := w.ConfigStatus(t.Context(), ann, &admin.StatusRequest{Cell: "b-late"}); err != nil || len(one.Cells) != 1 {
		t.Errorf("of one cell: %+v, %v", one, err)
	}
	if _, err := w.ConfigStatus(t.Context(), ann, &admin.StatusRequest{Cell: "none"}); codeOf(err) != call.NotFound {
		t.Errorf("of a cell that is not there: %v", err)
	}
}

// Guarantees that what cannot be had here is said, with where it is.
func TestShadowReport(t *testing.T) {
	w := newWorld(t)
	_, err := w.ShadowReport(t.Context(), ann, &admin.ShadowReportRequest{})
	w.refused(err, call.Unsupported, "shadow_denied")
	w.config.Shadow = func(context.Context) (*admin.ShadowReport, error) {
		return &admin.ShadowReport{Window: "ten minutes", Limits: []admin.ShadowLimit{{Limit: "writes", Admitted: 5, Denied: 2}}}, nil
	}
	w.remake()
	if r, err := w.ShadowReport(t.Context(), ann, &admin.ShadowReportRequest{}); err != nil || r.Limits[0].Denied != 2 {
		t.Errorf("got %+v, %v", r, err)
	}
}
