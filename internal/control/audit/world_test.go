package audit_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluicelimits/sluice/events"
	"github.com/sluicelimits/sluice/internal/control"
	"github.com/sluicelimits/sluice/internal/control/audit"
	"github.com/sluicelimits/sluice/internal/control/audit/bucket"
	"github.com/sluicelimits/sluice/internal/testkit/s3test"
)

var noon = time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)

type place struct {
	table control.Table
	key   string
}

// world holds control tables in memory and the archive of what was written to them.
type world struct {
	t       testing.TB
	bucket  *s3test.Bucket
	archive audit.Archive

	away atomic.Pointer[s3test.Fault] // answer to each read of an object; nil: none
	gets sync.Map                     // the objects that were read, by name

	mu      sync.Mutex
	clock   time.Time // time of the bucket's clock
	live    map[place]control.Item
	history map[place][]control.Record
	bad     map[place]bool // items that cannot be read
}

func newWorld(t testing.TB) *world {
	t.Helper()
	w := &world{
		t: t, clock: noon, live: make(map[place]control.Item), history: make(map[place][]control.Record),
		bad: make(map[place]bool),
	}
	w.bucket = s3test.New(t, s3test.Config{Lock: true, Mode: "GOVERNANCE", Days: 1, PageSize: 7, Now: w.now,
		Fault: w.fault})
	a := bucket.New(w.bucket.Client(), s3test.Name)
	w.archive = a
	return w
}

func (w *world) fault(r *http.Request) *s3test.Fault {
	if q := r.URL.Query(); r.Method != http.MethodGet || q.Has("versions") || q.Has("object-lock") {
		return nil
	}
	w.gets.Store(strings.TrimPrefix(r.URL.Path, "/"+s3test.Name+"/"), true)
	return w.away.Load()
}

// now is the time of the bucket's clock.
func (w *world) now() time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.clock
}

// setClock sets the bucket's clock.
func (w *world) setClock(now time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.clock = now
}

// write makes the next version of an item; an empty body makes a tombstone.
func (w *world) write(t control.Table, key, body string, at time.Time) *control.Record {
	w.t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	p := place{t, key}
	c := control.Change{Table: t, Key: key, Actor: "arn:aws:iam::123456789012:user/ann", Reason: "because",
		Body: []byte(body), Delete: body == "", Now: at}
	r := control.Record{}
	if now, ok := w.live[p]; ok {
		r.Old = &now
		c.Expect = now.Version
	}
	c, err := c.Check()
	if err != nil {
		w.t.Fatal(err)
	}
	if r.New, _, err = control.Next(r.Old, c); err != nil {
		w.t.Fatal(err)
	}
	w.live[p] = r.New
	w.history[p] = append(w.history[p], r)
	return &r
}

// archiveRecord archives a record one second after it was written.
func (w *world) archiveRecord(r *control.Record) {
	w.t.Helper()
	w.archiveAt(r, r.New.ChangedAt.Add(time.Second))
}

// archiveAt archives a record at a time of the bucket's clock.
func (w *world) archiveAt(r *control.Record, at time.Time) {
	w.t.Helper()
	w.setClock(at)
	if _, err := w.archive.Put(context.Background(), nameOf(r), encode(w.t, r.Audit())); err != nil {
		w.t.Fatal(err)
	}
}

func nameOf(r *control.Record) string {
	return control.ObjectName(r.New.Table, r.New.Key, r.New.Version)
}

func encode(t testing.TB, r *events.AuditRecord) []byte {
	t.Helper()
	data, err := events.Encode(r)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// archiveRandom writes a history and archives it in random order.
func (w *world) archiveRandom(r *rand.Rand, writes int) {
	w.t.Helper()
	keys := []place{
		{control.Plans, "pro"}, {control.Plans, "pro.2"}, {control.Plans, events.SettingsKey}, {control.Tenants,
			"acme"}, {control.Tenants, "acme/eu"},
		{control.Tenants, "Ünïcode !"}, {control.Tenants, "acme "}, {control.Cells, "eu-1"}, {control.Cells,
			events.SharesKey}, {control.Operations, "op-1"},
	}
	var all []*control.Record
	for i := range writes {
		p := keys[r.IntN(len(keys))]
		body := fmt.Sprintf(`{"n":%d,"limits":[{"id":"a","rate":%d}]}`, i, r.IntN(5))
		if now, ok := w.live[p]; ok && !now.Deleted && p.table == control.Tenants && r.IntN(4) == 0 {
			body = ""
		}
		all = append(all, w.write(p.table, p.key, body, noon.Add(time.Duration(r.IntN(3600))*time.Second)))
	}
	for _, i := range r.Perm(len(all)) {
		w.archiveRecord(all[i])
	}
}

// pickItem returns a random item with at least this many versions.
func (w *world) pickItem(r *rand.Rand, atLeast int) (place, []control.Record) {
	w.t.Helper()
	all := slices.Collect(maps.Keys(w.history))
	slices.SortFunc(all, func(x, y place) int {
		return slices.Compare([]string{string(x.table), x.key}, []string{string(y.table), y.key})
	})
	for range 1000 {
		if p := all[r.IntN(len(all))]; len(w.history[p]) >= atLeast {
			return p, w.history[p]
		}
	}
	w.t.Fatal("no item has enough versions, want that one has")
	return place{}, nil
}

// Get implements audit.Tables.
func (w *world) Get(_ context.Context, t control.Table, key string) (control.Item, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	p := place{t, key}
	if i, ok := w.live[p]; ok && !w.bad[p] {
		return i, nil
	}
	if w.bad[p] {
		return control.Item{}, fmt.Errorf("get %s/%q: %w", t, key, control.ErrBadItem)
	}
	return control.Item{}, fmt.Errorf("get %s/%q: %w", t, key, control.ErrNotFound)
}

// List implements audit.Tables, three items at a time.
func (w *world) List(
	_ context.Context, t control.Table, after string, _ int,
) (items []control.Item, next string, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	var keys []string
	for p := range w.live {
		if p.table == t && p.key > after {
			keys = append(keys, p.key)
		}
	}
	slices.Sort(keys)
	for n, key := range keys {
		if n == 3 {
			return items, keys[n-1], err
		}
		if w.bad[place{t, key}] {
			err = errors.Join(err, fmt.Errorf("%s/%q: %w", t, key, control.ErrBadItem))
			continue
		}
		items = append(items, w.live[place{t, key}])
	}
	return items, "", err
}

func (w *world) verify() *audit.Report {
	w.t.Helper()
	report, err := audit.Verify(context.Background(), audit.VerifyConfig{Archive: w.archive, Tables: w, Grace: -1})
	if err != nil {
		w.t.Fatal(err)
	}
	return report
}
