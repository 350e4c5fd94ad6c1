//go:build unix

package main

import (
	"strings"
	"testing"
	"time"

	"github.com/sluicelimits/sluice/events"
	"github.com/sluicelimits/sluice/internal/control"
	"github.com/sluicelimits/sluice/internal/plan/shares"
	"github.com/sluicelimits/sluice/internal/testkit/functiontest"
	"github.com/sluicelimits/sluice/streams/balancer"
	"github.com/sluicelimits/sluice/streams/delivery"
)

func env() map[string]string {
	return map[string]string{
		"SLUICE_PLANS_TABLE": "plans", "SLUICE_CELLS_TABLE": "cells",
		"SLUICE_TOPIC":      "arn:aws:sns:eu-west-1:123456789012:changes",
		"SLUICE_KEPT_QUEUE": "https://sqs.eu-west-1.amazonaws.com/123456789012/kept",
	}
}

// state returns the stored shares.
func state(t *testing.T, stores *functiontest.Stores) (*shares.State, control.Item) {
	t.Helper()
	item, err := stores.Control.Get(t.Context(), control.Cells, events.SharesKey)
	if err != nil {
		t.Fatal(err)
	}
	s, err := shares.DecodeState(item.Body)
	if err != nil {
		t.Fatal(err)
	}
	return s, item
}

// Guarantees that the deployed binary, with the permissions of its role, divides shares in DynamoDB when the stream
// brings a wish for cells, and goes on when the schedule calls it; that it publishes the records of the stream, and
// keeps a poison record; and that a batch that is delivered again changes nothing.
func TestFunction(t *testing.T) {
	stores, aws := functiontest.NewStores(t), functiontest.StartAWS(t)
	e := env()
	e["AWS_ENDPOINT_URL_DYNAMODB"], e["SLUICE_PLANS_TABLE"], e["SLUICE_CELLS_TABLE"] = stores.URL,
		stores.Names[control.Plans], stores.Names[control.Cells]
	f := functiontest.Start(t, aws.URL, e)
	record := func(sequence int, i control.Item) string {
		return functiontest.RecordOf(t, sequence, stores.Names[control.Cells],
			control.Delivery{Record: &control.Record{New: i}})
	}
	const idle = `{"batchItemFailures":[]}`
	if got := f.Call(`{"source":"aws.events"}`); got != idle { // no cell yet
		t.Fatalf("answered %s", got)
	}
	stores.Put(t, control.Plans, "pro",
		`{"id":"pro","limits":[{"id":"burst","algorithm":"token_bucket","rate":100,"period":"1s"}]}`)
	first := stores.Put(t, control.Cells, "eu-1",
		`{"id":"eu-1","request":{"id":"","kind":"join","cell":"eu-1","weight":1}}`)
	good := record(1, first)
	poison := strings.Replace(strings.Replace(good, `"eu-1"`, `"odd"`, 1), `"SequenceNumber":"1"`,
		`"SequenceNumber":"2"`, 1)
	for range 2 {
		if got := f.Call(`{"Records":[` + good + "," + poison + `]}`); got != idle {
			t.Fatalf("answered %s", got)
		}
	}
	s, item := state(t, stores)
	if s.Epoch != 1 || len(s.Members) != 1 || s.Members[0].Cell != "eu-1" || item.Actor != balancer.Actor ||
		item.Version != 1 {
		t.Fatalf("the shares are %+v, version %d by %s", s, item.Version, item.Actor)
	}
	if all := aws.Kept(); len(all) != 2 {
		t.Errorf("kept %q", all)
	} else if i, _, err := delivery.DecodeDeadLetter([]byte(all[0])); err != nil || i.ID != "2" {
		t.Errorf("kept %+v, %v", i, err)
	}

	if got := f.Call(`{"Records":[` + record(3, item) + `]}`); got != idle {
		t.Fatalf("answered %s", got)
	}
	var told []string
	for _, body := range aws.Published() {
		if got, err := events.Decode([]byte(body)); err != nil {
			t.Errorf("published %s, %v", body, err)
		} else {
			told = append(told, got.Header().ID)
		}
	}
	if got := strings.Join(told, " "); !strings.HasSuffix(got, "cells/"+events.SharesKey+"/1") {
		t.Errorf("published %s, and not the shares", got)
	}

	stores.Put(t, control.Cells, "us-1", `{"id":"us-1","request":{"id":"","kind":"join","cell":"us-1","weight":1}}`)
	before := time.Now()
	if got := f.Call(`{"source":"aws.events"}`); got != idle {
		t.Fatalf("answered %s", got)
	}
	if s, item = state(t, stores); item.Version < 2 || item.ChangedAt.Before(before.Add(-time.Minute)) ||
		len(s.Members)+len(s.Queue) < 2 {
		t.Errorf("the schedule's call left %+v, version %d", s, item.Version)
	}
	for name, want := range map[string]float64{"records_read": 5, "records_kept": 2, "shares_unread": 0} {
		if got := f.Metric(name); got != want {
			t.Errorf("%s is %v, want %v", name, got, want)
		}
	}
	if unused := f.Unused(); len(unused) > 0 {
		t.Errorf("granted, but not needed: %q", unused)
	}
}

// Guarantees that invalid settings stop the function, with an error that names all of them and none of their values.
func TestBadEnvironment(t *testing.T) {
	e := env()
	delete(e, "SLUICE_PLANS_TABLE")
	e["SLUICE_TOPIC"], e["SLUICE_CELL"] = "hunter2", "hunter2"
	told := functiontest.Start(t, "http://127.0.0.1:9", e).Refusal()
	for _, want := range []string{"SLUICE_PLANS_TABLE is missing", "SLUICE_TOPIC must be",
		"SLUICE_CELL is not a variable of the balancer"} {
		if !strings.Contains(told, want) {
			t.Errorf("Lambda is not told of %q: %s", want, told)
		}
	}
	if strings.Contains(told, "hunter2") {
		t.Errorf("a value is told: %s", told)
	}
}
