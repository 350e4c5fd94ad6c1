package operate_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sluicelimits/sluice/events"
	"github.com/sluicelimits/sluice/internal/control"
	"github.com/sluicelimits/sluice/internal/control/operate"
	"github.com/sluicelimits/sluice/internal/plan/shares"
	"github.com/sluicelimits/sluice/internal/request/identity"
)

// Guarantees that each operation on a tenant changes only what it names, and records actor and reason.
func TestTenantOperations(t *testing.T) {
	w := newWorld(t)
	w.seed(plans)
	ctx := t.Context()
	until := noon.Add(48 * time.Hour)
	for _, step := range []struct {
		name string
		do   func() (*control.Item, error)
		want string
	}{
		{"suspend", func() (*control.Item, error) {
			return w.Suspend(ctx, bob, &operate.TenantRequest{Tenant: "acme", Reason: "invoice"})
		}, `{"id":"acme","overrides":[{"id":"burst","rate":500}],"plan":"pro","suspended":true}`},
		{"boost", func() (*control.Item, error) {
			return w.AddBoost(ctx, bob, &operate.BoostRequest{Tenant: "acme", Limit: "burst", Factor: "1.5",
				Until: until, Reason: "launch"})
		}, `{"boosts":[{"factor":1.5,"id":"burst","until":"2026-11-23T12:00:00Z"}],"id":"acme",` +
			`"overrides":[{"id":"burst","rate":500}],"plan":"pro","suspended":true}`},
		{"resume", func() (*control.Item, error) {
			return w.Resume(ctx, bob, &operate.TenantRequest{Tenant: "acme", Reason: "paid", Expect: new(int64(3))})
		}, `{"boosts":[{"factor":1.5,"id":"burst","until":"2026-11-23T12:00:00Z"}],"id":"acme",` +
			`"overrides":[{"id":"burst","rate":500}],"plan":"pro"}`},
		{"boost again", func() (*control.Item, error) {
			return w.AddBoost(ctx, bob, &operate.BoostRequest{Tenant: "acme", Limit: "burst", Factor: "2", From: &noon,
				Until: until, Reason: "more"})
		}, `{"boosts":[{"factor":2,"from":"2026-11-21T12:00:00Z","id":"burst","until":"2026-11-23T12:00:00Z"}],` +
			`"id":"acme","overrides":[{"id":"burst","rate":500}],"plan":"pro"}`},
		{"end of boost", func() (*control.Item, error) {
			return w.RemoveBoost(ctx, bob, &operate.RemoveBoostRequest{Tenant: "acme", Limit: "burst", Reason: "over"})
		}, `{"id":"acme","overrides":[{"id":"burst","rate":500}],"plan":"pro"}`},
		{"override", func() (*control.Item, error) {
			return w.SetTenant(ctx, bob, &operate.SetTenantRequest{Tenant: "acme", Reason: "x",
				Overrides: []json.RawMessage{
					json.RawMessage(`{"id":"burst","burst":900}`), json.RawMessage(`{"id":"writes","mode":"off"}`)}})
		}, `{"id":"acme","overrides":[{"burst":900,"id":"burst","rate":500},{"id":"writes","mode":"off"}],` +
			`"plan":"pro"}`},
		{"drop", func() (*control.Item, error) {
			return w.SetTenant(ctx, bob, &operate.SetTenantRequest{Tenant: "acme", Reason: "x",
				Drop: []string{"burst", "writes"}, Plan: new("free"), Yes: true})
		}, `{"id":"acme","plan":"free"}`},
		{"create", func() (*control.Item, error) {
			return w.SetTenant(ctx, bob, &operate.SetTenantRequest{Tenant: "new", Reason: "x", Plan: new("free"),
				Create: true})
		}, `{"id":"new","plan":"free"}`},
		{"not created twice", func() (*control.Item, error) {
			return w.SetTenant(ctx, bob, &operate.SetTenantRequest{Tenant: "new", Reason: "x", Plan: new("pro"),
				Create: true})
		}, `{"id":"new","plan":"pro"}`},
	} {
		item, err := step.do()
		if err != nil {
			t.Fatalf("%s: got the error %v, want none", step.name, err)
		}
		if string(item.Body) != step.want || item.Actor != bob || item.Reason == "" {
			t.Errorf("%s gives %s by %s, want %s", step.name, item.Body, item.Actor, step.want)
		}
	}
}

// Guarantees that impossible operations on a tenant are refused and write nothing.
func TestTenantRefusals(t *testing.T) {
	w := newWorld(t)
	w.seed(plans)
	ctx := t.Context()
	boost := func(change func(*operate.BoostRequest)) error {
		r := &operate.BoostRequest{Tenant: "acme", Limit: "burst", Factor: "2", Until: noon.Add(time.Hour), Reason: "x"}
		change(r)
		_, err := w.AddBoost(ctx, ann, r)
		return err
	}
	w.refused(boost(func(r *operate.BoostRequest) { r.Factor = "1" }), operate.Invalid, "factor")
	w.refused(boost(func(r *operate.BoostRequest) { r.Factor = "101" }), operate.Invalid, "factor")
	w.refused(boost(func(r *operate.BoostRequest) { r.Factor = "" }), operate.Invalid, "factor is missing")
	w.refused(boost(func(r *operate.BoostRequest) { r.Until = noon }), operate.Invalid, "is in the past")
	w.refused(boost(func(r *operate.BoostRequest) { r.Until = time.Time{} }), operate.Invalid, "until is missing")
	w.refused(boost(func(r *operate.BoostRequest) { r.Until = noon.AddDate(2, 0, 0) }), operate.Invalid, "until")
	w.refused(boost(func(r *operate.BoostRequest) { r.Limit = "none" }), operate.Invalid, `no limit "none"`)
	w.refused(boost(func(r *operate.BoostRequest) { r.Tenant = "none" }), operate.NotFound,
		`no tenant "none"; 'sluice `+
			"tenant list' shows the tenants")
	w.refused(boost(func(r *operate.BoostRequest) { r.Tenant = "acm" }), operate.NotFound,
		`no tenant "acm" (did you mean `+
			`"acme"?); 'sluice tenant list' shows the tenants, and 'sluice tenant set --create' creates one`)
	w.refused(boost(func(r *operate.BoostRequest) { r.Reason = "" }), operate.Invalid, "reason")
	_, err := w.RemoveBoost(ctx, ann, &operate.RemoveBoostRequest{Tenant: "acme", Limit: "burst", Reason: "x"})
	w.refused(err, operate.NotFound, "no boost")
	_, err = w.SetTenant(ctx, ann, &operate.SetTenantRequest{Tenant: "acme", Reason: "x"})
	w.refused(err, operate.Invalid, "nothing to set")
	_, err = w.SetTenant(ctx, ann, &operate.SetTenantRequest{Tenant: "acme", Reason: "x", Drop: []string{"writes"}})
	w.refused(err, operate.NotFound, "no override")
	_, err = w.SetTenant(ctx, ann, &operate.SetTenantRequest{Tenant: "acme", Reason: "x",
		Overrides: []json.RawMessage{json.RawMessage("3")}})
	w.refused(err, operate.Invalid, "want an object")
	_, err = w.Suspend(ctx, ann, &operate.TenantRequest{Tenant: "a\nb", Reason: "x"})
	w.refused(err, operate.Invalid, "control character")
	if _, err = w.Apply(ctx, ann, &operate.ApplyRequest{Reason: "gone", AcceptLosses: true,
		Changes: []operate.Change{{Table: control.Tenants, Key: "b & <c>", Expect: 1, Delete: true}}}); err != nil {
		t.Fatal(err)
	}
	w.tables.puts = 0
	_, err = w.Suspend(ctx, ann, &operate.TenantRequest{Tenant: "b & <c>", Reason: "x"})
	w.refused(err, operate.NotFound, "was deleted by "+ann)
}

// Guarantees that a promoted shadow limit enforces, and that only a shadow limit can be promoted.
func TestPromote(t *testing.T) {
	w := newWorld(t)
	w.seed(plans)
	item, err := w.Promote(t.Context(), ann, &operate.PromoteRequest{Plan: "pro", Limit: "writes",
		Reason: "a quiet week"})
	if err != nil || strings.Contains(string(item.Body), "shadow") {
		t.Fatalf("promote: got %v, error %v; want a plan without shadow", item, err)
	}
	w.tables.puts = 0
	_, err = w.Promote(t.Context(), ann, &operate.PromoteRequest{Plan: "pro", Limit: "writes", Reason: "again"})
	w.refused(err, operate.Invalid, "its mode is enforce")
	_, err = w.Promote(t.Context(), ann, &operate.PromoteRequest{Plan: "pro", Limit: "none", Reason: "x"})
	w.refused(err, operate.NotFound, `no limit "none"`)
	_, err = w.Promote(t.Context(), ann, &operate.PromoteRequest{Plan: "none", Limit: "x", Reason: "x"})
	w.refused(err, operate.NotFound, `no plan "none"`)
}

// Guarantees that the text of a key is only in the answer to its creation: not in any table, its history, a log line
// or an error.
func TestAKeyIsShownOnce(t *testing.T) {
	w := newWorld(t)
	w.seed(plans)
	var log bytes.Buffer
	w.config.Log = slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	w.remake()
	mux := w.Control.Mux()
	answer := post(t, operate.Local(mux, "ann@local"), "/keys/create",
		`{"tenant":"acme","subject":"ci","id":"k1","expires":"2027-01-01T00:00:00Z","reason":"pipeline"}`)
	var made struct{ Key string }
	if err := json.Unmarshal([]byte(answer), &made); err != nil || identity.CheckKey(made.Key) != nil {
		t.Fatalf("create: got %s, error %v; want a key", answer, err)
	}
	if n := strings.Count(answer, made.Key); n != 1 {
		t.Errorf("got the key %d times in the answer, want once", n)
	}
	want := `"hash":"` + identity.HashKey([]byte("a pepper of 16 bytes"), made.Key) + `"`
	if body := w.body(control.Keys, "k1"); !strings.Contains(body, want) {
		t.Errorf("stored is %s, want %s in it", body, want)
	}
	again := post(t, operate.Local(mux, "ann@local"), "/keys/create", `{"tenant":"acme","id":"k1","reason":"again"}`)
	if !strings.Contains(again, `"conflict"`) || strings.Contains(again, "slk_") {
		t.Errorf("a second k1: got %s, want a conflict, and no key", again)
	}
	w.tables.failAt = 1
	failed := post(t, operate.Local(mux, "ann@local"), "/keys/create", `{"tenant":"acme","reason":"again"}`)
	everything := log.String() + failed
	for _, c := range w.tables.changes {
		everything += string(c.Body) + c.Reason + c.Actor
	}
	everything += post(t, operate.Local(mux, "ann@local"), "/documents/list", `{"table":"keys"}`)
	secret := strings.TrimPrefix(made.Key, "slk_")
	if strings.Contains(everything, secret) || strings.Contains(everything, "slk_") ||
		strings.Contains(everything, "a pepper of") {
		t.Errorf("want neither the key nor its pepper in\\n%s", everything)
	}
}

// Guarantees that keys are created and revoked within their bounds, and that a key that the caller has made is stored
// by its hash.
func TestKeys(t *testing.T) {
	w := newWorld(t)
	w.seed(plans)
	ctx := t.Context()
	hash := strings.Repeat("0a", 32)
	made, err := w.CreateKey(ctx, ann, &operate.CreateKeyRequest{Tenant: "acme", Hash: hash, Pepper: "mine",
		Reason: "x"})
	if err != nil || made.Key != "" || !strings.HasPrefix(made.Item.Key, "key-") ||
		!strings.Contains(string(made.Item.Body), hash) {
		t.Fatalf("create with a hash: got %+v, error %v; want an item with the hash, and no key", made, err)
	}
	item, err := w.RevokeKey(ctx, bob, &operate.KeyRequest{ID: made.Item.Key, Reason: "leaked"})
	if err != nil || !strings.Contains(string(item.Body), `"revoked":true`) || item.Actor != bob {
		t.Errorf("revoke: got %+v, error %v; want the key revoked by bob", item, err)
	}
	w.tables.puts = 0
	if item, err := w.RevokeKey(ctx, bob, &operate.KeyRequest{ID: made.Item.Key, Reason: "again"}); err != nil ||
		item.Version != 2 || w.tables.puts != 0 {
		t.Errorf("a second revoke: got %+v, error %v, %d writes; want version 2, and no write", item, err,
			w.tables.puts)
	}
	create := func(r operate.CreateKeyRequest) error {
		r.Reason = "x"
		_, err := w.CreateKey(ctx, ann, &r)
		return err
	}
	w.refused(create(operate.CreateKeyRequest{Tenant: "nobody"}), operate.Invalid, `there is no tenant "nobody"`)
	w.refused(create(operate.CreateKeyRequest{}), operate.Invalid, "tenant")
	w.refused(create(operate.CreateKeyRequest{Tenant: "acme", ID: "no id"}), operate.Invalid, "id")
	w.refused(create(operate.CreateKeyRequest{Tenant: "acme", Hash: hash}), operate.Invalid, "go together")
	w.refused(create(operate.CreateKeyRequest{Tenant: "acme", Hash: "ab", Pepper: "p"}), operate.Invalid, "hex digits")
	w.refused(create(operate.CreateKeyRequest{Tenant: "acme", Expires: &noon}), operate.Invalid, "is in the past")
	w.refused(create(operate.CreateKeyRequest{Tenant: "acme", Subject: strings.Repeat("s", 129)}), operate.Invalid,
		"subject")
	_, err = w.RevokeKey(ctx, ann, &operate.KeyRequest{ID: "none", Reason: "x"})
	w.refused(err, operate.NotFound, `no key "none"`)
	w.config.Hash = func(context.Context, string) (string, string, error) {
		return "", "",
			errors.New("secret is away")
	}
	w.remake()
	w.refused(create(operate.CreateKeyRequest{Tenant: "acme"}), operate.Unavailable, "pepper")
	w.config.Hash = nil
	w.remake()
	w.refused(create(operate.CreateKeyRequest{Tenant: "acme"}), operate.Unsupported, "make the key yourself")
}

// Guarantees that no two keys have the same hash, however the second one is added, and even if the first one is
// revoked: requests find keys only by hash, and a new cell would keep the one that it reads first, so that a caller
// could be taken for another tenant's.
func TestTwoKeysOfOneHash(t *testing.T) {
	w := newWorld(t)
	w.seed(plans)
	ctx := t.Context()
	hash, other, third := strings.Repeat("0a", 32), strings.Repeat("0b", 32), strings.Repeat("0c", 32)
	create := func(id, hash, pepper string) error {
		_, err := w.CreateKey(ctx, ann, &operate.CreateKeyRequest{ID: id, Tenant: "acme", Hash: hash, Pepper: pepper,
			Reason: "x"})
		return err
	}
	change := func(id, hash string, expect int64) operate.Change {
		return operate.Change{Table: control.Keys, Key: id, Expect: expect,
			Body: fmt.Appendf(nil, `{"hash":%q,"id":%q,"pepper":"mine","tenant":"b & <c>"}`, hash, id)}
	}
	apply := func(dry bool, changes ...operate.Change) error {
		if dry {
			_, err := w.Preview(ctx, bob, &operate.PreviewRequest{Changes: changes})
			return err
		}
		_, err := w.Apply(ctx, bob, &operate.ApplyRequest{Reason: "x", Changes: changes, AcceptLosses: true})
		return err
	}
	if err := errors.Join(create("first", hash, "mine"), create("old", other, "mine")); err != nil {
		t.Fatal(err)
	}
	if _, err := w.RevokeKey(ctx, ann, &operate.KeyRequest{ID: "old", Reason: "x"}); err != nil {
		t.Fatal(err)
	}
	w.tables.puts = 0
	const says = `key "first" has the same hash`
	w.refused(create("second", hash, "mine"), operate.Invalid, says)
	w.refused(create("second", hash, "theirs"), operate.Invalid, says)
	w.refused(create("second", other, "mine"), operate.Invalid, `key "old" has the same hash`)
	w.refused(apply(false, change("second", hash, 0)), operate.Invalid, says)
	w.refused(apply(true, change("second", hash, 0)), operate.Invalid, says)
	w.refused(apply(false, change("second", third, 0), change("third", third, 0)), operate.Invalid,
		`key "second" has the same hash`)
	err := create("second", hash, "mine")
	if strings.Contains(fmt.Sprint(err), hash) {
		t.Errorf("got the error %v, want one without the hash", err)
	}
	if err := apply(false, change("second", third, 0)); err != nil {
		t.Fatal(err)
	}
	w.tables.puts = 0
	w.refused(apply(false, change("second", hash, 1)), operate.Invalid, says)
	w.refused(apply(false, change("first", strings.Repeat("0d", 32), 1), change("second", hash, 1)), operate.Invalid,
		says)
}

// Guarantees that requests for cells have the form that package shares reads, one request for each version.
func TestCells(t *testing.T) {
	w := newWorld(t)
	ctx := t.Context()
	request := func() shares.Request {
		doc, err := operate.ReadCell([]byte(w.body(control.Cells, "eu-1")))
		if err != nil {
			t.Fatal(err)
		}
		return doc.Request
	}
	steps := []struct {
		do   func() (*control.Item, error)
		want shares.Request
	}{
		{func() (*control.Item, error) {
			return w.AddCell(ctx, ann, &operate.AddCellRequest{Cell: "eu-1", Ops: opsURL, Reason: "x"})
		}, shares.Request{ID: "eu-1@1", Kind: shares.Join, Cell: "eu-1", Weight: 1}},
		{func() (*control.Item, error) {
			return w.AddCell(ctx, ann, &operate.AddCellRequest{Cell: "eu-1", Weight: 3, Reason: "x"})
		}, shares.Request{ID: "eu-1@2", Kind: shares.Weigh, Cell: "eu-1", Weight: 3}},
		{func() (*control.Item, error) {
			return w.DrainCell(ctx, ann, &operate.CellRequest{Cell: "eu-1", Reason: "x"})
		}, shares.Request{ID: "eu-1@3", Kind: shares.Drain, Cell: "eu-1"}},
		{func() (*control.Item, error) {
			return w.RemoveCell(ctx, ann, &operate.CellRequest{Cell: "eu-1", Reason: "x"})
		}, shares.Request{ID: "eu-1@4", Kind: shares.Remove, Cell: "eu-1"}},
		{func() (*control.Item, error) {
			return w.AddCell(ctx, ann, &operate.AddCellRequest{Cell: "eu-1", Reason: "x"})
		}, shares.Request{ID: "eu-1@5", Kind: shares.Join, Cell: "eu-1", Weight: 1}},
		{func() (*control.Item, error) {
			return w.RemoveCell(ctx, ann, &operate.CellRequest{Cell: "eu-1", Force: true, Reason: "x"})
		}, shares.Request{ID: "eu-1@6", Kind: shares.Force, Cell: "eu-1"}},
	}
	var state shares.State
	if list, err := w.Control.Cells(ctx, ann, &operate.CellsRequest{Tenant: "acme"}); err != nil || list.Home != "" ||
		list.Alone != "" {
		t.Errorf("before there is a cell: got %+v, error %v; want no home", list, err)
	}
	for i, s := range steps {
		if _, err := s.do(); err != nil {
			t.Fatalf("step %d: got the error %v, want none", i+1, err)
		}
		got := request()
		if got.ID != s.want.ID || got.Kind != s.want.Kind || got.Cell != s.want.Cell || got.Weight != s.want.Weight {
			t.Errorf("step %d asks for %+v, want %+v", i+1, got, s.want)
		}
	}
	if !strings.Contains(w.body(control.Cells, "eu-1"), opsURL) {
		t.Error("got a cell without its ops function, want that it stays")
	}
	next, out := state.Step(shares.Settings{}, shares.Input{Requests: []shares.Request{steps[0].want}}, noon)
	if len(out.Refused) > 0 {
		t.Errorf("the balancer refuses %+v, want that it refuses nothing", out.Refused)
	}
	body, err := json.Marshal(next)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.tables.Put(ctx, control.Change{Table: control.Cells, Key: events.SharesKey, Body: body,
		Actor: "balancer", Reason: "step", Now: noon}); err != nil {
		t.Fatal(err)
	}
	list, err := w.Control.Cells(ctx, ann, &operate.CellsRequest{Tenant: "acme"})
	if err == nil && list.Home != "eu-1" {
		t.Errorf("got the home %q of a tenant, want eu-1, the only cell", list.Home)
	}
	if err != nil || len(list.Cells) != 1 || list.Epoch != 1 || list.Cells[0].State != "active" ||
		list.Cells[0].Asked != shares.Force || list.Cells[0].Share != 1 {
		t.Errorf("got the list %+v, error %v; want one active cell with weight 1, to be removed by force, and epoch 1",
			list, err)
	}
}

// Guarantees that items that cannot be read are listed by name, a placement with its tenant, and that they hide no
// cell.
func TestUnreadableCells(t *testing.T) {
	w := newWorld(t)
	ctx := t.Context()
	w.seed(plans)
	if _, err := w.AddCell(ctx, ann, &operate.AddCellRequest{Cell: "eu-1", Reason: "x"}); err != nil {
		t.Fatal(err)
	}
	put := func(key, body string) {
		t.Helper()
		if _, err := w.tables.Put(ctx, control.Change{Table: control.Cells, Key: key, Body: []byte(body),
			Actor:  "somebody",
			Reason: "x", Now: noon}); err != nil {
			t.Fatal(err)
		}
	}
	put(shares.PlacementKey("acme"), `{"version":2,"tenant":"acme"}`) // this tenant has a pin, since it has an override
	put(shares.PlacementKey("nobody"), `{}`)
	put("us-1", `{"id":7}`)
	put(shares.AckKey("eu-1"), `{}`)
	if _, err := w.tables.Put(ctx, control.Change{Table: control.Cells, Key: shares.PlacementKey("nobody"), Expect: 1,
		Delete: true, Actor: "somebody", Reason: "x", Now: noon}); err != nil {
		t.Fatal(err)
	}
	list, err := w.Control.Cells(ctx, ann, &operate.CellsRequest{})
	if err != nil || len(list.Cells) != 1 || list.Cells[0].Cell != "eu-1" {
		t.Fatalf("got the list %+v, error %v; want the cell eu-1 alone", list, err)
	}
	var got []string
	for _, u := range list.Unreadable {
		got = append(got, fmt.Sprintf("%s %d of %q: %t", u.Key, u.Version, u.Tenant, u.Error != ""))
	}
	want := []string{shares.PlacementKey("acme") + ` 1 of "acme": true`,
		shares.PlacementKey("nobody") + ` 2 of "": true`, `us-1 1 of "": true`}
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("unreadable are %q, want %q", got, want)
	}
}

// Guarantees that a row of the cells' table that cannot be read hides nothing else, and is reported.
func TestUnreadableRowOfCells(t *testing.T) {
	w := newWorldOn(t, &serial{Tables: badRow{inMemory{}}})
	if _, err := w.AddCell(t.Context(), ann, &operate.AddCellRequest{Cell: "eu-1", Reason: "x"}); err != nil {
		t.Fatal(err)
	}
	list, err := w.Control.Cells(t.Context(), ann, &operate.CellsRequest{})
	if err != nil || len(list.Cells) != 1 || len(list.Unreadable) != 1 || !strings.Contains(list.Unreadable[0].Error,
		`cells/"odd"`) {
		t.Errorf("got the list %+v, error %v; want one cell, and one unreadable item", list, err)
	}
	w.seed(plans)
	if _, err := w.SetTenant(t.Context(), ann, &operate.SetTenantRequest{Tenant: "acme", Cells: &[]string{"eu-1"},
		Reason: "x"}); err != nil {
		t.Errorf("pin a tenant: got the error %v, want none", err)
	}
	_, err = w.SetTenant(t.Context(), ann, &operate.SetTenantRequest{Tenant: "acme", Cells: &[]string{"us-1"},
		Reason: "x"})
	if codeOf(err) != operate.Invalid {
		t.Errorf("pin a tenant to a cell that nobody added: got the error %v, want Invalid", err)
	}
}

// badRow are tables with a row that is not an item.
type badRow struct{ inMemory }

func (b badRow) List(ctx context.Context, t control.Table, after string, most int) ([]control.Item, string, error) {
	items, next, err := b.inMemory.List(ctx, t, after, most)
	if err == nil && t == control.Cells && after == "" {
		err = fmt.Errorf("cells/%q: %w: attribute layout is 2", "odd", control.ErrBadItem)
	}
	return items, next, err
}

// Guarantees that bad requests for cells are refused.
func TestCellRefusals(t *testing.T) {
	w := newWorld(t)
	ctx := t.Context()
	for says, r := range map[string]operate.AddCellRequest{
		"not the name of a cell": {Cell: "a b"},
		"begins with pin.":       {Cell: "pin.x"},
		"is not the name":        {Cell: events.SharesKey},
		"weight":                 {Cell: "c", Weight: -1},
		"weight: 100":            {Cell: "c", Weight: shares.MaxWeight + 1},
		"ops":                    {Cell: "c", Ops: "ftp://x"},
	} {
		r.Reason = "x"
		_, err := w.AddCell(ctx, ann, &r)
		w.refused(err, operate.Invalid, strings.Split(says, "begins")[0])
	}
	_, err := w.DrainCell(ctx, ann, &operate.CellRequest{Cell: "none", Reason: "x"})
	w.refused(err, operate.NotFound, `no cell "none"`)
	if _, err := w.AddCell(ctx, ann, &operate.AddCellRequest{Cell: "c", Reason: "x"}); err != nil {
		t.Fatal(err)
	}
	w.tables.puts = 0
	_, err = w.RemoveCell(ctx, ann, &operate.CellRequest{Cell: "c", Reason: "x"})
	w.refused(err, operate.Invalid, "drain it first")
	_, err = w.DrainCell(ctx, ann, &operate.CellRequest{Cell: "c", Force: true, Reason: "x"})
	w.refused(err, operate.Invalid, "force")
	_, err = w.DrainCell(ctx, ann, &operate.CellRequest{Cell: "c", Expect: new(int64(7)), Reason: "x"})
	w.refused(err, operate.Conflict, "version 7")
}

// opsURL is the URL of the operators' API of a cell.
const opsURL = "https://abc123.execute-api.eu-west-1.amazonaws.com/v1"

// Guarantees that whoever may add cells cannot redirect operators' signed calls to an arbitrary server: the URL must
// be one of API Gateway in the cell's region, and replacing a URL needs an explicit yes.
func TestOpsURLs(t *testing.T) {
	w := newWorld(t)
	w.config.Regions = map[string]string{"eu-1": "eu-west-1"}
	w.remake()
	add := func(r operate.AddCellRequest) error {
		r.Reason = "x"
		_, err := w.AddCell(t.Context(), ann, &r)
		return err
	}
	for _, bad := range []string{
		"https://evil.example.com/v1", strings.Replace(opsURL, "abc123", "evil.example.com/abc123", 1),
		strings.Replace(opsURL, ".com/", ".com.evil.example.com/", 1), strings.Replace(opsURL, ".com/", ".com:8443/",
			1),
		strings.Replace(opsURL, "https:", "http:", 1), strings.Replace(opsURL, "abc123", "u@abc123", 1), opsURL +
			"/tenants",
		"http://127.0.0.1:8080/ops", "http://localhost:8080/ops",
	} {
		w.refused(add(operate.AddCellRequest{Cell: "eu-1", Ops: bad}), operate.Invalid, "ops: ")
	}
	elsewhere := strings.Replace(opsURL, "eu-west-1", "us-east-1", 1)
	w.refused(add(operate.AddCellRequest{Cell: "eu-1", Ops: elsewhere}), operate.Invalid, "cell eu-1 is in eu-west-1")
	if err := add(operate.AddCellRequest{Cell: "us-1", Ops: elsewhere}); err != nil {
		t.Errorf("add a cell in an unknown region: got the error %v, want none", err)
	}

	for _, r := range []operate.AddCellRequest{
		{Cell: "eu-1"}, {Cell: "eu-1", Ops: opsURL}, {Cell: "eu-1", Ops: opsURL + "/"}, {Cell: "eu-1", Weight: 2},
	} {
		if err := add(r); err != nil {
			t.Fatalf("%+v: got the error %v, want none", r, err)
		}
	}
	w.tables.puts = 0
	other := strings.Replace(opsURL, "abc123", "def456", 1)
	w.refused(add(operate.AddCellRequest{Cell: "eu-1", Ops: other}), operate.Confirm, other+" instead of "+opsURL)
	if _, err := w.RemoveCell(t.Context(), ann, &operate.CellRequest{Cell: "eu-1", Force: true,
		Reason: "x"}); err != nil {
		t.Fatal(err)
	}
	w.tables.puts = 0
	w.refused(add(operate.AddCellRequest{Cell: "eu-1", Ops: other}), operate.Confirm, "instead of")
	if err := add(operate.AddCellRequest{Cell: "eu-1", Ops: other, Yes: true}); err != nil {
		t.Fatal(err)
	}
	list, err := w.Control.Cells(t.Context(), ann, &operate.CellsRequest{})
	if err != nil || list.Cells[0].Ops != other || list.Cells[0].Region != "eu-west-1" || list.Cells[1].Region != "" {
		t.Errorf("got the list %+v, error %v; want the new ops function and eu-west-1 of the first cell, and no "+
			"region of the second", list, err)
	}
}

// Guarantees that a control plane in one process with its cells accepts URLs on this machine and of API Gateway, and
// no others.
func TestLocalOpsURLs(t *testing.T) {
	w := newWorld(t)
	w.config.Local = true
	w.remake()
	for _, bad := range []string{
		"http://192.0.2.1/ops", "http://u@127.0.0.1/ops", "http://127.0.0.1/ops?a=b", "ftp://127.0.0.1/", "127.0.0.1",
	} {
		_, err := w.AddCell(t.Context(), ann, &operate.AddCellRequest{Cell: "eu-1", Ops: bad, Reason: "x"})
		w.refused(err, operate.Invalid, "ops: ")
	}
	for _, good := range []string{opsURL, "http://127.0.0.1:8080/ops/eu-1", "http://[::1]:8080",
		"http://localhost/ops"} {
		r := &operate.AddCellRequest{Cell: "eu-1", Ops: good, Yes: true, Reason: "x"}
		if _, err := w.AddCell(t.Context(), ann, r); err != nil {
			t.Error(err)
		}
	}
}

// Guarantees that a tenant's pin is written once, before the tenant, and that an unknown cell cannot be named.
func TestPins(t *testing.T) {
	w := newWorld(t)
	w.seed(plans)
	ctx := t.Context()
	if _, err := w.AddCell(ctx, ann, &operate.AddCellRequest{Cell: "eu-1", Reason: "x"}); err != nil {
		t.Fatal(err)
	}
	w.tables.puts, w.tables.changes = 0, nil
	set := func(cells ...string) error {
		_, err := w.SetTenant(ctx, ann, &operate.SetTenantRequest{Tenant: "acme", Reason: "x", Cells: &cells})
		return err
	}
	w.refused(set("us-1"), operate.Invalid, `there is no cell "us-1"`)
	if err := set("eu-1"); err != nil {
		t.Fatal(err)
	}
	if len(w.tables.changes) != 2 || w.tables.changes[0].Key != operate.PinKey("acme") {
		t.Errorf("a pin writes %+v, want the pin first", w.tables.changes)
	}
	doc, err := operate.ReadCell([]byte(w.body(control.Cells, operate.PinKey("acme"))))
	if err != nil || doc.Request.Kind != shares.Place || doc.Request.Tenant != "acme" ||
		strings.Join(doc.Request.Cells, ",") != "eu-1" {
		t.Errorf("got the pin %+v, error %v; want a request to place acme in eu-1", doc, err)
	}
	if err := set(); err != nil {
		t.Fatal(err)
	}
	if doc, err := operate.ReadCell([]byte(w.body(control.Cells, operate.PinKey("acme")))); err != nil ||
		len(doc.Request.Cells) != 0 {
		t.Errorf("got the pin %+v, error %v after the tenant was unpinned; want no cells", doc, err)
	}
}

// Guarantees that the balancer is told which limits a tenant has for itself before they apply, whether overrides or
// boosts set them; that other changes write no pin; and that a tenant that no longer has such limits has a pin that
// says so.
func TestPinsOfTheirOwn(t *testing.T) {
	w := newWorld(t)
	w.seed(plans)
	ctx := t.Context()
	own := func() string {
		doc, err := operate.ReadCell([]byte(w.body(control.Cells, operate.PinKey("acme"))))
		if err != nil || doc.Request.Kind != shares.Place || doc.Request.Tenant != "acme" {
			t.Fatalf("got the pin %+v, error %v; want a request to place acme", doc, err)
		}
		return string(doc.Tenant)
	}
	want := func(why, want string) {
		t.Helper()
		if got := own(); got != want {
			t.Errorf("%s: the pin says %s, want %s", why, got, want)
		}
	}
	want("of a plans file", `{"id":"acme","overrides":[{"id":"burst","rate":500}],"plan":"pro"}`)
	w.tables.changes = nil
	if _, err := w.AddBoost(ctx, ann, &operate.BoostRequest{Tenant: "acme", Limit: "burst", Factor: "2",
		Until: noon.Add(time.Hour), Reason: "x"}); err != nil {
		t.Fatal(err)
	}
	if len(w.tables.changes) != 2 || w.tables.changes[0].Key != operate.PinKey("acme") {
		t.Errorf("a boost writes %+v, want the pin first", w.tables.changes)
	}
	want("a boost", `{"boosts":[{"factor":2,"id":"burst","until":"`+
		noon.Add(time.Hour).UTC().Format(time.RFC3339)+
		`"}],"id":"acme","overrides":[{"id":"burst","rate":500}],"plan":"pro"}`)
	w.tables.changes = nil
	if _, err := w.Suspend(ctx, ann, &operate.TenantRequest{Tenant: "acme", Reason: "x"}); err != nil {
		t.Fatal(err)
	}
	if len(w.tables.changes) != 1 {
		t.Errorf("a suspension writes %+v, want the tenant alone", w.tables.changes)
	}
	if _, err := w.RemoveBoost(ctx, ann, &operate.RemoveBoostRequest{Tenant: "acme", Limit: "burst",
		Reason: "x"}); err != nil {
		t.Fatal(err)
	}
	if _, err := w.SetTenant(ctx, ann, &operate.SetTenantRequest{Tenant: "acme", Drop: []string{"burst"},
		Reason: "x"}); err != nil {
		t.Fatal(err)
	}
	want("nothing of its own", "")
	if _, err := w.tables.Get(ctx, control.Cells, operate.PinKey("b & <c>")); !errors.Is(err, control.ErrNotFound) {
		t.Errorf("the pin of a tenant without changes of its own: got the error %v, want ErrNotFound", err)
	}
}
