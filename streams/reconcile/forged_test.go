package reconcile_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluicelimits/sluice/events"
	"github.com/sluicelimits/sluice/internal/cell/config"
	"github.com/sluicelimits/sluice/internal/cell/table"
	"github.com/sluicelimits/sluice/internal/control"
	"github.com/sluicelimits/sluice/internal/plan"
	"github.com/sluicelimits/sluice/internal/plan/shares"
	"github.com/sluicelimits/sluice/internal/request/identity"
	"github.com/sluicelimits/sluice/streams/reconcile"
)

// forge writes documents to the cell that have no item.
func (w *world) forge(documents ...table.Document) {
	w.t.Helper()
	if n, err := w.Memory.Apply(w.t.Context(), documents); err != nil || n != len(documents) {
		w.t.Fatalf("the cell stored %d forged documents of %d, error %v", n, len(documents), err)
	}
}

func document(kind table.Kind, id string, version int64, body string) table.Document {
	return table.Document{
		Ref: table.Ref{Kind: kind, ID: id}, Version: version, Body: []byte(body), Deleted: body == "",
	}
}

// alterDocument gives a document of the cell another content of the same version, like somebody with access to its
// table.
func (w *world) alterDocument(d table.Document) {
	w.t.Helper()
	h, err := w.Head(w.t.Context())
	if err != nil {
		w.t.Fatal(err)
	}
	d.Seq = h.Seq + 1
	err = w.Memory.Commit(w.t.Context(), table.Step{
		Incarnation: h.Incarnation, Documents: []table.Document{d},
		Entry: table.Entry{Seq: d.Seq, Changes: []table.Change{{Ref: d.Ref, Version: d.Version}}},
	})
	if err != nil {
		w.t.Fatal(err)
	}
}

// wantOnlyControlled fails unless the cell has exactly what the control tables have.
func (w *world) wantOnlyControlled() {
	w.t.Helper()
	w.wantRepaired()
	for _, t := range events.AllTables() {
		for _, kind := range events.KindsIn(t) {
			for d, err := range w.Memory.List(w.t.Context(), kind) {
				if err != nil {
					w.t.Fatal(err)
				}
				of, key, _ := table.ItemOf(d.Ref)
				if _, ok := w.items[name{of, key}]; !ok {
					w.t.Fatalf("the cell still has the %s %.20q of version %d, which no control table has", kind, d.ID,
						d.Version)
				}
			}
		}
	}
}

// Guarantees that an altered document is found although its version and its length are those of the item.
func TestAlteredToTheSameLength(t *testing.T) {
	w := newWorld(t)
	w.putTenants(3)
	w.alterDocument(document(plan.KindTenant, "t000001", 1, tenantBody("t000001", 2)))
	w.wantDrift(drift{reconcile.Altered: 1})
	w.wantOnlyControlled()
}

// Guarantees that a deleted document that was revived without a body is found.
func TestRevivedWithoutABody(t *testing.T) {
	w := newWorld(t)
	w.putEverywhere(control.Tenants, "gone", tenantBody("gone", 1))
	w.putEverywhere(control.Tenants, "gone", "")
	w.alterDocument(table.Document{Ref: table.Ref{Kind: plan.KindTenant, ID: "gone"}, Version: 2})
	w.wantDrift(drift{reconcile.Altered: 1})
	w.wantOnlyControlled()
}

const (
	freeLimits = `{"id":"free","limits":[{"id":"burst","algorithm":"token_bucket","rate":1,"period":"1s","burst":1}]}`
	noLimits   = `{"id":"free","limits":[]}`
)

func keyBody(id string, hash string) string {
	return fmt.Sprintf(`{"hash":%q,"id":%q,"pepper":"p1","tenant":"acme"}`, hash, id)
}

// Guarantees that one run undoes everything that an attacker has forged in a cell, whatever versions the attacker
// chose: a key of the attacker, a plan without limits whose version no later version can exceed, another content of a
// version that exists, a deletion, and shares. A reader that has all of it in its copy follows the repair, and later
// changes arrive. Otherwise, whoever gets the right to publish once would keep what they took for good.
func TestForgedDocuments(t *testing.T) {
	w := newWorld(t)
	w.putEverywhere(control.Plans, "free", freeLimits)
	w.putEverywhere(control.Tenants, "acme", `{"id":"acme","plan":"free"}`)
	w.putEverywhere(control.Tenants, "other", `{"id":"other","plan":"free"}`)
	w.putEverywhere(control.Tenants, "kept", `{"id":"kept","plan":"free"}`)
	w.putEverywhere(control.Keys, "good", keyBody("good", strings.Repeat("a", 64)))
	w.putEverywhere(control.Cells, events.SharesKey, `{"version":2}`)
	pepper, stolen := []byte("the pepper of the deployment"), identity.NewKey()
	w.forge(
		document(plan.KindKey, "backdoor", 1, keyBody("backdoor", identity.HashKey(pepper, stolen))),
		document(plan.KindPlan, "free", events.MaxVersion, noLimits),
		document(plan.KindTenant, "other", events.MaxVersion, ""),
		document(plan.KindTenant, strings.Repeat("x", 500), 1, `{}`),
		document(plan.KindKey, "good", 7, keyBody("good", strings.Repeat("b", 64))),
		document(table.KindShares, table.SharesID, 9, `{"version":2,"epoch":9}`),
		document(table.KindPlacement, shares.PlacementKey("acme"), 3, placementBody("acme")),
	)
	w.alterDocument(document(plan.KindTenant, "kept", 1, `{"id":"kept"}`))
	r, err := config.New(config.Config{
		Table: w.Memory, Log: slog.New(slog.DiscardHandler), Timeout: 10 * time.Second, FirstTimeout: 10 * time.Second,
		Hashes: func(_ context.Context, _ time.Time, presented string) ([]identity.KeyHash, error) {
			p, err := identity.NewPeppers(map[string][]byte{"p1": pepper})
			if err != nil {
				return nil, err
			}
			return p.Hashes(presented)
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	wantRead := func(want string) {
		t.Helper()
		now := time.Now()
		if err := r.Load(t.Context(), now); err != nil {
			t.Fatal(err)
		}
		c, _ := r.Begin(t.Context(), now)
		got := ""
		for _, id := range []string{"acme", "other", "kept"} {
			tenant, err := c.Tenant(t.Context(), id)
			switch {
			case err != nil:
				t.Fatal(err)
			case tenant == nil:
				got += id + " is unknown, "
			default:
				got += fmt.Sprintf("%s has %d limits, ", id, len(tenant.Limits(now).Limits))
			}
		}
		_, err := c.Key(t.Context(), stolen, now)
		if got += fmt.Sprint("the stolen key: ", err); got != want {
			t.Fatalf("a reader of the cell: got %s\nwant %s", got, want)
		}
	}
	wantRead("acme has 0 limits, other is unknown, kept has 0 limits, the stolen key: <nil>")
	result := w.wantDrift(drift{reconcile.Unknown: 3, reconcile.Ahead: 4, reconcile.Altered: 1})
	if result.Repaired != 8 {
		t.Errorf("got %d repaired documents, want 8", result.Repaired)
	}
	if log := w.log.String(); strings.Count(log, "level=ERROR") != 8 || !strings.Contains(log, "backdoor") {
		t.Errorf("want 8 errors in the log, one of them about the key backdoor; got\n%s", log)
	}
	w.wantOnlyControlled()
	wantRead("acme has 1 limits, other has 1 limits, kept has 1 limits, the stolen key: " +
		identity.ErrUnknownKey.Error())
	if w.wantDrift(drift{}); w.commits != 0 {
		t.Errorf("the next run writes %d times, want no write", w.commits)
	}
	w.putEverywhere(control.Plans, "free", noLimits)
	w.putEverywhere(control.Keys, "backdoor", keyBody("backdoor", identity.HashKey(pepper, stolen)))
	// An operator has the right to do what the attacker did.
	wantRead("acme has 0 limits, other has 0 limits, kept has 0 limits, the stolen key: <nil>")
	w.wantOnlyControlled()
}

// Guarantees that documents under the hash of a key are repaired: a key that exists only there is removed, a revocation
// that was undone there is in force again, and a key that was removed there comes back. A key whose own document was
// given another hash stays under its hash. Requests find keys by their hash alone.
func TestForgedHashes(t *testing.T) {
	w := newWorld(t)
	of := func(digit string) table.Ref {
		return table.Ref{Kind: table.KindKeyHash, ID: strings.Repeat(digit, 64)}
	}
	for _, digit := range []string{"a", "b", "c", "f"} {
		w.putEverywhere(control.Keys, digit, keyBody(digit, of(digit).ID))
	}
	revoked := w.putEverywhere(control.Keys, "b", strings.Replace(keyBody("b", of("b").ID), "{", `{"revoked":true,`, 1))
	w.put(control.Keys, "e", keyBody("e", of("e").ID)) // the cell lacks both the key and the document under its hash
	w.alterDocument(table.Document{Ref: of("d"), Version: 1, Body: []byte(keyBody("nobody", of("d").ID))})
	w.alterDocument(table.Document{Ref: of("b"), Version: 1, Body: []byte(keyBody("b", of("b").ID))})
	w.alterDocument(table.Document{Ref: of("c"), Version: 1, Deleted: true})
	w.alterDocument(document(plan.KindKey, "f", 1, keyBody("f", of("7").ID)))
	result := w.wantDrift(drift{reconcile.Unknown: 1, reconcile.Altered: 2, reconcile.Missing: 2})
	if result.Repaired != 5 || strings.Contains(w.log.String(), of("d").ID) {
		t.Errorf("got %d repaired documents, want 5, and no hash of a key in the log\n%s", result.Repaired,
			w.log.String())
	}
	got, err := w.Memory.Get(t.Context(), of("a"), of("b"), of("c"), of("d"), of("e"), of("f"))
	if err != nil || got[3].Version != 0 || string(got[1].Body) != string(revoked.Body) ||
		got[0].Deleted || got[2].Deleted || got[4].Version == 0 || got[5].Version == 0 || got[5].Deleted {
		t.Errorf("under the hashes of a to f: got %+v, error %v; want a, the revoked b, c, e, f, and nothing under d",
			got, err)
	}
	w.wantOnlyControlled()
	if w.wantDrift(drift{}); w.commits != 0 {
		t.Errorf("the next run writes %d times, want no write", w.commits)
	}
}

// Guarantees that keys that are written and revoked while a run lists the cell's documents cause no drift, and are
// found under their hashes as they are now.
func TestKeysChangeWhileListed(t *testing.T) {
	w := newWorld(t)
	a, b := strings.Repeat("a", 64), strings.Repeat("b", 64)
	w.putEverywhere(control.Keys, "old", keyBody("old", a))
	revoked := strings.Replace(keyBody("old", a), "{", `{"revoked":true,`, 1)
	lists := 0
	w.onCellList = func(kind table.Kind) {
		if kind != table.KindKeyHash && kind != plan.KindKey {
			return
		}
		if lists++; lists == 2 { // one of the two kinds was listed
			w.putEverywhere(control.Keys, "new", keyBody("new", b))
			w.putEverywhere(control.Keys, "old", revoked)
		}
	}
	w.wantDrift(drift{})
	got, err := w.Memory.Get(t.Context(), table.Ref{Kind: table.KindKeyHash, ID: a},
		table.Ref{Kind: table.KindKeyHash, ID: b})
	if err != nil || !strings.Contains(string(got[0].Body), "revoked") || got[1].Version == 0 || got[1].Deleted {
		t.Errorf("under the hashes of the revoked and of the new key: got %+v, error %v", got, err)
	}
	if w.wantDrift(drift{}); w.commits != 0 {
		t.Errorf("the next run writes %d times, want no write", w.commits)
	}
}

// Guarantees that a key whose document under its hash was removed is found although the document that hides it has the
// same bytes, divided differently into id and body, and that a forged key with the body of another key is removed from
// under its hash in the same run.
func TestForgedHashesWithACover(t *testing.T) {
	w := newWorld(t)
	hash, other := strings.Repeat("a", 64), strings.Repeat("b", 64)
	key := w.putEverywhere(control.Keys, "good", keyBody("good", hash))
	w.alterDocument(table.Document{Ref: table.Ref{Kind: table.KindKeyHash, ID: hash}, Version: 1,
		Deleted: true})
	w.alterDocument(table.Document{Ref: table.Ref{Kind: table.KindKeyHash, ID: hash[:10]}, Version: 1,
		Body: []byte(hash[10:] + string(key.Body))})
	w.wantDrift(drift{reconcile.Unknown: 1, reconcile.Missing: 1})
	w.alterDocument(document(plan.KindKey, "x", 1, keyBody("y", other)))
	forged := table.Ref{Kind: table.KindKeyHash, ID: other}
	w.alterDocument(table.Document{Ref: forged, Version: 1, Body: []byte(keyBody("y", other))})
	w.wantDrift(drift{reconcile.Unknown: 2})
	if got, err := w.Memory.Get(t.Context(), forged); err != nil || got[0].Version != 0 {
		t.Errorf("under the hash of the forged key: got %+v, error %v; want nothing", got, err)
	}
	w.wantOnlyControlled()
}

// Guarantees that rows that are not documents are reported and deleted, also if they are in place of a document, or if
// there are a thousand of them. None of them ends a run, and no hash of a key is logged.
func TestRowsThatAreNoDocuments(t *testing.T) {
	w := newWorld(t)
	w.putTenants(20)
	addRow := func(kind table.Kind, id string, replaces bool) {
		one := table.BadRow{Kind: kind, Key: [2]string{"a shard", id}, Err: errors.New("attribute v is no number")}
		if replaces { // the row is in place of a document
			one.Ref = table.Ref{Kind: kind, ID: id}
		}
		w.badRows = append(w.badRows, one)
	}
	hash := strings.Repeat("c", 64)
	addRow(table.KindKeyHash, hash, true)
	addRow(plan.KindTenant, "t000007", true)
	addRow(plan.KindTenant, "t000008", false)
	addRow(plan.KindPlan, "p", true)
	w.wantDrift(drift{reconcile.Unknown: 4, reconcile.Missing: 1})
	if log := w.log.String(); strings.Contains(log, hash) || !strings.Contains(log, "t000008") {
		t.Errorf("want a log that names t000008, and no hash of a key; got\n%s", log)
	}
	for i := range 1200 {
		addRow(plan.KindTenant, fmt.Sprintf("%d", i), i%2 == 0)
	}
	w.wantDrift(drift{reconcile.Unknown: 1200})
	if w.wantOnlyControlled(); len(w.badRows) > 0 {
		t.Errorf("%d rows are left that are not documents, want none", len(w.badRows))
	}
	w.wantDrift(drift{})
}

// Guarantees that a document whose number is one above that of the last log entry is found. This is the smallest number
// with which no reader can load.
func TestNumberOneAboveTheHead(t *testing.T) {
	w := newWorld(t)
	w.putEverywhere(control.Plans, events.SettingsKey, `{"routes":[]}`)
	got, err := w.Memory.Get(t.Context(), table.Ref{Kind: plan.KindSettings, ID: plan.SettingsID})
	if err != nil {
		t.Fatal(err)
	}
	h, err := w.Head(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	got[0].Seq = h.Seq + 2
	step := table.Step{Incarnation: h.Incarnation, Documents: got, Entry: table.Entry{Seq: h.Seq + 1}}
	if err := w.Memory.Commit(t.Context(), step); err != nil {
		t.Fatal(err)
	}
	w.unreadable[name{control.Plans, events.SettingsKey}] = true // which decides nothing about the number
	w.wantDrift(drift{reconcile.Altered: 1, reconcile.Unreadable: 1})
	clear(w.unreadable)
	w.wantDrift(drift{})
}

// Guarantees that a document with a number above that of the last log entry, with which no environment can begin, gets
// another number.
func TestNumbersAboveTheHead(t *testing.T) {
	w := newWorld(t)
	hash := func(digit string) table.Ref {
		return table.Ref{Kind: table.KindKeyHash, ID: strings.Repeat(digit, 64)}
	}
	w.putTenants(1100)
	w.putEverywhere(control.Plans, events.SettingsKey, `{"routes":[]}`)
	w.putEverywhere(control.Cells, events.SharesKey, `{"version":2}`)
	w.putEverywhere(control.Keys, "a", keyBody("a", hash("a").ID))
	w.putEverywhere(control.Keys, "b", keyBody("b", hash("b").ID))
	refs := []table.Ref{
		{Kind: plan.KindSettings, ID: plan.SettingsID}, {Kind: table.KindShares, ID: table.SharesID},
		{Kind: plan.KindKey, ID: "a"}, hash("b"),
	}
	for i := range 1100 {
		refs = append(refs, table.Ref{Kind: plan.KindTenant, ID: fmt.Sprintf("t%06d", i)})
	}
	got, err := w.Memory.Get(t.Context(), refs...)
	if err != nil {
		t.Fatal(err)
	}
	got = append(got, table.Document{Ref: hash("c"), Version: 1, Deleted: true})
	h, err := w.Head(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for i := range got {
		got[i].Seq = math.MaxInt64
	}
	step := table.Step{Incarnation: h.Incarnation, Documents: got, Entry: table.Entry{Seq: h.Seq + 1}}
	if err := w.Memory.Commit(t.Context(), step); err != nil {
		t.Fatal(err)
	}
	load := func() error {
		r, err := config.New(config.Config{Table: w.Memory, Log: slog.New(slog.DiscardHandler),
			Timeout: 10 * time.Second, FirstTimeout: 10 * time.Second})
		if err != nil {
			t.Fatal(err)
		}
		return r.Load(t.Context(), time.Now())
	}
	if load() == nil {
		t.Fatal("a reader loads although the settings have a number above the head; want an error")
	}
	w.wantDrift(drift{reconcile.Altered: int64(len(got))})
	if err := load(); err != nil {
		t.Errorf("a reader loads after the repair: got error %v, want none", err)
	}
	w.wantOnlyControlled()
	if w.wantDrift(drift{}); w.commits != 0 {
		t.Errorf("the next run writes %d times, want no write", w.commits)
	}
}

// Guarantees that forged documents are found even if there are thousands, if their ids are long, or if the run is
// interrupted.
func TestManyForgedDocuments(t *testing.T) {
	for what, limit := range map[string]time.Duration{"in one run": time.Hour, "in many runs": 30 * time.Second} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				w.putTenants(2500)
				var forged []table.Document
				for i := range 2000 {
					forged = append(forged,
						document(plan.KindTenant, fmt.Sprintf("forged%d", i), 1, `{}`),
						document(plan.KindTenant, fmt.Sprintf("%0500d", i), 1, `{}`),
						document(plan.KindTenant, fmt.Sprintf("t%06d", i), events.MaxVersion, `{}`))
				}
				w.forge(forged...)
				w.onCell = func(refs []table.Ref) error {
					if len(refs) > 1 {
						<-time.After(time.Second)
					}
					return nil
				}
				for runs, done := 0, false; !done; runs++ {
					if runs > 50 {
						t.Fatal("no run has finished after 50 runs")
					}
					ctx, cancel := context.WithTimeout(t.Context(), limit)
					result, err := w.runOnce(ctx)
					cancel()
					if err != nil {
						t.Fatal(err)
					}
					done = result.Finished
				}
				w.onCell = nil
				w.wantOnlyControlled()
				w.wantDrift(drift{})
			})
		})
	}
}

// Guarantees that a change that arrives while its document is repaired is not lost, although its event met the forged
// version and was taken for old.
func TestChangedWhileRepaired(t *testing.T) {
	w := newWorld(t)
	w.putTenants(3)
	w.forge(document(plan.KindTenant, "t000001", 9, `{}`), document(plan.KindTenant, "new", 9, `{}`))
	once := false
	w.onStep = func() {
		if !once {
			once = true
			// the cell has version 9, and keeps it
			w.putEverywhere(control.Tenants, "t000001", tenantBody("t000001", 2))
			w.putEverywhere(control.Tenants, "new", tenantBody("new", 1))
		}
	}
	w.wantDrift(drift{reconcile.Ahead: 1, reconcile.Unknown: 1})
	w.wantOnlyControlled()
	w.onStep = nil
	if w.wantDrift(drift{}); w.commits != 0 {
		t.Errorf("the next run writes %d times, want no write", w.commits)
	}
}

// Guarantees that a row that somebody alters in the control table while its document is repaired does not reach the
// cell.
func TestRowAlteredWhileRepaired(t *testing.T) {
	w := newWorld(t)
	w.putTenants(3)
	w.forge(document(plan.KindTenant, "t000001", 9, `{}`))
	w.onStep = func() {
		w.onStep = nil
		altered := w.put(control.Tenants, "t000001", tenantBody("t000001", 2))
		altered.Body = []byte(`{"id":"t000001","plan":"gold"}`) // the hash is that of another plan
		w.items[name{control.Tenants, "t000001"}] = altered
	}
	w.wantDrift(drift{reconcile.Ahead: 1})
	got, err := w.Memory.Get(t.Context(), table.Ref{Kind: plan.KindTenant, ID: "t000001"})
	if err != nil || got[0].Version != 1 || string(got[0].Body) != tenantBody("t000001", 1) {
		t.Errorf("the cell has version %d, %s, error %v; want version 1", got[0].Version, got[0].Body, err)
	}
}

// Guarantees that a repair does not overwrite a document that was written to the cell after the run had read it.
func TestRepairIsOvertaken(t *testing.T) {
	w := newWorld(t)
	w.putTenants(3)
	w.forge(document(plan.KindTenant, "t000001", 2, `{}`))
	w.onList = func(of control.Table, _ string) error {
		if of == control.Tenants { // the cell was read
			const key = "t000001"
			w.onList = nil
			old := w.items[name{control.Tenants, key}]
			w.put(control.Tenants, key, tenantBody(key, 2))
			// The item that is read is the previous one, as if it were cached.
			w.putEverywhere(control.Tenants, key, tenantBody(key, 3))
			newest := w.items[name{control.Tenants, key}]
			w.items[name{control.Tenants, key}] = old
			w.onStep = func() { w.items[name{control.Tenants, key}] = newest }
		}
		return nil
	}
	result, err := w.runOnce(t.Context())
	if err != nil || result.Repaired != 0 {
		t.Fatalf("got %+v, error %v; want no repaired document", result, err)
	}
	got, err := w.Memory.Get(t.Context(), table.Ref{Kind: plan.KindTenant, ID: "t000001"})
	if err != nil || got[0].Version != 3 {
		t.Errorf("got version %d in the cell, error %v; want 3", got[0].Version, err)
	}
}

// Guarantees that a cell keeps its plans if the control table of the plans was lost, or is the wrong one: limits are
// not removed because of it. If a cell has only a few documents that an empty control table lacks, they are removed.
// The canary's mark does not make a table count as not empty.
func TestLostTable(t *testing.T) {
	for _, plans := range []int{10, 2000} { // with the canary's mark one more than are removed, and many
		w := newWorld(t)
		w.putEverywhere(control.Plans, events.CanaryKey, `{"at":"now"}`)
		var forged []table.Document
		for i := range 10 {
			id := fmt.Sprintf("k%d", i)
			forged = append(forged, document(plan.KindKey, id, 1, keyBody(id, fmt.Sprintf("%064x", i))))
		}
		for i := range plans {
			id := fmt.Sprintf("p%d", i)
			forged = append(forged, document(plan.KindPlan, id, 1, fmt.Sprintf(`{"id":%q}`, id)))
		}
		w.forge(forged...)
		result := w.wantDrift(drift{reconcile.Unknown: int64(len(forged))})
		if result.Repaired != 10 || !strings.Contains(w.log.String(), "it was lost") {
			t.Errorf("%d plans: got %d repaired documents, want the 10 keys, and a log that says that the table was "+
				"lost\n%s", plans, result.Repaired, w.log.String())
		}
		w.wantDrift(drift{reconcile.Unknown: int64(plans)})
		// an operator confirms that the table is the right one
		w.putEverywhere(control.Plans, "p0", `{"id":"p0","limits":[]}`)
		w.putEverywhere(control.Plans, "p0", `{"id":"p0"}`)
		w.wantDrift(drift{reconcile.Unknown: int64(plans) - 1})
		w.wantOnlyControlled()
	}
}

// Guarantees that a control table is not taken for lost if it has other items, although it has none that cells need.
func TestTableOfOtherItems(t *testing.T) {
	w := newWorld(t)
	w.put(control.Cells, "eu-1", `{"id":"eu-1"}`)
	for i := range 20 {
		id := fmt.Sprintf("t%d", i)
		w.forge(document(table.KindPlacement, shares.PlacementKey(id), 1, placementBody(id)))
	}
	if result, err := w.runOnce(t.Context()); err != nil || result.Repaired != 20 {
		t.Errorf("got %+v, error %v; want 20 repaired documents", result, err)
	}
}

// Guarantees that an item that was written without Sluice, or cannot be read, replaces nothing.
func TestForgedItemReplacesNothing(t *testing.T) {
	w := newWorld(t)
	w.putTenants(5)
	i := w.items[name{control.Tenants, "t000003"}]
	i.Body = []byte(`{"id":"t000003","plan":"gold"}`) // by hand: the hash is that of another body
	w.items[name{control.Tenants, "t000003"}] = i
	w.putEverywhere(control.Cells, events.SharesKey, `{"version":2}`)
	w.put(control.Cells, events.SharesKey, `{"version":99}`)
	w.forge(
		document(plan.KindTenant, "t000004", 5, `{}`),
		document(table.KindShares, table.SharesID, 7, `{"version":2}`),
	)
	w.unreadable[name{control.Tenants, "t000004"}] = true
	if result := w.wantDrift(drift{reconcile.Unreadable: 3}); result.Repaired != 0 {
		t.Errorf("got %+v, want no repaired document", result)
	}
}
