package applier_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sluicelimits/sluice/events"
	"github.com/sluicelimits/sluice/internal/control"
	"github.com/sluicelimits/sluice/internal/plan"
	"github.com/sluicelimits/sluice/streams/delivery"
	"github.com/sluicelimits/sluice/streams/streamstest"
)

// forged returns a message that the publisher has not published.
func (w *world) forged(typ, table, key, body string, version int64) delivery.Message {
	return w.message(
		fmt.Sprintf(`{"type":%q,"version":1,"id":"%s/%s/%d","time":"2026-11-21T12:00:00.000000Z","key":%q,`+
			`"item_version":%d,"deleted":%t,"hash":%q,"body":%s}`,
			typ, table, key, version, key, version, body == "null", strings.Repeat("a", 64), body))
}

// Guarantees that nobody who may publish on the topic, or send to the queue, can create an API key, remove a limit,
// delete a document, or give a document a version that no later change exceeds: only what the control tables have
// reaches the cell.
func TestForgedMessages(t *testing.T) {
	w := newWorld(t)
	free := streamstest.History(t, control.Plans, "free", `{"id":"free","limits":[1]}`, `{"id":"free","limits":[2]}`)
	w.handle(w.messages(free[0]))
	const none = `{"id":"free","limits":[]}`
	backdoor := fmt.Sprintf(`{"hash":%q,"id":"backdoor","pepper":"p1","tenant":"acme"}`, strings.Repeat("b", 64))
	all := []delivery.Message{
		w.forged("key.changed", "keys", "backdoor", backdoor, 1),
		w.forged("plan.changed", "plans", "free", none, events.MaxVersion),
		w.forged("plan.changed", "plans", "free", none, 2),
		w.forged("plan.changed", "plans", "free", none, 1),
		w.forged("plan.changed", "plans", "free", "null", 2),
		w.forged("settings.changed", "plans", events.SettingsKey, `{}`, 1),
		w.forged("shares.changed", "cells", events.SharesKey, `{"version":2,"epoch":9007199254740991}`, 7),
		w.forged("shares.changed", "cells", events.SharesKey, "null", 1),
		w.forged("shares.changed", "cells", "placed.x", `{"version":2}`, 1),
		w.forged("canary", "plans", events.CanaryKey, `{}`, 3),
	}
	w.handle(all)
	if d := w.at(plan.KindPlan, "free", 1); string(d.Body) != `{"id":"free","limits":[1]}` {
		t.Errorf("the plan is %s", d.Body)
	}
	w.at(plan.KindKey, "backdoor", 0)
	w.at(plan.KindSettings, plan.SettingsID, 0)
	w.at("shares", "shares", 0)
	w.at("placement", "placed.x", 0)
	if w.head() != 1 {
		t.Errorf("%d transactions, want 1", w.head())
	}
	n := int64(len(all))
	w.meter.Want(t, map[string]int64{"events_forged": n, "messages_kept": n, "documents_applied": 1,
		"messages_again": 0})
	items := w.keep.Items()
	for i, want := range []string{"no item keys/\"backdoor\"", "has version 1", "has version 1",
		"another content"} {
		why := items[i].Reason
		if !strings.Contains(why, want) || !strings.Contains(why, "forged") || items[i].ID != all[i].ID {
			t.Errorf("kept because %q, want that it says %q", why, want)
		}
	}
	w.handle(w.messages(free[1])) // the forged message has used no version
	w.at(plan.KindPlan, "free", 2)
}

// Guarantees that a message is refused as forged if any part of it differs from the item of its version: its hash
// alone, its contents alone, or that the item is deleted.
func TestForgedPartsOfAMessage(t *testing.T) {
	w := newWorld(t)
	h := tenant(t, "acme", 1)
	genuine := w.messages(h[0])[0]
	var e map[string]any
	if err := json.Unmarshal(genuine.Body, &e); err != nil {
		t.Fatal(err)
	}
	for field, value := range map[string]any{
		"hash": strings.Repeat("a", 64), "body": map[string]any{"id": "acme", "plan": "gold"},
	} {
		changed := maps.Clone(e)
		changed[field] = value
		body, err := json.Marshal(changed)
		if err != nil {
			t.Fatal(err)
		}
		w.handle([]delivery.Message{w.message(string(body))})
		if items := w.keep.Items(); len(items) == 0 {
			t.Errorf("a message with another %s is not kept", field)
		} else if why := items[len(items)-1].Reason; !strings.Contains(why, "another content") {
			t.Errorf("%s: kept because %q", field, why)
		}
	}
	deleted := w.forged("tenant.changed", "tenants", "acme", "null", 1)
	deleted.Body = []byte(strings.Replace(string(deleted.Body), strings.Repeat("a", 64), h[0].Record.New.Hash, 1))
	w.handle([]delivery.Message{deleted})
	w.meter.Want(t, map[string]int64{"events_forged": 3, "messages_kept": 3, "documents_applied": 0})
	w.handle([]delivery.Message{genuine})
	w.at(plan.KindTenant, "acme", 1)
}

// Guarantees that a message is not refused as forged because a transport has encoded its JSON again, as LocalStack's
// event source mapping does. The cell stores the bytes of the item.
func TestMessageSpelledAnew(t *testing.T) {
	w := newWorld(t)
	genuine := w.messages(tenant(t, "acme", 1)[0])[0]
	var anew bytes.Buffer
	if err := json.Indent(&anew, genuine.Body, "", "  "); err != nil {
		t.Fatal(err)
	}
	genuine.Body = anew.Bytes()
	w.handle([]delivery.Message{genuine})
	if d := w.at(plan.KindTenant, "acme", 1); bytes.ContainsAny(d.Body, " \n") {
		t.Errorf("the tenant is %s, want the bytes of the item", d.Body)
	}
	w.meter.Want(t, map[string]int64{"events_forged": 0, "messages_kept": 0, "documents_applied": 1})
}

// Guarantees that contents which do not match their hash reach no cell, also if the control tables have them and a
// message reports them in the same way.
func TestContentsThatDoNotMatchTheirHash(t *testing.T) {
	w := newWorld(t)
	h := tenant(t, "acme", 1)
	h[0].Record.New.Body = []byte(`{"id":"acme","plan":"gold"}`) // the hash is that of another plan
	w.handle(w.messages(h[0]))
	w.at(plan.KindTenant, "acme", 0)
	w.meter.Want(t, map[string]int64{"events_forged": 0, "messages_kept": 1, "documents_applied": 0,
		"messages_again": 0})
}

// Guarantees that a message makes the applier store the present item, whatever version the message has: a forged or a
// repeated old version changes nothing.
func TestMessagesOfEarlierVersions(t *testing.T) {
	w := newWorld(t)
	h := tenant(t, "acme", 3)
	first := w.messages(h[0])
	w.storeItem(h[2])
	w.handle(first) // the third version is not published yet
	if d := w.at(plan.KindTenant, "acme", 3); string(d.Body) != `{"id":"acme","plan":"p3"}` {
		t.Errorf("the tenant is %s", d.Body)
	}
	w.handle(slices.Concat(first, w.messages(h[1], h[2]),
		[]delivery.Message{w.forged("tenant.changed", "tenants", "acme", `{"id":"acme","plan":"gold"}`, 2)}))
	if d := w.at(plan.KindTenant, "acme", 3); string(d.Body) != `{"id":"acme","plan":"p3"}` || w.head() != 1 {
		t.Errorf("the tenant is %s after %d transactions", d.Body, w.head())
	}
	w.meter.Want(t, map[string]int64{"documents_applied": 1, "messages_old": 4, "messages_kept": 0})
	if took := w.meter.Times("apply_seconds"); len(took) != 1 || took[0] != 2*time.Second {
		t.Errorf("apply_seconds %v", took)
	}
}

// Guarantees that messages are delivered again while the control tables do not answer, and that none is then applied,
// made a dead letter, or counted as forged.
func TestControlTablesAreAway(t *testing.T) {
	w := newWorld(t)
	batch := w.messages(tenant(t, "a", 1)[0], tenant(t, "b", 1)[0])
	w.away = errAway
	w.handle(batch, batch[0].ID, batch[1].ID)
	if w.head() != 0 {
		t.Error("the applier wrote although the control tables did not answer")
	}
	w.meter.Want(t, map[string]int64{"messages_again": 2, "messages_kept": 0, "events_forged": 0})
	w.away = nil
	w.handle(batch)
	w.at(plan.KindTenant, "b", 1)
}

// Guarantees that an item that was written by hand, or cannot be read, reaches no cell.
func TestItemsThatAreNotOurs(t *testing.T) {
	w := newWorld(t)
	byHand := w.messages(tenant(t, "a", 2)...)
	i := w.items["tenants/a"]
	i.Reason = "another one" // the hash is that of the first reason
	w.items["tenants/a"] = i
	w.handle(byHand)
	w.away = fmt.Errorf("get: %w", control.ErrBadItem)
	w.handle(w.messages(tenant(t, "b", 1)...))
	w.meter.Want(t, map[string]int64{"messages_kept": 3, "events_forged": 0, "documents_applied": 0,
		"messages_again": 0})
}

// Guarantees that an item is read once for all messages of a batch that are about it.
func TestReadsEachItemOnce(t *testing.T) {
	w := newWorld(t)
	batch := w.messages(slices.Concat(tenant(t, "a", 30), tenant(t, "b", 30))...)
	w.handle(append(batch, batch...))
	if w.reads != 2 {
		t.Errorf("%d reads of the control tables, want 2", w.reads)
	}
}
