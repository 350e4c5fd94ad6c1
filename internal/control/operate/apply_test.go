package operate_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/sluicelimits/sluice/events"
	"github.com/sluicelimits/sluice/internal/control"
	"github.com/sluicelimits/sluice/internal/control/operate"
)

// Guarantees that of two operators at once, the second one is told what the first one did, by whom and why, and
// overwrites nothing.
func TestTwoOperatorsAtOnce(t *testing.T) {
	w := newWorld(t)
	w.seed(plans)
	body := `{"id":"acme","plan":"free"}`
	if err := w.apply(control.Tenants, "acme", 1, body); err != nil {
		t.Fatal(err)
	}
	w.tables.puts = 0
	_, err := w.Apply(t.Context(), bob, &operate.ApplyRequest{Reason: "mine", Changes: []operate.Change{
		{Table: control.Tenants, Key: "acme", Expect: 1, Body: json.RawMessage(`{"id":"acme","plan":"pro"}`)},
		{Table: control.Tenants, Key: "b & <c>", Expect: 1, Body: json.RawMessage(`{"id":"b & <c>","plan":"pro"}`)},
	}})
	w.refused(err, operate.Conflict, "")
	const want = "changed by another since you looked; nothing was overwritten\n" +
		`  tenants/"acme": you saw version 1, and it is now version 2, by arn:aws:iam::123456789012:user/ann at ` +
		`2026-11-21T12:00:00Z: why`
	if err == nil || err.Error() != want {
		t.Errorf("got\n%v\nwant\n%s", err, want)
	}
	if got := w.body(control.Tenants, "acme"); got != body {
		t.Errorf("acme is %s, want %s", got, body)
	}
	_, err = w.SetTenant(t.Context(), bob, &operate.SetTenantRequest{Tenant: "acme", Reason: "x", Plan: new("pro"),
		Expect: new(int64(1))})
	w.refused(err, operate.Conflict, "you saw version 1")
	w.refused(w.apply(control.Tenants, "new", 3, `{"id":"new","plan":"pro"}`), operate.Conflict,
		"you saw version 3, but there is no such item")
}

// Guarantees that an operator who is overtaken between the check and the write is told so, with the number of items
// written.
func TestAnotherWriterInBetween(t *testing.T) {
	w := newWorld(t)
	w.seed(plans)
	w.tables.before = func(c control.Change) {
		if c.Key != "acme" || c.Actor == bob {
			return
		}
		c.Actor, c.Reason = bob, "I was faster"
		c.Body = json.RawMessage(`{"id":"acme","plan":"free"}`)
		if _, err := w.tables.Tables.Put(t.Context(), c); err != nil {
			t.Error(err)
		}
	}
	_, err := w.Apply(t.Context(), ann, &operate.ApplyRequest{Reason: "why", AcceptLosses: true,
		Changes: []operate.Change{
			{Table: control.Plans, Key: "more", Body: json.RawMessage(`{"id":"more","limits":[{"id":"l",` +
				`"tiers":[{"period":"1s","threshold":1}]}]}`)},
			{Table: control.Tenants, Key: "acme", Expect: 1, Body: json.RawMessage(`{"id":"acme","plan":"more"}`)},
		}})
	if codeOf(err) != operate.Conflict || !strings.Contains(err.Error(), "I was faster") ||
		!strings.HasSuffix(err.Error(), "items written before the error: 1") {
		t.Errorf("got the error %v, want a conflict that names the other change, and that 1 item was written before",
			err)
	}
}

// Guarantees that a change to the present content costs no write, so that an apply may be repeated.
func TestApplyAgainWritesNothing(t *testing.T) {
	w := newWorld(t)
	w.seed(plans)
	r := &operate.ApplyRequest{Reason: "again"}
	for _, d := range w.documents(plans) {
		table, key := operate.Place(d)
		r.Changes = append(r.Changes, operate.Change{Table: table, Key: key, Body: d.Body})
	}
	out, err := w.Apply(t.Context(), ann, r)
	if err != nil || out.Written != 0 || w.tables.puts != 0 {
		t.Errorf("the second apply wrote %d: %+v, %v; want no write", w.tables.puts, out, err)
	}
	for _, a := range out.Results {
		if !a.Unchanged || a.Version != 1 {
			t.Errorf("%+v, want it unchanged at version 1", a)
		}
	}
}

// Guarantees that a preview makes all checks, returns the versions that would be written, and writes nothing.
func TestPreviewWritesNothing(t *testing.T) {
	w := newWorld(t)
	w.seed(plans)
	change := operate.Change{Table: control.Tenants, Key: "acme", Expect: 1,
		Body: json.RawMessage(`{"id":"acme","plan":"free","cells":["eu-1"]}`)}
	out, err := w.Preview(t.Context(), ann, &operate.PreviewRequest{Changes: []operate.Change{change}})
	if err != nil || w.tables.puts != 0 || out.Written != 0 || out.Results[0].Version != 2 {
		t.Errorf("a preview wrote %d: %+v, %v; want no write, and version 2", w.tables.puts, out, err)
	}
	change.Body = json.RawMessage(`{"id":"acme","plan":"none"}`)
	_, err = w.Preview(t.Context(), ann, &operate.PreviewRequest{Changes: []operate.Change{change}})
	w.refused(err, operate.Invalid, `there is no plan "none"`)
}

// Guarantees that a plan cannot be changed so that a tenant's override no longer fits, since cells would go on with
// the tenant's last limits. Both can be changed together.
func TestAPlanChangeThatBreaksAnOverride(t *testing.T) {
	w := newWorld(t)
	w.seed(plans)
	change := operate.Change{Table: control.Plans, Key: "pro", Expect: 1,
		Body: json.RawMessage(`{"id":"pro","limits":[{"id":"other","algorithm":"token_bucket","rate":100,` +
			`"period":"1s","burst":200}]}`)}
	_, err := w.Apply(t.Context(), ann, &operate.ApplyRequest{Reason: "x", Yes: true,
		Changes: []operate.Change{change}})
	w.refused(err, operate.Invalid, `tenant "acme": overrides[0].id: plan pro has no limit "burst"`)
	_, err = w.Apply(t.Context(), ann, &operate.ApplyRequest{Reason: "x",
		Changes: []operate.Change{{Table: control.Plans, Key: "pro", Expect: 1, Delete: true}}})
	w.refused(err, operate.Invalid, `plan "pro": tenant "acme" uses it`)
	out, err := w.Apply(t.Context(), ann, &operate.ApplyRequest{Reason: "x", Yes: true, AcceptLosses: true,
		Changes: []operate.Change{change,
			{Table: control.Tenants, Key: "acme", Expect: 1,
				Body: json.RawMessage(`{"id":"acme","plan":"pro","overrides":[{"id":"other","rate":500}]}`)}}})
	if err != nil || out.Written != 2 {
		t.Errorf("both together: %+v, %v; want 2 written", out, err)
	}
	if first := w.tables.changes[0]; first.Table != control.Plans {
		t.Errorf("%s/%s was written first, want the plan", first.Table, first.Key)
	}
}

// Guarantees that an edit with which counters start afresh is listed and not made without a yes, and that one which
// keeps the counters needs none.
func TestCountersThatBeginAnew(t *testing.T) {
	w := newWorld(t)
	w.seed(plans)
	if err := w.apply(control.Plans, "free", 1,
		`{"id":"free","limits":[{"id":"burst","algorithm":"token_bucket","rate":99,"period":"1s",`+
			`"burst":200}]}`); err != nil {
		t.Errorf("another rate: got the error %v, want none", err)
	}
	w.tables.puts = 0
	body := `{"id":"free","limits":[{"id":"burst","algorithm":"token_bucket","rate":99,"period":"2s","burst":200}]}`
	w.refused(w.apply(control.Plans, "free", 2, body), operate.Confirm,
		`plan "free": limit burst starts afresh: it was a token_bucket of 1s per tenant, and is a token_bucket of `+
			`2s per tenant`)
	_, err := w.Apply(t.Context(), ann, &operate.ApplyRequest{Reason: "x", Yes: true,
		Changes: []operate.Change{{Table: control.Plans, Key: "free", Expect: 2, Body: json.RawMessage(body)}}})
	if err != nil {
		t.Error(err)
	}
}

// Guarantees that a limit whose pattern names its counters is reported as starting afresh when the pattern changes,
// and that no other limit is.
func TestCountersThatAreNamedByAPattern(t *testing.T) {
	w := newWorld(t)
	w.seed(`plans: [ { id: p, limits: [
  { id: a, per: [ ip, endpoint ], match: { pathPattern: "/a/*" }, tiers: [ { period: 1s, threshold: 1 } ] },
  { id: b, per: ip, match: { pathPattern: "/a/*" }, tiers: [ { period: 1s, threshold: 1 } ] } ] } ]`)
	body := w.body(control.Plans, "p")
	w.refused(w.apply(control.Plans, "p", 1, strings.Replace(body, "/a/*", "/a/**", 1)), operate.Confirm,
		`plan "p": limit a starts afresh: its endpoints were those of /a/*, and are those of /a/**`)
	if err := w.apply(control.Plans, "p", 1, body[:strings.LastIndex(body,
		"/a/*")]+"/a/**"+body[strings.LastIndex(body, "/a/*")+4:]); err != nil {
		t.Errorf("counters that are not named by a pattern: got the error %v, want none", err)
	}
}

// Guarantees that every bad field of a change is refused with an explanation, and that the call writes nothing.
func TestBadChanges(t *testing.T) {
	w := newWorld(t)
	w.seed(plans + "anonymousPlan: free\nkeys: [ { id: k1, tenant: acme, hash: " + strings.Repeat("ab", 32) +
		", pepper: p1, revoked: true } ]\n")
	good := operate.Change{Table: control.Tenants, Key: "good", Body: json.RawMessage(`{"id":"good","plan":"pro"}`)}
	tenant := func(body string) operate.Change {
		return operate.Change{Table: control.Tenants, Key: "t", Body: json.RawMessage(body)}
	}
	for name, c := range map[string]struct {
		change operate.Change
		says   string
	}{
		"table": {operate.Change{Table: "users", Key: "x", Body: json.RawMessage("{}")},
			"not a plan, a tenant or a key"},
		"cells": {operate.Change{Table: control.Cells, Key: "x", Body: json.RawMessage("{}")},
			"not a plan, a tenant or a key"},
		"canary": {operate.Change{Table: control.Plans, Key: events.CanaryKey, Body: json.RawMessage("{}")},
			"not a plan, a tenant or a key"},
		"key": {operate.Change{Table: control.Plans, Key: "a b", Body: json.RawMessage("{}")},
			"changes[1]: key"},
		"no key": {operate.Change{Table: control.Tenants, Body: json.RawMessage("{}")}, "changes[1]: key"},
		"version": {operate.Change{Table: control.Tenants, Key: "t", Expect: -1, Body: json.RawMessage("{}")},
			"is not a version"},
		"no body": {operate.Change{Table: control.Tenants, Key: "t"}, "want a JSON object"},
		"twice":   {good, `tenant "good" occurs twice`},
		"delete with body": {operate.Change{Table: control.Tenants, Key: "t", Delete: true,
			Body: json.RawMessage("{}")}, "a deletion has no body"},
		"delete of a key": {operate.Change{Table: control.Keys, Key: "k1", Expect: 1, Delete: true},
			"cannot be deleted: revoke it"},
		"large": {tenant(`{"id":"t","plan":"` + strings.Repeat("p", control.MaxBodyBytes) + `"}`),
			"want at most"},
		"another id":     {tenant(`{"id":"u","plan":"pro"}`), `want "t"`},
		"unknown member": {tenant(`{"id":"t","plan":"pro","colour":1}`), "colour"},
		"no such plan":   {tenant(`{"id":"t","plan":"none"}`), `there is no plan "none"`},
		"no such limit": {tenant(`{"id":"t","plan":"pro","overrides":[{"id":"bursts","rate":1}]}`),
			`did you mean "burst"`},
		"zero": {tenant(`{"id":"t","plan":"pro","overrides":[{"id":"burst","rate":0}]}`), "rate"},
		"long boost": {tenant(`{"id":"t","plan":"pro","boosts":[{"id":"burst","factor":2,` +
			`"until":"2027-11-24T00:00:00Z"}]}`), "366 days"},
		"store": {operate.Change{Table: control.Plans, Key: "p",
			Body: json.RawMessage(`{"id":"p","limits":[{"id":"unkept","tiers":[{"period":"1s","threshold":1}]}]}`)},
			"no store keeps it"},
		"too many limits": {operate.Change{Table: control.Plans, Key: "p",
			Body: json.RawMessage(
				`{"id":"p","limits":[{"id":"undecidable","tiers":[{"period":"1s","threshold":1}]}]}`)},
			`plan "p": no store decides it`},
		"no limits": {operate.Change{Table: control.Plans, Key: "p", Body: json.RawMessage(`{"id":"p"}`)},
			"limits"},
		"key's tenant": {operate.Change{Table: control.Keys, Key: "k",
			Body: json.RawMessage(`{"id":"k","tenant":"nobody","hash":"` + strings.Repeat("ab", 32) +
				`","pepper":"p"}`)}, `there is no tenant "nobody"`},
		"revoked for good": {operate.Change{Table: control.Keys, Key: "k1", Expect: 1,
			Body: json.RawMessage(`{"id":"k1","tenant":"acme","hash":"` + strings.Repeat("ab", 32) +
				`","pepper":"p1"}`)}, "a revoked key cannot be restored"},
		"anonymous": {operate.Change{Table: control.Plans, Key: events.SettingsKey, Expect: 1,
			Body: json.RawMessage(`{"anonymousPlan":"none"}`)}, `no plan "none"`},
		"plan of anonymous": {operate.Change{Table: control.Plans, Key: "free", Expect: 1, Delete: true},
			`no plan "free"`},
		"settings": {operate.Change{Table: control.Plans, Key: events.SettingsKey, Expect: 1,
			Body: json.RawMessage(`{"plans":[]}`)}, "plans"},
	} {
		t.Run(name, func(t *testing.T) {
			w := *w
			w.T = t
			_, err := w.Apply(t.Context(), ann, &operate.ApplyRequest{Reason: "x", Yes: true,
				Changes: []operate.Change{good, c.change}})
			w.refused(err, operate.Invalid, c.says)
		})
	}
	for says, r := range map[string]*operate.ApplyRequest{
		"reason":       {Reason: "", Changes: []operate.Change{good}},
		"line":         {Reason: "a\nb", Changes: []operate.Change{good}},
		"changes: 0":   {Reason: "x"},
		"changes: 100": {Reason: "x", Changes: make([]operate.Change, operate.MaxChanges+1)},
	} {
		if _, err := w.Apply(t.Context(), ann, r); codeOf(err) != operate.Invalid {
			t.Errorf("%s: got the error %v, want Invalid", says, err)
		}
	}
}

// Guarantees that a table that stops answering is reported without its own error text, and that the rest can be
// applied again.
func TestATableThatGoesAway(t *testing.T) {
	w := newWorld(t)
	w.seed(plans)
	var changes []operate.Change
	for i := range 50 {
		id := fmt.Sprintf("t%02d", i)
		changes = append(changes, operate.Change{Table: control.Tenants, Key: id,
			Body: json.RawMessage(`{"id":"` + id + `","plan":"pro"}`)})
	}
	w.tables.failAt = 20
	_, err := w.Apply(t.Context(), ann, &operate.ApplyRequest{Reason: "x", Changes: changes})
	var e *operate.Error
	if !errors.As(err, &e) || e.Code != operate.Unavailable || e.Written != 20 ||
		strings.Contains(err.Error(), errAway.Error()) {
		t.Fatalf("got the error %v, want Unavailable without the store's own text, and that 20 items were written "+
			"before", err)
	}
	w.tables.failAt, w.tables.puts = 0, 0
	out, err := w.Apply(t.Context(), ann, &operate.ApplyRequest{Reason: "x", Changes: changes})
	if err != nil || out.Written != 30 || w.tables.puts != 30 {
		t.Errorf("the rest: %+v with %d writes, %v; want 30", out, w.tables.puts, err)
	}
	ctx, cancel := context.WithDeadline(t.Context(), time.Unix(0, 0))
	defer cancel()
	if _, err := w.Apply(ctx, ann, &operate.ApplyRequest{Reason: "y", Changes: changes[:1]}); !errors.Is(err,
		context.DeadlineExceeded) {
		t.Errorf("without time: got the error %v, want DeadlineExceeded", err)
	}
}

// Guarantees that a tenant's pin agrees with the stored tenant even if another operator has changed the tenant after
// the apply read it: otherwise the balancer would place the tenant by a document that was never written.
func TestAPinAfterAConflict(t *testing.T) {
	w := newWorld(t)
	w.seed(plans)
	w.tables.before = func(c control.Change) {
		if c.Key != "more" {
			return
		}
		_, err := w.SetTenant(t.Context(), bob, &operate.SetTenantRequest{Tenant: "acme", Reason: "I was faster",
			Overrides: []json.RawMessage{json.RawMessage(`{"id":"burst","rate":700}`)}})
		if err != nil {
			t.Error(err)
		}
	}
	_, err := w.Apply(t.Context(), ann, &operate.ApplyRequest{Reason: "why", AcceptLosses: true,
		Changes: []operate.Change{
			{Table: control.Plans, Key: "more", Body: json.RawMessage(`{"id":"more","limits":[]}`)},
			{Table: control.Tenants, Key: "acme", Expect: 1,
				Body: json.RawMessage(`{"id":"acme","plan":"pro","overrides":[{"id":"burst","rate":900}]}`)},
		}})
	if codeOf(err) != operate.Conflict || !strings.Contains(err.Error(), "I was faster") {
		t.Fatalf("got the error %v, want a conflict that names the other change", err)
	}
	pin, err := operate.ReadCell([]byte(w.body(control.Cells, operate.PinKey("acme"))))
	if err != nil {
		t.Fatal(err)
	}
	if got, want := string(pin.Tenant), w.body(control.Tenants, "acme"); got != want {
		t.Errorf("the pin says %s, but the stored tenant is %s", got, want)
	}
}

// Guarantees that a call that runs out of time during an apply says how many items it has written.
func TestTheTimeIsOverInTheMiddle(t *testing.T) {
	w := newWorld(t)
	w.seed(plans)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	w.tables.before = func(c control.Change) {
		if c.Table == control.Tenants {
			cancel()
		}
	}
	_, err := w.Apply(ctx, ann, &operate.ApplyRequest{Reason: "why", Changes: []operate.Change{
		{Table: control.Plans, Key: "more", Body: json.RawMessage(`{"id":"more","limits":[]}`)},
		{Table: control.Tenants, Key: "new", Body: json.RawMessage(`{"id":"new","plan":"more"}`)},
	}})
	var e *operate.Error
	if !errors.As(err, &e) || e.Code != operate.Unavailable || e.Written != 1 ||
		!strings.Contains(e.Message, "the call ran out of time") {
		t.Errorf("got the error %v, want Unavailable because the call ran out of time, and that 1 item was written "+
			"before", err)
	}
}
