package archiver_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluicelimits/sluice/events"
	"github.com/sluicelimits/sluice/internal/control"
	"github.com/sluicelimits/sluice/internal/control/audit"
	"github.com/sluicelimits/sluice/internal/control/audit/bucket"
	"github.com/sluicelimits/sluice/internal/control/dynamo"
	"github.com/sluicelimits/sluice/internal/control/embedded"
	"github.com/sluicelimits/sluice/internal/testkit/functiontest"
	"github.com/sluicelimits/sluice/internal/testkit/s3test"
	"github.com/sluicelimits/sluice/internal/testkit/soak"
	"github.com/sluicelimits/sluice/streams/archiver"
)

var noon = time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)

// counts is a meter that records.
type counts struct {
	mu sync.Mutex
	n  map[string]int64
}

func (c *counts) Count(name string, n int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.n == nil {
		c.n = make(map[string]int64)
	}
	c.n[name] += n
}

func (c *counts) Took(name string, _ time.Duration) { c.Count(name, 1) }

func (c *counts) String() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	var all []string
	for name, n := range c.n {
		if n != 0 {
			all = append(all, fmt.Sprintf("%s=%d", name, n))
		}
	}
	slices.Sort(all)
	return strings.Join(all, " ")
}

type world struct {
	*archiver.Archiver
	bucket *s3test.Bucket
	counts *counts
	log    *bytes.Buffer
}

func newWorld(t *testing.T, c s3test.Config) *world {
	t.Helper()
	c.Lock, c.Mode, c.Days = true, "COMPLIANCE", 1
	w := &world{bucket: s3test.New(t, c), counts: &counts{}, log: &bytes.Buffer{}}
	archive := bucket.New(w.bucket.Client(), s3test.Name)
	w.Archiver = archiver.New(archiver.Config{Archive: archive, Meter: w.counts,
		Log: slog.New(slog.NewJSONHandler(w.log, nil))})
	return w
}

// history returns the versions of one item as a feed has them.
func history(t *testing.T, key string, n int) []control.Delivery {
	t.Helper()
	var all []control.Delivery
	var last *control.Item
	for v := range n {
		c, err := control.Change{Table: control.Tenants, Key: key, Expect: int64(v),
			Body: fmt.Appendf(nil, `{"n":%d}`, v), Actor: "ann", Reason: "because", Now: noon}.Check()
		if err != nil {
			t.Fatal(err)
		}
		next, _, err := control.Next(last, c)
		if err != nil {
			t.Fatal(err)
		}
		sequence := fmt.Sprintf("%s-%06d", key, v+1)
		all = append(all, control.Delivery{Sequence: sequence,
			Record: &control.Record{Sequence: sequence, Old: last, New: next}})
		last = &next
	}
	return all
}

func name(d control.Delivery) string {
	return control.ObjectName(d.Record.New.Table, d.Record.New.Key, d.Record.New.Version)
}

func want(t *testing.T, d control.Delivery) []byte {
	t.Helper()
	data, err := events.Encode(d.Record.Audit())
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// wantArchived fails the test unless the bucket has one unchanged version of each record, and that many rejected ones.
func (w *world) wantArchived(t *testing.T, all []control.Delivery, rejected int) {
	t.Helper()
	var other int
	for _, n := range w.bucket.Names() {
		if strings.HasPrefix(n, audit.RejectedPrefix) {
			other++
		}
	}
	if other != rejected || len(w.bucket.Names()) != len(all)+rejected {
		t.Errorf("the bucket has %d objects, %d of them rejected records; want %d and %d", len(w.bucket.Names()), other,
			len(all)+rejected, rejected)
	}
	for _, d := range all {
		if v := w.bucket.Versions(name(d)); len(v) != 1 || !bytes.Equal(v[0], want(t, d)) {
			t.Errorf("%s has %d versions, %.300q", name(d), len(v), v)
		}
	}
}

// Guarantees that the order of records, repeated records, and a stream that is read again from its beginning change
// nothing.
func TestAnyOrderAnyNumber(t *testing.T) {
	w := newWorld(t, s3test.Config{})
	all := append(history(t, "acme", 8), history(t, "Ünïcode/..", 8)...)
	seeds := soak.Times(uint64(5))
	for seed := range seeds {
		r := rand.New(rand.NewPCG(seed, 1))
		batch := make([]control.Delivery, 0, 32)
		for _, i := range r.Perm(16) {
			batch = append(batch, all[i], all[r.IntN(16)])
		}
		if done, err := w.Handle(t.Context(), batch); err != nil || done != len(batch) {
			t.Fatalf("%d of %d are done: %v", done, len(batch), err)
		}
		w.wantArchived(t, all, 0)
	}
	want := fmt.Sprintf("archive_seconds=16 objects_equal=%d objects_made=16 records_read=%d", 32*seeds-16, 32*seeds)
	if got := w.counts.String(); got != want {
		t.Errorf("the metrics are %s, want %s", got, want)
	}
}

// Guarantees that a record that cannot be read, anywhere in a batch, is kept whole and counted, once however often it
// is delivered, and stops nothing.
func TestPoison(t *testing.T) {
	w := newWorld(t, s3test.Config{})
	all := history(t, "acme", 5)
	altered := *all[4].Record
	altered.New.Reason = "another"
	batch := slices.Concat(all[:2], []control.Delivery{
		{Sequence: "s1", Raw: []byte(`{"poison":"\u0000"`),
			Err: &control.RecordError{Table: control.Tenants, Key: "acme", Sequence: "s1", Err: control.ErrBadItem}},
		{Raw: []byte{0xff}},
		{Sequence: "s3", Record: &altered}, // its hash is that of another record
		{Sequence: "s4", Record: &control.Record{}},
	}, all[2:4])
	for range 2 {
		if done, err := w.Handle(t.Context(), batch); err != nil || done != len(batch) {
			t.Fatalf("%d of %d are done: %v", done, len(batch), err)
		}
	}
	w.wantArchived(t, all[:4], 4)
	if got := w.counts.String(); got != "archive_seconds=4 objects_equal=4 objects_made=4 records_read=16 "+
		"records_unreadable=8" {
		t.Errorf("the metrics are %s", got)
	}
	var whole bool
	for _, n := range w.bucket.Names() {
		var r audit.Rejected
		if strings.HasPrefix(n, audit.RejectedPrefix) && json.Unmarshal(w.bucket.Versions(n)[0], &r) == nil &&
			r.Key == "acme" && r.Sequence == "s1" {
			whole = string(r.Raw) == `{"poison":"\u0000"` && r.Reason == audit.Unreadable &&
				r.Table == control.Tenants && strings.Contains(r.Error, "cannot be read")
		}
	}
	if !whole {
		t.Error("no rejected record is the first one, whole")
	}
}

// Guarantees that an object with other content is an alarm, stays as it is, and stops nothing: the right record is kept
// beside it.
func TestUnequal(t *testing.T) {
	w := newWorld(t, s3test.Config{})
	all := history(t, "acme", 3)
	w.bucket.Overwrite(name(all[1]), []byte("forged"))
	for range 3 {
		if done, err := w.Handle(t.Context(), all); err != nil || done != 3 {
			t.Fatalf("%d are done: %v", done, err)
		}
	}
	if v := w.bucket.Versions(name(all[1])); len(v) != 1 || string(v[0]) != "forged" {
		t.Errorf("the unequal object is now %q", v)
	}
	r := audit.Rejected{Raw: want(t, all[1])}
	var kept audit.Rejected
	if v := w.bucket.Versions(r.Name()); len(v) != 1 || json.Unmarshal(v[0], &kept) != nil || kept.Version != 2 ||
		kept.Reason != audit.Unequal {
		t.Errorf("the record is kept as %q", v)
	}
	if got := w.counts.String(); !strings.Contains(got, "records_unequal=3") ||
		!strings.Contains(w.log.String(), `"level":"ERROR","msg":"the archive has another record`) {
		t.Errorf("the metrics %s or the log lack the alarm: %s", got, w.log)
	}
}

// Guarantees that a version whose name belongs to an unreadable object is an alarm, and stops nothing: the record is
// kept as a newer version of the object, once, however often it is delivered, and so is a record that cannot be
// archived.
func TestUnreadableObject(t *testing.T) {
	for _, how := range []s3test.Seal{s3test.Archived, s3test.CustomerKey, s3test.ForeignKey, s3test.DisabledKey} {
		w := newWorld(t, s3test.Config{})
		all := history(t, "acme", 3)
		poison := control.Delivery{Sequence: "p", Raw: []byte("x")}
		rejected := (&audit.Rejected{Raw: poison.Raw}).Name()
		for _, n := range []string{name(all[1]), rejected} {
			w.bucket.Overwrite(n, want(t, all[1]))
			w.bucket.Seal(n, how)
		}
		batch := append(slices.Clone(all), poison)
		for range 3 {
			if done, err := w.Handle(t.Context(), batch); err != nil || done != 4 {
				t.Fatalf("%s: %d are done: %v", how, done, err)
			}
		}
		if v := w.bucket.Versions(name(all[1])); len(v) != 2 || !bytes.Equal(v[1], want(t, all[1])) {
			t.Errorf("%s: the versions are %q", how, v)
		}
		var kept audit.Rejected
		if v := w.bucket.Versions(rejected); len(v) != 2 || json.Unmarshal(v[1], &kept) != nil ||
			string(kept.Raw) != "x" {
			t.Errorf("%s: the rejected record is kept as %q", how, v)
		}
		got := w.counts.String()
		if !strings.Contains(got, "objects_made=3") || !strings.Contains(got, "records_unequal=1") ||
			!strings.Contains(w.log.String(),
				`"level":"ERROR","msg":"an object that cannot be read has the name of this version`) {
			t.Errorf("%s: the metrics %s or the log lack the alarm: %s", how, got, w.log)
		}
	}
}

// Guarantees that a rejected record is kept, once, as a newer version if another object has its name, which anybody can
// know who sees the record.
func TestRejectedWhoseNameWasTaken(t *testing.T) {
	w := newWorld(t, s3test.Config{})
	poison := control.Delivery{Sequence: "p", Raw: []byte("x")}
	rejected := (&audit.Rejected{Raw: poison.Raw}).Name()
	for _, taken := range [][]byte{[]byte("{}"), nil, []byte(`{"layout":1,"raw":"eQ=="}`),
		make([]byte, audit.MaxBytes+1)} {
		w.bucket.Overwrite(rejected, taken)
		before := len(w.bucket.Versions(rejected))
		for range 2 {
			if done, err := w.Handle(t.Context(), []control.Delivery{poison}); err != nil || done != 1 {
				t.Fatalf("%d are done: %v", done, err)
			}
		}
		var kept audit.Rejected
		if v := w.bucket.Versions(rejected); len(v) != before+1 || json.Unmarshal(v[before], &kept) != nil ||
			string(kept.Raw) != "x" {
			t.Errorf("over %.40q it is kept in %d versions", taken, len(v)-before)
		}
	}
}

// Guarantees that nothing is reported as done and nothing is lost while S3 refuses, throttles, or does not answer:
// records are delivered again from the first one that is not kept, and then kept once.
func TestArchiveIsAway(t *testing.T) {
	faults := map[string]s3test.Fault{
		"refusing": {Status: 403, Code: "AccessDenied"}, "throttling": {Status: 503, Code: "SlowDown"},
		"conflicts":    {Status: 409, Code: "ConditionalRequestConflict"},
		"lost answers": {Lost: true}, "no bucket": {Status: 404, Code: "NoSuchBucket"},
	}
	for what, fault := range faults {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			var back atomic.Bool
			all := history(t, "acme", 4)
			bad := name(all[2])
			w := newWorld(t, s3test.Config{Fault: func(r *http.Request) *s3test.Fault {
				if strings.HasSuffix(r.URL.Path, bad) && !back.Load() {
					return &fault
				}
				return nil
			}})
			poison := control.Delivery{Sequence: "p", Raw: []byte("x"),
				Err: &control.RecordError{Err: control.ErrBadItem}}
			batch := []control.Delivery{all[0], poison, all[1], all[2], all[3]}
			if done, err := w.Handle(t.Context(), batch); err == nil || done != 3 || errors.Is(err, audit.ErrUnequal) {
				t.Fatalf("%d are done, %v; want 3 and an error", done, err)
			}
			if !strings.Contains(w.counts.String(), "records_again=2") {
				t.Errorf("the metrics are %v", w.counts)
			}
			back.Store(true)
			if done, err := w.Handle(t.Context(), batch[3:]); err != nil || done != 2 {
				t.Fatalf("again: %d are done, %v", done, err)
			}
			w.wantArchived(t, all, 1)
		})
	}
}

// Guarantees that a record that can neither be archived nor rejected is delivered again.
func TestNothingCanBeKept(t *testing.T) {
	w := newWorld(t,
		s3test.Config{
			Fault: func(*http.Request) *s3test.Fault { return &s3test.Fault{Status: 403, Code: "AccessDenied"} }})
	poison := control.Delivery{Sequence: "p", Raw: []byte("x")}
	if done, err := w.Handle(t.Context(), []control.Delivery{poison}); done != 0 || err == nil {
		t.Errorf("%d records are done, %v; want none and an error", done, err)
	}
}

// rows is a table with one item.
type rows struct{ item control.Item }

func (r *rows) Get(context.Context, control.Table, string) (control.Item, error) { return r.item, nil }

func (r *rows) List(_ context.Context, t control.Table, _ string, _ int) (items []control.Item, next string,
	err error) {
	if t == r.item.Table {
		items = append(items, r.item)
	}
	return items, "", nil
}

// Guarantees what the runbook on forged documents says about an item that somebody with access to a control table has
// set to the last version, which no command can change: the error says that it was forged, verify finds it, and after
// the previous row was restored by hand, commands write the next version, the archive has both writes among the
// rejected records, and verify finds nothing more.
func TestLastVersionIsTakenBack(t *testing.T) {
	w := newWorld(t, s3test.Config{Now: func() time.Time { return noon }})
	all := history(t, "acme", 3)
	honest := all[2].Record.New
	forged := honest
	forged.Version, forged.Body = events.MaxVersion, []byte(`{"plan":"gold"}`)
	forged.Hash = forged.ComputeHash()
	change := control.Change{
		Table: control.Tenants, Key: "acme", Expect: forged.Version, Body: []byte(`{"n":3}`), Actor: "ann", Reason: "r",
		Now: noon,
	}
	if _, err := change.Check(); !errors.Is(err, control.ErrInvalid) || !strings.Contains(err.Error(), "was forged") {
		t.Errorf("a change of the last version: %v", err)
	}
	verify := func(at control.Item) string {
		archive := bucket.New(w.bucket.Client(), s3test.Name)
		r, err := audit.Verify(t.Context(), audit.VerifyConfig{Archive: archive, Tables: &rows{at}, Grace: -1})
		if err != nil {
			t.Fatal(err)
		}
		found := fmt.Sprintf("%d rejected", r.Rejected)
		for _, f := range r.Findings {
			found += fmt.Sprintf(", %s from version %d on", f.Kind, f.Version)
		}
		return found
	}
	keep := func(old, item control.Item) {
		t.Helper()
		all = append(all, control.Delivery{Sequence: item.Hash, Record: &control.Record{Old: &old, New: item}})
		if done, err := w.Handle(t.Context(), all); err != nil || done != len(all) {
			t.Fatalf("%d are done: %v", done, err)
		}
	}
	keep(honest, forged)
	if got := verify(forged); got != "1 rejected, missing tail from version 4 on" {
		t.Errorf("with the forged item: %s", got)
	}
	keep(forged, honest)
	change.Expect = honest.Version
	change, err := change.Check()
	if err != nil {
		t.Fatal(err)
	}
	next, _, err := control.Next(&honest, change)
	if err != nil || next.Version != 4 {
		t.Fatalf("the next version: %+v, %v", next, err)
	}
	keep(honest, next)
	if got := verify(next); got != "2 rejected" {
		t.Errorf("with the item of before, and a change: %s", got)
	}
}

// stuck is an archive that panics, or hangs until its context ends.
type stuck struct {
	audit.Archive
	panics bool
}

func (s stuck) Put(ctx context.Context, _ string, _ []byte) (bool, error) {
	if s.panics {
		panic("boom")
	}
	<-ctx.Done()
	return false, ctx.Err()
}

// Guarantees that an archive that hangs leaves time for the answer, and that a record is delivered again after a panic.
func TestStuck(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, panics := range []bool{false, true} {
			a := archiver.New(archiver.Config{Archive: stuck{panics: panics}, Meter: &counts{},
				Log: slog.New(slog.DiscardHandler)})
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			began := time.Now()
			done, err := a.Handle(ctx, history(t, "acme", 30))
			if took := time.Since(began); done != 0 || err == nil || took > 9*time.Second || !panics &&
				took != 9*time.Second {
				t.Errorf("archive that panics (%t) or hangs: %d records are done after %v, %v", panics, done, took, err)
			}
			cancel()
		}
	})
}

// Guarantees that Lambda gets an empty answer, or the sequence number of the first record to deliver again, and that an
// invalid batch is an error.
func TestInvoke(t *testing.T) {
	all := history(t, "acme", 3)
	var records []json.RawMessage
	for i, d := range all {
		records = append(records, json.RawMessage(functiontest.Record(t, 100+i, d)))
	}
	event, err := json.Marshal(map[string]any{"Records": records})
	if err != nil {
		t.Fatal(err)
	}
	decoder := dynamo.NewDecoder(map[control.Table]string{control.Tenants: "tenants"})
	var away atomic.Bool
	w := newWorld(t, s3test.Config{Fault: func(r *http.Request) *s3test.Fault {
		if away.Load() && !strings.HasSuffix(r.URL.Path, name(all[0])) {
			return &s3test.Fault{Status: 403, Code: "AccessDenied"}
		}
		return nil
	}})
	away.Store(true)
	if got, err := w.Invoke(t.Context(), decoder, event); err != nil ||
		string(got) != `{"batchItemFailures":[{"itemIdentifier":"101"}]}` {
		t.Errorf("the answer to a good batch is %s, %v", got, err)
	}
	if got, err := w.Invoke(t.Context(), decoder, []byte(`{"Records":[{}]}`)); err == nil {
		t.Errorf("a record without a number that cannot be kept: %s", got)
	}
	away.Store(false)
	if got, err := w.Invoke(t.Context(), decoder, event); err != nil || string(got) != `{"batchItemFailures":[]}` {
		t.Errorf("%s, %v", got, err)
	}
	w.wantArchived(t, all, 0)
	if got, err := w.Invoke(t.Context(), decoder, []byte(`[]`)); err == nil {
		t.Errorf("the answer to an event that is not a batch is %s", got)
	}
}

// Guarantees that in one process, too, everything is archived from the first change on, through failures and restarts,
// and that the archive then passes verify.
func TestFollow(t *testing.T) {
	dir := t.TempDir()
	tables, err := embedded.Open(filepath.Join(dir, "control.db"))
	if err != nil {
		t.Fatal(err)
	}
	defer tables.Close()
	archive := audit.NewFolder(dir)
	fragile := &fragile{Archive: archive}
	write := func(n int) {
		for v := range 4 {
			c := control.Change{Table: control.Plans, Key: fmt.Sprintf("p%d", n), Expect: int64(v),
				Body: fmt.Appendf(nil, `{"n":%d}`, v), Actor: "ann", Reason: "r", Now: time.Now()}
			if _, err := tables.Put(t.Context(), c); err != nil {
				t.Fatal(err)
			}
		}
	}
	for n := range 3 {
		write(n)
		a := archiver.New(archiver.Config{Archive: fragile, Meter: &counts{}, Log: slog.New(slog.DiscardHandler)})
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- a.Follow(ctx, tables) }()
		for last := ""; last != fmt.Sprint(4*(n+1)); {
			if last, err = tables.Cursor(t.Context(), archiver.Consumer); err != nil {
				t.Fatal(err)
			}
		}
		stop()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Errorf("Follow ends with %v", err)
		}
	}
	report, err := audit.Verify(t.Context(), audit.VerifyConfig{Archive: archive, Tables: tables, Grace: -1})
	if err != nil || !report.OK() || report.Objects != 12 || fragile.calls.Load() < 14 {
		t.Errorf("verify reports %+v, %v", report, err)
	}
}

// fragile is an archive that refuses some writes.
type fragile struct {
	audit.Archive
	calls atomic.Int64
}

func (f *fragile) Put(ctx context.Context, name string, data []byte) (bool, error) {
	if f.calls.Add(1)%5 == 2 {
		return false, errors.New("the disk is full")
	}
	return f.Archive.Put(ctx, name, data)
}
