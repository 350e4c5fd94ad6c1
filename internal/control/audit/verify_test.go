package audit_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"iter"
	"math/rand/v2"
	"net/http"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluicelimits/sluice/events"
	"github.com/sluicelimits/sluice/internal/control"
	"github.com/sluicelimits/sluice/internal/control/audit"
	"github.com/sluicelimits/sluice/internal/control/audit/bucket"
	"github.com/sluicelimits/sluice/internal/testkit/s3test"
	"github.com/sluicelimits/sluice/internal/testkit/soak"
)

// tampering changes a world and returns what must be found, and where.
type tampering struct {
	name string
	do   func(w *world, r *rand.Rand) (control.BreakKind, string)
}

// rewrite changes the record of a version in place, and recomputes its hash if rehash is set.
func (w *world) rewrite(r *control.Record, rehash bool, change func(*events.AuditRecord)) string {
	record := r.Audit()
	change(record)
	if rehash {
		i := control.FromAudit(record)
		record.Hash = i.ComputeHash()
	}
	w.bucket.Alter(nameOf(r), func([]byte) []byte { return encode(w.t, record) })
	return nameOf(r)
}

// setActor returns a change of a record: another actor.
func setActor(by string) func(*events.AuditRecord) {
	return func(r *events.AuditRecord) { r.Actor = by }
}

var tamperings = []tampering{
	{"a version between two is removed", func(w *world, r *rand.Rand) (control.BreakKind, string) {
		_, h := w.pickItem(r, 2)
		name := nameOf(&h[r.IntN(len(h)-1)])
		w.bucket.Erase(name)
		return control.MissingVersion, name
	}},
	{"the newest versions are removed", func(w *world, r *rand.Rand) (control.BreakKind, string) {
		_, h := w.pickItem(r, 2)
		from := 1 + r.IntN(len(h)-1)
		for i := range h[from:] {
			w.bucket.Erase(nameOf(&h[from+i]))
		}
		return control.MissingTail, nameOf(&h[from])
	}},
	{"all versions of an item are removed", func(w *world, r *rand.Rand) (control.BreakKind, string) {
		_, h := w.pickItem(r, 1)
		for i := range h {
			w.bucket.Erase(nameOf(&h[i]))
		}
		return control.MissingTail, nameOf(&h[0])
	}},
	{"a hash is another", func(w *world, r *rand.Rand) (control.BreakKind, string) {
		_, h := w.pickItem(r, 1)
		return control.WrongHash, w.rewrite(&h[r.IntN(len(h))], false,
			func(r *events.AuditRecord) { r.Hash = strings.Repeat("0", 64) })
	}},
	{"an actor is another", func(w *world, r *rand.Rand) (control.BreakKind, string) {
		_, h := w.pickItem(r, 1)
		return control.Altered, w.rewrite(&h[r.IntN(len(h))], false, setActor("nobody"))
	}},
	{"a time is another", func(w *world, r *rand.Rand) (control.BreakKind, string) {
		_, h := w.pickItem(r, 1)
		return control.Altered, w.rewrite(&h[r.IntN(len(h))], false,
			func(r *events.AuditRecord) { r.Time = r.Time.Add(time.Microsecond) })
	}},
	{"a body is another", func(w *world, r *rand.Rand) (control.BreakKind, string) {
		_, h := w.pickItem(r, 1)
		return control.Altered, w.rewrite(&h[r.IntN(len(h))], false, func(r *events.AuditRecord) {
			r.Deleted,
				r.After = false, []byte(`{"mine":1}`)
		})
	}},
	{"what was before is another", func(w *world, r *rand.Rand) (control.BreakKind, string) {
		_, h := w.pickItem(r, 2)
		return control.Altered, w.rewrite(&h[1+r.IntN(len(h)-1)], false,
			func(r *events.AuditRecord) { r.Before = []byte(`{"mine":1}`) })
	}},
	{"an object is cut off", func(w *world, r *rand.Rand) (control.BreakKind, string) {
		_, h := w.pickItem(r, 1)
		name := nameOf(&h[r.IntN(len(h))])
		w.bucket.Alter(name, func(b []byte) []byte { return b[:len(b)/2] })
		return control.Altered, name
	}},
	{"an object is empty", func(w *world, r *rand.Rand) (control.BreakKind, string) {
		_, h := w.pickItem(r, 1)
		name := nameOf(&h[r.IntN(len(h))])
		w.bucket.Alter(name, func([]byte) []byte { return nil })
		return control.Altered, name
	}},
	{"an object is far too large", func(w *world, r *rand.Rand) (control.BreakKind, string) {
		_, h := w.pickItem(r, 1)
		name := nameOf(&h[r.IntN(len(h))])
		w.bucket.Alter(name, func([]byte) []byte { return bytes.Repeat([]byte(" "), events.MaxAuditBytes+1) })
		return control.Altered, name
	}},
	{"an object is that of another version", func(w *world, r *rand.Rand) (control.BreakKind, string) {
		_, h := w.pickItem(r, 2)
		name := nameOf(&h[0])
		w.bucket.Alter(name, func([]byte) []byte { return encode(w.t, h[1].Audit()) })
		return control.Altered, name
	}},
	{"an object has the record of another item", func(w *world, r *rand.Rand) (control.BreakKind, string) {
		_, h := w.pickItem(r, 1)
		return control.Altered, w.rewrite(&h[r.IntN(len(h))], true,
			func(r *events.AuditRecord) { r.Key = "another" })
	}},
	{"a version is made anew, with its hash", func(w *world, r *rand.Rand) (control.BreakKind, string) {
		_, h := w.pickItem(r, 2)
		at := r.IntN(len(h) - 1)
		w.rewrite(&h[at], true, setActor("nobody"))
		return control.BrokenLink, nameOf(&h[at+1])
	}},
	{"the newest version is made anew, with its hash", func(w *world, r *rand.Rand) (control.BreakKind, string) {
		_, h := w.pickItem(r, 1)
		return control.WrongHead, w.rewrite(&h[len(h)-1], true, setActor("nobody"))
	}},
	{"the live table is altered by hand", func(w *world, r *rand.Rand) (control.BreakKind, string) {
		p, h := w.pickItem(r, 1)
		i := w.live[p]
		i.Reason = "another"
		w.live[p] = i
		return control.WrongHead, nameOf(&h[len(h)-1])
	}},
	{"an item of the live table cannot be read", func(w *world, r *rand.Rand) (control.BreakKind, string) {
		p, h := w.pickItem(r, 1)
		w.bad[p] = true
		return audit.BadHead, nameOf(&h[len(h)-1])
	}},
	{"an item is removed from the live table", func(w *world, r *rand.Rand) (control.BreakKind, string) {
		p, h := w.pickItem(r, 1)
		delete(w.live, p)
		return control.Unknown, nameOf(&h[len(h)-1])
	}},
	{"the live table is set back", func(w *world, r *rand.Rand) (control.BreakKind, string) {
		p, h := w.pickItem(r, 2)
		w.live[p] = h[len(h)-2].New
		return control.Unknown, nameOf(&h[len(h)-1])
	}},
	{"a version is made up", func(w *world, r *rand.Rand) (control.BreakKind, string) {
		p, _ := w.pickItem(r, 1)
		now := w.live[p]
		made := w.write(p.table, p.key, `{"made":"up"}`, noon)
		w.archiveRecord(made)
		w.live[p] = now
		return control.Unknown, nameOf(made)
	}},
	{"what is no record is put behind the newest version", func(w *world, r *rand.Rand) (control.BreakKind, string) {
		p, _ := w.pickItem(r, 1)
		name := control.ObjectName(p.table, p.key, w.live[p].Version+1)
		w.bucket.Overwrite(name, []byte("{}"))
		return control.Unknown, name // and Altered
	}},
	{"a delete marker hides a version", func(w *world, r *rand.Rand) (control.BreakKind, string) {
		_, h := w.pickItem(r, 1)
		name := nameOf(&h[r.IntN(len(h))])
		w.bucket.Hide(name)
		return audit.Hidden, name
	}},
	{"a version is hidden, and written again as it was", func(w *world, r *rand.Rand) (control.BreakKind, string) {
		_, h := w.pickItem(r, 1)
		i := r.IntN(len(h))
		w.bucket.Hide(nameOf(&h[i]))
		w.archiveRecord(&h[i])
		return audit.Hidden, nameOf(&h[i])
	}},
	{"another content is put on top", func(w *world, r *rand.Rand) (control.BreakKind, string) {
		_, h := w.pickItem(r, 1)
		i := r.IntN(len(h))
		record := h[i].Audit()
		record.Reason = "becausE" // of equal size
		w.bucket.Overwrite(nameOf(&h[i]), encode(w.t, record))
		return audit.Replaced, nameOf(&h[i])
	}},
	{"many contents are put on top, the last as it was", func(w *world, r *rand.Rand) (control.BreakKind, string) {
		_, h := w.pickItem(r, 1)
		i := r.IntN(len(h))
		for n := range 20 {
			w.bucket.Overwrite(nameOf(&h[i]), fmt.Append(nil, n))
		}
		w.bucket.Overwrite(nameOf(&h[i]), encode(w.t, h[i].Audit()))
		return audit.Replaced, nameOf(&h[i])
	}},
	{"an object that no item has", func(w *world, r *rand.Rand) (control.BreakKind, string) {
		_, h := w.pickItem(r, 2)
		bad := []string{"audit/x", "audit/plans/", "audit/nothing/a/0000000000000001.json", nameOf(&h[0]) + ".bak",
			"audit/tenants/\x01 +%/1",
			control.ObjectFolder(h[0].New.Table, h[0].New.Key) + "0"}
		name := bad[r.IntN(len(bad))]
		w.bucket.Overwrite(name, []byte("x"))
		return audit.BadName, name
	}},
	{"a retention is gone", func(w *world, r *rand.Rand) (control.BreakKind, string) {
		_, h := w.pickItem(r, 1)
		name := nameOf(&h[r.IntN(len(h))])
		w.bucket.Unlock(name)
		return audit.Unlocked, name
	}},
	{"a retention is shorter than the bucket's", func(w *world, r *rand.Rand) (control.BreakKind, string) {
		_, h := w.pickItem(r, 1)
		i := r.IntN(len(h))
		w.bucket.Lock(nameOf(&h[i]), "GOVERNANCE", h[i].New.ChangedAt.Add(23*time.Hour))
		return audit.WeakLock, nameOf(&h[i])
	}},
	{"a retention is in another mode than the bucket's", func(w *world, r *rand.Rand) (control.BreakKind, string) {
		_, h := w.pickItem(r, 1)
		i := r.IntN(len(h))
		w.bucket.Lock(nameOf(&h[i]), "COMPLIANCE", h[i].New.ChangedAt.Add(48*time.Hour))
		return audit.WeakLock, nameOf(&h[i])
	}},
}

// Guarantees that an unaltered archive is reported as such, whatever its history, and that each way of tampering with
// it is reported by its kind and place, and nothing else is.
func TestVerifyNamesWhatWasDone(t *testing.T) {
	for _, tt := range tamperings {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			for seed := range soak.Times(uint64(2)) {
				r := rand.New(rand.NewPCG(seed, 7))
				w := newWorld(t)
				w.archiveRandom(r, 12+r.IntN(20))
				clean := w.verify()
				if !clean.OK() || clean.Objects == 0 || clean.Items != int64(len(w.live)) ||
					clean.Objects != int64(len(w.bucket.Names())) {
					t.Fatalf("seed %d: an archive of %d items: got %+v, want no finding, and all objects counted",
						seed, len(w.live), clean)
				}
				kind, object := tt.do(w, r)
				report := w.verify()
				if strings.HasPrefix(tt.name, "what is no record") && len(report.Findings) == 2 &&
					report.Findings[0].Kind == control.Altered {
					report.Findings = report.Findings[1:]
				}
				if len(report.Findings) != 1 || report.Findings[0].Kind != kind ||
					report.Findings[0].Object != object || report.Findings[0].Count != 1 {
					t.Fatalf("seed %d: found %+v\nwant one %q at %s", seed, report.Findings, kind, object)
				}
			}
		})
	}
}

// Guarantees that missing versions after a spoiled one are reported, from the first of them on, and that the spoiled
// version does not count as missing.
func TestVerifyNamesATailBehindASpoiltVersion(t *testing.T) {
	for spoilt := 1; spoilt <= 3; spoilt++ {
		w := newWorld(t)
		var all []*control.Record
		for i := range 6 {
			r := w.write(control.Tenants, "acme", fmt.Sprintf(`{"n":%d}`, i), noon)
			w.archiveRecord(r)
			all = append(all, r)
		}
		for i := 4 - spoilt; i < 4; i++ { // of the versions 1 to 6
			w.bucket.Alter(nameOf(all[i]), func([]byte) []byte { return []byte("{}") })
		}
		w.bucket.Erase(nameOf(all[4]))
		w.bucket.Erase(nameOf(all[5]))
		got := map[control.BreakKind]audit.Finding{}
		for _, f := range w.verify().Findings {
			got[f.Kind] = f
		}
		tail, altered := got[control.MissingTail], got[control.Altered]
		if len(got) != 2 || altered.Object != nameOf(all[4-spoilt]) || altered.Count != int64(spoilt) ||
			tail.Object != nameOf(all[4]) || tail.Count != 1 ||
			tail.Detail != "versions 5 to 6 of the table were not archived" {
			t.Errorf("%d of the versions are unreadable, and 5 and 6 are missing: got the findings %+v, want "+
				"exactly these", spoilt, got)
		}
	}
}

// Guarantees that an object that cannot be read is a finding, with its version and the reason, and does not end the
// check; and that a record which the archiver has put over such an object counts as the record, so that nothing else
// is found.
func TestVerifyNamesAnUnreadableObject(t *testing.T) {
	for _, how := range []s3test.Seal{s3test.Archived, s3test.CustomerKey, s3test.ForeignKey, s3test.DisabledKey} {
		for at := range 3 {
			w := newWorld(t)
			var all []*control.Record
			for i := range 3 {
				all = append(all, w.write(control.Tenants, "acme", fmt.Sprintf(`{"n":%d}`, i), noon))
				w.archiveRecord(all[i])
			}
			name := nameOf(all[at])
			w.bucket.Seal(name, how)
			check := func(what string) {
				f := w.verify().Findings
				if len(f) != 1 || f[0].Kind != audit.BadObject || f[0].Object != name || f[0].Count != 1 ||
					f[0].Version != int64(at+1) || !strings.Contains(f[0].Detail, fmt.Sprintf("v%08d", at+1)) {
					t.Errorf("%s, version %d, %s: got the findings %+v, want one bad object with this version", how,
						at+1, what, f)
				}
			}
			check("alone")
			shown := 0
			show := func(s audit.Shown) bool {
				shown++
				if s.Name == name && (!errors.Is(s.Err, audit.ErrUnreadable) || s.Unread) {
					t.Errorf("%s: got %+v shown, want an unreadable object", how, s)
				}
				return true
			}
			if err := audit.Show(t.Context(), w.archive, audit.Filter{}, show); err != nil || shown != 3 {
				t.Errorf("%s: got %d of 3 objects shown, error %v; want all", how, shown, err)
			}
			if err := w.archive.Cover(t.Context(), name, encode(t, all[at].Audit())); err != nil {
				t.Fatal(err)
			}
			check("below the record")
			show = func(s audit.Shown) bool {
				if s.Err != nil || s.Record == nil || s.Others || s.Unread != (s.Name == name) {
					t.Errorf("%s: below the record: got %+v shown, want the record, and that something covers it", how,
						s)
				}
				return true
			}
			if err := audit.Show(t.Context(), w.archive, audit.Filter{}, show); err != nil {
				t.Error(err)
			}
			w.bucket.Overwrite(name, encode(t, all[at].Audit()))
			w.bucket.Seal(name, how)
			if f := w.verify().Findings; len(f) != 1 || f[0].Kind != audit.BadObject || f[0].Count != 2 {
				t.Errorf("%s: below and on top of the record: got the findings %+v, want one bad object that counts 2",
					how, f)
			}
		}
	}
}

// Guarantees that several kinds of findings are distinguished, with the first place and the number of each.
func TestVerifyNamesTheFirstOfEachKind(t *testing.T) {
	w := newWorld(t)
	for i := range 5 {
		for range 3 {
			w.archiveRecord(w.write(control.Tenants, fmt.Sprintf("t%d", i), fmt.Sprintf(`{"n":%d}`, i), noon))
		}
	}
	for i := range 4 {
		w.bucket.Hide(control.ObjectName(control.Tenants, fmt.Sprintf("t%d", 4-i), 2))
		w.bucket.Unlock(control.ObjectName(control.Tenants, fmt.Sprintf("t%d", i), 3))
	}
	w.bucket.Erase(control.ObjectName(control.Tenants, "t2", 2))
	w.bucket.Erase(control.ObjectName(control.Tenants, "t1", 1))
	var got []string
	for _, f := range w.verify().Findings {
		got = append(got, fmt.Sprintf("%d %s from %s/%s/%d on", f.Count, f.Kind, f.Table, f.Key, f.Version))
	}
	want := "2 missing version from tenants/t1/1 on; 3 delete marker from tenants/t1/2 on; 4 not locked from " +
		"tenants/t0/3 on"
	if got := strings.Join(got, "; "); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

// Guarantees that everything that an archive returns beside its records is needed: without it, Verify misses a
// finding.
func TestVerifyGoesByWhatTheArchiveTells(t *testing.T) {
	blind := map[control.BreakKind]func(audit.Archive) audit.Archive{
		audit.Hidden: func(a audit.Archive) audit.Archive {
			return &blinded{Archive: a, drop: func(e audit.Entry) bool { return e.DeleteMarker }}
		},
		audit.Replaced: func(a audit.Archive) audit.Archive {
			var oldest = map[string]bool{}
			return &blinded{Archive: a, drop: func(e audit.Entry) bool {
				top := !oldest[e.Name]
				oldest[e.Name] = true
				return top && e.Version > "v00000020"
			}}
		},
		audit.BadName: func(a audit.Archive) audit.Archive {
			return &blinded{Archive: a, drop: func(e audit.Entry) bool {
				_, _, _,
					err := control.ParseObjectName(e.Name)
				return err != nil
			}}
		},
		audit.Unlocked: func(a audit.Archive) audit.Archive { return &blinded{Archive: a, lockless: true} },
		audit.WeakLock: func(a audit.Archive) audit.Archive { return &blinded{Archive: a, lockless: true} },
	}
	for _, tt := range tamperings {
		w := newWorld(t)
		r := rand.New(rand.NewPCG(1, 2))
		w.archiveRandom(r, 20)
		kind, _ := tt.do(w, r)
		if blind[kind] == nil || strings.Contains(tt.name, "as it was") {
			continue
		}
		w.archive = blind[kind](w.archive)
		if got := w.verify(); !got.OK() {
			t.Errorf("%s: got the findings %+v from other checks than the one for it, want none", tt.name, got.Findings)
		}
	}
}

type blinded struct {
	audit.Archive
	drop     func(audit.Entry) bool
	lockless bool
}

func (b *blinded) List(ctx context.Context, prefix, after string) iter.Seq2[audit.Entry, error] {
	return func(yield func(audit.Entry, error) bool) {
		for e, err := range b.Archive.List(ctx, prefix, after) {
			if (b.drop == nil || !b.drop(e)) && !yield(e, err) {
				return
			}
		}
	}
}

func (b *blinded) Lock(ctx context.Context) (audit.Lock, error) {
	if b.lockless {
		return audit.Lock{}, nil
	}
	return b.Archive.Lock(ctx)
}

// Guarantees that the report says what was checked.
func TestReport(t *testing.T) {
	w := newWorld(t)
	var size int64
	for i := range 3 {
		r := w.write(control.Plans, "pro", fmt.Sprintf(`{"n":%d}`, i), noon.Add(time.Duration(i)*time.Hour))
		w.archiveRecord(r)
		size += int64(len(encode(t, r.Audit())))
	}
	w.bucket.Overwrite(nameOf(&w.history[place{control.Plans, "pro"}][0]),
		encode(t, w.history[place{control.Plans, "pro"}][0].Audit()))
	rejected := audit.Rejected{Reason: audit.Unreadable, Raw: []byte("x")}
	w.bucket.Overwrite(rejected.Name(), []byte("{}"))
	if err := audit.Reject(t.Context(), w.archive, rejected); err != nil {
		t.Fatal(err)
	}
	r := w.verify()
	if !r.OK() || r.Objects != 3 || r.Items != 1 || r.Bytes != size || !r.From.Equal(noon) ||
		!r.To.Equal(noon.Add(2*time.Hour)) || !r.Locks ||
		strings.Join(r.Modes, " ") != "GOVERNANCE" || r.LockedUntil.IsZero() || r.Repeated != 1 || r.Rejected != 1 {
		t.Errorf("got %+v, want 3 objects of one item, locked, one repeated and one rejected", r)
	}
}

// Guarantees that a folder is verified, although nothing locks its files.
func TestVerifyFolder(t *testing.T) {
	w := newWorld(t)
	a := audit.NewFolder(t.TempDir())
	w.archive = a
	w.archiveRandom(rand.New(rand.NewPCG(1, 1)), 40)
	r := w.verify()
	if !r.OK() || r.Locks || r.Items != int64(len(w.live)) {
		t.Errorf("got %+v, want no finding, and no locks", r)
	}
	i := slices.IndexFunc(r.Notices, func(f audit.Finding) bool { return f.Kind == audit.NoPutTimes })
	// The same holds for a bucket without Object Lock, whose times only S3 sets.
	if i < 0 || !strings.Contains(r.Notices[i].Detail, "does not lock its objects") {
		t.Errorf("notices %+v, want one that says why times are not compared", r.Notices)
	}
}

// late is an archive that receives a missing object while it is read.
type late struct {
	audit.Archive
	lists atomic.Int64
	then  func(list int64)
}

func (l *late) List(ctx context.Context, prefix, after string) iter.Seq2[audit.Entry, error] {
	l.then(l.lists.Add(1))
	return l.Archive.List(ctx, prefix, after)
}

// archiveInFolder sets up an archive without a network, for tests with virtual time.
func archiveInFolder(t *testing.T, w *world) {
	a := audit.NewFolder(t.TempDir())
	w.archive = a
}

// Guarantees that Verify waits for a version that was written recently, at the end and in the middle, and reports it
// only if it does not arrive; also if the writer's clock is an hour ahead.
func TestVerifyWaitsForTheArchiver(t *testing.T) {
	for _, ahead := range []time.Duration{0, time.Hour} {
		for _, comes := range []bool{true, false} {
			w := newWorld(t)
			archiveInFolder(t, w)
			synctest.Test(t, func(*testing.T) {
				var records []*control.Record
				for i := range 6 {
					records = append(records, w.write(control.Plans, "pro", fmt.Sprintf(`{"n":%d}`, i),
						time.Now().Add(ahead)))
				}
				for _, i := range []int{0, 1, 3} { // 2, 4 and 5 are on their way
					w.archiveRecord(records[i])
				}
				l := &late{Archive: w.archive, then: func(list int64) {
					switch {
					case list == 5 && comes:
						w.archiveRecord(records[2])
					case list == 9 && comes:
						w.archiveRecord(records[5])
					case list == 11 && comes:
						w.archiveRecord(records[4])
					}
				}}
				began := time.Now()
				r, err := audit.Verify(context.Background(), audit.VerifyConfig{Archive: l, Tables: w,
					Grace: 10 * time.Second})
				if err != nil {
					t.Fatal(err)
				}
				took := time.Since(began)
				if comes && (!r.OK() || r.Objects != 6 || took > 5*time.Second) {
					t.Errorf("ahead %v: a version that arrives late: after %v got %+v, want no finding within 5 s",
						ahead, took, r)
				}
				if !comes && (len(r.Findings) != 2 || r.Objects != 3 || took < 9*time.Second || took > 21*time.Second) {
					t.Errorf("ahead %v: a version that does not arrive: after %v got %+v, want 2 findings after 9 "+
						"to 21 s", ahead, took, r)
				}
			})
		}
	}
}

// Guarantees that changes during a check are not breaks: new versions, new items, and an archiver that works in
// another order.
func TestVerifyBesideWriters(t *testing.T) {
	w := newWorld(t)
	w.archiveRandom(rand.New(rand.NewPCG(3, 3)), 20)
	const rounds = 60
	wrote := make(chan struct{})
	go func() {
		defer close(wrote)
		for n := range rounds {
			x := w.write(control.Tenants, "acme", fmt.Sprintf(`{"w":%d}`, n), time.Now())
			y := w.write(control.Tenants, "acme", fmt.Sprintf(`{"v":%d}`, n), time.Now())
			z := w.write(control.Tenants, fmt.Sprintf("new-%d", n), `{"z":1}`, time.Now())
			w.archiveRecord(z)
			w.archiveRecord(y)
			w.archiveRecord(x)
		}
	}()
	beside := 0
	for writing := true; writing; {
		r, err := audit.Verify(t.Context(), audit.VerifyConfig{Archive: w.archive, Tables: w})
		if err != nil || !r.OK() {
			t.Fatalf("beside writers: got %+v, error %v; want no finding", r, err)
		}
		select {
		case <-wrote:
			writing = false
		default:
			beside++
		}
	}
	t.Logf("%d checks ended while items were written", beside)
	if r := w.verify(); !r.OK() || r.Objects != 20+3*rounds {
		t.Errorf("at the end: got %+v, want no finding, and all objects", r)
	}
}

// copyRefusing returns a copy of the archive in another bucket, which refuses one kind of call.
func (w *world) copyRefusing(c s3test.Config, refused string) audit.Archive {
	w.t.Helper()
	c.Now = w.now
	c.Fault = func(r *http.Request) *s3test.Fault {
		q := r.URL.Query()
		if q.Has(refused) || refused == "get" && r.Method == http.MethodGet && !q.Has("versions") &&
			!q.Has("object-lock") {
			return &s3test.Fault{Status: 403, Code: "AccessDenied"}
		}
		return nil
	}
	b := s3test.New(w.t, c)
	for _, name := range w.bucket.Names() {
		b.Overwrite(name, w.bucket.Versions(name)[0])
	}
	a := bucket.New(b.Client(), s3test.Name)
	return a
}

// Guarantees that Verify reports if the bucket's lock cannot be read, or if new objects are not locked, and that it
// still finds objects without a lock.
func TestVerifyTheBucketsLock(t *testing.T) {
	for _, tt := range []struct {
		mode, refused     string
		findings, notices []control.BreakKind
	}{
		{"GOVERNANCE", "nothing", nil, nil},
		{"GOVERNANCE", "object-lock", nil, []control.BreakKind{audit.LockUnread}},
		{"", "object-lock", []control.BreakKind{audit.Unlocked}, []control.BreakKind{audit.LockUnread}},
		{"", "nothing", []control.BreakKind{audit.Unlocked, audit.NoLock}, nil},
	} {
		w := newWorld(t)
		w.archiveRecord(w.write(control.Plans, "pro", `{"n":1}`, noon))
		w.archive = w.copyRefusing(s3test.Config{Lock: true, Mode: tt.mode, Days: 1}, tt.refused)
		r := w.verify()
		if got := kindsOf(r.Findings); !slices.Equal(got, tt.findings) {
			t.Errorf("the default is %q, %s is refused: found %q, want %q", tt.mode, tt.refused, got, tt.findings)
		}
		if got := kindsOf(r.Notices); !slices.Equal(got, append(tt.notices, audit.NoAnchors)) {
			t.Errorf("the default is %q, %s is refused: notices %q, want %q", tt.mode, tt.refused, got, tt.notices)
		}
	}
}

// Guarantees that objects with an earlier lock of the bucket are accepted if the operator names that lock, and only
// for its time.
func TestVerifyEarlierLocks(t *testing.T) {
	w := newWorld(t)
	r := w.write(control.Plans, "pro", `{"n":1}`, noon)
	w.archiveRecord(r)
	w.bucket.Lock(nameOf(r), "GOVERNANCE", noon.Add(time.Hour))
	lock := audit.Lock{Enabled: true, Mode: "GOVERNANCE", Period: time.Hour}
	for _, tt := range []struct {
		audit.EarlierLock
		want bool
	}{
		{audit.EarlierLock{Lock: lock, Until: noon.Add(time.Minute)}, true},
		{audit.EarlierLock{Lock: lock, Until: noon}, false}, // the object was put a second later
		{audit.EarlierLock{Lock: audit.Lock{Mode: "COMPLIANCE", Period: time.Hour}, Until: noon.Add(day)}, false},
		{audit.EarlierLock{Lock: audit.Lock{Mode: "GOVERNANCE", Period: 2 * time.Hour}, Until: noon.Add(day)}, false},
	} {
		report, err := audit.Verify(t.Context(), audit.VerifyConfig{
			Archive: w.archive, Tables: w, Grace: -1, EarlierLocks: []audit.EarlierLock{tt.EarlierLock},
		})
		if err != nil || report.OK() != tt.want {
			t.Errorf("with %+v: %+v, %v, want it to hold: %t", tt.EarlierLock, report, err, tt.want)
		}
	}
}

func kindsOf(all []audit.Finding) (kinds []control.BreakKind) {
	for _, f := range all {
		kinds = append(kinds, f.Kind)
	}
	return kinds
}

// Guarantees that a check that could not be completed is an error, and reports nothing.
func TestVerifyFails(t *testing.T) {
	for _, refused := range []string{"versions", "get"} {
		w := newWorld(t)
		w.archiveRandom(rand.New(rand.NewPCG(4, 4)), 10)
		a := w.copyRefusing(s3test.Config{Lock: true}, refused)
		if r, err := audit.Verify(t.Context(), audit.VerifyConfig{Archive: a, Tables: w}); err == nil || r != nil {
			t.Errorf("%s is refused: got %+v, error %v; want an error", refused, r, err)
		}
	}
	w := newWorld(t)
	w.archiveRandom(rand.New(rand.NewPCG(4, 4)), 10)
	if r, err := audit.Verify(t.Context(), audit.VerifyConfig{Archive: w.archive, Tables: away{}}); err == nil ||
		r != nil {
		t.Errorf("the tables do not answer: got %+v, error %v; want an error", r, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if r, err := audit.Verify(ctx, audit.VerifyConfig{Archive: w.archive, Tables: w}); !errors.Is(err,
		context.Canceled) || r != nil {
		t.Errorf("cancelled: got %+v, error %v; want context.Canceled", r, err)
	}
}

type away struct{}

func (away) Get(context.Context, control.Table, string) (control.Item, error) {
	return control.Item{}, errors.New("throttled")
}

func (away) List(context.Context, control.Table, string, int) ([]control.Item, string, error) {
	return nil, "", errors.New("throttled")
}

// endless is an archive, with its tables, whose items are made when they are read: three versions of each.
type endless struct {
	items int
	peak  atomic.Uint64
	gets  atomic.Int64
}

func key(n int) string { return fmt.Sprintf("t%08d", n) }

func (*endless) versions(n int) (control.Item, []*events.AuditRecord) {
	var last *control.Item
	var all []*events.AuditRecord
	for v := range 3 {
		c, _ := control.Change{Table: control.Tenants, Key: key(n), Expect: int64(v),
			Body: fmt.Appendf(nil, `{"plan":"pro","n":%d}`, v), Actor: "ann", Reason: "r", Now: noon}.Check()
		next, _, err := control.Next(last, c)
		if err != nil {
			panic(err)
		}
		r := control.Record{Old: last, New: next}
		all, last = append(all, r.Audit()), &next
	}
	return *last, all
}

func (e *endless) Put(context.Context, string, []byte) (bool, error) {
	return false, errors.New("read only")
}
func (*endless) Cover(context.Context, string, []byte) error { return errors.New("read only") }
func (*endless) Lock(context.Context) (audit.Lock, error)    { return audit.Lock{}, nil }

func (e *endless) Get(_ context.Context, at audit.Entry) (audit.Object, error) {
	if e.gets.Add(1)%200 == 0 {
		runtime.GC()
		// What the collection has found in use: on a busy machine others make much garbage before it can be read.
		live := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
		metrics.Read(live)
		now := live[0].Value.Uint64()
		for old := e.peak.Load(); now > old && !e.peak.CompareAndSwap(old, now); old = e.peak.Load() {
		}
	}
	_, k, v, err := control.ParseObjectName(at.Name)
	if err != nil {
		return audit.Object{}, err
	}
	var n int
	_, _ = fmt.Sscanf(k, "t%d", &n)
	_, all := e.versions(n)
	data, err := events.Encode(all[v-1])
	return audit.Object{Data: data}, err
}

func (e *endless) List(_ context.Context, prefix, _ string) iter.Seq2[audit.Entry, error] {
	return func(yield func(audit.Entry, error) bool) {
		for n := 0; n < e.items && prefix == control.ObjectPrefix; n++ {
			for v := range int64(3) {
				if !yield(audit.Entry{Name: control.ObjectName(control.Tenants, key(n), v+1), SizeBytes: 400}, nil) {
					return
				}
			}
		}
	}
}

type endlessTables struct{ *endless }

func (e endlessTables) Get(_ context.Context, _ control.Table, k string) (control.Item, error) {
	var n int
	_, _ = fmt.Sscanf(k, "t%d", &n)
	i, _ := e.versions(n)
	return i, nil
}

func (e endlessTables) List(
	_ context.Context, t control.Table, after string, most int,
) (items []control.Item, next string, err error) {
	var n int
	if _, err := fmt.Sscanf(after, "t%d", &n); err == nil {
		n++
	}
	for ; t == control.Tenants && n < e.items; n++ {
		if len(items) == most {
			return items, items[most-1].Key, nil
		}
		i, _ := e.versions(n)
		items = append(items, i)
	}
	return items, "", nil
}

// Guarantees that memory does not grow with the archive: ten times the objects take no more memory.
func TestVerifyMemory(t *testing.T) {
	defer debug.SetGCPercent(debug.SetGCPercent(10)) // otherwise garbage is counted, which a busy machine leaves longer
	peak := func(items int) uint64 {
		e := &endless{items: items}
		r, err := audit.Verify(t.Context(), audit.VerifyConfig{Archive: e, Tables: endlessTables{e}})
		if err != nil || !r.OK() || r.Objects != 3*int64(items) || r.Items != int64(items) {
			t.Fatalf("got %+v, error %v; want no finding, and all objects and items", r, err)
		}
		return e.peak.Load()
	}
	few, many := peak(150), peak(1_500)
	if many > few+few/2+1<<20 {
		t.Errorf("got %d bytes for 450 objects, and %d for 4,500; want at most half as many more and 1 MiB", few, many)
	}
}

// Guarantees that a file that has taken the name of a rejected record does not stop later records: a folder has no
// versions.
func TestRejectIntoAFolder(t *testing.T) {
	a := audit.NewFolder(t.TempDir())
	r := audit.Rejected{Reason: audit.Unreadable, Raw: []byte("x")}
	_, put := a.Put(t.Context(), r.Name(), []byte("{}"))
	if err := errors.Join(put, audit.Reject(t.Context(), a, r)); err != nil {
		t.Error(err)
	}
}
