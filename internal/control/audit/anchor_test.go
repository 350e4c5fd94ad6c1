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
	mathrand "math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sluicelimits/sluice/internal/control"
	"github.com/sluicelimits/sluice/internal/control/audit"
	"github.com/sluicelimits/sluice/internal/testkit/s3test"
	"github.com/sluicelimits/sluice/internal/testkit/soak"
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

// anchored is a world with a signer, and with the keys that verify its anchors.
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

// anchor makes today's anchor.
func (w *anchored) anchor() audit.Anchored {
	w.t.Helper()
	w.setClock(w.today)
	a, err := audit.WriteAnchor(context.Background(), audit.AnchorConfig{
		Archive: w.archive, Tables: w, Signer: w.signer, Now: func() time.Time { return w.today },
	})
	if err != nil {
		w.t.Fatal(err)
	}
	return a
}

// changeTenant writes and archives the next version of a tenant today.
func (w *anchored) changeTenant(tenant, plan string) *control.Record {
	w.t.Helper()
	r := w.write(control.Tenants, tenant, `{"id":"`+tenant+`","plan":"`+plan+`"}`, w.today)
	w.archiveRecord(r)
	return r
}

// anchorDays lets days pass. On each day it changes a tenant and makes an anchor.
func (w *anchored) anchorDays(n int) {
	w.t.Helper()
	for i := range n {
		w.changeTenant("acme", fmt.Sprintf("plan-%d", i))
		w.changeTenant(fmt.Sprintf("tenant-%s", w.today.Format(time.DateOnly)), "free")
		if a := w.anchor(); !a.Made || a.Heads == 0 || a.Unread != 0 {
			w.t.Fatalf("the anchor of %s: got %+v, want one with all heads", w.today, a)
		}
		w.today = w.today.Add(day)
	}
	w.today = w.today.Add(-day)
}

func (w *anchored) verifyAnchors() *audit.Report {
	w.t.Helper()
	c := w.config
	c.Archive, c.Tables, c.Grace, c.Now = w.archive, w, -1, func() time.Time { return w.today }
	r, err := audit.Verify(context.Background(), c)
	if err != nil {
		w.t.Fatal(err)
	}
	return r
}

// rewriteHistory changes tables and archive as if the tenant acme had had another plan on the first day: it computes
// every hash again, and puts every object at the time of the original. An attacker could do this who can write the
// tables, may bypass the retention, and controls the clock of S3, which nobody does.
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
		w.archiveRecord(w.write(control.Tenants, "acme", body, old[i].New.ChangedAt))
	}
}

// Guarantees that anchors reveal a history that was rewritten consistently in tables and archive, with all hashes,
// from the first changed version on.
func TestAnchorsFindARewrittenHistory(t *testing.T) {
	w := newAnchored(t)
	w.anchorDays(4)
	if r := w.verifyAnchors(); !r.OK() || r.Anchors != 4 || findingsText(r.Notices) != "" ||
		r.LastAnchor != "2026-11-24" {
		t.Fatalf("an honest trail: got the findings %q, the notices %q and %+v; want none, none, and 4 anchors, the "+
			"last of 2026-11-24", findingsText(r.Findings), findingsText(r.Notices), r)
	}
	w.rewriteHistory()
	if got, want := findingsText(w.verifyAnchors().Findings), "4 not as anchored at tenants/acme/1"; got != want {
		t.Errorf("a rewritten history: found %q, want %q", got, want)
	}
}

// Guarantees that an item that an anchor has, and that was removed from both archive and tables, is reported as
// missing.
func TestAnchorsFindARemovedItem(t *testing.T) {
	w := newAnchored(t)
	w.anchorDays(3)
	p := place{control.Tenants, "tenant-2026-11-22"}
	w.bucket.Erase(nameOf(&w.history[p][0]))
	delete(w.live, p)
	if got, want := findingsText(w.verifyAnchors().Findings),
		"1 not as anchored at tenants/tenant-2026-11-22/1"; got != want {
		t.Errorf("found %q, want %q", got, want)
	}
}

// Guarantees that anchors reveal an item that was taken back by one version, in the archive and in the table: they name
// the version that is gone, and the day after, on which the item has the version before.
func TestAnchorsFindAVersionTakenBack(t *testing.T) {
	w := newAnchored(t)
	w.anchorDays(2)
	p := place{control.Tenants, "acme"}
	w.bucket.Erase(nameOf(&w.history[p][1]))
	w.live[p] = w.history[p][0].New
	w.today = w.today.Add(day)
	w.anchor()
	if got, want := findingsText(w.verifyAnchors().Findings), "2 not as anchored at tenants/acme/1"; got != want {
		t.Errorf("found %q, want %q", got, want)
	}
}

// Guarantees that an object that was removed and put again unchanged much later is distinguished from one that the
// archiver put late.
func TestAnchorsFindWhatWasPutAgain(t *testing.T) {
	w := newAnchored(t)
	w.config.Late = 25 * time.Hour
	late := w.write(control.Tenants, "late", `{"id":"late"}`, noon)
	w.anchorDays(3)
	w.archiveAt(late, noon.Add(25*time.Hour))
	if got, want := findingsText(w.verifyAnchors().Findings), ""; got != want {
		t.Errorf("the archiver was unavailable for 25 hours: found %q, want %q", got, want)
	}
	w.bucket.Erase(nameOf(late))
	w.archiveAt(late, noon.Add(48*time.Hour))
	want := "1 archived late at tenants/late/1; 1 put after its anchor at tenants/late/1"
	if got := findingsText(w.verifyAnchors().Findings); got != want {
		t.Errorf("found %q, want %q", got, want)
	}
}

const (
	first, second, third = "anchors/2026-11-21.json", "anchors/2026-11-22.json", "anchors/2026-11-23.json"
	never                = "anchors/9999-12-31.json"
)

// resign changes the statement of an anchor and signs it with a key.
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

// listName returns the name of the only list of heads of a day.
func (w *anchored) listName(of string) string {
	w.t.Helper()
	begin := strings.TrimSuffix(of, ".json") + "/"
	all := slices.DeleteFunc(w.bucket.Names(), func(n string) bool { return !strings.HasPrefix(n, begin) })
	if len(all) != 1 {
		w.t.Fatalf("%s has the lists %q, want one", of, all)
	}
	return all[0]
}

// Guarantees that each way of tampering with the anchors of three days is found and named, and that nothing else is
// reported.
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
		"a list is removed": {func(w *anchored) { w.bucket.Erase(w.listName(third)) }, "unreadable anchor LIST"},
		"a list is altered": {func(w *anchored) {
			w.bucket.Alter(w.listName(third), func(data []byte) []byte { return append(data, ' ') })
		}, "unreadable anchor LIST"},
		"a list is unlocked": {func(w *anchored) { w.bucket.Unlock(w.listName(third)) }, "not locked LIST"},
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
			w.anchorDays(3)
			list := w.listName(third)
			tt.do(w)
			var got []string
			for _, f := range w.verifyAnchors().Findings {
				got = append(got, string(f.Kind)+" "+strings.Replace(f.Object, list, "LIST", 1))
			}
			if got := strings.Join(got, ", "); got != tt.want {
				t.Errorf("found %q, want %q", got, tt.want)
			}
		})
	}
}

// Guarantees that days without an anchor are reported, each once, unless the operator has explained them.
func TestDaysWithoutAnAnchor(t *testing.T) {
	w := newAnchored(t)
	w.anchorDays(1)
	w.today = w.today.Add(4 * day)
	w.anchorDays(1)
	if got := w.verifyAnchors().Findings; len(got) != 1 || got[0].Kind != audit.MissedDays || got[0].Count != 3 ||
		got[0].Object != second {
		t.Errorf("found %+v, want three days from 2026-11-22 on", got)
	}
	w.config.Explained = []string{"2026-11-22", "2026-11-23", "2026-11-24"}
	if got := w.verifyAnchors().Findings; len(got) != 0 {
		t.Errorf("with each day explained: got the findings %+v, want none", got)
	}
	w.today = w.today.Add(2 * day)
	if got := w.verifyAnchors().Findings; len(got) != 1 || got[0].Kind != audit.MissingAnchor {
		t.Errorf("two days after the newest anchor: got the findings %+v, want a missing anchor", got)
	}
}

// Guarantees that everything that cannot be checked is reported: signatures without a key, archives without anchors,
// changes before the first anchor, and items without a head.
func TestAnchorNotices(t *testing.T) {
	w := newAnchored(t)
	w.anchorDays(1)
	w.config.Keys = nil
	if got := findingsText(w.verifyAnchors().Notices); got != "1 signatures not checked at //0" {
		t.Errorf("without a key: got the notices %q, want that signatures are not checked", got)
	}
	w = newAnchored(t)
	w.config.Keys = nil
	w.changeTenant("acme", "free")
	if r := w.verifyAnchors(); !r.OK() || len(r.Notices) != 1 || r.Notices[0].Kind != audit.NoAnchors {
		t.Errorf("without anchors: got %+v, want one notice about that, and no finding", r)
	}
	w = newAnchored(t)
	w.changeTenant("acme", "free")
	w.today = w.today.Add(30 * day)
	w.anchorDays(2)
	if r := w.verifyAnchors(); !r.OK() || findingsText(r.Notices) != "1 anchored later at //0" {
		t.Errorf("with anchors since a month after: got the findings %q and the notices %q, want a notice that "+
			"heads were anchored later", findingsText(r.Findings), findingsText(r.Notices))
	}
	w = newAnchored(t)
	w.changeTenant("acme", "free")
	w.bad[place{control.Tenants, "acme"}] = true
	if a := w.anchor(); !a.Made || a.Heads != 0 || a.Unread != 1 {
		t.Errorf("with an item that cannot be read: got %+v, want an anchor without heads that counts it", a)
	}
	w.bad = map[place]bool{}
	if r := w.verifyAnchors(); !r.OK() || findingsText(r.Notices) != "1 heads not anchored at //0" {
		t.Errorf("with an item that could not be read: got the findings %q and the notices %q, want a notice about "+
			"one head", findingsText(r.Findings), findingsText(r.Notices))
	}
}

// Guarantees that objects with the names of anchors of later days prevent no anchor: on its day the anchor is put over
// such an object, which stays a finding on every day.
func TestAnchorsOfLaterDays(t *testing.T) {
	w := newAnchored(t)
	w.anchorDays(1)
	w.bucket.Overwrite(third, []byte("{}"))
	w.bucket.Overwrite(never, []byte("{}"))
	w.today = w.today.Add(day)
	if a := w.anchor(); !a.Made || a.Future != third || a.Bad != "" {
		t.Errorf("on the day before: got %+v, want an anchor that names the one of the future", a)
	}
	const want = "2 anchor of a later day at //0"
	if got := findingsText(w.verifyAnchors().Findings); got != want {
		t.Errorf("on the day before: got the findings %q, want the anchor of a later day", got)
	}
	w.today = w.today.Add(day)
	if a := w.anchor(); !a.Made || a.Future != never || a.Bad != third {
		t.Errorf("on the day that was taken: got %+v, want an anchor that names both", a)
	}
	if a := w.anchor(); a.Made {
		t.Errorf("on the day that was taken: got a second anchor %+v, want one", a)
	}
	if got := findingsText(w.verifyAnchors().Findings); got != want {
		t.Errorf("on the day that was taken, found %q, want %q", got, want)
	}
	w.today = w.today.Add(day)
	if a := w.anchor(); !a.Made || a.Future != never || a.Bad != third {
		t.Errorf("on the day after: got %+v, want an anchor that names both", a)
	}
	if a := w.anchor(); a.Made || a.Bad != "" {
		t.Errorf("later on the day after: got %+v, want no anchor", a)
	}
	if r := w.verifyAnchors(); findingsText(r.Findings) != want || r.LastAnchor != "2026-11-24" {
		t.Errorf("on the day after, found %q, want %q; the newest that holds is %s", findingsText(r.Findings), want,
			r.LastAnchor)
	}
}

// Guarantees that an anchor which was signed for a later day, by somebody who had the function's role before that day,
// is not that day's anchor.
func TestAnchorSignedBeforeItsDay(t *testing.T) {
	w := newAnchored(t)
	w.anchorDays(2)
	if a, err := audit.WriteAnchor(t.Context(), audit.AnchorConfig{
		Archive: w.archive, Tables: many(1), Signer: w.signer, Now: func() time.Time { return w.today.Add(day) },
	}); err != nil || !a.Made {
		t.Fatalf("got %+v, error %v; want an anchor", a, err)
	}
	w.today = w.today.Add(day)
	w.anchorDays(2)
	if r := w.verifyAnchors(); findingsText(r.Findings) != "1 anchor of a later day at //0" ||
		r.LastAnchor != "2026-11-24" {
		t.Errorf("got the findings %q, and the last anchor of %s; want an anchor of a later day, and 2026-11-24",
			findingsText(r.Findings), r.LastAnchor)
	}
}

// Objects that somebody who may write below anchors/ can put in the place of an anchor. With each of them the newest
// version of the name is not an anchor of its day.
var takings = []struct {
	name string
	take func(w *anchored, name string)
}{
	{"something small", func(w *anchored, name string) { w.bucket.Overwrite(name, []byte("{}")) }},
	{"nothing", func(w *anchored, name string) { w.bucket.Overwrite(name, nil) }},
	{"more than an anchor can have", func(w *anchored, name string) {
		w.bucket.Overwrite(name,
			make([]byte, 1<<20+1))
	}},
	{"more than an object can have", func(w *anchored, name string) {
		w.bucket.Overwrite(name,
			make([]byte, audit.MaxBytes+1))
	}},
	{"the anchor of another day", func(w *anchored, name string) {
		w.bucket.Overwrite(name,
			w.bucket.Versions(first)[0])
	}},
	{"an archived object", sealAs(s3test.Archived)},
	{"an object under a key of the writer", sealAs(s3test.CustomerKey)},
	{"an object under another key in KMS", sealAs(s3test.ForeignKey)},
	{"an object under a key in KMS that is off", sealAs(s3test.DisabledKey)},
	{"several", func(w *anchored, name string) {
		for range 5 {
			w.bucket.Overwrite(name, []byte("{}"))
		}
		sealAs(s3test.CustomerKey)(w, name)
	}},
}

// sealAs returns a tampering: the first anchor under the name, which cannot be read because of its encryption.
func sealAs(how s3test.Seal) func(*anchored, string) {
	return func(w *anchored, name string) {
		w.bucket.Overwrite(name, w.bucket.Versions(first)[0])
		w.bucket.Seal(name, how)
	}
}

// Guarantees that any object in the place of today's anchor neither counts as the anchor nor prevents it: the anchor
// is put over it, the chain continues, and verify reports only that object.
func TestAnchorOverWhatTookItsName(t *testing.T) {
	for _, tt := range takings {
		t.Run(tt.name, func(t *testing.T) {
			w := newAnchored(t)
			w.anchorDays(2)
			w.today = w.today.Add(day)
			w.setClock(w.today.Add(-time.Hour))
			tt.take(w, third)
			bad := len(w.bucket.Versions(third))
			if a := w.anchor(); !a.Made || a.Bad != third {
				t.Errorf("on that day: got %+v, want an anchor that names the bad one", a)
			}
			if _, read := w.gets.Load(third); read == strings.HasPrefix(tt.name, "more than") {
				t.Errorf("the object is read: %t; want what is larger than an anchor not to be", read)
			}
			if a := w.anchor(); a.Made || len(w.bucket.Versions(third)) != bad+1 {
				t.Errorf("later on that day: got %+v, and %d versions of the name; want no anchor, and no further "+
					"version", a, len(w.bucket.Versions(third)))
			}
			w.today = w.today.Add(day)
			w.anchorDays(2)
			want := fmt.Sprintf("%d unreadable anchor at //0", bad)
			r := w.verifyAnchors()
			if got := findingsText(r.Findings); got != want || r.Findings[0].Object != third ||
				r.LastAnchor != "2026-11-25" {
				t.Errorf("found %q, want %q; the newest valid one is of %s", got, want, r.LastAnchor)
			}
			w.setClock(w.today)
			w.bucket.Overwrite(third, []byte("{}"))
			if got := findingsText(w.verifyAnchors().Findings); got != "1 replaced at //0; "+want {
				t.Errorf("after the name is covered once more: got the findings %q, want also one replaced anchor", got)
			}
		})
	}
}

// Guarantees that a day whose anchor's name holds only other objects prevents no later anchor, and that the chain is
// broken by an anchor that names such an object as the previous one.
func TestAnchorAfterABadOne(t *testing.T) {
	for _, tt := range takings {
		t.Run(tt.name, func(t *testing.T) {
			w := newAnchored(t)
			w.anchorDays(2)
			w.today = w.today.Add(day)
			w.setClock(w.today)
			tt.take(w, third)
			bad := w.bucket.Versions(third)
			w.today = w.today.Add(day)
			if a := w.anchor(); !a.Made || a.Bad != third {
				t.Errorf("on the day after: got %+v, want an anchor that names the bad one", a)
			}
			want := fmt.Sprintf("%d unreadable anchor at //0", len(bad))
			if got := findingsText(w.verifyAnchors().Findings); got != want {
				t.Errorf("found %q, want %q", got, want)
			}
			w.resign("anchors/2026-11-24.json", w.signer, func(s map[string]any) {
				sum := sha256.Sum256(bad[0])
				s["previous_day"], s["previous"] = "2026-11-23", hex.EncodeToString(sum[:])
			})
			if got := findingsText(w.verifyAnchors().Findings); got != "1 broken chain of anchors at //0; "+want {
				t.Errorf("if the next anchor names it: got the findings %q, want also a broken chain of anchors", got)
			}
		})
	}
}

// Guarantees that the chain is broken by an anchor that names an object that is not an anchor and leaves out an anchor
// in between.
func TestAnchorThatLeavesOneOut(t *testing.T) {
	w := newAnchored(t)
	w.anchorDays(2)
	w.today = w.today.Add(day)
	w.setClock(w.today)
	w.bucket.Overwrite(third, []byte("{}"))
	w.today = w.today.Add(day)
	w.anchorDays(2)
	w.resign("anchors/2026-11-25.json", w.signer, func(s map[string]any) {
		sum := sha256.Sum256([]byte("{}"))
		s["previous_day"], s["previous"] = "2026-11-23", hex.EncodeToString(sum[:])
	})
	if got := findingsText(w.verifyAnchors().Findings); got != "1 broken chain of anchors at //0; 1 unreadable "+
		"anchor at //0" {
		t.Errorf("got the findings %q, want a broken chain of anchors, and an unreadable anchor", got)
	}
}

// Guarantees the same for an object that was put before its day.
func TestAnchorAfterOneOfALaterDay(t *testing.T) {
	for name, content := range map[string][]byte{
		"small": []byte("{}"), "large": make([]byte, 1<<20+1), "too large": make([]byte, audit.MaxBytes+1),
	} {
		w := newAnchored(t)
		w.anchorDays(2)
		w.bucket.Overwrite(third, content)
		w.today = w.today.Add(2 * day)
		if a := w.anchor(); !a.Made || a.Bad != third {
			t.Errorf("%s: on the day after: got %+v, want an anchor that names the bad one", name, a)
		}
		const want = "1 anchor of a later day at //0"
		if got := findingsText(w.verifyAnchors().Findings); got != want {
			t.Errorf("%s: found %q, want %q", name, got, want)
		}
		w.resign("anchors/2026-11-24.json", w.signer, func(s map[string]any) {
			sum := sha256.Sum256(content)
			s["previous_day"], s["previous"] = "2026-11-23", hex.EncodeToString(sum[:])
		})
		if got := findingsText(w.verifyAnchors().Findings); got != "1 broken chain of anchors at //0; "+want {
			t.Errorf("%s: if the next anchor names it: got the findings %q, want also a broken chain of anchors", name,
				got)
		}
	}
}

// Guarantees that whatever takes the names of anchors, before their days and on them, each day has its anchor, and
// verify reports only these objects.
func TestAnchorsWhateverTakesTheirNames(t *testing.T) {
	for seed := range soak.Times(uint64(3)) {
		r := mathrand.New(mathrand.NewPCG(seed, 1))
		w := newAnchored(t)
		w.anchorDays(1)
		for range 12 {
			for ahead := range 3 {
				// of this day or, for ahead 0, of the one it is of
				w.setClock(w.today.Add(time.Duration(1+r.IntN(23)) * time.Hour))
				w.today = w.today.Add(day)
				if n := r.IntN(3 * len(takings)); n < len(takings) {
					takings[n].take(w, "anchors/"+w.today.AddDate(0, 0, ahead).Format(time.DateOnly)+".json")
				}
				w.today = w.today.Add(-day)
			}
			w.today = w.today.Add(day)
			w.changeTenant("acme", fmt.Sprint(r.Uint64()))
			if a := w.anchor(); !a.Made {
				t.Errorf("seed %d: got %+v, want an anchor", seed, a)
			}
		}
		report := w.verifyAnchors()
		for _, f := range report.Findings {
			if f.Kind != audit.BadAnchor && f.Kind != audit.FutureAnchor {
				t.Errorf("seed %d: got the finding %+v, want a bad anchor or one of the future", seed, f)
			}
		}
		if report.LastAnchor != w.today.Format(time.DateOnly) {
			t.Errorf("seed %d: got the last anchor of %s, want today's", seed, report.LastAnchor)
		}
	}
}

// Guarantees that an archive that refuses, throttles or does not answer leaves the day without an anchor, so that the
// call is repeated, and that its error is never mistaken for an unreadable object: the chain would start anew.
func TestAnchorsWhileTheArchiveIsAway(t *testing.T) {
	for what, fault := range map[string]s3test.Fault{
		"refused": {Status: 403, Code: "AccessDenied"}, "throttled": {Status: 400, Code: "RequestLimitExceeded"},
		"an error": {Status: 400, Code: "InvalidRequest"}, "no bucket": {Status: 404, Code: "NoSuchBucket"},
		"gone since the list": {Status: 404, Code: "NoSuchVersion"},
	} {
		w := newAnchored(t)
		w.anchorDays(2)
		before := len(w.bucket.Names())
		w.today = w.today.Add(day)
		w.away.Store(&fault)
		a, err := audit.WriteAnchor(t.Context(), audit.AnchorConfig{
			Archive: w.archive, Tables: w, Signer: w.signer, Now: func() time.Time { return w.today },
		})
		if err == nil || a.Made || len(w.bucket.Names()) != before {
			t.Errorf("%s: got %+v, error %v; want an error, and nothing written", what, a, err)
		}
		w.away.Store(nil)
		if a := w.anchor(); !a.Made || findingsText(w.verifyAnchors().Findings) != "" {
			t.Errorf("%s: then got %+v, and the findings %q; want an anchor, and none", what, a,
				findingsText(w.verifyAnchors().Findings))
		}
	}
}

// Guarantees that an object with the name of a list of heads does not prevent the list. The name can be guessed if the
// tables do not change.
func TestListsWhoseNameWasTaken(t *testing.T) {
	for _, tt := range takings {
		w := newAnchored(t)
		w.anchorDays(1)
		_, sum, _ := strings.Cut(strings.TrimPrefix(w.listName(first), "anchors/"), "/")
		name := "anchors/2026-11-22/" + sum // the tables have not changed since that list
		w.today = w.today.Add(day)
		tt.take(w, name)
		bad := len(w.bucket.Versions(name))
		if a := w.anchor(); !a.Made {
			t.Errorf("%s: got %+v, want an anchor", tt.name, a)
		}
		r := w.verifyAnchors()
		if got := findingsText(r.Findings); got != fmt.Sprintf("%d unreadable anchor at //0", bad) ||
			r.Findings[0].Object != name ||
			r.LastAnchor != "2026-11-22" {
			t.Errorf("%s: got the findings %q, want unreadable anchors, and 2026-11-22 as the day of the last one",
				tt.name, got)
		}
		w.changeTenant("acme", "gold")
		w.rewriteHistory()
		if got := findingsText(w.verifyAnchors().Findings); !strings.Contains(got, "not as anchored") {
			t.Errorf("%s: got the findings %q, want that heads are not as anchored", tt.name, got)
		}
	}
}

// Guarantees that a day has one anchor, however often and by however many callers it is made, and that it is made
// after a failure.
func TestOneAnchorADay(t *testing.T) {
	w := newAnchored(t)
	w.changeTenant("acme", "free")
	c := audit.AnchorConfig{Archive: w.archive, Tables: w, Signer: local{fails: errors.New("KMS is away")},
		Now: func() time.Time { return w.today }}
	if a, err := audit.WriteAnchor(t.Context(), c); err == nil || a.Made {
		t.Errorf("without a signature: got %+v, error %v; want an error, and no anchor", a, err)
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
		w.changeTenant("acme", fmt.Sprint(made))
		w.today = w.today.Add(time.Hour)
	}
	if r := w.verifyAnchors(); made != 1 || r.Anchors != 1 || !r.OK() {
		t.Errorf("got %d anchors of two runs at once, and %+v; want one", made, r)
	}
	w.today = w.today.Add(-day)
	if a, err := audit.WriteAnchor(t.Context(), c); err == nil {
		t.Errorf("with yesterday's clock: got %+v, want an error", a)
	}
	w.today = w.today.Add(2 * day)
	c.Tables = away{}
	if a, err := audit.WriteAnchor(t.Context(), c); err == nil || a.Made {
		t.Errorf("without tables: got %+v, error %v; want an error, and no anchor", a, err)
	}
}

// many are tables with this many tenants, each at version 1.
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

// Guarantees that heads that do not fit one list are anchored and compared in several lists, and that for the next
// anchor only the new heads are compared.
func TestAnchorOfManyHeads(t *testing.T) {
	w := newAnchored(t)
	archiveInFolder(t, w.world)
	w.today = noon.AddDate(-10, 0, 0) // files have the times of this machine
	const items = 10_050
	c := audit.AnchorConfig{Archive: w.archive, Signer: w.signer, Now: func() time.Time { return w.today }}
	for n := range 2 {
		c.Tables = many(items + n)
		if a, err := audit.WriteAnchor(t.Context(), c); err != nil || a.Heads != int64(items+n) {
			t.Fatalf("got %+v, error %v; want an anchor with a head of each item", a, err)
		}
		w.today = w.today.Add(day)
	}
	// The archive has none of the objects.
	if got := findingsText(w.verifyAnchors().Findings); got != fmt.Sprintf("%d not as anchored at tenants/t00000/1",
		items+1) {
		t.Errorf("got the findings %q, want all altered items, and not more", got)
	}
}

// statement returns the part of an anchor that is signed.
func statement(anchor []byte) string {
	var object struct{ Statement string }
	_ = json.Unmarshal(anchor, &object)
	return object.Statement
}

// FuzzAnchor guarantees that whatever replaces an anchor or a list of heads, the check completes, reports it, and
// trusts nothing that was not signed.
func FuzzAnchor(f *testing.F) {
	f.Add([]byte(`{"layout":1,"statement":"{\"layout\":1,\"day\":\"2026-11-21\",\"at\":\"2026-11-21T12:00:00Z\",` +
		`\"heads\":0,\"lists\":[]}","signature":"AA=="}`))
	f.Add([]byte(`{"layout":2}`))
	f.Add([]byte(`{"layout":1,"heads":[{"table":"tenants","key":"acme","version":1,"hash":""}]}`))
	f.Add([]byte(`null`))
	f.Add([]byte(``))
	w := newAnchored(f)
	w.changeTenant("acme", "free")
	w.anchor()
	list, whole := w.listName(first), w.bucket.Versions(first)[0]
	heads := w.bucket.Versions(list)[0]
	f.Add(whole)
	f.Add(heads)
	f.Fuzz(func(t *testing.T, data []byte) {
		w.t = t
		for name, as := range map[string][]byte{first: whole, list: heads} {
			w.bucket.Alter(name, func([]byte) []byte { return data })
			r := w.verifyAnchors()
			w.bucket.Alter(name, func([]byte) []byte { return as })
			// the same with other spaces
			same := string(data) == string(as) || name == first && statement(data) == statement(as)
			if r.OK() && !same || !r.OK() && string(data) == string(as) {
				t.Errorf("%s is %q: got the findings %q, want some exactly if the bytes are others",
					name, data, findingsText(r.Findings))
			}
			if name == first && !same && r.LastAnchor != "" {
				t.Errorf("got a last anchor although its bytes are %q, want none", data)
			}
		}
	})
}

// Guarantees the form of anchors that is stored and signed, which later versions must read.
func TestAnchorForm(t *testing.T) {
	w := newAnchored(t)
	w.changeTenant("acme", "free")
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
	list, before := w.bucket.Versions(w.listName(second))[0], sha256.Sum256(w.bucket.Versions(first)[0])
	sum := sha256.Sum256(list)
	want := `{"layout":1,"day":"2026-11-22","at":"2026-11-22T12:00:00Z","heads":1,"lists":[{"sha256":"` +
		hex.EncodeToString(sum[:]) +
		`","heads":1}],"previous_day":"2026-11-21","previous":"` + hex.EncodeToString(before[:]) + `"}`
	if object.Layout != 1 || object.Statement != want {
		t.Errorf("layout %d, statement\n%s\nwant\n%s", object.Layout, object.Statement, want)
	}
	head := w.live[place{control.Tenants, "acme"}]
	if want := `{"layout":1,"heads":[{"table":"tenants","key":"acme","version":1,"hash":"` + head.Hash +
		`"}]}`; string(list) != want {
		t.Errorf("list\n%s\nwant\n%s", list, want)
	}
}
