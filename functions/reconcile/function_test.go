//go:build unix

package main

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/sluicelimits/sluice/events"
	"github.com/sluicelimits/sluice/internal/cell/table"
	"github.com/sluicelimits/sluice/internal/control"
	"github.com/sluicelimits/sluice/internal/plan"
	"github.com/sluicelimits/sluice/internal/plan/shares"
	"github.com/sluicelimits/sluice/internal/testkit/functiontest"
	"github.com/sluicelimits/sluice/streams/balancer"
	"github.com/sluicelimits/sluice/streams/reconcile"
	"github.com/sluicelimits/sluice/streams/streamstest"
)

// Guarantees that the deployed binary repairs a cell in DynamoDB, counts the drift, and finds none the next time.
func TestFunction(t *testing.T) {
	stores := functiontest.NewStores(t)
	f := functiontest.Start(t, "http://127.0.0.1:9", map[string]string{
		"AWS_ENDPOINT_URL_DYNAMODB": stores.URL,
		"SLUICE_CELL":               "eu-1", "SLUICE_CONFIG_TABLE": stores.Config, "SLUICE_GRACE": "0s",
		"SLUICE_PLANS_TABLE": stores.Names[control.Plans], "SLUICE_TENANTS_TABLE": stores.Names[control.Tenants],
		"SLUICE_KEYS_TABLE": stores.Names[control.Keys], "SLUICE_CELLS_TABLE": stores.Names[control.Cells],
	})
	stores.Put(t, control.Plans, "pro", `{"id":"pro","limits":[]}`)
	stores.Put(t, control.Tenants, "acme", `{"id":"acme","plan":"pro"}`)
	stores.Put(t, control.Tenants, "other", `{"id":"other","plan":"pro"}`)
	stores.Put(t, control.Keys, "k1", `{"hash":"`+strings.Repeat("ab", 32)+`","id":"k1","pepper":"p1","tenant":"acme"}`)
	b := balancer.New(balancer.Config{Tables: stores.Control, Meter: new(streamstest.Meter)})
	// the second cell takes a part of the first one's share, and both must acknowledge it
	for i, cell := range []string{"us-1", "eu-1"} {
		stores.Put(t, control.Cells, cell, `{"id":"`+cell+`","request":{"id":"","kind":"join","cell":"`+cell+
			`","weight":1}}`)
		if r, err := b.Run(t.Context()); err != nil || len(r.Awaited) != 2*i {
			t.Fatalf("the shares are %+v, %v; want that %d cells are awaited", r, err, 2*i)
		}
	}
	for _, want := range []int64{5, 0} {
		var got reconcile.Result
		if err := json.Unmarshal([]byte(f.Call(`{"source":"aws.events"}`)), &got); err != nil || !got.Finished ||
			got.Repaired != want || got.Drift[reconcile.Missing] != want {
			t.Errorf("%+v, %v; want %d repaired", got, err, want)
		}
	}
	d, err := stores.Cell.Get(t.Context(), table.Ref{Kind: plan.KindTenant, ID: "acme"})
	if err != nil || d[0].Version != 1 {
		t.Errorf("%+v, %v", d, err)
	}
	forged := table.Document{Ref: table.Ref{Kind: plan.KindTenant, ID: "forged"}, Version: 1,
		Body: []byte(`{"id":"forged"}`)}
	ahead := table.Document{Ref: d[0].Ref, Version: events.MaxVersion, Body: []byte(`{"id":"acme"}`)}
	noPlan := table.Document{Ref: table.Ref{Kind: plan.KindPlan, ID: "forged"}, Version: 1,
		Body: []byte(`{"id":"forged","limits":[]}`)}
	noKey := table.Document{Ref: table.Ref{Kind: plan.KindKey, ID: "forged"}, Version: 1,
		Body: []byte(`{"hash":"` + strings.Repeat("cd", 32) + `","id":"forged","pepper":"p1","tenant":"acme"}`)}
	if _, err := stores.Cell.Apply(t.Context(), []table.Document{forged, ahead, noPlan, noKey}); err != nil {
		t.Fatal(err)
	}
	for _, want := range []int64{4, 0} {
		var got reconcile.Result
		err := json.Unmarshal([]byte(f.Call(`{"source":"aws.events"}`)), &got)
		if err != nil || !got.Finished || got.Repaired != want {
			t.Errorf("after the forgery: %+v, %v; want %d repaired", got, err, want)
		}
	}
	d, err = stores.Cell.Get(t.Context(), ahead.Ref, forged.Ref)
	if err != nil || d[0].Version != 1 || d[1].Version != 0 {
		t.Errorf("what was forged is still there: %+v, %v", d, err)
	}
	if got := f.Metric("drift"); got != 9 {
		t.Errorf("drift is %v, want 9", got)
	}
	if ack, err := stores.Control.Get(t.Context(), control.Cells, shares.AckKey("eu-1")); err != nil ||
		ack.Actor != "sluice cell eu-1" {
		t.Errorf("the shares' message was lost, and the acknowledgement is %+v, %v", ack, err)
	}
	if unused := f.Unused(); len(unused) > 0 {
		t.Errorf("granted, but not needed: %q", unused)
	}
}

// Guarantees that invalid settings stop the function, with an error that names all of them.
func TestBadEnvironment(t *testing.T) {
	told := functiontest.Start(t, "http://127.0.0.1:9",
		map[string]string{"SLUICE_CELL": "eu-1", "SLUICE_GRACE": "2h"}).Refusal()
	for _, want := range []string{"SLUICE_CONFIG_TABLE", "SLUICE_PLANS_TABLE", "SLUICE_TENANTS_TABLE",
		"SLUICE_KEYS_TABLE", "SLUICE_CELLS_TABLE", "SLUICE_GRACE must be"} {
		if !strings.Contains(told, want) {
			t.Errorf("Lambda is not told of %s: %s", want, told)
		}
	}
}
