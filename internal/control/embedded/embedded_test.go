package embedded_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	bolt "go.etcd.io/bbolt"
	"go.uber.org/goleak"

	"github.com/sluicelimits/sluice/internal/control"
	"github.com/sluicelimits/sluice/internal/control/controltest"
	"github.com/sluicelimits/sluice/internal/control/embedded"
)

// childEnv makes the test binary a process that writes until it is killed. Its value is the file.
const childEnv = "SLUICE_TEST_CHILD"

func TestMain(m *testing.M) {
	if path := os.Getenv(childEnv); path != "" {
		os.Exit(child(path))
	}
	goleak.VerifyTestMain(m)
}

var noon = time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)

func change(key string, expect int64) control.Change {
	return control.Change{
		Table: control.Tenants, Key: key, Expect: expect, Body: []byte(fmt.Sprintf(`{"n":%d}`, expect)), Actor: "jo",
		Reason: "test", Now: noon,
	}
}

func open(tb testing.TB, path string) *embedded.Tables {
	tb.Helper()
	tables, err := embedded.Open(path)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { tables.Close() })
	return tables
}

func put(tb testing.TB, tables *embedded.Tables, key string, expect int64) {
	tb.Helper()
	if _, err := tables.Put(context.Background(), change(key, expect)); err != nil {
		tb.Fatal(err)
	}
}

// readAll returns the feed from its beginning, read in small pages.
func readAll(ctx context.Context, tables *embedded.Tables, after string, n int) ([]control.Delivery, error) {
	var all []control.Delivery
	for {
		page, err := tables.Read(ctx, after, 7)
		if err != nil {
			return nil, err
		}
		all = append(all, page...)
		if len(page) == 0 {
			if len(all) >= n {
				return all, nil
			}
			if err := tables.Wait(ctx, after); err != nil {
				return all, nil //nolint:nilerr // return what came in time
			}
			continue
		}
		after = page[len(page)-1].Sequence
	}
}

func TestContract(t *testing.T) {
	controltest.Run(t, controltest.Config{
		New: func(tb testing.TB) control.Tables { return open(tb, filepath.Join(tb.TempDir(), "control.db")) },
		Feed: func(ctx context.Context, tables control.Tables, n int) ([]control.Delivery, error) {
			return readAll(ctx, tables.(*embedded.Tables), "", n)
		},
	})
}

// Guarantees that a restart keeps items, history, feed and the position of each consumer.
func TestRestart(t *testing.T) {
	ctx, path := t.Context(), filepath.Join(t.TempDir(), "control.db")
	tables := open(t, path)
	for n := range int64(3) {
		put(t, tables, "acme", n)
	}
	first, err := tables.Read(ctx, "", 2)
	if err != nil || len(first) != 2 {
		t.Fatalf("Read = %+v, %v; want two records", first, err)
	}
	if err := tables.Commit(ctx, "publisher", first[1].Sequence); err != nil {
		t.Fatal(err)
	}
	if err := tables.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := tables.Get(ctx, control.Tenants, "acme"); err == nil {
		t.Error("Get of a closed file: got no error, want one")
	}

	tables = open(t, path)
	if i, err := tables.Get(ctx, control.Tenants, "acme"); err != nil || i.Version != 3 || i.Verify() != nil {
		t.Errorf("after a restart: Get = %+v, error %v; want version 3", i, err)
	}
	put(t, tables, "acme", 3)
	for consumer, want := range map[string]int{"publisher": 2, "archiver": 4} {
		after, err := tables.Cursor(ctx, consumer)
		if err != nil {
			t.Fatal(err)
		}
		if left, err := readAll(ctx, tables, after, want); err != nil || len(left) != want ||
			left[0].Record.New.Version != int64(5-want) {
			t.Errorf("after a restart %s has %d records to go, %v; want %d", consumer, len(left), err, want)
		}
	}
}

// child writes versions of one item for ever, and prints each when Put has returned.
func child(path string) int {
	tables, err := embedded.Open(path)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	for n := int64(0); ; n++ {
		if _, err := tables.Put(context.Background(), change("acme", n)); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		fmt.Fprintln(os.Stdout, n+1)
	}
}

// Guarantees that a process that is killed at any moment loses no version for which Put has returned, and none of its
// records.
func TestKilled(t *testing.T) {
	path := filepath.Join(t.TempDir(), "control.db")
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), childEnv+"="+path)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	told := 0
	for lines.Scan() {
		if told, err = strconv.Atoi(lines.Text()); err != nil {
			t.Fatal(err)
		}
		if told == 20 {
			if err := cmd.Process.Kill(); err != nil {
				t.Fatal(err)
			}
		}
	}
	if cmd.Wait() == nil || told < 20 {
		t.Fatalf("the process wrote %d versions and ended with %s; want that it was killed after 20 versions at least",
			told, stderr.String())
	}
	tables := open(t, path)
	i, err := tables.Get(t.Context(), control.Tenants, "acme")
	if err != nil || i.Version < int64(told) {
		t.Fatalf("version %d was written: got %+v, error %v; want that version or a later one", told, i, err)
	}
	all, err := readAll(t.Context(), tables, "", int(i.Version))
	if err != nil || len(all) != int(i.Version) {
		t.Fatalf("got %d records of %d versions, error %v; want one of each", len(all), i.Version, err)
	}
	for n, d := range all {
		if d.Err != nil || d.Record.New.Version != int64(n)+1 {
			t.Fatalf("record %d: got %+v, want the next version", n, d)
		}
	}
}

// Guarantees that a second process gets an error that names the file, and does not wait for ever.
func TestInUse(t *testing.T) {
	path := filepath.Join(t.TempDir(), "control.db")
	open(t, path)
	if second, err := embedded.Open(path); !errors.Is(err, embedded.ErrInUse) || !strings.Contains(err.Error(), path) {
		t.Errorf("Open of a file in use: got %v, error %v; want ErrInUse with the file", second, err)
	}
}

// Guarantees that a file of another kind is refused and left unchanged.
func TestNotOurs(t *testing.T) {
	path := filepath.Join(t.TempDir(), "control.db")
	text := strings.Repeat("plans: []\n", 2000)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if tables, err := embedded.Open(path); err == nil || !strings.Contains(err.Error(), path) {
		t.Errorf("Open of a text: got %v, error %v; want an error with the file", tables, err)
	}
	if got, err := os.ReadFile(path); err != nil || string(got) != text {
		t.Errorf("after Open of a text: got the error %v or another text, want that the text is unchanged", err)
	}
}

// Guarantees that consumers are told of each change: a waiting consumer is woken by a change, or by its own end, and
// by nothing else.
func TestWait(t *testing.T) {
	path := filepath.Join(t.TempDir(), "control.db")
	synctest.Test(t, func(t *testing.T) {
		tables, err := embedded.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		var woken, given, closed error = errors.New("asleep"), errors.New("asleep"), errors.New("asleep")
		var wg sync.WaitGroup
		wg.Go(func() { woken = tables.Wait(t.Context(), "") })
		wg.Go(func() { given = tables.Wait(ctx, "1") })
		wg.Go(func() { closed = tables.Wait(t.Context(), "1") })
		synctest.Wait()
		if woken == nil || given == nil || closed == nil {
			t.Fatalf("with nothing written: got the errors %v, %v, %v of Wait; want that all wait", woken, given,
				closed)
		}
		put(t, tables, "acme", 0)
		synctest.Wait()
		if woken != nil || given == nil || closed == nil {
			t.Fatalf("after one change: got the errors %v, %v, %v of Wait; want that the first has ended without an "+
				"error", woken, given, closed)
		}
		cancel()
		synctest.Wait()
		if !errors.Is(given, context.Canceled) {
			t.Errorf("after its context has ended: Wait = %v, want context.Canceled", given)
		}
		if err := tables.Close(); err != nil {
			t.Fatal(err)
		}
		wg.Wait()
		if closed == nil || closed.Error() == "asleep" {
			t.Errorf("after Close: Wait = %v, want an error", closed)
		}
	})
}

// Guarantees that an invalid position is an error: a consumer that began in the wrong place would miss changes.
func TestPositions(t *testing.T) {
	ctx := t.Context()
	tables := open(t, filepath.Join(t.TempDir(), "control.db"))
	put(t, tables, "acme", 0)
	for _, after := range []string{"x", "-1", "+1", "01", "1.0", " 1", "18446744073709551615", "99999999999999999999"} {
		if d, err := tables.Read(ctx, after, 1); !errors.Is(err, control.ErrInvalid) {
			t.Errorf("Read(%q) = %+v, error %v; want ErrInvalid", after, d, err)
		}
		if err := tables.Commit(ctx, "publisher", after); !errors.Is(err, control.ErrInvalid) {
			t.Errorf("Commit(%q) = %v, want ErrInvalid", after, err)
		}
	}
	if err := tables.Commit(ctx, "publisher", "2"); !errors.Is(err, control.ErrInvalid) {
		t.Errorf("Commit of a position after the end: got %v, want ErrInvalid", err)
	}
	for _, consumer := range []string{"", strings.Repeat("x", 65)} {
		if _, err := tables.Cursor(ctx, consumer); !errors.Is(err, control.ErrInvalid) {
			t.Errorf("Cursor(%q) = %v, want ErrInvalid", consumer, err)
		}
		if err := tables.Commit(ctx, consumer, "1"); !errors.Is(err, control.ErrInvalid) {
			t.Errorf("Commit by %q: got %v, want ErrInvalid", consumer, err)
		}
	}
	for _, most := range []int{0, control.MaxPage + 1} {
		if _, err := tables.Read(ctx, "", most); !errors.Is(err, control.ErrInvalid) {
			t.Errorf("Read of %d: got the error %v, want ErrInvalid", most, err)
		}
	}
	for _, after := range []string{"1", "", "1"} { // back to the beginning, to read everything again
		if err := tables.Commit(ctx, "publisher", after); err != nil {
			t.Fatal(err)
		}
		if got, err := tables.Cursor(ctx, "publisher"); err != nil || got != after {
			t.Errorf("Cursor = %q, %v; want %q", got, err, after)
		}
	}
}

// Guarantees that an altered item in the file is reported, and prevents nothing else.
func TestAltered(t *testing.T) {
	ctx, path := t.Context(), filepath.Join(t.TempDir(), "control.db")
	tables := open(t, path)
	for _, key := range []string{"a", "b", "c", "d"} {
		put(t, tables, key, 0)
	}
	if err := tables.Close(); err != nil {
		t.Fatal(err)
	}
	db, err := bolt.Open(path, 0o600, nil)
	if err != nil {
		t.Fatal(err)
	}
	err = db.Update(func(tx *bolt.Tx) error {
		i, v := tx.Bucket([]byte("items")), tx.Bucket([]byte("versions"))
		changed := strings.Replace(string(v.Get([]byte("tenants\x00c\x00\x00\x00\x00\x00\x00\x00\x00\x01"))), `"n":0`,
			`"n":7`, 1)
		return errors.Join(
			i.Put([]byte("tenants\x00b"), []byte("{}")),
			i.Put([]byte("tenants\x00d"), i.Get([]byte("tenants\x00a"))),
			v.Put([]byte("tenants\x00b\x00\x00\x00\x00\x00\x00\x00\x00\x01"), []byte("x")),
			v.Put([]byte("tenants\x00c\x00\x00\x00\x00\x00\x00\x00\x00\x01"), []byte(changed)),
			v.Delete([]byte("tenants\x00d\x00\x00\x00\x00\x00\x00\x00\x00\x01")),
		)
	})
	if err := errors.Join(err, db.Close()); err != nil {
		t.Fatal(err)
	}
	tables = open(t, path)
	for _, key := range []string{"b", "d"} {
		if _, err := tables.Get(ctx, control.Tenants, key); !errors.Is(err, control.ErrBadItem) ||
			!strings.Contains(err.Error(), `"`+key+`"`) {
			t.Errorf("Get of an altered item: got the error %v, want ErrBadItem with its key", err)
		}
		if _, err := tables.Put(ctx, change(key, 1)); !errors.Is(err, control.ErrBadItem) {
			t.Errorf("Put over an unreadable item: got the error %v, want ErrBadItem", err)
		}
	}
	items, next, err := tables.List(ctx, control.Tenants, "", 10)
	if !errors.Is(err, control.ErrBadItem) || !strings.Contains(err.Error(), `"b"`) || len(items) != 3 || next != "" {
		t.Errorf("List = %d items, %q, %v; want the three that can be read, and an error that names the other",
			len(items), next, err)
	}
	seen, bad := 0, 0
	for _, err := range control.All(ctx, tables, control.Tenants) {
		if err != nil {
			bad++
		} else {
			seen++
		}
	}
	if seen != 3 || bad != 1 {
		t.Errorf("All has %d items and %d errors, want 3 and 1", seen, bad)
	}
	all, err := tables.Read(ctx, "", 10)
	if err != nil || len(all) != 4 || all[0].Err != nil {
		t.Fatalf("Read = %+v, %v; want 4 records, the first readable", all, err)
	}
	for n, key := range []string{"b", "c", "d"} {
		d := all[n+1]
		var e *control.RecordError
		if !errors.As(d.Err, &e) || e.Table != control.Tenants || e.Key != key || e.Sequence != d.Sequence ||
			d.Record != nil || !errors.Is(e, control.ErrBadItem) {
			t.Errorf("the altered record of %s: got %+v, want ErrBadItem with table, key and sequence", key, d)
		}
		if key == "b" && string(d.Raw) != "x" {
			t.Errorf("an unreadable record: got the bytes %q, want those that are stored", d.Raw)
		}
	}
}
