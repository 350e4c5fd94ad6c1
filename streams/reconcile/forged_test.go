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
	"github.com/sluicelimits/sluice/internal/cell/cellconfig"
	"github.com/sluicelimits/sluice/internal/control"
	"github.com/sluicelimits/sluice/internal/control/celldoc"
	"github.com/sluicelimits/sluice/internal/plan"
	"github.com/sluicelimits/sluice/internal/plan/shares"
	"github.com/sluicelimits/sluice/internal/request/identity"
	"github.com/sluicelimits/sluice/streams/reconcile"
)

// forge writes documents to the cell that have no item.
func (w *world) forge(documents ...cellconfig.Document) {
	w.t.Helper()
	if n, err := w.Table.Apply(w.t.Context(), documents); err != nil || n != len(documents) {
		w.t.Fatalf("%d documents of %d were forged: %v", n, len(documents), err)
	}
}

func document(kind cellconfig.Kind, id string, version int64, body string) cellconfig.Document {
	return cellconfig.Document{
		Ref: cellconfig.Ref{Kind: kind, ID: id}, Version: version, Body: []byte(body), Deleted: body == "",
	}
}

// alter gives a document of the cell another content of the same version, like somebody with access to its table.
func (w *world) alter(d cellconfig.Document) {
	w.t.Helper()
	h, err := w.Head(w.t.Context())
	if err != nil {
		w.t.Fatal(err)
	}
	d.Seq = h.Seq + 1
	err = w.Table.Commit(w.t.Context(), cellconfig.Step{
		Incarnation: h.Incarnation, Documents: []cellconfig.Document{d},
		Entry: cellconfig.Entry{Seq: d.Seq, Changes: []cellconfig.Change{{Ref: d.Ref, Version: d.Version}}},
	})
	if err != nil {
		w.t.Fatal(err)
	}
}

// only fails unless the cell has exactly what the control tables have.
func (w *world) only() {
	w.t.Helper()
	w.same()
	for _, t := range events.AllTables() {
		for _, kind := range celldoc.Kinds(t) {
			for d, err := range w.Table.List(w.t.Context(), kind) {
				if err != nil {
					w.t.Fatal(err)
				}
				table, key, _ := celldoc.Item(d.Ref)
				if _, ok := w.items[name{table, key}]; !ok {
					w.t.Fatalf("the cell still has the %s %.20q of version %d, and no control table has it", kind, d.ID,
						d.Version)
				}
			}
		}
	}
}

const (
	freeLimits = `{"id":"free","limits":[{"id":"burst","algorithm":"token_bucket","rate":1,"period":"1s","burst":1}]}`
	noLimits   = `{"id":"free","limits":[]}`
)

func keyBody(id string, hash string) string {
	return fmt.Sprintf(`{"hash":%q,"id":%q,"pepper":"p1","tenant":"acme"}`, hash, id)
}

// Guarantees that one run takes back everything that somebody has forged in a cell, whatever version it was given: a
// key of one's own, a plan without limits that no later version could pass, a content of one's own in a version that
// there is, a deletion, and shares; that a reader which has all of it in its copy follows; and that later changes
// arrive. Otherwise whoever once gets hold of the right to publish keeps what it took for good.
func TestForgedDocuments(t *testing.T) {
	w := newWorld(t)
	w.both(control.Plans, "free", freeLimits)
	w.both(control.Tenants, "acme", `{"id":"acme","plan":"free"}`)
	w.both(control.Tenants, "other", `{"id":"other","plan":"free"}`)
	w.both(control.Tenants, "kept", `{"id":"kept","plan":"free"}`)
	w.both(control.Keys, "good", keyBody("good", strings.Repeat("a", 64)))
	w.both(control.Cells, events.SharesKey, `{"version":1}`)
	pepper, stolen := []byte("the pepper of the deployment"), identity.NewKey()
	w.forge(
		document(plan.KindKey, "backdoor", 1, keyBody("backdoor", identity.HashKey(pepper, stolen))),
		document(plan.KindPlan, "free", events.MaxVersion, noLimits),
		document(plan.KindTenant, "other", events.MaxVersion, ""),
		document(plan.KindTenant, strings.Repeat("x", 500), 1, `{}`),
		document(plan.KindKey, "good", 7, keyBody("good", strings.Repeat("b", 64))),
		document(celldoc.KindShares, celldoc.SharesID, 9, `{"version":1,"epoch":9}`),
		document(celldoc.KindPlacement, shares.PlacementKey("acme"), 3, placed("acme")),
	)
	w.alter(document(plan.KindTenant, "kept", 1, `{"id":"kept"}`))
	r, err := cellconfig.New(cellconfig.Config{
		Table: w.Table, Log: slog.New(slog.DiscardHandler), Timeout: 10 * time.Second, FirstTimeout: 10 * time.Second,
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
	reads := func(want string) {
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
			t.Fatalf("a reader says %s\nwant %s", got, want)
		}
	}
	reads("acme has 0 limits, other is unknown, kept has 0 limits, the stolen key: <nil>")
	result := w.run(drift{reconcile.Unknown: 3, reconcile.Ahead: 4, reconcile.Altered: 1})
	if result.Repaired != 8 {
		t.Errorf("%d repaired, want 8", result.Repaired)
	}
	if log := w.log.String(); strings.Count(log, "level=ERROR") != 8 || !strings.Contains(log, "backdoor") {
		t.Error(log)
	}
	w.only()
	reads("acme has 1 limits, other has 1 limits, kept has 1 limits, the stolen key: " + identity.ErrUnknownKey.Error())
	if w.run(drift{}); w.commits != 0 {
		t.Errorf("%d writes of a run after it", w.commits)
	}
	w.both(control.Plans, "free", noLimits)
	w.both(control.Keys, "backdoor", keyBody("backdoor", identity.HashKey(pepper, stolen)))
	// An operator has the right to do what the forger did.
	reads("acme has 0 limits, other has 0 limits, kept has 0 limits, the stolen key: <nil>")
	w.only()
}

// Guarantees that a key which somebody hides under its hash alone is found and removed, that a revocation which
// somebody undoes there is in force again, and that a key which somebody takes away comes back. Requests find keys by
// nothing but the hash.
func TestForgedHashes(t *testing.T) {
	w := newWorld(t)
	of := func(digit string) cellconfig.Ref {
		return cellconfig.Ref{Kind: cellconfig.KindKeyHash, ID: strings.Repeat(digit, 64)}
	}
	for _, digit := range []string{"a", "b", "c"} {
		w.both(control.Keys, digit, keyBody(digit, of(digit).ID))
	}
	revoked := w.both(control.Keys, "b", strings.Replace(keyBody("b", of("b").ID), "{", `{"revoked":true,`, 1))
	w.put(control.Keys, "e", keyBody("e", of("e").ID)) // the cell lacks it as such
	w.alter(cellconfig.Document{Ref: of("d"), Version: 1, Body: []byte(keyBody("nobody", of("d").ID))})
	w.alter(cellconfig.Document{Ref: of("b"), Version: 1, Body: []byte(keyBody("b", of("b").ID))})
	w.alter(cellconfig.Document{Ref: of("c"), Version: 1, Deleted: true})
	result := w.run(drift{reconcile.Unknown: 1, reconcile.Altered: 1, reconcile.Missing: 2})
	if result.Repaired != 4 || strings.Contains(w.log.String(), of("d").ID) {
		t.Errorf("%d repaired, want 4\n%s", result.Repaired, w.log.String())
	}
	got, err := w.Table.Get(t.Context(), of("a"), of("b"), of("c"), of("d"), of("e"))
	if err != nil || got[3].Version != 0 || string(got[1].Body) != string(revoked.Body) ||
		got[0].Deleted || got[2].Deleted || got[4].Version == 0 {
		t.Errorf("under their hashes there are %+v, %v", got, err)
	}
	w.only()
	if w.run(drift{}); w.commits != 0 {
		t.Errorf("%d writes of a run after it", w.commits)
	}
}

// Guarantees that a key whose document under its hash was removed is found although the document that hides it has the
// same bytes, divided differently into id and body, and that a forged key with the body of another key is removed from
// under its hash in the same run.
func TestForgedHashesWithACover(t *testing.T) {
	w := newWorld(t)
	hash, other := strings.Repeat("a", 64), strings.Repeat("b", 64)
	key := w.both(control.Keys, "good", keyBody("good", hash))
	w.alter(cellconfig.Document{Ref: cellconfig.Ref{Kind: cellconfig.KindKeyHash, ID: hash}, Version: 1, Deleted: true})
	w.alter(cellconfig.Document{Ref: cellconfig.Ref{Kind: cellconfig.KindKeyHash, ID: hash[:10]}, Version: 1,
		Body: []byte(hash[10:] + string(key.Body))})
	w.run(drift{reconcile.Unknown: 1, reconcile.Missing: 1})
	w.alter(document(plan.KindKey, "x", 1, keyBody("y", other)))
	forged := cellconfig.Ref{Kind: cellconfig.KindKeyHash, ID: other}
	w.alter(cellconfig.Document{Ref: forged, Version: 1, Body: []byte(keyBody("y", other))})
	w.run(drift{reconcile.Unknown: 2})
	if got, err := w.Table.Get(t.Context(), forged); err != nil || got[0].Version != 0 {
		t.Errorf("the forged key is still found by its hash: %+v, %v", got, err)
	}
	w.only()
}

// Guarantees that rows that are not documents are reported and deleted, also in place of a document or of a run's
// state, and by the thousand, that none of them ends a run, and that no hash of a key is logged.
func TestRowsThatAreNoDocuments(t *testing.T) {
	w := newWorld(t)
	w.tenants(20)
	row := func(kind cellconfig.Kind, id string, takes bool) {
		one := cellconfig.BadRow{Kind: kind, Key: [2]string{"a shard", id}, Err: errors.New("attribute v is no number")}
		if takes {
			one.Ref = cellconfig.Ref{Kind: kind, ID: id}
		}
		w.rows = append(w.rows, one)
	}
	hash := strings.Repeat("c", 64)
	row(cellconfig.KindKeyHash, hash, true)
	row(reconcile.KindState, reconcile.StateID, true)
	row(plan.KindTenant, "t000007", true)
	row(plan.KindTenant, "t000008", false)
	row(plan.KindPlan, "p", true)
	w.run(drift{reconcile.Unknown: 5, reconcile.Missing: 1})
	if log := w.log.String(); strings.Contains(log, hash) || !strings.Contains(log, "t000008") {
		t.Error(log)
	}
	for i := range 1200 {
		row(plan.KindTenant, fmt.Sprintf("%d", i), i%2 == 0)
	}
	w.run(drift{reconcile.Unknown: 1200})
	if w.only(); len(w.rows) > 0 {
		t.Errorf("%d rows are left", len(w.rows))
	}
	w.run(drift{})
}

// Guarantees that a forged state makes no run leave anything out or fail, and that it is gone afterwards.
func TestForgedState(t *testing.T) {
	for _, forged := range []string{
		`{"table":"keys"}`, `{"table":"keys","bulk":true,"after":"zzz"}`,
		`{"table":"tenants","bulk":true,"after":"t000019"}`,
		`{"table":"tenants","bulk":true,"after":"t000000","documents":0,"matched":99}`, `{"table":"cells","bulk":true}`,
		`{"table":"tenants","bulk":true,"after":"\u0001"}`, `{"table":"operations"}`, `[]`,
	} {
		for _, version := range []int64{1, events.MaxVersion, math.MaxInt64} {
			t.Run(fmt.Sprint(forged, version), func(t *testing.T) {
				w := newWorld(t)
				w.tenants(20)
				w.both(control.Plans, "free", freeLimits)
				w.both(control.Keys, "good", keyBody("good", strings.Repeat("a", 64)))
				w.forge(
					document(plan.KindPlan, "free", 7, noLimits), document(plan.KindTenant, "t000000", 7, `{}`),
					document(plan.KindKey, "x", 1, keyBody("x", strings.Repeat("b", 64))),
					document(plan.KindTenant, "y", 1, `{}`),
					document(reconcile.KindState, reconcile.StateID, version, forged),
				)
				w.onList = func(_ control.Table, after string) error {
					if strings.Contains(after, "\x01") {
						return errAway // as DynamoDB refuses some keys
					}
					return nil
				}
				want := drift{reconcile.Unknown: 2, reconcile.Ahead: 2}
				if version >= events.MaxVersion {
					want[reconcile.Unknown]++
				}
				w.run(want)
				w.only()
				got, err := w.Table.Get(t.Context(), cellconfig.Ref{Kind: reconcile.KindState, ID: reconcile.StateID})
				if err != nil || got[0].Version > 0 && !got[0].Deleted {
					t.Errorf("the state is still there: %+v, %v", got, err)
				}
				if w.run(drift{}); w.commits != 0 {
					t.Errorf("%d writes of a run after it", w.commits)
				}
			})
		}
	}
}

// Guarantees that a number that is one above the last entry is found, too: it is the smallest one that prevents a
// reader from loading.
func TestNumberOneAboveTheHead(t *testing.T) {
	w := newWorld(t)
	w.both(control.Plans, events.SettingsKey, `{"routes":[]}`)
	got, err := w.Table.Get(t.Context(), cellconfig.Ref{Kind: plan.KindSettings, ID: plan.SettingsID})
	if err != nil {
		t.Fatal(err)
	}
	h, err := w.Head(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	got[0].Seq = h.Seq + 2
	step := cellconfig.Step{Incarnation: h.Incarnation, Documents: got, Entry: cellconfig.Entry{Seq: h.Seq + 1}}
	if err := w.Table.Commit(t.Context(), step); err != nil {
		t.Fatal(err)
	}
	w.run(drift{reconcile.Altered: 1})
	w.run(drift{})
}

// Guarantees that a document with a number above that of the last log entry, with which no environment can begin, gets
// another number.
func TestNumbersAboveTheHead(t *testing.T) {
	w := newWorld(t)
	hash := func(digit string) cellconfig.Ref {
		return cellconfig.Ref{Kind: cellconfig.KindKeyHash, ID: strings.Repeat(digit, 64)}
	}
	w.tenants(1100)
	w.both(control.Plans, events.SettingsKey, `{"routes":[]}`)
	w.both(control.Cells, events.SharesKey, `{"version":1}`)
	w.both(control.Keys, "a", keyBody("a", hash("a").ID))
	w.both(control.Keys, "b", keyBody("b", hash("b").ID))
	refs := []cellconfig.Ref{
		{Kind: plan.KindSettings, ID: plan.SettingsID}, {Kind: celldoc.KindShares, ID: celldoc.SharesID},
		{Kind: plan.KindKey, ID: "a"}, hash("b"),
	}
	for i := range 1100 {
		refs = append(refs, cellconfig.Ref{Kind: plan.KindTenant, ID: fmt.Sprintf("t%06d", i)})
	}
	got, err := w.Table.Get(t.Context(), refs...)
	if err != nil {
		t.Fatal(err)
	}
	got = append(got, cellconfig.Document{Ref: hash("c"), Version: 1, Deleted: true})
	h, err := w.Head(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for i := range got {
		got[i].Seq = math.MaxInt64
	}
	step := cellconfig.Step{Incarnation: h.Incarnation, Documents: got, Entry: cellconfig.Entry{Seq: h.Seq + 1}}
	if err := w.Table.Commit(t.Context(), step); err != nil {
		t.Fatal(err)
	}
	begins := func() error {
		r, err := cellconfig.New(cellconfig.Config{Table: w.Table, Log: slog.New(slog.DiscardHandler),
			Timeout: 10 * time.Second, FirstTimeout: 10 * time.Second})
		if err != nil {
			t.Fatal(err)
		}
		return r.Load(t.Context(), time.Now())
	}
	if begins() == nil {
		t.Fatal("an environment begins although the settings are ahead of the head")
	}
	w.run(drift{reconcile.Altered: int64(len(got))})
	if err := begins(); err != nil {
		t.Errorf("no environment can begin: %v", err)
	}
	w.only()
	if w.run(drift{}); w.commits != 0 {
		t.Errorf("%d writes of a run after it", w.commits)
	}
}

// Guarantees that forged documents are found even if there are more than the sketch can show, their ids do not fit the
// sketch, or the run is interrupted.
func TestManyForgedDocuments(t *testing.T) {
	for what, limit := range map[string]time.Duration{"in one run": time.Hour, "in many runs": 30 * time.Second} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				w.tenants(2500)
				var forged []cellconfig.Document
				for i := range 2000 {
					forged = append(forged,
						document(plan.KindTenant, fmt.Sprintf("forged%d", i), 1, `{}`),
						document(plan.KindTenant, fmt.Sprintf("%0500d", i), 1, `{}`),
						document(plan.KindTenant, fmt.Sprintf("t%06d", i), events.MaxVersion, `{}`))
				}
				w.forge(forged...)
				w.onCell = func(refs []cellconfig.Ref) error {
					if len(refs) > 1 {
						<-time.After(time.Second)
					}
					return nil
				}
				for runs, done := 0, false; !done; runs++ {
					if runs > 50 {
						t.Fatal("it never ends")
					}
					ctx, cancel := context.WithTimeout(t.Context(), limit)
					result, err := w.try(ctx)
					cancel()
					if err != nil {
						t.Fatal(err)
					}
					done = result.Finished
				}
				w.onCell = nil
				w.only()
				w.run(drift{})
			})
		})
	}
}

// Guarantees that a change that arrives while its document is repaired is not lost, although its event met the forged
// version and was taken for old.
func TestChangedWhileRepaired(t *testing.T) {
	w := newWorld(t)
	w.tenants(3)
	w.forge(document(plan.KindTenant, "t000001", 9, `{}`), document(plan.KindTenant, "new", 9, `{}`))
	once := false
	w.onStep = func() {
		if !once {
			once = true
			w.both(control.Tenants, "t000001", tenant("t000001", 2)) // the cell has version 9, and keeps it
			w.both(control.Tenants, "new", tenant("new", 1))
		}
	}
	w.run(drift{reconcile.Ahead: 1, reconcile.Unknown: 1})
	w.only()
	w.onStep = nil
	if w.run(drift{}); w.commits != 0 {
		t.Errorf("%d writes of a run after it", w.commits)
	}
}

// Guarantees that a repair does not overwrite a document that was written to the cell since it was read.
func TestRepairIsOvertaken(t *testing.T) {
	w := newWorld(t)
	w.tenants(3)
	w.forge(document(plan.KindTenant, "t000001", 2, `{}`))
	w.onGet = func(_ control.Table, key string) {
		if key == "t000001" && w.items[name{control.Tenants, key}].Version == 1 {
			w.onGet = nil
			old := w.items[name{control.Tenants, key}]
			w.put(control.Tenants, key, tenant(key, 2))
			// The item that is read is the previous one, as if it were cached.
			w.both(control.Tenants, key, tenant(key, 3))
			newest := w.items[name{control.Tenants, key}]
			w.items[name{control.Tenants, key}] = old
			w.onStep = func() { w.items[name{control.Tenants, key}] = newest }
		}
	}
	result, err := w.try(t.Context())
	if err != nil || result.Repaired != 0 {
		t.Fatalf("%+v, %v", result, err)
	}
	got, err := w.Table.Get(t.Context(), cellconfig.Ref{Kind: plan.KindTenant, ID: "t000001"})
	if err != nil || got[0].Version != 3 {
		t.Errorf("the cell has version %d, %v; want 3", got[0].Version, err)
	}
}

// Guarantees that a cell keeps its content if a control table was lost, or the wrong one is compared: no credentials
// and limits are removed because of it. A few documents of an empty table are removed, and the canary's mark does not
// count.
func TestLostTable(t *testing.T) {
	for many, plans := range map[bool]int{false: 10, true: 2000} {
		w := newWorld(t)
		w.both(control.Plans, events.CanaryKey, `{"at":"now"}`)
		var forged []cellconfig.Document
		for i := range 10 {
			id := fmt.Sprintf("k%d", i)
			forged = append(forged, document(plan.KindKey, id, 1, keyBody(id, fmt.Sprintf("%064x", i))))
		}
		for i := range plans {
			id := fmt.Sprintf("p%d", i)
			forged = append(forged, document(plan.KindPlan, id, 1, fmt.Sprintf(`{"id":%q}`, id)))
		}
		w.forge(forged...)
		result := w.run(drift{reconcile.Unknown: int64(len(forged))})
		if result.Repaired != 10 || !strings.Contains(w.log.String(), "it was lost") {
			t.Errorf("%t: %d repaired, want 10 keys\n%s", many, result.Repaired, w.log.String())
		}
		w.run(drift{reconcile.Unknown: int64(plans)})
		w.both(control.Plans, "p0", `{"id":"p0","limits":[]}`) // an operator confirms that the table is the right one
		w.both(control.Plans, "p0", `{"id":"p0"}`)
		w.run(drift{reconcile.Unknown: int64(plans) - 1})
		w.only()
	}
}

// Guarantees that a control table is not taken for lost if it has other items, although it has none that cells need.
func TestTableOfOtherItems(t *testing.T) {
	w := newWorld(t)
	w.put(control.Cells, "eu-1", `{"id":"eu-1"}`)
	for i := range 20 {
		id := fmt.Sprintf("t%d", i)
		w.forge(document(celldoc.KindPlacement, shares.PlacementKey(id), 1, placed(id)))
	}
	if result, err := w.try(t.Context()); err != nil || result.Repaired != 20 {
		t.Errorf("%+v, %v; want 20 repaired", result, err)
	}
}

// Guarantees that an item that was written without Sluice, or cannot be read, replaces nothing.
func TestForgedItemReplacesNothing(t *testing.T) {
	w := newWorld(t)
	w.tenants(5)
	i := w.items[name{control.Tenants, "t000003"}]
	i.Body = []byte(`{"id":"t000003","plan":"gold"}`) // by hand: the hash is that of another body
	w.items[name{control.Tenants, "t000003"}] = i
	w.both(control.Cells, events.SharesKey, `{"version":1}`)
	w.put(control.Cells, events.SharesKey, `{"version":99}`)
	w.forge(
		document(plan.KindTenant, "t000004", 5, `{}`),
		document(celldoc.KindShares, celldoc.SharesID, 7, `{"version":1}`),
	)
	w.bad[name{control.Tenants, "t000004"}] = true
	if result := w.run(drift{reconcile.Unreadable: 3}); result.Repaired != 0 {
		t.Errorf("%+v", result)
	}
}
