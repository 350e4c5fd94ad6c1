package client_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"time"

	bolt "go.etcd.io/bbolt"

	"github.com/sluicelimits/sluice/internal/control"
	"github.com/sluicelimits/sluice/internal/control/admin"
	"github.com/sluicelimits/sluice/internal/control/call"
	"github.com/sluicelimits/sluice/internal/control/client"
	"github.com/sluicelimits/sluice/internal/control/embedded"
)

// serveTables returns a client of a server with the tables "these". The client asks for the tables of the given name.
func serveTables(t *testing.T, tables *embedded.Tables, of string) *client.Tables {
	t.Helper()
	service := admin.New(admin.Config{Tables: tables, Of: "these", Log: slog.New(slog.DiscardHandler)})
	s := httptest.NewServer(call.Local(admin.NewMux(service), "tester@local"))
	t.Cleanup(s.Close)
	c, err := client.New(s.URL, nil)
	if err != nil {
		t.Fatal(err)
	}
	return c.Tables(of)
}

func open(t *testing.T, path string) *embedded.Tables {
	t.Helper()
	tables, err := embedded.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	tables.Unsynced()
	t.Cleanup(func() { _ = tables.Close() }) // a second close does nothing
	return tables
}

// Guarantees that items arrive unchanged, whatever they contain: a body that other JSON writers would spell
// differently, a key of any text, a tombstone; and that an absent item is reported as absent.
func TestItemsArriveAsTheyAre(t *testing.T) {
	tables := open(t, filepath.Join(t.TempDir(), "control.db"))
	keys := []string{"plain", "<b>&amp;\u2028 \"ü\"", strings.Repeat("n", 128)}
	for i, key := range keys {
		body := fmt.Appendf(nil, `{"html":"<a href=\"x\">&","n":9007199254740993,"plan":"p%d","text":"\u2028\u0000"}`,
			i)
		for v := range int64(2) {
			if _, err := tables.Put(t.Context(), control.Change{Table: control.Tenants, Key: key, Expect: v,
				Body: body, Actor: "<alice> & bob", Reason: "a \"test\"", Now: time.Now()}); err != nil {
				t.Fatal(err)
			}
		}
	}
	if _, err := tables.Put(t.Context(), control.Change{Table: control.Tenants, Key: "gone", Body: []byte(`{}`),
		Actor: "a", Reason: "b", Now: time.Now()}); err != nil {
		t.Fatal(err)
	}
	if _, err := tables.Put(t.Context(), control.Change{Table: control.Tenants, Key: "gone", Expect: 1, Delete: true,
		Actor: "a", Reason: "b", Now: time.Now()}); err != nil {
		t.Fatal(err)
	}
	live := serveTables(t, tables, "these")
	for _, key := range append(keys, "gone") {
		want, err := tables.Get(t.Context(), control.Tenants, key)
		if err != nil {
			t.Fatal(err)
		}
		got, err := live.Get(t.Context(), control.Tenants, key)
		if err != nil || !got.Equal(&want) || got.Verify() != nil || string(got.Body) != string(want.Body) ||
			got.PrevHash != want.PrevHash {
			t.Errorf("%q is %+v, %v; want %+v", key, got, err, want)
		}
	}
	if _, err := live.Get(t.Context(), control.Tenants, "nobody"); !errors.Is(err, control.ErrNotFound) {
		t.Errorf("an absent item: got the error %v, want ErrNotFound", err)
	}
	seen := 0
	for item, err := range control.All(t.Context(), pages{live}, control.Tenants) {
		if err != nil || item.Verify() != nil {
			t.Fatal(err, item.Verify())
		}
		seen++
	}
	if seen != len(keys)+1 {
		t.Errorf("%d items in pages of two, want %d", seen, len(keys)+1)
	}
}

// pages makes List return two items at a time, so that there are several pages.
type pages struct{ *client.Tables }

func (p pages) List(ctx context.Context, t control.Table, after string, _ int) ([]control.Item, string, error) {
	return p.Tables.List(ctx, t, after, 2)
}

// Guarantees that a page of large items is shortened rather than refused, and that no item is left out.
func TestLargeItems(t *testing.T) {
	tables := open(t, filepath.Join(t.TempDir(), "control.db"))
	const n, size = 12, control.MaxBodyBytes - 100
	for i := range n {
		body := `{"plan":"` + strings.Repeat("x", size) + `"}`
		if _, err := tables.Put(t.Context(), control.Change{Table: control.Tenants, Key: fmt.Sprintf("t%02d", i),
			Body: []byte(body), Actor: "a", Reason: "b", Now: time.Now()}); err != nil {
			t.Fatal(err)
		}
	}
	live, seen, calls := serveTables(t, tables, "these"), 0, 0
	for after := ""; ; calls++ {
		items, next, err := live.List(t.Context(), control.Tenants, after, control.MaxPage)
		if err != nil {
			t.Fatal(err)
		}
		seen += len(items)
		if after = next; next == "" {
			break
		}
	}
	if seen != n || calls < 1 {
		t.Errorf("got %d of %d items in %d pages, want all, in several pages", seen, n, calls+1)
	}
}

// Guarantees that an item that somebody has damaged in the tables is reported in the answer, together with the other
// items.
func TestSpoiltItem(t *testing.T) {
	path := filepath.Join(t.TempDir(), "control.db")
	tables := open(t, path)
	for _, key := range []string{"a", "b", "c"} {
		if _, err := tables.Put(t.Context(), control.Change{Table: control.Tenants, Key: key,
			Body: []byte(`{"plan":"p"}`), Actor: "a", Reason: "b", Now: time.Now()}); err != nil {
			t.Fatal(err)
		}
	}
	if err := tables.Close(); err != nil {
		t.Fatal(err)
	}
	db, err := bolt.Open(path, 0o600, nil)
	if err != nil {
		t.Fatal(err)
	}
	err = db.Update(func(tx *bolt.Tx) error {
		return tx.Bucket([]byte("items")).Put([]byte("tenants\x00b"),
			[]byte("{}"))
	})
	if err := errors.Join(err, db.Close()); err != nil {
		t.Fatal(err)
	}
	live := serveTables(t, open(t, path), "these")
	if _, err := live.Get(t.Context(), control.Tenants, "b"); !errors.Is(err, control.ErrBadItem) ||
		!strings.Contains(err.Error(), `"b"`) {
		t.Errorf("an unreadable item: got the error %v, want ErrBadItem with its key", err)
	}
	items, next, err := live.List(t.Context(), control.Tenants, "", 10)
	if !errors.Is(err, control.ErrBadItem) || !strings.Contains(err.Error(), `"b"`) || len(items) != 2 || next != "" {
		t.Errorf("%d items, %q, %v; want two, and an error that names the third", len(items), next, err)
	}
}

// Guarantees that a process with other tables is not mistaken for the right one, that bad calls are refused, and that
// a process that has ended gives an error and not empty tables.
func TestOthers(t *testing.T) {
	tables := open(t, filepath.Join(t.TempDir(), "control.db"))
	other := serveTables(t, tables, "others")
	_, err := other.Get(t.Context(), control.Tenants, "a")
	if err == nil || errors.Is(err, control.ErrNotFound) || !strings.Contains(err.Error(), "requested tables") {
		t.Errorf("an item of a process with other tables: got the error %v, want that other tables were requested", err)
	}
	if _, _, err = other.List(t.Context(), control.Tenants, "", 10); err == nil ||
		!strings.Contains(err.Error(), "requested tables") {
		t.Errorf("a table of a process with other tables: got the error %v, want that other tables were requested", err)
	}
	live := serveTables(t, tables, "these")
	if _, err := live.Get(t.Context(), "nothing", "a"); err == nil || errors.Is(err, control.ErrNotFound) {
		t.Errorf("an item of an unknown table: got the error %v, want one that is not ErrNotFound", err)
	}
	if _, _, err := live.List(t.Context(), control.Tenants, "", control.MaxPage+1); err == nil {
		t.Error("a page that is too long: got no error, want one")
	}
	if err := tables.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := live.Get(t.Context(), control.Tenants, "a"); err == nil || errors.Is(err, control.ErrNotFound) ||
		errors.Is(err, control.ErrBadItem) {
		t.Errorf("tables that were closed: got the error %v, want one that is neither ErrNotFound nor ErrBadItem", err)
	}
	gone := httptest.NewServer(nil)
	to, err := client.New(gone.URL, nil)
	if err != nil {
		t.Fatal(err)
	}
	gone.Close()
	if _, _, err := to.Tables("these").List(t.Context(), control.Tenants, "", 10); err == nil {
		t.Error("the table of a process that has ended: got no error, want one")
	}
}
