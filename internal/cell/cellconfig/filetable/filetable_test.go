package filetable_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sluicelimits/sluice/internal/cell/cellconfig"
	"github.com/sluicelimits/sluice/internal/cell/cellconfig/filetable"
	"github.com/sluicelimits/sluice/internal/plan"
)

// files are plans files that are edited, with a table and a reader of them.
type files struct {
	t     *testing.T
	names []string
	table *filetable.Table
	r     *cellconfig.Reader
	log   bytes.Buffer
	edits int
	now   time.Time
}

func plans(threshold int, tenants ...string) string {
	text := fmt.Sprintf("plans: [{id: p, limits: [{id: a, tiers: [{period: 1s, threshold: %d}]}]}]\ntenants:\n",
		threshold)
	for _, id := range tenants {
		text += fmt.Sprintf("- {id: %s, plan: p}\n", id)
	}
	return text
}

func open(t *testing.T, texts ...string) *files {
	t.Helper()
	f := &files{t: t, now: time.Date(2026, 6, 15, 12, 0, 0, 0, time.UTC)}
	dir := t.TempDir()
	for i, text := range texts {
		f.names = append(f.names, filepath.Join(dir, fmt.Sprintf("plans%d.yaml", i)))
		f.write(i, text)
	}
	var err error
	log := slog.New(slog.NewTextHandler(&f.log, nil))
	if f.table, err = filetable.Open(log, f.names...); err != nil {
		t.Fatal(err)
	}
	f.r, err = cellconfig.New(cellconfig.Config{Table: f.table, Log: log, Timeout: 10 * time.Second,
		FirstTimeout: 10 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// write edits a file. It always changes the file's time, even if the clock of the file system is coarse.
func (f *files) write(i int, text string) {
	f.t.Helper()
	if err := os.WriteFile(f.names[i], []byte(text), 0o600); err != nil {
		f.t.Fatal(err)
	}
	f.edits++
	at := time.Date(2026, 1, 1, 0, 0, f.edits, 0, time.UTC)
	if err := os.Chtimes(f.names[i], at, at); err != nil {
		f.t.Fatal(err)
	}
}

// want checks a tenant three seconds later.
func (f *files) want(tenant, want string) {
	f.t.Helper()
	f.now = f.now.Add(3 * time.Second)
	c, _ := f.r.Begin(f.t.Context(), f.now)
	got, err := c.Tenant(f.t.Context(), tenant)
	text := "unknown"
	if err != nil {
		text = err.Error()
	} else if got != nil {
		text = fmt.Sprint(got.Limits(f.now).Limits[0].Limit.Tiers[0].Threshold)
	}
	if text != want {
		f.t.Fatalf("tenant %s is %s, want %s\n%s", tenant, text, want, f.log.String())
	}
}

// changes returns the changes in the log entries after an entry.
func (f *files) changes(after int64) []string {
	f.t.Helper()
	head, err := f.table.Head(f.t.Context())
	if err != nil {
		f.t.Fatal(err)
	}
	log, err := f.table.Log(f.t.Context(), after, head.Seq)
	if err != nil {
		f.t.Fatal(err)
	}
	var out []string
	for _, e := range log {
		for _, c := range e.Changes {
			out = append(out, fmt.Sprintf("%s %s %d %v", c.Kind, c.ID, c.Version, c.Deleted))
		}
	}
	return out
}

// Guarantees that an edit is in force at the next check, and that only what it changed is a change.
func TestEdits(t *testing.T) {
	f := open(t, plans(5, "a", "b"))
	f.want("a", "5")
	head, err := f.table.Head(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	f.write(0, plans(6, "a", "c"))
	f.want("a", "6")
	f.want("b", "unknown")
	f.want("c", "6")
	if got, want := f.changes(head.Seq), []string{"plan p 2 false", "tenant c 1 false",
		"tenant b 2 true"}; !slices.Equal(got, want) {
		t.Errorf("changes %q, want %q", got, want)
	}
	head, _ = f.table.Head(t.Context())
	f.write(0, "# said otherwise\n"+plans(6, "c", "a"))
	f.want("a", "6")
	if got := f.changes(head.Seq); len(got) != 0 {
		t.Errorf("an edit that changes nothing has the changes %q in the log, want none", got)
	}
	f.write(0, plans(6, "b"))
	f.want("b", "6") // as the version after its tombstone
	f.want("a", "unknown")
}

// Guarantees that a file with errors never replaces a valid one, and that all errors are logged once.
func TestBadEdit(t *testing.T) {
	f := open(t, plans(5, "a"))
	f.want("a", "5")
	f.write(0, strings.Replace(plans(0, "a", "a"), "limits", "limit", 1)+"keys: 7\n")
	for range 3 {
		f.want("a", "5")
	}
	for _, problem := range []string{`unknown key \"limit\"`, `tenant \"a\" is there twice`, "want a list of keys"} {
		if n := strings.Count(f.log.String(), problem); n != 1 {
			t.Errorf("%s is logged %d times, want once\n%s", problem, n, f.log.String())
		}
	}
	if err := os.Remove(f.names[0]); err != nil {
		t.Fatal(err)
	}
	f.want("a", "5")
	if !strings.Contains(f.log.String(), "cannot be read") {
		t.Errorf("the log does not say that a removed file cannot be read:\n%s", f.log.String())
	}
	f.write(0, plans(7, "a"))
	f.want("a", "7")
}

// Guarantees that the first load fails with every problem and its place.
func TestFirstLoad(t *testing.T) {
	name := filepath.Join(t.TempDir(), "plans.yaml")
	if err := os.WriteFile(name, []byte("plans: [{id: p}]\ntenants: [{id: t, plan: q}]\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	var bad *plan.Error
	if _, err := filetable.Open(nil, name); !errors.As(err, &bad) || len(bad.Problems) != 2 ||
		bad.Problems[1].Line != 2 {
		t.Errorf("Open: %v, want a *plan.Error with two problems", err)
	}
	if _, err := filetable.Open(nil, name+".none"); !errors.As(err, &bad) ||
		!strings.Contains(err.Error(), "cannot be read") {
		t.Errorf("Open of no file: %v, want a *plan.Error", err)
	}
	if _, err := filetable.Open(nil); err == nil {
		t.Error("Open without files returns no error, want one")
	}
}

// Guarantees that several files are one configuration, and that a change of any of them is noticed, even a replacement
// of equal size.
func TestSeveralFiles(t *testing.T) {
	f := open(t, plans(5, "a"), "tenants: [{id: x, plan: p}]\n")
	f.want("x", "5")
	f.write(1, "tenants: [{id: y, plan: p}]\n")
	f.want("y", "5")
	f.want("x", "unknown")
	if err := os.WriteFile(f.names[1]+".new", []byte("tenants: [{id: z, plan: p}]\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(f.names[1])
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chtimes(f.names[1]+".new", info.ModTime(), info.ModTime()); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(f.names[1]+".new", f.names[1]); err != nil {
		t.Fatal(err)
	}
	f.want("z", "5")
}

// Guarantees that a reader without a cache, and many readers at once, see complete files while these are edited.
func TestReadersAtOnce(t *testing.T) {
	f := open(t, plans(1, "a"))
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 20 {
				r, err := cellconfig.New(cellconfig.Config{Table: f.table, Timeout: 10 * time.Second,
					FirstTimeout: 10 * time.Second})
				if err != nil {
					t.Error(err)
					return
				}
				c, _ := r.Begin(context.Background(), f.now)
				if got, err := c.Tenant(context.Background(), "a"); err != nil || got == nil {
					t.Errorf("the tenant while files are edited: %v, %v; want it found", got, err)
				}
			}
		})
	}
	for i := range 20 {
		name := f.names[0] + ".new"
		if err := os.WriteFile(name, []byte(plans(i+2, "a")), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(name, f.names[0]); err != nil { // replaced as a whole, as editors do
			t.Fatal(err)
		}
	}
	wg.Wait()
	f.want("a", "21")
	n := 0
	for d, err := range f.table.List(t.Context(), plan.KindTenant) {
		if err != nil || d.ID != "a" {
			t.Errorf("the list while files are edited has %v, %v; want the tenant a", d.ID, err)
		}
		n++
	}
	if n != 1 {
		t.Errorf("%d tenants are listed, want 1", n)
	}
}
