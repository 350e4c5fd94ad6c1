package localstack_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
	"github.com/aws/aws-sdk-go-v2/service/sns"
	"github.com/aws/aws-sdk-go-v2/service/sqs"

	"github.com/sluicelimits/sluice/events"
	"github.com/sluicelimits/sluice/internal/cell/table"
	"github.com/sluicelimits/sluice/internal/control"
	"github.com/sluicelimits/sluice/internal/control/dynamo"
	"github.com/sluicelimits/sluice/localstack/stand"
	"github.com/sluicelimits/sluice/streams/delivery"
)

// publish publishes a message on the topic of changes, to all cells.
func publish(t *testing.T, s *stand.Stand, body string) {
	t.Helper()
	_, err := sns.NewFromConfig(s.AWS(s.Region())).Publish(t.Context(), &sns.PublishInput{
		TopicArn: aws.String("arn:aws:sns:" + s.Region() + ":" + s.Account() + ":" + s.ControlTable("changes")),
		Message:  &body,
	})
	if err != nil {
		t.Fatal(err)
	}
}

// send sends a message to a cell's queue, not through the topic.
func send(t *testing.T, s *stand.Stand, c stand.Cell, body string) {
	t.Helper()
	url, err := s.Queue(t.Context(), c.Region, c.Table("changes"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := sqs.NewFromConfig(s.AWS(c.Region)).SendMessage(t.Context(), &sqs.SendMessageInput{QueueUrl: &url,
		MessageBody: &body}); err != nil {
		t.Fatal(err)
	}
}

// limited applies a plan whose limit has the given size in each cell, and its tenants. The tenants are named after the
// plan, with the suffixes.
func limited(t *testing.T, s *stand.Stand, name string, period time.Duration, limit int, tenants ...string) {
	t.Helper()
	var text strings.Builder
	fmt.Fprintf(&text, `
plans:
  - id: %s
    limits:
      - { id: few, match: { methods: [GET], pathPattern: "/product/*" },
          algorithm: token_bucket, rate: %d, period: 1s, burst: %d }
      - %s
tenants:
  - { id: %s, plan: %s }
`, name, 2*limit, 2*limit, exactLimit(period), name, name)
	for _, suffix := range tenants {
		fmt.Fprintf(&text, "  - { id: %s%s, plan: %s }\n", name, suffix, name)
	}
	apply(t, s, text.String())
}

// poisonRows returns items that Sluice has not written, made from one that it has written.
func poisonRows(t *testing.T, of map[string]types.AttributeValue, name string) []map[string]types.AttributeValue {
	t.Helper()
	text := func(s string) types.AttributeValue { return &types.AttributeValueMemberS{Value: s} }
	like := func(key string, change func(map[string]types.AttributeValue)) map[string]types.AttributeValue {
		poison := maps.Clone(of)
		poison[dynamo.ID] = text(key)
		change(poison)
		return poison
	}
	// A version without the version before it, and otherwise correct.
	late := control.Item{
		Table: control.Tenants, Key: name + "-late", Version: 7, Actor: "somebody", Reason: "none",
		ChangedAt: time.Now().UTC().Truncate(time.Microsecond),
		Body:      json.RawMessage(`{"id":"` + name + `-late","plan":"none"}`), PrevHash: strings.Repeat("0", 64),
	}
	late.Hash = late.ComputeHash()
	return []map[string]types.AttributeValue{
		{dynamo.ID: text(name + "-types"), dynamo.Version: text("one"),
			dynamo.Body: &types.AttributeValueMemberBOOL{Value: true},
			dynamo.Hash: &types.AttributeValueMemberNULL{Value: true}},
		like(name+"-hashless", func(p map[string]types.AttributeValue) { delete(p, dynamo.Hash) }),
		// its hash is that of another item
		like(name+"-/../\u2028\"'; <b>%00", func(map[string]types.AttributeValue) {}),
		dynamo.RowOf(&late),
	}
}

// Guarantees that items which somebody writes to a control table without Sluice are kept as dead letters, in full, and
// neither reach a cell nor delay other changes.
func TestPoisonRecords(t *testing.T) {
	s := open(t)
	a := newTrail(t, s)
	name, period := unique("poisonrow"), period()
	limited(t, s, name, period, 101, "-after")
	k, after := key(t, s, name), key(t, s, name+"-after")
	for _, c := range s.Cells() {
		waitUntilKeyIsKnown(t, s, c.ID, k)
		waitUntilKeyIsKnown(t, s, c.ID, after)
	}
	rows := poisonRows(t, a.row(name), name)
	ours := func(i *delivery.DeadLetter) bool {
		return i.Key != name && i.Key != name+"-after" && strings.HasPrefix(i.Key, name+"-")
	}
	t.Cleanup(func() { // in any case, because other tests need a trail without breaks
		for _, poison := range rows {
			if id, ok := poison[dynamo.ID].(*types.AttributeValueMemberS); ok {
				a.removeRow(id.Value)
			}
		}
	})
	for i, poison := range rows {
		a.write(poison)
		limited(t, s, name, period, 102+i, "-after") // comes after the poison items
	}
	for _, c := range s.Cells() {
		enforces(t, s, c, k, 101+len(rows))
	}
	all := takeDeadLetters(t, s, "publisher", s.Region(), s.ControlTable("kept"), len(rows), ours)
	a.rejected(len(rows), name+"-")
	for _, i := range all {
		var record struct {
			DynamoDB struct {
				NewImage map[string]map[string]any
			} `json:"dynamodb"`
		}
		if err := json.Unmarshal(i.Data, &record); err != nil || record.DynamoDB.NewImage[dynamo.ID]["S"] != i.Key ||
			i.Table != string(control.Tenants) {
			t.Errorf("of %q in %q there is kept %s: %v", i.Key, i.Table, i.Data, err)
		}
	}
	for _, c := range s.Cells() { // no poison item reached the cell
		for _, i := range all {
			d, err := configuration(t, s, c).Get(t.Context(), table.Ref{Kind: "tenant", ID: i.Key})
			if err != nil || d[0].Version != 0 {
				t.Errorf("a poison item reached the cell %s: %+v: %v", c.ID, d, err)
			}
		}
	}
	// Sluice never removes an item, so the removal of these is kept as a dead letter, too.
	for _, i := range all {
		a.removeRow(i.Key)
	}
	takeDeadLetters(t, s, "publisher", s.Region(), s.ControlTable("kept"), len(rows), ours)
	a.rejected(len(rows), name+"-")
	exact(t, s, after)
	waitForEmptyQueues(t, s)
	wantNoBreaks(t, s)
}

// Guarantees that messages which are not changes are kept as dead letters, in full, in each cell that they reach, and
// delay no other change.
func TestPoisonMessages(t *testing.T) {
	s := open(t)
	name, period := unique("poison"), period()
	limited(t, s, name, period, 101, "-after")
	k, after := key(t, s, name), key(t, s, name+"-after")
	for _, c := range s.Cells() {
		waitUntilKeyIsKnown(t, s, c.ID, k)
		waitUntilKeyIsKnown(t, s, c.ID, after)
	}
	header := func(typ string, version int) string {
		return fmt.Sprintf(`{"type":%q,"version":%d,"id":"plans/%s/9","time":"2026-11-21T12:00:00.123456Z"`, typ,
			version, name)
	}
	document := fmt.Sprintf(`,"key":%q,"item_version":9,"deleted":false,"hash":"%064d","body":{"id":%q,"limits":%%s}}`,
		name, 0, name)
	bodies := []string{
		"this is no event {" + name,
		`["` + name + `"]`,
		header("plan.changed", 99) + `,"more":[1,2,3]}`,
		header("plan.grown", 1) + "}",
		header("plan.changed", 1) + `,"key":7,"item_version":"nine"}`,
		// larger than an event may be
		header("plan.changed", 1) + fmt.Sprintf(document, `"`+strings.Repeat("x", events.MaxBytes)+`"`),
	}
	for i, body := range bodies {
		publish(t, s, body)
		limited(t, s, name, period, 102+i, "-after")
	}
	for _, c := range s.Cells() {
		send(t, s, c, bodies[0]+" past the topic")
		enforces(t, s, c, k, 101+len(bodies))
	}
	for _, c := range s.Cells() {
		all := takeDeadLetters(t, s, "applier", c.Region, c.Table("kept"), len(bodies)+1,
			func(i *delivery.DeadLetter) bool { return bytes.Contains(i.Data, []byte(name)) })
		for _, body := range append(slices.Clone(bodies), bodies[0]+" past the topic") {
			if !slices.ContainsFunc(all, func(i delivery.DeadLetter) bool {
				return i.Cell == c.ID &&
					equalOrSameJSON(string(i.Data), body)
			}) {
				t.Errorf("%s has not kept %.200s", c.ID, body)
			}
		}
	}
	exact(t, s, after)
	waitForEmptyQueues(t, s)
	wantNoBreaks(t, s)
}

// equalOrSameJSON reports whether two texts are equal or are the same JSON, because LocalStack changes the format of
// the JSON in messages.
func equalOrSameJSON(a, b string) bool {
	var one, other any
	if json.Unmarshal([]byte(a), &one) != nil || json.Unmarshal([]byte(b), &other) != nil {
		return a == b
	}
	return fmt.Sprint(one) == fmt.Sprint(other)
}

// history returns each event that was ever published about items, oldest first, made from their audit records. An event
// is always the same for the same record.
func history(a *trail, items ...string) []string {
	a.Helper()
	var all []string
	for _, item := range items {
		tableName, key, _ := strings.Cut(item, "/")
		objects := a.list(control.ObjectFolder(control.Table(tableName), key))
		for _, e := range objects {
			decoded, err := events.Decode(a.get(e))
			a.must(err)
			record, ok := decoded.(*events.AuditRecord)
			if !ok {
				a.Fatalf("%s is not an audit record", e.name)
			}
			version := control.FromAudit(record)
			body, err := events.Encode(version.Event())
			a.must(err)
			all = append(all, string(body))
		}
	}
	return all
}

// documentOf returns what each cell has of items of the control tables, with the versions and the log entries of the
// documents.
func documentOf(t *testing.T, s *stand.Stand, items ...string) map[string][]table.Document {
	t.Helper()
	all := map[string][]table.Document{}
	for _, c := range s.Cells() {
		var refs []table.Ref
		for _, item := range items {
			tableName, key, _ := strings.Cut(item, "/")
			ref, ok := table.RefOf(events.Table(tableName), key)
			if !ok {
				t.Fatalf("cells have nothing of %s", item)
			}
			refs = append(refs, ref)
		}
		documents, err := configuration(t, s, c).Get(t.Context(), refs...)
		if err != nil {
			t.Fatal(err)
		}
		all[c.ID] = documents
	}
	return all
}

// Guarantees that old messages which are delivered again (all of them, the newest first, twice, and both through the
// topic and past it) change nothing: no limit, no revoked key, no share, and not even the change log.
func TestRedelivery(t *testing.T) {
	s := open(t)
	a := newTrail(t, s)
	name, period := unique("again"), period()
	limited(t, s, name, period, 101, "-after")
	k, after := key(t, s, name), key(t, s, name+"-after")
	var made struct {
		Key  string
		Item struct{ Key string }
	}
	out := sluice(t, s, "key", "create", "--tenant", name, "--reason", "to be revoked", "--json")
	if err := json.Unmarshal([]byte(out), &made); err != nil || made.Item.Key == "" {
		t.Fatalf("sluice key create printed %d bytes, with a key of %d and its id of %d: %v", len(out), len(made.Key),
			len(made.Item.Key), err)
	}
	id, revoked := made.Item.Key, made.Key
	for _, c := range s.Cells() {
		for _, one := range []string{k, revoked, after} {
			waitUntilKeyIsKnown(t, s, c.ID, one)
		}
	}
	for limit := 102; limit < 106; limit++ {
		limited(t, s, name, period, limit, "-after")
	}
	sluice(t, s, "tenant", "set", name, "--reason", "another cell", "--override",
		"{ id: exact, tiers: [ { period: "+period.String()+", threshold: 20 } ] }")
	sluice(t, s, "key", "revoke", id, "--reason", "it is out")
	refuses := func(c stand.Cell) error {
		one, err := s.Call(t.Context(), c.ID, "GET /orders", revoked)
		if err == nil && one.Status != 401 {
			err = fmt.Errorf("%s answers %d to a key that was revoked", c.ID, one.Status)
		}
		return err
	}
	for _, c := range s.Cells() {
		waitFor(t, func(context.Context) error { return refuses(c) })
		enforces(t, s, c, k, 105)
	}
	wantNoBreaks(t, s)
	items := []string{"plans/" + name, "tenants/" + name, "keys/" + id, "cells/" + events.SharesKey}
	old := history(a, items...)
	if len(old) < 10 {
		t.Fatalf("there are %d events, want more", len(old))
	}
	before, heads := documentOf(t, s, items...), map[string]table.Head{}
	for _, c := range s.Cells() {
		heads[c.ID] = position(t, s, c)
	}

	slices.Reverse(old)
	for _, body := range old {
		publish(t, s, body)
		for _, c := range s.Cells() {
			send(t, s, c, body)
		}
	}
	// A queue is also empty before the topic has delivered to it, so the test waits for the last message.
	fence := "no event, and the last: " + name
	publish(t, s, fence)
	for _, c := range s.Cells() {
		takeDeadLetters(t, s, "applier", c.Region, c.Table("kept"), 1,
			func(i *delivery.DeadLetter) bool { return string(i.Data) == fence })
	}
	waitForEmptyQueues(t, s)
	for _, c := range s.Cells() {
		if head := position(t, s, c); head != heads[c.ID] {
			t.Errorf("the change log of %s is at %+v, want it unchanged at %+v", c.ID, head, heads[c.ID])
		}
		if err := refuses(c); err != nil {
			t.Error(err)
		}
		enforces(t, s, c, k, 105)
	}
	if now := documentOf(t, s, items...); fmt.Sprint(now) != fmt.Sprint(before) {
		t.Errorf("cells have\n%v, and had\n%v", now, before)
	}
	exact(t, s, after)
	wantNoBreaks(t, s)
}
