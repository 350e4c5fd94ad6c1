//go:build unix

package main

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/sluicelimits/sluice/events"
	"github.com/sluicelimits/sluice/internal/cell/table"
	"github.com/sluicelimits/sluice/internal/control"
	"github.com/sluicelimits/sluice/internal/plan"
	"github.com/sluicelimits/sluice/internal/plan/shares"
	"github.com/sluicelimits/sluice/internal/testkit/functiontest"
	"github.com/sluicelimits/sluice/streams/balancer"
	"github.com/sluicelimits/sluice/streams/streamstest"
)

func env(table string) map[string]string {
	return map[string]string{
		"SLUICE_CELL": "eu-1", "SLUICE_CONFIG_TABLE": table,
		"SLUICE_KEPT_QUEUE":    "https://sqs.eu-west-1.amazonaws.com/123456789012/kept",
		"SLUICE_CHANGES_QUEUE": "https://sqs.eu-west-1.amazonaws.com/123456789012/changes",
		"SLUICE_PLANS_TABLE":   "plans", "SLUICE_TENANTS_TABLE": "tenants", "SLUICE_KEYS_TABLE": "keys",
		"SLUICE_CELLS_TABLE": "cells",
	}
}

// envOf returns the environment for these stores.
func envOf(stores *functiontest.Stores) map[string]string {
	e := env(stores.Config)
	e["AWS_ENDPOINT_URL_DYNAMODB"] = stores.URL
	for name, table := range map[string]control.Table{
		"SLUICE_PLANS_TABLE": control.Plans, "SLUICE_TENANTS_TABLE": control.Tenants, "SLUICE_KEYS_TABLE": control.Keys,
		"SLUICE_CELLS_TABLE": control.Cells,
	} {
		e[name] = stores.Names[table]
	}
	return e
}

// batch returns the event of a queue with these messages.
func batch(t *testing.T, bodies ...string) string {
	t.Helper()
	records := []map[string]any{}
	for i, body := range bodies {
		id := string(rune('a' + i))
		records = append(records, map[string]any{"messageId": id, "body": body, "eventSource": "aws:sqs",
			"receiptHandle": "receipt-" + id, "attributes": map[string]string{"ApproximateReceiveCount": "1"}})
	}
	out, err := json.Marshal(map[string]any{"Records": records})
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

// Guarantees that the deployed binary stores the changes of a queue's messages in DynamoDB, keeps invalid and forged
// messages as dead letters, and counts.
func TestFunction(t *testing.T) {
	stores := functiontest.NewStores(t)
	aws := functiontest.StartAWS(t)
	f := functiontest.Start(t, aws.URL, envOf(stores))
	event := func(i control.Item) string {
		body, err := events.Encode(i.Event())
		if err != nil {
			t.Fatal(err)
		}
		return string(body)
	}
	acme := stores.Put(t, control.Tenants, "acme", `{"id":"acme","plan":"pro"}`)
	next, err := stores.Control.Put(t.Context(), control.Change{Table: control.Tenants, Key: "acme", Expect: 1,
		Body: []byte(`{"id":"acme","plan":"free"}`), Actor: "tester", Reason: "test", Now: streamstest.Written})
	if err != nil {
		t.Fatal(err)
	}
	pro := stores.Put(t, control.Plans, "pro", `{"id":"pro","limits":[]}`)
	forged := streamstest.History(t, control.Keys, "backdoor",
		`{"hash":"`+strings.Repeat("ab", 32)+`","id":"backdoor","pepper":"p1","tenant":"acme"}`)[0].Record.New
	for range 2 {
		got := f.Call(batch(t, event(next), "poison", event(acme), event(pro), event(forged)))
		if got != `{"batchItemFailures":[]}` {
			t.Errorf("answered %s", got)
		}
	}
	got, err := stores.Cell.Get(t.Context(), table.Ref{Kind: plan.KindTenant, ID: "acme"})
	if err != nil || got[0].Version != 2 || got[0].Seq != 1 || string(got[0].Body) != `{"id":"acme","plan":"free"}` {
		t.Errorf("%+v, %v", got, err)
	}
	backdoor, err := stores.Cell.Get(t.Context(), table.Ref{Kind: plan.KindKey, ID: "backdoor"})
	if err != nil || backdoor[0].Version != 0 {
		t.Errorf("the cell has a key that was forged: %+v, %v", backdoor, err)
	}
	if got := f.Metric("events_forged"); got != 2 {
		t.Errorf("events_forged is %v, want 2", got)
	}
	if len(aws.Kept()) != 4 {
		t.Errorf("kept %q", aws.Kept())
	}
	if got := f.Metric("documents_applied"); got != 2 {
		t.Errorf("documents_applied is %v, want 2", got)
	}
	unused := slices.DeleteFunc(f.Unused(), func(what string) bool {
		return strings.HasSuffix(what, "on the cells table")
	})
	if len(unused) > 0 { // TestAcknowledges needs the permissions on the cells table
		t.Errorf("granted, but not needed: %q", unused)
	}
}

// Guarantees that the deployed binary acknowledges the shares to the balancer, with the permissions of its role:
// without this no cell's share could grow.
func TestAcknowledges(t *testing.T) {
	stores := functiontest.NewStores(t)
	f := functiontest.Start(t, functiontest.StartAWS(t).URL, envOf(stores))
	b := balancer.New(balancer.Config{Tables: stores.Control, Meter: new(streamstest.Meter)})
	// the second cell takes a part of the first one's share, and both must acknowledge it
	for i, cell := range []string{"us-1", "eu-1"} {
		stores.Put(t, control.Cells, cell, `{"id":"`+cell+`","request":{"id":"","kind":"join","cell":"`+cell+
			`","weight":1}}`)
		if r, err := b.Run(t.Context()); err != nil || len(r.Awaited) != 2*i {
			t.Fatalf("the shares are %+v, %v; want that %d cells are awaited", r, err, 2*i)
		}
	}
	item, err := stores.Control.Get(t.Context(), control.Cells, events.SharesKey)
	if err != nil {
		t.Fatal(err)
	}
	message, err := events.Encode(item.Event())
	if err != nil {
		t.Fatal(err)
	}
	if got := f.Call(batch(t, string(message))); got != `{"batchItemFailures":[]}` {
		t.Errorf("answered %s", got)
	}
	ack, err := stores.Control.Get(t.Context(), control.Cells, shares.AckKey("eu-1"))
	if err != nil || ack.Actor != "sluice cell eu-1" || !strings.Contains(string(ack.Body), `"cell":"eu-1"`) {
		t.Errorf("the acknowledgement is %+v, %v", ack, err)
	}
	for _, what := range []string{"dynamodb:Scan on the cells table", "dynamodb:GetItem on the cells table",
		"dynamodb:PutItem on the cells table"} {
		if slices.Contains(f.Unused(), what) {
			t.Errorf("granted, but not needed: %s", what)
		}
	}
}

// Guarantees that the deployed binary makes a message visible again after a second if a table did not answer, by its
// own queue, and leaves the others to Lambda.
func TestDelays(t *testing.T) {
	aws := functiontest.StartAWS(t) // it does not answer calls of DynamoDB
	f := functiontest.Start(t, aws.URL, env("config"))
	body, err := events.Encode(streamstest.History(t, control.Tenants, "acme", `{"id":"acme"}`)[0].Record.Event())
	if err != nil {
		t.Fatal(err)
	}
	if got := f.Call(batch(t, "poison", string(body))); got != `{"batchItemFailures":[{"itemIdentifier":"b"}]}` {
		t.Errorf("answered %s", got)
	}
	want := []functiontest.Delayed{{Queue: env("")["SLUICE_CHANGES_QUEUE"], Receipt: "receipt-b", Seconds: 1}}
	if got := aws.Delayed(); !slices.Equal(got, want) {
		t.Errorf("delayed %+v, want %+v", got, want)
	}
}

// Guarantees that the function starts although no AWS service answers, and that its messages are delivered again.
func TestNobodyAnswers(t *testing.T) {
	f := functiontest.Start(t, "http://127.0.0.1:9", env("config"))
	if got := f.Call(batch(t, "poison")); got != `{"batchItemFailures":[{"itemIdentifier":"a"}]}` {
		t.Errorf("answered %s", got)
	}
}

// Guarantees that invalid settings stop the function, with an error that names all of them.
func TestBadEnvironment(t *testing.T) {
	e := env("")
	e["SLUICE_KEPT_QUEUE"] = "kept"
	told := functiontest.Start(t, "http://127.0.0.1:9", e).Refusal()
	if !strings.Contains(told, "SLUICE_CONFIG_TABLE is missing") ||
		!strings.Contains(told, "SLUICE_KEPT_QUEUE must be") {
		t.Errorf("told %s", told)
	}
}
