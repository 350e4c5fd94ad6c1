package audit_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sluicelimits/sluice/internal/audit"
	"github.com/sluicelimits/sluice/internal/control"
)

// local signs with a key of this process.
type local struct {
	*ecdsa.PrivateKey
	fails error
}

func (l local) Sign(_ context.Context, digest [sha256.Size]byte) ([]byte, error) {
	if l.fails != nil {
		return nil, l.fails
	}
	return ecdsa.SignASN1(rand.Reader, l.PrivateKey, digest[:])
}

func newSigner(t testing.TB) local {
	t.Helper()
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return local{PrivateKey: k}
}

const day = 24 * time.Hour

// anchored is a world with a signer and what verifies its anchors.
type anchored struct {
	*world
	signer local
	today  time.Time
	config audit.VerifyConfig
}

func newAnchored(t testing.TB) *anchored {
	t.Helper()
	w := &anchored{world: newWorld(t), signer: newSigner(t), today: noon}
	w.config.Keys = []*ecdsa.PublicKey{&w.signer.PublicKey}
	return w
}

// anchor makes the anchor of today.
func (w *anchored) anchor() audit.Anchored {
	w.t.Helper()
	w.at(w.today)
	a, err := audit.WriteAnchor(context.Background(), audit.AnchorConfig{
		Archive: w.archive, Tables: w, Signer: w.signer, Now: func() time.Time { return w.today },
	})
	if err != nil {
		w.t.Fatal(err)
	}
	return a
}

// set writes and archives the next version of a tenant, today.
func (w *anchored) set(tenant, plan string) *control.Record {
	w.t.Helper()
	r := w.write(control.Tenants, tenant, `{"id":"`+tenant+`","plan":"`+plan+`"}`, w.today)
	w.keep(r)
	return r
}

// days lets days go by. On each a tenant is changed, and an anchor made.
func (w *anchored) days(n int) {
	w.t.Helper()
	for i := range n {
		w.set("acme", fmt.Sprintf("plan-%d", i))
		w.set(fmt.Sprintf("tenant-%s", w.today.Format(time.DateOnly)), "free")
		if a := w.anchor(); !a.Made || a.Heads == 0 || a.Unread != 0 {
			w.t.Fatalf("the anchor of %s: %+v", w.today, a)
		}
		w.today = w.today.Add(day)
	}
	w.today = w.today.Add(-day)
}

func (w *anchored) check() *audit.Report {
	w.t.Helper()
	c := w.config
	c.Archive, c.Tables, c.Grace, c.Now = w.archive, w, -1, func() time.Time { return w.today }
	r, err := audit.Verify(context.Background(), c)
	if err != nil {
		w.t.Fatal(err)
	}
	return r
}

// rewriteHistory makes tables and archive as they would be if the tenant acme had had another plan on the first day:
// every hash is computed again, and every object is put at the time at which the first one was. This is what somebody
// can do who can write the tables, may bypass the retention, and has set the clock of S3, which nobody has.
func (w *anchored) rewriteHistory() {
	w.t.Helper()
	p := place{control.Tenants, "acme"}
	old := w.history[p]
	delete(w.live, p)
	delete(w.history, p)
	for i := range old {
		w.bucket.Erase(nameOf(&old[i]))
	}
	for i := range old {
		body := string(old[i].New.Body)
		if i == 0 {
			body = `{"id":"acme","plan":"gold-for-free"}`
		}
		w.keep(w.write(control.Tenants, "acme", body, old[i].New.ChangedAt))
	}
}

// Guarantees that a history which was rewritten consistently, tables and archive, with every hash computed again, is
// found by the anchors, from the first version on that is another.
func TestAnchorsFindARewrittenHistory(t *testing.T) {
	w := newAnchored(t)
	w.days(4)
	if r := w.check(); !r.OK() || r.Anchors != 4 || told(r.Notices) != "" || r.LastAnchor != "2026-11-24" {
		t.Fatalf("an honest trail: %q, %q, %+v", told(r.Findings), told(r.Notices), r)
	}
	w.rewriteHistory()
	if got, want := told(w.check().Findings), "4 not as anchored at tenants/acme/1"; got != want {
		t.Errorf("a rewritten history: found %q, want %q", got, want)
	}
}

// Guarantees that an item is found missing that an anchor has, and of which neither archive nor tables know anything
// more.
func TestAnchorsFindARemovedItem(t *testing.T) {
	w := newAnchored(t)
	w.days(3)
	p := place{control.Tenants, "tenant-2026-11-22"}
	w.bucket.Erase(nameOf(&w.history[p][0]))
	delete(w.live, p)
	if got, want := told(w.check().Findings), "1 not as anchored at tenants/tenant-2026-11-22/1"; got != want {
		t.Errorf("found %q, want %q", got, want)
	}
}

// Guarantees that an object that was removed and put again as it was, long after, is told from one that the archiver
// put late.
func TestAnchorsFindWhatWasPutAgain(t *testing.T) {
	w := newAnchored(t)
	w.config.Late = 25 * time.Hour
	late := w.write(control.Tenants, "late", `{"id":"late"}`, noon)
	w.days(3)
	w.keepAt(late, noon.Add(25*time.Hour))
	if got, want := told(w.check().Findings), ""; got != want {
		t.Errorf("the archiver was away for 25 hours: found %q, want %q", got, want)
	}
	w.bucket.Erase(nameOf(late))
	w.keepAt(late, noon.Add(48*time.Hour))
	want := "1 archived late at tenants/late/1; 1 put after its anchor at tenants/late/1"
	if got := told(w.check().Findings); got != want {
		t.Errorf("found %q, want %q", got, want)
	}
}

const (
	first, second, third = "anchors/2026-11-21.json", "anchors/2026-11-22.json", "anchors/2026-11-23.json"
	never                = "anchors/9999-12-31.json"
)

// resign changes the statement of an anchor, and signs it with a key.
func (w *anchored) resign(name string, by local, change func(statement map[string]any)) {
	w.t.Helper()
	w.bucket.Alter(name, func(data []byte) []byte {
		var object struct {
			Layout    int    `json:"layout"`
			Statement string `json:"statement"`
			Signature []byte `json:"signature"`
		}
		statement := map[string]any{}
		if err := errors.Join(json.Unmarshal(data, &object), json.Unmarshal([]byte(object.Statement),
			&statement)); err != nil {
			w.t.Fatal(err)
		}
		change(statement)
		text, err := json.Marshal(statement)
		if err != nil {
			w.t.Fatal(err)
		}
		object.Statement = string(text)
		if object.Signature, err = by.Sign(context.Background(), sha256.Sum256(text)); err != nil {
			w.t.Fatal(err)
		}
		if data, err = json.Marshal(object); err != nil {
			w.t.Fatal(err)
		}
		return data
	})
}

// list is the name of the only list of heads of a day.
func (w *anchored) list(of string) string {
	w.t.Helper()
	begin := strings.TrimSuffix(of, ".json") + "/"
	all := slices.DeleteFunc(w.bucket.Names(), func(n string) bool { return !strings.HasPrefix(n, begin) })
	if len(all) != 1 {
		w.t.Fatalf("%s has the lists %q, want one", of, all)
	}
	return all[0]
}

// Guarantees that each way of tampering with the anchors of three days is found and named, and nothing else is.
func TestAnchorsAreGuarded(t *testing.T) {
	nothing := func(map[string]any) {}
	for name, tt := range map[string]struct {
		do   func(w *anchored)
		want string
	}{
		"nothing":                {func(*anchored) {}, ""},
		"the first is removed":   {func(w *anchored) { w.bucket.Erase(first) }, "missing anchor " + first},
		"one between is removed": {func(w *anchored) { w.bucket.Erase(second) }, "missing anchor " + second},
		"the newest is removed": {func(w *anchored) { w.bucket.Erase(third); w.today = w.today.Add(day) },
			"missing anchor " + second},
		"all are removed": {func(w *anchored) {
			for _, n := range w.bucket.Names() {
				if strings.HasPrefix(n, "anchors/") {
					w.bucket.Erase(n)
				}
			}
		}, "missing anchor "},
		"one is signed by another key": {func(w *anchored) { w.resign(third, newSigner(w.t), nothing) },
			"bad signature " + third},
		"one between is signed by another key": {func(w *anchored) { w.resign(second, newSigner(w.t), nothing) },
			"broken chain of anchors " + third + ", bad signature " + second},
		"one is signed by its key again": {func(w *anchored) { w.resign(second, w.signer, nothing) },
			"broken chain of anchors " + third},
		"a statement is altered": {func(w *anchored) {
			w.bucket.Alter(third, func(data []byte) []byte {
				return []byte(strings.Replace(string(data), "T12:00",
					"T12:01", 1))
			})
		}, "bad signature " + third},
		"one begins anew": {func(w *anchored) {
			w.resign(third, w.signer, func(s map[string]any) { delete(s, "previous"); delete(s, "previous_day") })
		}, "broken chain of anchors " + third},
		"one is of another time of its day": {func(w *anchored) {
			w.resign(third, w.signer, func(s map[string]any) { s["at"] = "2026-11-23T09:00:00Z" })
		}, "archived late " + third},
		"one is of a later version": {func(w *anchored) {
			w.bucket.Alter(third, func(data []byte) []byte {
				return []byte(strings.Replace(string(data), `"layout":1`,
					`"layout":2`, 1))
			})
		}, "unreadable anchor " + third},
		"a statement is of a later version": {func(w *anchored) {
			w.resign(third, w.signer, func(s map[string]any) { s["layout"] = 2 })
		}, "unreadable anchor " + third},
		"one has an unknown field": {func(w *anchored) {
			w.resign(third, w.signer, func(s map[string]any) { s["x"] = 2 })
		}, "unreadable anchor " + third},
		"one is empty": {func(w *anchored) { w.bucket.Alter(third, func([]byte) []byte { return nil }) },
			"unreadable anchor " + third},
		"one is hidden":     {func(w *anchored) { w.bucket.Hide(second) }, "delete marker " + second},
		"one is covered":    {func(w *anchored) { w.bucket.Overwrite(second, []byte("{}")) }, "replaced " + second},
		"one is unlocked":   {func(w *anchored) { w.bucket.Unlock(second) }, "not locked " + second},
		"a list is removed": {func(w *anchored) { w.bucket.Erase(w.list(third)) }, "unreadable anchor LIST"},
		"a list is altered": {func(w *anchored) {
			w.bucket.Alter(w.list(third), func(data []byte) []byte { return append(data, ' ') })
		}, "unreadable anchor LIST"},
		"a list is unlocked": {func(w *anchored) { w.bucket.Unlock(w.list(third)) }, "not locked LIST"},
		"what is no anchor": {func(w *anchored) { w.bucket.Overwrite("anchors/2026-11-31.json", []byte("{}")) },
			"not an item's name anchors/2026-11-31.json"},
		"one is of a later day": {func(w *anchored) { w.bucket.Overwrite(never, []byte("{}")) },
			"anchor of a later day " + never},
		"one is of a later day, and no others follow": {func(w *anchored) {
			w.bucket.Overwrite(never, []byte("{}"))
			w.today = w.today.Add(2 * day)
		}, "missing anchor " + third + ", anchor of a later day " + never},
		"the newest is unreadable, and no others follow": {func(w *anchored) {
			w.bucket.Alter(third, func([]byte) []byte { return nil })
			w.today = w.today.Add(day)
		}, "missing anchor " + second + ", unreadable anchor " + third},
		"a known one is another": {func(w *anchored) {
			w.config.Known = map[string]string{"2026-11-22": strings.Repeat("0", 64)}
		},
			"broken chain of anchors " + second},
		"a known one is there": {func(w *anchored) {
			sum := sha256.Sum256(w.bucket.Versions(second)[0])
			w.config.Known = map[string]string{"2026-11-22": hex.EncodeToString(sum[:])}
		}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			w := newAnchored(t)
			w.days(3)
			list := w.list(third)
			tt.do(w)
			var got []string
			for _, f := range w.check().Findings {
				got = append(got, string(f.Kind)+" "+strings.Replace(f.Object, list, "LIST", 1))
			}
			if got := strings.Join(got, ", "); got != tt.want {
				t.Errorf("found %q, want %q", got, tt.want)
			}
		})
	}
}

// Guarantees that days on which no anchor was made are named, each once, unless the operator knows why.
func TestDaysWithoutAnAnchor(t *testing.T) {
	w := newAnchored(t)
	w.days(1)
	w.today = w.today.Add(4 * day)
	w.days(1)
	if got := w.check().Findings; len(got) != 1 || got[0].Kind != audit.MissedDays || got[0].Count != 3 ||
		got[0].Object != second {
		t.Errorf("found %+v, want three days from 2026-11-22 on", got)
	}
	w.config.Explained = []string{"2026-11-22", "2026-11-23", "2026-11-24"}
	if got := w.check().Findings; len(got) != 0 {
		t.Errorf("with each day explained, found %+v", got)
	}
	w.today = w.today.Add(2 * day)
	if got := w.check().Findings; len(got) != 1 || got[0].Kind != audit.MissingAnchor {
		t.Errorf("two days after the newest anchor, found %+v", got)
	}
}

// Guarantees that what cannot be known is said: without a key, without anchors, of what was before the first one, and
// of an item that has no head.
func TestAnchorNotices(t *testing.T) {
	w := newAnchored(t)
	w.days(1)
	w.config.Keys = nil
	if got := told(w.check().Notices); got != "1 signatures not checked at //0" {
		t.Errorf("without a key: %q", got)
	}
	w = newAnchored(t)
	w.config.Keys = nil
	w.set("acme", "free")
	if r := w.check(); !r.OK() || len(r.Notices) != 1 || r.Notices[0].Kind != audit.NoAnchors {
		t.Errorf("without anchors: %+v", r)
	}
	w = newAnchored(t)
	w.set("acme", "free")
	w.today = w.today.Add(30 * day)
	w.days(2)
	if r := w.check(); !r.OK() || told(r.Notices) != "1 anchored later at //0" {
		t.Errorf("with anchors since a month after: %q %q", told(r.Findings), told(r.Notices))
	}
	w = newAnchored(t)
	w.set("acme", "free")
	w.bad[place{control.Tenants, "acme"}] = true
	if a := w.anchor(); !a.Made || a.Heads != 0 || a.Unread != 1 {
		t.Errorf("with an item that cannot be read: %+v", a)
	}
	w.bad = map[place]bool{}
	if r := w.check(); !r.OK() || told(r.Notices) != "1 heads not anchored at //0" {
		t.Errorf("with an item that could not be read: %q %q", told(r.Findings), told(r.Notices))
	}
}

// Guarantees that objects with the names of anchors of later days stop no anchor of another day: on its own day such an
// object is an error, which rings the alarm, and the days after it have anchors again.
func TestAnchorsOfLaterDays(t *testing.T) {
	w := newAnchored(t)
	w.days(1)
	w.bucket.Overwrite(third, []byte("{}"))
	w.bucket.Overwrite(never, []byte("{}"))
	w.today = w.today.Add(day)
	if a := w.anchor(); !a.Made || a.Future != third {
		t.Errorf("on the day before: %+v", a)
	}
	if got := told(w.check().Findings); got != "2 anchor of a later day at //0" {
		t.Errorf("on the day before, found %q", got)
	}
	w.today = w.today.Add(day)
	if a, err := audit.WriteAnchor(t.Context(), audit.AnchorConfig{
		Archive: w.archive, Tables: w, Signer: w.signer, Now: func() time.Time { return w.today },
	}); err == nil || a.Made || !strings.Contains(err.Error(), third) {
		t.Errorf("on the day that was taken: %+v, %v", a, err)
	}
	w.today = w.today.Add(day)
	if a := w.anchor(); !a.Made || a.Future != never {
		t.Errorf("on the day after: %+v", a)
	}
	want := "1 unreadable anchor at //0; 1 anchor of a later day at //0"
	if got := told(w.check().Findings); got != want {
		t.Errorf("on the day after, found %q, want %q", got, want)
	}
}

// Guarantees that a day has one anchor, however often and by however many it is made, and that one is made after a
// failure.
func TestOneAnchorADay(t *testing.T) {
	w := newAnchored(t)
	w.set("acme", "free")
	c := audit.AnchorConfig{Archive: w.archive, Tables: w, Signer: local{fails: errors.New("KMS is away")},
		Now: func() time.Time { return w.today }}
	if a, err := audit.WriteAnchor(t.Context(), c); err == nil || a.Made {
		t.Errorf("without a signature: %+v, %v", a, err)
	}
	c.Signer = w.signer
	made := 0
	for range 3 {
		a, err := audit.WriteAnchor(t.Context(), c)
		if err != nil {
			t.Fatal(err)
		}
		if a.Made {
			made++
		}
		w.set("acme", fmt.Sprint(made))
		w.today = w.today.Add(time.Hour)
	}
	if r := w.check(); made != 1 || r.Anchors != 1 || !r.OK() {
		t.Errorf("%d were made; %+v", made, r)
	}
	w.today = w.today.Add(-day)
	if a, err := audit.WriteAnchor(t.Context(), c); err == nil {
		t.Errorf("by a clock of yesterday: %+v", a)
	}
	w.today = w.today.Add(2 * day)
	c.Tables = away{}
	if a, err := audit.WriteAnchor(t.Context(), c); err == nil || a.Made {
		t.Errorf("without tables: %+v, %v", a, err)
	}
	if _, err := audit.WriteAnchor(t.Context(), audit.AnchorConfig{}); err == nil {
		t.Error("nothing is anchored")
	}
}

// many are tables with so many tenants, each at version 1.
type many int

func (many) key(n int) string { return fmt.Sprintf("t%05d", n) }

func (m many) Get(context.Context, control.Table, string) (control.Item, error) {
	return control.Item{}, control.ErrNotFound
}

func (m many) List(_ context.Context, t control.Table, after string, _ int) (items []control.Item, next string,
	err error) {
	for n := 0; n < int(m) && t == control.Tenants && after == ""; n++ {
		items = append(items, control.Item{Table: t, Key: m.key(n), Version: 1, Hash: strings.Repeat("0", 64)})
	}
	return items, "", nil
}

// Guarantees that more heads than one list holds are anchored and compared, in any number of lists, and of the next
// anchor those alone that are new.
func TestAnchorOfManyHeads(t *testing.T) {
	w := newAnchored(t)
	memory(t, w.world)
	const items = 10_050
	c := audit.AnchorConfig{Archive: w.archive, Signer: w.signer, Now: func() time.Time { return w.today }}
	for n := range 2 {
		c.Tables = many(items + n)
		if a, err := audit.WriteAnchor(t.Context(), c); err != nil || a.Heads != int64(items+n) {
			t.Fatalf("%+v, %v", a, err)
		}
		w.today = w.today.Add(day)
	}
	// The archive has none of the objects.
	if got := told(w.check().Findings); got != fmt.Sprintf("%d not as anchored at tenants/t00000/1", items+1) {
		t.Errorf("found %q", got)
	}
}

// statement is what an anchor's signature is over.
func statement(anchor []byte) string {
	var object struct{ Statement string }
	_ = json.Unmarshal(anchor, &object)
	return object.Statement
}

// FuzzAnchor guarantees that whatever is in place of an anchor or of a list of heads, the check comes to its end,
// finds it, and believes nothing that was not signed.
func FuzzAnchor(f *testing.F) {
	f.Add([]byte(`{"layout":1,"statement":"{\"layout\":1,\"day\":\"2026-11-21\",\"at\":\"2026-11-21T12:00:00Z\",\"heads\":0,\"lists\":[]}","signature":"AA=="}`))
	f.Add([]byte(`{"layout":2}`))
	f.Add([]byte(`{"layout":1,"heads":[{"table":"tenants","key":"acme","version":1,"hash":""}]}`))
	f.Add([]byte(`null`))
	f.Add([]byte(``))
	w := newAnchored(f)
	w.set("acme", "free")
	w.anchor()
	list, whole := w.list(first), w.bucket.Versions(first)[0]
	heads := w.bucket.Versions(list)[0]
	f.Add(whole)
	f.Add(heads)
	f.Fuzz(func(t *testing.T, data []byte) {
		w.t = t
		for name, as := range map[string][]byte{first: whole, list: heads} {
			w.bucket.Alter(name, func([]byte) []byte { return data })
			r := w.check()
			w.bucket.Alter(name, func([]byte) []byte { return as })
			same := string(data) == string(as) || name == first && statement(data) == statement(as) // in other spaces
			if r.OK() && !same || !r.OK() && string(data) == string(as) {
				t.Errorf("%s is %q: found %q", name, data, told(r.Findings))
			}
			if name == first && !same && r.LastAnchor != "" {
				t.Errorf("%q is believed", data)
			}
		}
	})
}

// Guarantees that the form that is stored and signed is this one, which later versions must read.
func TestAnchorForm(t *testing.T) {
	w := newAnchored(t)
	w.set("acme", "free")
	w.anchor()
	w.today = w.today.Add(day)
	w.anchor()
	var object struct {
		Layout    int
		Statement string
	}
	if err := json.Unmarshal(w.bucket.Versions(second)[0], &object); err != nil {
		t.Fatal(err)
	}
	list, before := w.bucket.Versions(w.list(second))[0], sha256.Sum256(w.bucket.Versions(first)[0])
	sum := sha256.Sum256(list)
	want := `{"layout":1,"day":"2026-11-22","at":"2026-11-22T12:00:00Z","heads":1,"lists":[{"sha256":"` + hex.EncodeToString(sum[:]) +
		`","heads":1}],"previous_day":"2026-11-21","previous":"` + hex.EncodeToString(before[:]) + `"}`
	if object.Layout != 1 || object.Statement != want {
		t.Errorf("layout %d, statement\n%s\nwant\n%s", object.Layout, object.Statement, want)
	}
	head := w.live[place{control.Tenants, "acme"}]
	if want := `{"layout":1,"heads":[{"table":"tenants","key":"acme","version":1,"hash":"` + head.Hash + `"}]}`; string(list) != want {
		t.Errorf("list\n%s\nwant\n%s", list, want)
	}
}
