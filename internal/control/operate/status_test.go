package operate_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"strings"
	"testing"
	"time"

	"github.com/sluicelimits/sluice/events"
	"github.com/sluicelimits/sluice/internal/cell/table"
	"github.com/sluicelimits/sluice/internal/control"
	"github.com/sluicelimits/sluice/internal/control/operate"
)

// cellTable is the table of a cell.
type cellTable struct {
	head      int64
	later     int64 // written during the comparison
	documents []table.Document
	rows      []table.BadRow
	err       error
}

func (c *cellTable) Head(context.Context) (table.Head, error) {
	if c.head == 0 && c.err == nil {
		return table.Head{}, table.ErrEmpty
	}
	head := table.Head{Incarnation: "i", Seq: c.head}
	c.head += c.later
	return head, c.err
}

func (c *cellTable) Log(_ context.Context, after, upTo int64) ([]table.Entry, error) {
	if after != upTo-1 {
		return nil, errors.New("more than the last entry was asked for")
	}
	return []table.Entry{{Seq: upTo, At: noon.Add(-time.Minute)}}, nil
}

func (c *cellTable) List(_ context.Context, kind table.Kind) iter.Seq2[table.Document, error] {
	return func(yield func(table.Document, error) bool) {
		for _, row := range c.rows {
			if row.Kind == kind && !yield(table.Document{}, fmt.Errorf("list: %w", &row)) {
				return
			}
		}
		for _, d := range c.documents {
			if d.Kind == kind && !yield(d, nil) {
				return
			}
		}
	}
}

// copied returns a table with everything that is stored.
func (w *world) copied() *cellTable {
	w.Helper()
	c := &cellTable{head: 7}
	for _, t := range []control.Table{control.Plans, control.Tenants, control.Keys} {
		for item, err := range control.All(w.Context(), w.tables, t) {
			if err != nil {
				w.Fatal(err)
			}
			d, _ := operate.DocumentOf(t, item.Key, item.Body)
			c.documents = append(c.documents, table.Document{Ref: table.Ref{Kind: d.Kind, ID: d.ID},
				Version: item.Version, Deleted: item.Deleted, Body: item.Body})
			if hash := c.documents[len(c.documents)-1].KeyHash(); hash != "" {
				c.documents = append(c.documents, table.Document{
					Ref: table.Ref{Kind: table.KindKeyHash, ID: hash}, Version: 7, Seq: 7, Body: item.Body})
			}
		}
	}
	return c
}

// Guarantees that the status reports differences that only requests would meet: a hash without a key, a revocation
// that is undone under the hash, a key without a document under its hash, documents whose number is above that of the
// last log entry, which no reader can load, and rows that are not documents. Documents that are written during the
// comparison are none of these.
func TestConfigStatusOfForgedRows(t *testing.T) {
	w := newWorld(t)
	hash := func(digit string) string { return strings.Repeat(digit, 64) }
	w.seed(plans + `keys:
  - { id: a, tenant: acme, hash: "` + hash("a") + `", pepper: p1 }
  - { id: b, tenant: acme, hash: "` + hash("b") + `", pepper: p1 }
`)
	good, busy, forged := w.copied(), w.copied(), w.copied()
	fresh := table.Document{Ref: table.Ref{Kind: table.KindKeyHash, ID: hash("c")}, Version: 8, Seq: 8,
		Body: []byte(`{"id":"c"}`)}
	busy.documents, busy.later = append(busy.documents, fresh), 1
	ahead := func(kind table.Kind, id string) {
		d := table.Document{Ref: table.Ref{Kind: kind, ID: id}, Version: 1, Seq: 99}
		forged.documents = append(forged.documents, d)
	}
	for i := range forged.documents {
		switch d := &forged.documents[i]; d.ID {
		case hash("a"):
			d.Body = []byte(strings.Replace(string(d.Body), "acme", "evil", 1))
		case hash("b"):
			d.Deleted = true
		case "free":
			d.Seq = 99
		}
	}
	hidden := table.Document{Ref: fresh.Ref, Version: 7, Seq: 7, Body: []byte(`{}`)}
	forged.documents = append(forged.documents, hidden)
	ahead(table.KindShares, table.SharesID)
	ahead(table.KindKeyHash, hash("d"))
	stray := errors.New("it lies elsewhere")
	forged.rows = []table.BadRow{{Kind: "tenant", Key: [2]string{"tenant#0", "acme"}, Err: stray},
		{Kind: table.KindKeyHash, Key: [2]string{"keyhash#0", hash("e")}, Err: stray}}
	w.config.CellTables = map[string]operate.CellTable{"a-good": good, "b-busy": busy, "c-forged": forged}
	w.tables.damaged = events.CanaryKey
	w.remake()
	out, err := w.ConfigStatus(t.Context(), ann, &operate.StatusRequest{})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range out.Cells {
		if c.Documents != 7 || c.Behind != 0 || c.Cell != "c-forged" && c.Drifted != 0 {
			t.Errorf("got the cell %+v, want 7 documents, none behind, and drift only in c-forged", c)
		}
	}
	const want = `tenant "acme" is a row that is not a document: it lies elsewhere
a key under its hash is a row that is not a document: it lies elsewhere
key "a" has another content under its hash
a hash leads to a key that is not among the cell's keys
key "b" has no document under its hash, so requests do not find it
plan "free" has the number of log entry 99, but the last entry is 7, so no reader loads it
a key under its hash has the number of log entry 99, but the last entry is 7, so no reader loads it
shares "shares" has the number of log entry 99, but the last entry is 7, so no reader loads it`
	if got := strings.Join(out.Cells[2].Drift, "\n"); got != want || out.Cells[2].Drifted != 8 {
		t.Errorf("got %d\n%s\nwant\n%s", out.Cells[2].Drifted, got, want)
	}
}

// Guarantees that an item that cannot be read is named in the status, and hides nothing else: neither drift of other
// documents nor changes that have not arrived. Of the item itself nothing is claimed.
func TestConfigStatusOfDamagedItem(t *testing.T) {
	w := newWorld(t)
	w.seed(plans)
	cell := w.copied()
	for i := range cell.documents {
		if d := &cell.documents[i]; d.ID == "acme" {
			d.Body = []byte(`{}`)
		}
	}
	w.config.CellTables = map[string]operate.CellTable{"a": cell}
	w.tables.damaged = "pro"
	w.remake()
	out, err := w.ConfigStatus(t.Context(), ann, &operate.StatusRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if len(out.Damaged) != 1 || !strings.Contains(out.Damaged[0], "pro") ||
		!strings.Contains(out.Damaged[0], "layout is 2") {
		t.Errorf("the damaged items are %q, want the plan pro with the reason", out.Damaged)
	}
	if c := out.Cells[0]; c.Drifted != 1 || !strings.Contains(c.Drift[0], "acme") || c.Behind != 0 {
		t.Errorf("the cell drifted %d times, %q, and %d are behind; want the tenant acme only", c.Drifted, c.Drift,
			c.Behind)
	}
}

// Guarantees that the status distinguishes a cell that is complete from one that lags, has drifted, is empty, or does
// not answer; otherwise an operator would trust a change that has not arrived.
func TestConfigStatus(t *testing.T) {
	w := newWorld(t)
	w.seed(plans)
	late, drifted := w.copied(), w.copied()
	now := noon.Add(90 * time.Second)
	w.config.Now = func() time.Time { return now }
	w.remake()
	if _, err := w.Suspend(t.Context(), ann, &operate.TenantRequest{Tenant: "acme", Reason: "x"}); err != nil {
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
	w.config.CellTables = map[string]operate.CellTable{"a-same": same, "b-late": late, "c-drifted": drifted,
		"d-empty": &cellTable{}, "e-away": &cellTable{err: errAway}}
	w.config.Now = func() time.Time { return now.Add(10 * time.Second) }
	w.remake()
	out, err := w.ConfigStatus(t.Context(), ann, &operate.StatusRequest{})
	if err != nil || out.Documents != 5 {
		t.Fatalf("got %+v, error %v; want 5 documents", out, err)
	}
	var got []string
	for _, c := range out.Cells {
		got = append(got, fmt.Sprintf("%s head %d has %d, %d behind for %gs (%s), drift %q %s", c.Cell, c.Head,
			c.Documents, c.Behind, c.LagS, c.Oldest, c.Drift, c.Error))
	}
	const want = `a-same head 7 has 5, 0 behind for 0s (), drift [] 
b-late head 7 has 5, 1 behind for 10s (tenant "acme"), drift [] 
c-drifted head 7 has 5, 1 behind for 10s (tenant "acme"), drift ` +
		`["plan \"free\" has version 9, the control table 1" "plan \"pro\" of version 1 has another content" ` +
		`"tenant \"acne\" is in no control table"] 
d-empty head 0 has 0, 5 behind for 100s (settings), drift [] 
e-away head 0 has 0, 0 behind for 0s (), drift [] the table did not answer`
	if all := strings.Join(got, "\n"); all != want {
		t.Errorf("got\n%s\nwant\n%s", all, want)
	}
	if one, err := w.ConfigStatus(t.Context(), ann, &operate.StatusRequest{Cell: "b-late"}); err != nil ||
		len(one.Cells) != 1 {
		t.Errorf("of one cell: got %+v, error %v; want that cell alone", one, err)
	}
	if _, err := w.ConfigStatus(t.Context(), ann,
		&operate.StatusRequest{Cell: "none"}); codeOf(err) != operate.NotFound {
		t.Errorf("of an unknown cell: got the error %v, want NotFound", err)
	}
}
